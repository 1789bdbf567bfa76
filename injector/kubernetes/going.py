"""What goes on in the background while a backend is open."""

import asyncio
from abc import ABC, abstractmethod
from contextlib import suppress


class Going(ABC):
    """Does its work from `start` to `close`."""

    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.get_running_loop().create_task(self._go())

    async def close(self) -> None:
        """Stop where it is."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    @abstractmethod
    async def _go(self) -> None:
        """The work; it does not end by itself."""
