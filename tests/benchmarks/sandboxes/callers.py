"""Two clients for the same measurements: the SDK, and bare HTTP that shows what the SDK itself costs."""

import asyncio
import json
import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol, Self, cast
from urllib.parse import urlsplit

from orchard.injector.client import AsyncSandbox, AsyncSandboxClient


class Caller(Protocol):
    """What the measurements ask for. Every method raises when the answer is not the right one."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    async def create(self) -> str:
        """Make a sandbox; its id, once it is ready."""

    async def execute(self, sandbox_id: str, command: str | Sequence[str]) -> str:
        """Run a command that succeeds; its stdout."""

    async def delete(self, sandbox_id: str) -> None:
        """Remove it; returns when it is gone."""


class SDK:
    """`AsyncSandboxClient`, as a user has it."""

    def __init__(self, url: str, image: str, cpu: str, memory: str) -> None:
        self.client = AsyncSandboxClient(url)
        self._image, self._cpu, self._memory = image, cpu, memory
        self._sandboxes: dict[str, AsyncSandbox] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.client.close()

    async def create(self) -> str:
        """See Caller."""
        sandbox = await self.client.create_sandbox(self._image, cpu=self._cpu, memory=self._memory)
        self._sandboxes[sandbox.sandbox_id] = sandbox
        return sandbox.sandbox_id

    async def execute(self, sandbox_id: str, command: str | Sequence[str]) -> str:
        """See Caller."""
        job = await self._sandboxes[sandbox_id].exec(command if isinstance(command, str) else [*command])
        if not job.succeeded:
            raise RuntimeError(f"{command} ended with {job.exit_code}, {job.error}: {job.stderr}")
        return job.stdout

    async def delete(self, sandbox_id: str) -> None:
        """See Caller."""
        await self._sandboxes.pop(sandbox_id).delete()

    async def upload(self, sandbox_id: str, content: bytes, path: str) -> None:
        """Write a file."""
        await self._sandboxes[sandbox_id].upload_content(content, path)

    async def download(self, sandbox_id: str, path: str) -> bytes:
        """Read a file."""
        return await self._sandboxes[sandbox_id].download_content(path)


class Bare:
    """Ready-made bytes on kept connections, answers read by their Content-Length: the least one can do."""

    def __init__(self, url: str, image: str, cpu: str, memory: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._wanted = {"image": image, "cpu": cpu, "memory": memory}
        self._free: list[_Connection] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        for connection in self._free:
            connection.transport.close()

    async def create(self) -> str:
        """See Caller."""
        made = await self._call("POST", "/sandboxes", self._wanted)
        sandbox_id = str(made["sandbox_id"])
        info = await self._call("GET", f"/sandboxes/{sandbox_id}/wait?timeout=60")
        if info["status"] != "ready":
            raise RuntimeError(f"sandbox {sandbox_id}: {info['status_message']}")
        return sandbox_id

    async def execute(self, sandbox_id: str, command: str | Sequence[str]) -> str:
        """See Caller."""
        job = await self._call("POST", f"/sandboxes/{sandbox_id}/exec", {"command": command, "wait": True})
        if job["status"] != "succeeded":
            raise RuntimeError(f"{command} ended with {job['exit_code']}, {job['error']}: {job['stderr']}")
        return str(job["stdout"])

    async def delete(self, sandbox_id: str) -> None:
        """See Caller."""
        await self._call("DELETE", f"/sandboxes/{sandbox_id}")

    async def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\nIdempotency-Key: {uuid.uuid4().hex}\r\n"
        request = f"{head}Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n".encode()
        if self._free:
            connection = self._free.pop()
        else:
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(_Connection, self._host, self._port)
        status, answer = await connection.ask(request + content)
        self._free.append(connection)
        if status != 200:
            raise RuntimeError(f"{method} {path}: {status} {answer[:300]!r}")
        decoded: dict[str, Any] = json.loads(answer)
        return decoded


class _Connection(asyncio.Protocol):
    """One kept connection with one question at a time."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._data = bytearray()
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("closed before the answer"))

    def data_received(self, data: bytes) -> None:
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end < 0 or self._answer is None:
            return
        head = bytes(self._data[:end]).lower()
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(self._data) >= end + 4 + length:
            body = bytes(self._data[end + 4 : end + 4 + length])
            self._data.clear()
            self._answer.set_result((int(head.split(b" ", 2)[1]), body))

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Status and body of the answer. Raises ConnectionError when the line breaks first."""
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self._answer
