"""Continuations: rollouts that begin in the middle of another one, in its state and with its messages.

Each is a rollout of its own in the campaign `measured`, and the log has all of it: that is the
evidence of a measured value, a stopped command resumes with the finished ones, and more samples add to
them. A continuation's messages begin with those of the rollout that it continues, under the same node
ids, so its tree is whole and is at the same time a branch of the other. Because these messages are in
the log already, datasets leave the campaign out unless it is named.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import cached_property

import msgspec

from orchard.pipelines.campaigns.commands import requested_event
from orchard.pipelines.values.recorded import Recorded
from orchard.schemas.campaigns import ModelSpec, RolloutRequest
from orchard.schemas.events import (
    AttemptReleased,
    RolloutAborted,
    RolloutFinished,
    done_payload,
)
from orchard.schemas.identity import digest
from orchard.schemas.messages import MessageNode
from orchard.schemas.outcomes import ExitStatus
from orchard.schemas.tasks import Task
from orchard.schemas.values import MEASURED_CAMPAIGN
from orchard.streams.errors import OutcomeRefused, StreamsError
from orchard.workers.attempts.attempt_sandboxes import Beginning
from orchard.workers.attempts.dependencies import AttemptDependencies
from orchard.workers.attempts.reopen import opened
from orchard.workers.attempts.retries import Abort, after_failure
from orchard.workers.attempts.rollout import Attempt
from orchard.workers.episode.sandboxes import SandboxFactory, SandboxMachine
from orchard.workers.failures import EndpointRests, InfrastructureError

Outcome = RolloutFinished | RolloutAborted
Machines = Callable[[SandboxFactory, Task, str], AbstractAsyncContextManager[SandboxMachine]]
"""Opens machines in the state to continue from; see `Beginning.machine`."""

SOURCE = "orchard/measure"


@dataclass(frozen=True, kw_only=True)
class MeasuredPoint:
    """One step of one rollout, whose value is asked for."""

    recorded: Recorded
    at: int
    model: ModelSpec
    """The policy that continues."""
    samples: int
    allow_divergence: bool = False

    @cached_property
    def history(self) -> tuple[MessageNode, ...]:
        """The messages to continue from."""
        return self.recorded.until(self.at)

    @property
    def event_id(self) -> str:
        """Id of the measurement's event: the same question has the same id."""
        return digest(["measurement", *self._identity, self.samples])

    def request(self, sample: int) -> RolloutRequest:
        """The request of one continuation. It does not depend on how many there are, so that more can be
        added."""
        return msgspec.structs.replace(
            self.recorded.request,
            rollout_id=digest(["continuation", *self._identity, sample]),
            campaign=MEASURED_CAMPAIGN,
            model=self.model,
            sample=sample,
            attempt_base=0,
            failures=0,
            fence=0,
            memory=self.recorded.memory,
        )

    @property
    def _identity(self) -> list[object]:
        origin = self.recorded
        leaf = self.history[-1].node_id
        return [
            *(origin.request.rollout_id, origin.attempt, self.at, leaf),
            *(self.model, self.allow_divergence),
        ]


async def continuation(
    point: MeasuredPoint, sample: int, dependencies: AttemptDependencies, machines: Machines
) -> Outcome:
    """The outcome of one continuation: that of the log where it has one, else by running it now.

    One that infrastructure aborted runs again, and so does one that nobody answered, as often as the request
    allows attempts to fail. Raises StreamsError.
    """
    asked = point.request(sample)
    publisher = dependencies.publisher
    beginning = Beginning(history=point.history, spent=point.recorded.spent(point.at), machine=machines)
    outcome: Outcome | None = None
    for _ in range(asked.max_tries):
        known = await publisher.outcome(asked.rollout_id)
        if known is None:
            await publisher.event(requested_event(asked))
        elif isinstance(data := done_payload(known.event), RolloutFinished) and not unanswered(data):
            return data
        again = await opened(
            publisher,
            [(asked, known)],
            reason="measured again",
            source=SOURCE,
            ended=(ExitStatus.UNANSWERED,),
        )
        if not again:
            raise StreamsError(f"rollout {asked.rollout_id} is being measured by another process: try again")
        outcome = await run_to_outcome(again[0], dependencies, beginning)
        if not unanswered(outcome):
            break
    assert outcome is not None
    return outcome


def unanswered(outcome: Outcome) -> bool:
    """Whether the time ran out while the model owed an answer, which says nothing of the policy."""
    return isinstance(outcome, RolloutFinished) and outcome.exit_status is ExitStatus.UNANSWERED


async def run_to_outcome(
    request: RolloutRequest, dependencies: AttemptDependencies, beginning: Beginning | None = None
) -> Outcome:
    """Run attempts until one has an outcome or infrastructure has cost as many as the request allows."""
    while True:
        attempt = await Attempt.begin(dependencies, request, sequence=0, deliveries=1, beginning=beginning)
        outcome: Outcome
        try:
            outcome = await attempt.run()
        except EndpointRests as rest:
            await attempt.publish(
                AttemptReleased(
                    reason="resting", cause=rest.cause, detail=rest.detail, retry_in_seconds=rest.seconds
                )
            )
            await dependencies.models.rest_over(rest)
            continue
        except InfrastructureError as error:
            failures = request.failures + 1
            step = after_failure(
                error,
                failures=failures,
                max_tries=request.max_tries,
                memory=attempt.memory,
                override=request.memory,
                max_memory=dependencies.sandbox_settings.max_memory,
            )
            if not isinstance(step, Abort):
                await attempt.publish(
                    AttemptReleased(
                        reason="infrastructure",
                        cause=error.cause,
                        detail=error.detail,
                        retry_in_seconds=step.delay,
                    )
                )
                await asyncio.sleep(step.delay)
                request = msgspec.structs.replace(request, failures=failures, memory=step.memory)
                continue
            outcome = attempt.aborted(step.cause, error.detail, failures)
        try:
            await dependencies.publisher.terminal(attempt.event(outcome, "done"), fence=request.fence)
        except OutcomeRefused as refused:
            # Another process measures the same; what it had accepted is the outcome.
            accepted = done_payload(refused.event)
            if isinstance(accepted, RolloutFinished | RolloutAborted):
                return accepted
            raise
        return outcome
