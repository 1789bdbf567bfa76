"""The client's end of a file watch."""

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import msgspec

from orchard.injector import operations, wire
from orchard.injector.errors import SandboxUnavailable
from orchard.injector.event_loop import Blocking
from orchard.injector.following import events
from orchard.injector.transport import Transport


class Change(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    """Either `created`, `changed`, `removed` or `lost`: more happened than was kept, so list the directory
    again."""
    path: str = ""
    """Absolute path in the sandbox; empty for `lost`."""
    directory: bool = False


class AsyncWatch:
    """Changes below a directory within an `async with` block, none of which is missed.

    The iteration ends with the directory, or the sandbox. A lost connection raises SandboxUnavailable:
    changes meanwhile are unknown.
    """

    def __init__(self, transport: Transport, sandbox_id: str, path: str) -> None:
        self._events = events(transport, operations.WATCH.at(sandbox_id), {"path": path})
        self._over = False

    async def __aenter__(self) -> Self:
        try:
            await self._next()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self._close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        """Wait for a change; a cancelled wait ends the watch, and the next one raises SandboxUnavailable."""
        if not self._over:
            kind, _, content = await self._next()
            self._over = kind == "end"
        if self._over:
            raise StopAsyncIteration
        return msgspec.convert({"kind": kind, **wire.decode(content, dict[str, Any])}, Change)

    async def _next(self) -> tuple[str, str, bytes]:
        event = await anext(self._events, None)
        if event is None:
            raise SandboxUnavailable("the watch was cut off: begin another, and look for what changed")
        return event

    async def _close(self) -> None:
        await self._events.aclose()


class Watch(Blocking[AsyncWatch]):
    """AsyncWatch for blocking code, in a `with` block."""

    def __enter__(self) -> Self:
        self._loop.run(self._awaited.__aenter__())
        return self

    def __iter__(self) -> Iterator[Change]:
        async def one() -> Change | None:
            return await anext(self._awaited, None)

        while (change := self._loop.run(one())) is not None:
            yield change
