"""The Backend of one machine: every call goes to the agent of a state directory, over its unix socket."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import aiohttp

from orchard.injector.agent.interfaces import quantity
from orchard.injector.agent_connection import AgentConnection, AgentUnreachable
from orchard.injector.backend import SandboxAgent
from orchard.injector.errors import SandboxRequestInvalid, SandboxUnavailable
from orchard.injector.resources import resources
from orchard.injector.unix_http import ConnectionPool
from orchard.schemas.sandboxes import (
    Acknowledgement,
    Amounts,
    CreateSandbox,
    Health,
    Node,
    Resources,
    SandboxInfo,
    SandboxPod,
    SandboxStatus,
)

SOCKET = "agent.sock"
LOG = "agent.log"
ENVIRONMENT = (
    *("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "LD_LIBRARY_PATH"),
    *("ORCHARD_SANDBOX_DISK", "ORCHARD_SANDBOX_FILES", "ORCHARD_SANDBOX_COUNT", "ORCHARD_EGRESS_PRIVATE"),
    *("ORCHARD_IMAGE_LIMIT", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy"),
)
"""Variables that are passed to the agent; others may be keys."""
T = TypeVar("T")


class LocalBackend:
    """Sandboxes held by the agent of `state`.

    With `start_agent` an agent is started when none responds; without, calls raise SandboxUnavailable until
    another process has started one.
    """

    def __init__(self, state: Path, *, backend: str = "local", start_agent: bool = True) -> None:
        self._state = state
        self._backend = backend
        self._start_agent = start_agent
        self._starting = asyncio.Lock()
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        # By descriptor, because a socket's path may have only 107 bytes.
        self._directory = os.open(state, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._agent: AgentConnection | None = None

    async def open(self) -> None:
        """Connect and start the agent if needed. Raises SandboxUnavailable when it cannot start."""
        path = f"/proc/self/fd/{self._directory}/{SOCKET}"
        self._agent = AgentConnection(aiohttp.UnixConnector(path, limit=0), pool=ConnectionPool(path))
        if self._start_agent:
            await self.health()

    async def close(self) -> None:
        if self._agent is not None:
            await self._agent.close()
            self._agent = None
        os.close(self._directory)

    async def health(self) -> Health:
        return await self._call(Health, "GET", "/health")

    async def resources(self) -> Resources:
        """Report this machine and the sandboxes on it. Limits are not reservations: their sum may exceed
        it."""
        machine = Amounts(
            cpu=float(os.cpu_count() or 1),
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        )
        node = Node(name=socket.gethostname(), capacity=machine, allocatable=machine)
        return resources([node], [_pod(sandbox) for sandbox in await self.list({})])

    async def create(self, request: CreateSandbox, key: str | None) -> SandboxInfo:
        if request.gpus or request.volumes:
            raise SandboxRequestInvalid(
                "only sandboxes of a cluster have GPUs and volumes: leave `gpus` and `volumes` out, and"
                " upload what commands need"
            )
        return await self._call(SandboxInfo, "POST", "/sandboxes", body=request, key=key)

    async def get(self, sandbox_id: str) -> SandboxInfo:
        return await self.agent(sandbox_id).call(SandboxInfo, "GET", "/sandboxes/{id}")

    async def wait(self, sandbox_id: str, timeout: float) -> SandboxInfo:
        params = {"timeout": str(timeout)}
        return await self.agent(sandbox_id).call(SandboxInfo, "GET", "/sandboxes/{id}/wait", params=params)

    async def list(self, labels: Mapping[str, str]) -> list[SandboxInfo]:
        params = [("label", f"{name}={value}") for name, value in labels.items()]
        return await self._call(list[SandboxInfo], "GET", "/sandboxes", params=params)

    async def delete(self, sandbox_id: str) -> None:
        await self.agent(sandbox_id).call(Acknowledgement, "DELETE", "/sandboxes/{id}")

    def agent(self, sandbox_id: str) -> SandboxAgent:
        return _Agent(self, quote(sandbox_id, safe=""))

    def images(self) -> SandboxAgent:
        return _Agent(self, "")

    @property
    def _connected(self) -> AgentConnection:
        if self._agent is None:
            raise SandboxUnavailable("the backend is not open")
        return self._agent

    async def _call(self, kind: type[T], method: str, path: str, **options: Any) -> T:
        try:
            return await self._connected.call(kind, method, path, **options)
        except AgentUnreachable:
            if not self._start_agent:
                raise
        await self._ensure_agent()
        return await self._connected.call(kind, method, path, **options)

    async def _ensure_agent(self) -> None:
        async with self._starting:
            try:
                await self._connected.call(Health, "GET", "/health")
            except AgentUnreachable:
                await _launch(self._state, backend=self._backend)


class _Agent(NamedTuple):
    """The machine's agent, addressed about one sandbox."""

    backend: LocalBackend
    name: str
    """The sandbox's id, quoted for a path."""

    async def call(self, kind: type[T], method: str, path: str, **options: Any) -> T:
        return await self.backend._call(kind, method, path.replace("{id}", self.name), **options)

    def stream(
        self, path: str, params: Mapping[str, str]
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self.backend._connected.stream(path.replace("{id}", self.name), params)

    async def line(self, path: str) -> aiohttp.ClientWebSocketResponse:
        return await self.backend._connected.line(path.replace("{id}", self.name))


_PHASES = {SandboxStatus.READY: "Running", SandboxStatus.FAILED: "Failed", SandboxStatus.NOT_FOUND: "Failed"}


def _pod(sandbox: SandboxInfo) -> SandboxPod:
    return SandboxPod(
        name=sandbox.pod_name,
        namespace=sandbox.namespace,
        phase=_PHASES.get(sandbox.status, "Pending"),
        cpu_request=quantity(sandbox.cpu),
        memory_request_bytes=int(quantity(sandbox.memory)),
    )


def agent_command(state: Path, *, backend: str = "local", parent_pid: int | None = None) -> list[str]:
    line = [sys.executable, "-P", "-m", "orchard.injector.agent", "--state", str(state), "--backend", backend]
    return line if parent_pid is None else [*line, "--parent-pid", str(parent_pid)]


async def _launch(state: Path, *, backend: str = "local") -> None:
    """Start an agent as a process of its own, which outlives this one, and wait until it serves.

    Raises SandboxUnavailable with its error message.
    """
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    reader, writer = os.pipe()
    environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    environment |= {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with (state / LOG).open("ab") as log:
        begin = log.tell()
        try:
            process = await asyncio.create_subprocess_exec(
                *agent_command(state, backend=backend),
                "--ready-fd",
                str(writer),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(writer,),
                env=environment,
                start_new_session=True,
            )
        finally:
            os.close(writer)
    with os.fdopen(reader, "rb") as ready:
        if await asyncio.to_thread(ready.read, 1):
            return
    await process.wait()
    complaint = (state / LOG).read_bytes()[begin:].decode(errors="replace").strip()
    raise SandboxUnavailable(f"the sandbox agent did not start: {complaint}", reason="agent_not_started")
