"""Graceful shutdown: no new work, time for current requests, then the end."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Drain:
    def __init__(self) -> None:
        self.begun = False
        """Whether connections are closed after their response and `/health` returns 503, so that callers
        go elsewhere."""
        self._handled = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def handling(self) -> Iterator[None]:
        self._handled += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._handled -= 1
            if not self._handled:
                self._idle.set()

    async def finish(self, timeout: float) -> None:
        """Begin, and return when no request is left or after `timeout` seconds."""
        self.begun = True
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._idle.wait()
