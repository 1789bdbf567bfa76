"""Grading what an attempt handed in, bounded in time, with judges that may rest."""

import asyncio
import itertools
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from orchard.schemas.campaigns import RolloutRequest
from orchard.schemas.outcomes import AbortCause, Reward
from orchard.schemas.tasks import Task
from orchard.workers.attempts.dependencies import AttemptDependencies
from orchard.workers.episode.machine import Machine
from orchard.workers.failures import EndpointRests, InfrastructureError
from orchard.workers.graders import grade
from orchard.workers.judges.ruling import Judges


class AttemptGrading:
    """The grading of one attempt. `open_sandbox` opens a sandbox of a task for a purpose; `replayable` says
    whether another attempt could begin again where this one asked a judge."""

    def __init__(
        self,
        dependencies: AttemptDependencies,
        request: RolloutRequest,
        open_sandbox: Callable[[Task, str], AbstractAsyncContextManager[Machine]],
        judges: Judges,
        *,
        replayable: bool,
    ) -> None:
        self._dependencies = dependencies
        self._request = request
        self._open_sandbox = open_sandbox
        self._judges = judges
        self._replayable = replayable
        self.seconds = 0.0
        """That it has taken."""

    async def reward(self, task: Task, submission: str, machine: Machine, limit: float) -> Reward:
        """The reward, in `limit` seconds. Raises as `grade` does."""
        while True:
            try:
                return await self._once(task, submission, machine, limit)
            except EndpointRests as rest:
                if self._replayable:
                    raise
                # What cannot be replayed would be asked and paid a second time: wait for the judge here.
                await self._dependencies.models.rest_over(rest)

    async def _once(self, task: Task, submission: str, machine: Machine, limit: float) -> Reward:
        started = time.monotonic()
        controls = itertools.count(1)  # a sandbox's purpose is part of its idempotency key
        try:
            async with asyncio.timeout(limit) as bound:
                return await grade(
                    task,
                    submission,
                    machine,
                    timeout=limit,
                    blobs=self._dependencies.blobs,
                    pristine=lambda: self._open_sandbox(task, f"control-{next(controls)}"),
                    published=self._request.published_rules,
                    judges=self._judges,
                    controls=self._dependencies.controls,
                )
        except TimeoutError as error:
            if not bound.expired():
                raise
            raise InfrastructureError(
                AbortCause.GRADER_FAILED, f"grading was not over after {limit:g} s"
            ) from error
        finally:
            self.seconds += time.monotonic() - started
