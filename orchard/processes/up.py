"""`orchard up`: the whole pipeline as one foreground process tree, each process restarted when it ends.

Start order is dependency order, stop order its reverse: workers drain first, the writer commits what they
said, the NATS server ends last. Every child dies with this process, also when it is killed. Where the start
fails or what runs with the pipeline does, workers hand back what runs at once.
"""

import asyncio
import fcntl
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

import msgspec

from orchard.actions.expected_stream import expected
from orchard.configuration.config import Config, ConfigError
from orchard.configuration.run_files import UNSAFE_HOST, RunFiles, UpRecord
from orchard.injector.local.backend import SOCKET
from orchard.processes.machine import insist
from orchard.processes.ports import accepts, free_port, listening
from orchard.processes.server_supervisor import ServerSupervisor
from orchard.processes.signals import die_with_parent
from orchard.schemas.addresses import check_base_path
from orchard.storage.location import Location
from orchard.storage.lock import writer_of
from orchard.streams.connection import connect
from orchard.streams.disk_space import disk_shortage
from orchard.streams.errors import StreamsError
from orchard.streams.loopback import loopback, url_host
from orchard.streams.server import EmbeddedServer, embedded
from orchard.streams.stream_check import StreamGuard, guarded
from orchard.streams.tasks import end
from orchard.streams.topology import declare

READY_SECONDS = 180.0
SERVICES = ("agent", "orchestrator", "oracle")
"""Children that must be ready before others start; the others wait for what they need."""
WATCH_AGAIN_SECONDS = 15.0


@dataclass
class Child:
    """A process of the tree."""

    name: str
    command: list[str]
    stop_seconds: float
    descriptors: tuple[int, ...] = ()
    """Open descriptors of this process that the child inherits under the same numbers."""
    cleans_up_alone: bool = False
    """Whether the child notices the end of its parent and cleans up, so that the kernel must not kill it."""
    process: asyncio.subprocess.Process | None = None
    restarts: int = 0
    failed: bool = False
    """Whether its last exit was a failure of its own."""
    monitor: asyncio.Task[None] | None = None


@dataclass
class Supervisor:
    """Starts, watches, restarts and stops the children of one store, from one state directory."""

    config: Config
    announce: Callable[[str], None]
    environment: Mapping[str, str] = field(default_factory=dict)
    _children: list[Child] = field(default_factory=list)
    _stopping: bool = False
    _ready: bool = False
    _hurried: bool = False
    _nats_url: str = ""
    _pids: dict[str, int] = field(default_factory=dict)
    _ports: dict[str, int] = field(default_factory=dict)
    _page: socket.socket | None = None
    """Socket of the page, open from the start: the port stays reserved, and requests wait while the page
    restarts."""

    async def run(self, stop: asyncio.Event, ready: asyncio.Event | None = None) -> None:
        """Runs until `stop` is set. Raises ConfigError if another `up` holds the store, or the machine lacks
        what it needs."""
        await asyncio.to_thread(insist, self.config)
        files = RunFiles(self.config.directory)
        files.logs.mkdir(parents=True, exist_ok=True)
        async with AsyncExitStack() as stack:
            stack.enter_context(_locked(files.lock))
            await asyncio.to_thread(self._check_stream_is_here)
            self._ports = {name: free_port() for name in ("nats", "sandbox", "oracle")}
            if self.config.up.page:
                self._page = stack.enter_context(listening(self.config.up.page_port))
            if self.config.nats.url is None:
                server = embedded(self.config.directory, self.config.nats, port=self._ports["nats"])
                await server.start()
                self._nats_url = server.url
                stack.push_async_callback(server.stop)
                stack.push_async_callback(end, asyncio.create_task(self._supervise_server(server)))
                self._pids["nats"] = server.pid
            stack.push_async_callback(end, asyncio.create_task(self._watch_stream()))
            _write_private(files.key, secrets.token_hex(24))
            stack.callback(files.record.unlink, missing_ok=True)
            stack.push_async_callback(self._stop_children)
            starting = asyncio.create_task(self._start_children())
            stopping = asyncio.create_task(stop.wait())
            try:
                await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if starting.done():
                    starting.result()
                    self._ready = True
                    if ready is not None:
                        ready.set()
                    await stopping
            finally:
                self._stopping = True
                await end(starting)
                await end(stopping)

    def _check_stream_is_here(self) -> None:
        """Checks that no other `up` works on the store, whose event stream would be in the other's state
        directory. Raises ConfigError."""
        location = Location.parse(self.config.store)
        if self.config.nats.url or location.is_s3 or (self.config.directory / "nats").exists():
            return
        if (holder := writer_of(location)) is not None:
            raise ConfigError(
                f"another `orchard up` or `orchard writer` (process {holder}) works on the store "
                f"{location.url}, and the state directory {self.config.directory} has none of its events: "
                "stop it, give its --state, or choose another store"
            )

    def hurry(self) -> None:
        """Stops without waiting for running rollouts, which go back to the queue at once."""
        self._hurried = True

    @property
    def _store(self) -> str:
        """Absolute location of the store: children may work in other folders."""
        store = self.config.store
        return store if "://" in store else str(Path(store).expanduser().absolute())

    @property
    def nats_url(self) -> str:
        """Address of the embedded server, with its token, or the configured one."""
        return self.config.nats.url or self._nats_url

    @property
    def sandbox_url(self) -> str:
        """Address of this machine's orchestrator, or the configured one."""
        own = f"http://{url_host()}:{self._ports['sandbox']}"
        return own if self._own_sandboxes else str(self.config.sandbox.url)

    @property
    def _own_sandboxes(self) -> bool:
        """Whether sandboxes run on this machine, isolated or not."""
        return self.config.sandbox.url in (None, UNSAFE_HOST)

    @property
    def oracle_url(self) -> str | None:
        """Address of the oracle teacher; None if it does not run."""
        return f"http://{url_host()}:{self._ports['oracle']}/v1" if self.config.up.oracle else None

    @property
    def page_url(self) -> str | None:
        """Address of the page; None if it does not run."""
        if self._page is None:
            return None
        base = check_base_path(self.config.up.page_base_path)
        return f"http://{url_host()}:{self.page_port}{base}/"

    @property
    def page_port(self) -> int:
        """Port of the page, another than the configured one where that is taken; 0 if it does not run."""
        return int(self._page.getsockname()[1]) if self._page else 0

    async def _start_children(self) -> None:
        """Starts everything. Raises ConfigError if a service fails or is not ready in time."""
        for child in self._plan():
            self._children.append(child)
            await self._start(child)
            child.monitor = asyncio.create_task(self._monitor(child))
        await self._services_ready()

    def _plan(self) -> list[Child]:
        orchard = [sys.executable, "-P", "-m", "orchard"]
        python = [sys.executable, "-P", "-m"]
        shutdown = self.config.up.shutdown_seconds
        plan = [
            Child("writer", [*orchard, "writer"], stop_seconds=60.0),
            Child("steward", [*orchard, "steward"], stop_seconds=5.0),
        ]
        if self._own_sandboxes:
            where = ["--state", str(self.config.directory / "sandboxes")]
            where += ["--backend", UNSAFE_HOST] if self.config.sandbox.url == UNSAFE_HOST else []
            serve = ["--host", loopback(), "--port", str(self._ports["sandbox"]), "--agent", "external"]
            plan += [
                Child(
                    "agent",
                    [*python, "orchard.injector.agent", *where, "--parent-pid", str(os.getpid())],
                    stop_seconds=60.0,
                    cleans_up_alone=True,
                ),
                Child(
                    "orchestrator",
                    [*python, "orchard.injector.orchestrator", *where, *serve],
                    stop_seconds=10.0,
                ),
            ]
        if self.config.up.oracle:
            plan.append(
                Child("oracle", [*orchard, "oracle", "--port", str(self._ports["oracle"])], stop_seconds=5.0)
            )
        if self._page is not None:
            at = self._page.fileno()
            command = [*orchard, "ui", "--listening", str(at), "--base-path", self.config.up.page_base_path]
            command += [word for host in self.config.up.page_hosts for word in ("--allowed-host", host)]
            plan.append(Child("page", command, stop_seconds=5.0, descriptors=(at,)))
        workers = range(1, self.config.up.workers + 1)
        plan += [
            Child(
                f"worker-{n}",
                [*orchard, "worker", "--name", f"worker-{n}", "--kinds", "all"],
                stop_seconds=shutdown + 30,
            )
            for n in workers
        ]
        return plan

    def _child_environment(self, child: Child) -> dict[str, str]:
        """Environment of a child: only workers get the keys of models."""
        keys = {endpoint.api_key_env for endpoint in self.config.endpoints.values()}
        secret = set() if child.name.startswith("worker-") else keys
        environment = {
            **{name: value for name, value in os.environ.items() if name not in secret},
            **self.environment,
            "ORCHARD_STORE": self._store,
            "ORCHARD_STATE": str(self.config.directory),
            "ORCHARD_NATS__URL": self.nats_url,
            "ORCHARD_SANDBOX__URL": self.sandbox_url,
            "PYTHONUNBUFFERED": "1",
        }
        if self._own_sandboxes:  # another service's key is in our environment
            environment[self.config.sandbox.api_key_env] = RunFiles(self.config.directory).key.read_text()
        if self.oracle_url:
            environment["ORCHARD_ENDPOINTS__ORACLE__BASE_URL"] = self.oracle_url
        return environment

    async def _start(self, child: Child) -> None:
        path = RunFiles(self.config.directory).logs / f"{child.name}.log"
        with path.open("ab") as output:
            child.process = await asyncio.create_subprocess_exec(
                *child.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._child_environment(child),
                pass_fds=child.descriptors,
                preexec_fn=None if child.cleans_up_alone else die_with_parent,
                # A Ctrl-C at the terminal is ours to pass on, in order.
                start_new_session=True,
            )
        self._pids[child.name] = child.process.pid
        self._write_record()

    def _write_record(self) -> None:
        record = UpRecord(
            pid=os.getpid(),
            nats_url=self.nats_url,
            sandbox_url=self.sandbox_url,
            oracle_url=self.oracle_url,
            page_url=self.page_url,
            children=self._pids,
        )
        path = RunFiles(self.config.directory).record
        temporary = path.with_suffix(".new")
        _write_private(temporary, msgspec.json.encode(record).decode())
        temporary.replace(path)

    async def _monitor(self, child: Child) -> None:
        """Restarts `child` whenever it exits, until `stop`."""
        while True:
            assert child.process is not None
            code = await child.process.wait()
            if self._stopping:
                return
            child.failed = code > 0
            child.restarts += 1
            log_path = RunFiles(self.config.directory).logs / f"{child.name}.log"
            self.announce(f"{child.name} ended ({_reason(code)}), starting it again; its log: {log_path}")
            pause = min(self.config.up.restart_seconds * 2 ** min(child.restarts - 1, 5), 15.0)
            await asyncio.sleep(pause if code > 0 else self.config.up.restart_seconds)
            await self._start(child)

    async def _supervise_server(self, server: EmbeddedServer) -> None:
        def started() -> None:
            self._pids["nats"] = server.pid
            self._write_record()

        pause = self.config.up.restart_seconds
        await ServerSupervisor(server, self.config.nats, self.announce, started, pause).run()

    async def _watch_stream(self) -> None:
        """Reports when workers pause and why; the children check for themselves."""
        nats = self.config.nats
        room = (
            None
            if nats.url
            else partial(asyncio.to_thread, disk_shortage, self.config.directory / "nats", nats)
        )
        while True:
            try:
                async with connect(nats, name="up", url=self.nats_url) as connection:
                    await declare(connection, nats, [])
                    look = partial(expected, self.config.store, self.config.archive)
                    guard = StreamGuard(connection, nats, look, room=room, on_change=self.announce)
                    async with guarded(guard, connection, hold=True):
                        await asyncio.Event().wait()
            except StreamsError as error:
                self.announce(f"the stream of events is not watched just now: {error}")
                await asyncio.sleep(WATCH_AGAIN_SECONDS)

    async def _services_ready(self) -> None:
        """Waits until every local service accepts connections."""
        services: list[tuple[str, int | Path]] = []
        if self._own_sandboxes:
            services.append(("agent", self.config.directory / "sandboxes" / SOCKET))
            services.append(("orchestrator", self._ports["sandbox"]))
        if self.config.up.oracle:
            services.append(("oracle", self._ports["oracle"]))
        for name, address in services:
            try:
                async with asyncio.timeout(READY_SECONDS):
                    while not await accepts(address):
                        self._check_services()
                        await asyncio.sleep(0.05)
            except TimeoutError as error:
                path = RunFiles(self.config.directory).logs / f"{name}.log"
                raise ConfigError(f"{name} did not start within {READY_SECONDS:g} s: read {path}") from error

    def _check_services(self) -> None:
        """Raises ConfigError if a service exits before all are ready."""
        for child in self._children:
            if child.failed and child.name in SERVICES:
                path = RunFiles(self.config.directory).logs / f"{child.name}.log"
                lines = path.read_text(errors="replace").splitlines() or ["no output"]
                raise ConfigError(f"{child.name} could not start ({lines[-1].strip()}): read {path}")

    async def _stop_children(self) -> None:
        """Stops children in reverse order of start; equal kinds, such as workers, together."""
        self._stopping = True
        self._hurried = self._hurried or not self._ready
        workers = [child for child in self._children if child.name.startswith("worker-")]
        others = [child for child in self._children if child not in workers]
        for group in [workers, *([child] for child in reversed(others))]:
            await asyncio.gather(*(self._stop(child) for child in group))

    async def _stop(self, child: Child) -> None:
        if child.monitor is not None:
            await end(child.monitor)
        process = child.process
        if process is not None and process.returncode is None:
            _signal(process, signal.SIGTERM)
            if self._hurried and child.name.startswith("worker-"):
                _signal(process, signal.SIGINT)  # the second signal: it waits for nothing that runs
            try:
                async with asyncio.timeout(child.stop_seconds):
                    await process.wait()
            except TimeoutError:
                self.announce(f"{child.name} did not end within {child.stop_seconds:g} s and is killed")
                _signal(process, signal.SIGKILL)
                await process.wait()


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except ProcessLookupError:
        return  # it has ended by itself


def _reason(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


class _locked:
    """Takes the store's lock, which this process holds until it ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None

    def __enter__(self) -> None:
        self._file = self._path.open("a")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise ConfigError(
                f"another `orchard up` runs on {self._path.parent.parent}: stop it, or choose another "
                "--store or --state"
            ) from None

    def __exit__(self, *_: object) -> None:
        assert self._file is not None
        self._file.close()
