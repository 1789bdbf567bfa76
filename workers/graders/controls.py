"""Controls: the same check without the agent tells whose doing it is that a check reached no verdict."""

import asyncio
from collections.abc import Awaitable, Callable

from orchard.schemas.tasks import Task, task_hash
from orchard.workers.episode.networks import SHUT, asked
from orchard.workers.graders.endings import STEADY, Ending


class Controls:
    """What controls have shown, by task: of one worker, so that each task costs it one."""

    def __init__(self) -> None:
        self._known: dict[str, Ending] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    async def of(self, task: Task, run: Callable[[], Awaitable[Ending]]) -> Ending:
        """How the task's check ends without the agent: as it is known, else by running it now."""
        key = task_hash(task)
        async with self._turns.setdefault(key, asyncio.Lock()):
            if key not in self._known:
                ending = await run()
                if not _repeats(task, ending):
                    return ending
                self._known[key] = ending
            return self._known[key]


def _repeats(task: Task, ending: Ending) -> bool:
    """Whether it would end so again: not where a network or a busy machine may have had a part in it."""
    return asked(task) == SHUT and (ending.lack is None or ending.lack in STEADY)
