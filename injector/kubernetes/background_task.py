"""A background task with start() and close()."""

import asyncio
from abc import ABC, abstractmethod
from contextlib import suppress


class BackgroundTask(ABC):
    """Runs `_go` from `start` to `close`."""

    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._go())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    @abstractmethod
    async def _go(self) -> None: ...
