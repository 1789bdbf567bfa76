"""The client's end of a job's output stream."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator

import msgspec

from orchard.injector import operations
from orchard.injector.errors import SandboxUnavailable
from orchard.injector.transport import FIRST_PAUSE, Transport
from orchard.schemas.sandboxes import JobEnding, JobStatus

LONGEST_EVENT = 1024 * 1024


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a command's output."""

    stream: str
    """Either `stdout` or `stderr`."""
    data: bytes
    offset: str
    """Offset after it, from which to resume."""
    skipped: int = 0
    """Bytes before it that were not kept."""

    @property
    def text(self) -> str:
        """The data as UTF-8; a character cut by the end of a piece becomes a replacement character."""
        return self.data.decode(errors="replace")


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """The command's end, after which nothing comes. Its fields are those of a job."""

    status: JobStatus
    exit_code: int | None
    error: str | None
    timed_out: bool
    oom_killed: bool
    stdout_bytes: int
    stderr_bytes: int
    offset: str
    ending: JobEnding | None = None
    output_open: bool = False


class _Data(msgspec.Struct, frozen=True):
    data: bytes
    skipped: int = 0


async def follow(
    transport: Transport, job_id: str, offset: str, patience: float
) -> AsyncIterator[Output | Exit]:
    """Yield a job's output from `offset` to its exit, reconnecting as needed; see `AsyncSandbox.follow`."""
    path = operations.FOLLOW.at(job_id)
    failing: float | None = None
    while True:
        try:
            async for name, at, content in events(transport, path, {"offset": offset}):
                if name == "exit":
                    yield msgspec.convert({**msgspec.json.decode(content), "offset": at}, Exit)
                    return
                piece = msgspec.json.decode(content, type=_Data)
                yield Output(stream=name, data=piece.data, offset=at, skipped=piece.skipped)
                offset, failing = at, None
        except SandboxUnavailable:
            failing = failing or time.monotonic()
            if time.monotonic() - failing > patience:
                raise
        # A service that ends may close the line in order: the job goes on, and so does who follows it.
        await asyncio.sleep(FIRST_PAUSE)


async def events(
    transport: Transport, path: str, params: dict[str, str]
) -> AsyncGenerator[tuple[str, str, bytes], None]:
    """Yield name, id and data of each complete event of one response."""
    left = b""
    async for piece in transport.events(path, params):
        *whole, left = (left + piece).split(b"\n\n")
        if len(left) > LONGEST_EVENT:
            raise SandboxUnavailable("an event of the service has no end")
        for event in whole:
            fields = dict(line.partition(b": ")[::2] for line in event.split(b"\n"))
            if b"event" in fields:
                yield fields[b"event"].decode(), fields.get(b"id", b"").decode(), fields[b"data"]
