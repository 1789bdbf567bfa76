"""Measures values: a recorded state is made again, the policy continues from it, and the outcomes are
counted. V after step t is the share of continuations that resolve the task. The state is made by
executing the recorded commands of steps 0 to t again in a new sandbox of the task's image, each
compared with its record; a world that does something else is another world, so such a point is refused
unless that is allowed."""

import os
import time
from asyncio import Semaphore, TaskGroup
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from uuid import uuid4

import msgspec

from orchard.injector.errors import SandboxUnsupported
from orchard.pipelines.values.calibration import wilson
from orchard.pipelines.values.continuations import (
    SOURCE,
    MeasuredPoint,
    Outcome,
    continuation,
    unanswered,
)
from orchard.pipelines.values.recorded import BEFORE
from orchard.schemas.campaigns import Timeouts
from orchard.schemas.events import RolloutAborted, RolloutFinished, make_event, payload
from orchard.schemas.llm_calls import ModelKind
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.tasks import Task
from orchard.schemas.values import MEASURED_CAMPAIGN, ValueMeasured
from orchard.workers.attempts.dependencies import AttemptDependencies
from orchard.workers.episode.divergence import Divergence, Executed, compare
from orchard.workers.episode.machine import Machine
from orchard.workers.episode.networks import network_of, refusal
from orchard.workers.episode.preparation import prepare
from orchard.workers.episode.sandboxes import SandboxFactory, SandboxMachine
from orchard.workers.failures import InfrastructureError
from orchard.workers.harnesses import planned_harness
from orchard.workers.harnesses.interface import CannotExecute, Harness

COUNT_SECONDS = 20.0
Told = Callable[[MeasuredPoint, Outcome], None]


@dataclass(frozen=True)
class Replay:
    """Divergences of a replay of recorded commands."""

    commands: int
    divergences: tuple[Divergence, ...]

    @property
    def diverged(self) -> tuple[int, ...]:
        return tuple(sorted({one.step for one in self.divergences}))

    @property
    def obstacle(self) -> Divergence | None:
        """The first divergence that is more than timing."""
        return next((one for one in self.divergences if not one.timing), None)


class PointRefused(Exception):
    """A point has no measured value; the message says why and what to do."""


@dataclass(frozen=True)
class Measurement:
    """The value of one point."""

    value: ValueMeasured
    known: bool
    """Whether the log had the value already."""
    divergences: tuple[Divergence, ...] = ()


def check_step(point: MeasuredPoint) -> None:
    """Raise PointRefused for a step that the rollout does not have, or that ended it."""
    steps, at = point.recorded.steps, point.at
    if not BEFORE <= at < steps:
        raise PointRefused(
            f"there is no step {at}: the rollout has steps 0 to {steps - 1}, and {BEFORE} is before"
        )
    if at == point.recorded.submitted:
        raise PointRefused(f"step {at} submitted the work: nothing follows it, choose an earlier step")


async def measure(
    point: MeasuredPoint, dependencies: AttemptDependencies, *, slots: int, told: Told
) -> Measurement:
    """Measure one point and publish its value, or find it in the log.

    `slots` continuations run at once; `told` is called with each outcome. Raises PointRefused,
    StreamsError, and InfrastructureError when the state could not be made.
    """
    check_step(point)
    stored = await dependencies.publisher.annotation(point.event_id)
    if stored is not None and stored.event is not None:
        data = payload(stored.event)
        if isinstance(data, ValueMeasured):
            return Measurement(data, known=True)
    began = time.monotonic()
    places = Semaphore(slots)
    outcomes: dict[int, Outcome] = {}
    async with _state(point, dependencies) as state:

        async def run(sample: int) -> None:
            async with places:
                outcomes[sample] = await continuation(point, sample, dependencies, state.machine)
            told(point, outcomes[sample])

        try:
            async with TaskGroup() as group:
                for sample in range(point.samples):
                    group.create_task(run(sample))
        except ExceptionGroup as several:
            raise several.exceptions[0] from several
    value = _value(point, [outcomes[sample] for sample in sorted(outcomes)], state, time.monotonic() - began)
    await dependencies.publisher.event(
        make_event(
            value,
            id=point.event_id,
            source=SOURCE,
            campaign=point.recorded.request.campaign,
            rollout_id=point.recorded.request.rollout_id,
            attempt=point.recorded.attempt,
        )
    )
    return Measurement(value, known=False, divergences=tuple(state.divergences.values()))


def _value(
    point: MeasuredPoint, outcomes: Sequence[Outcome], state: "_State", seconds: float
) -> ValueMeasured:
    graded = [
        one
        for one in outcomes
        if isinstance(one, RolloutFinished) and one.resolved is not None and not unanswered(one)
    ]
    if not graded:
        causes = Counter(
            one.cause.value if isinstance(one, RolloutAborted) else one.exit_status.value for one in outcomes
        )
        named = ", ".join(f"{count} x {cause}" for cause, count in causes.most_common())
        raise PointRefused(
            f"step {point.at}: infrastructure ended every continuation ({named}), so it has no value; "
            "run the command again when that is repaired"
        )
    resolved = sum(bool(one.resolved) for one in graded)
    low, high = wilson(resolved, len(graded))
    oracle = any(one.model_kind is ModelKind.ORACLE for one in graded)
    return ValueMeasured(
        step=point.at,
        model=point.model.name,
        model_kind=ModelKind.ORACLE if oracle else point.model.kind,
        samples=len(graded),
        resolved=resolved,
        value=resolved / len(graded),
        low=low,
        high=high,
        aborted=len(outcomes) - len(graded),
        replayed=state.commands,
        diverged=tuple(sorted({one.step for one in state.divergences.values()})),
        endpoint=point.model.endpoint,
        allow_divergence=point.allow_divergence,
        continuations=tuple(point.request(sample).rollout_id for sample in range(point.samples)),
        seconds=seconds,
    )


@dataclass
class _State:
    """The state of a point, in a sandbox that continuations copy."""

    point: MeasuredPoint
    base: SandboxMachine
    commands: int
    copies: bool
    """Whether a copy, which has no processes, is the same state."""
    divergences: dict[tuple[int, str], Divergence] = field(default_factory=dict)
    """Divergences of all replays, by step and text."""

    @asynccontextmanager
    async def machine(
        self, factory: SandboxFactory, task: Task, memory: str
    ) -> AsyncIterator[SandboxMachine]:
        """A copy of the base, or a new machine in which the commands are executed once more: where the
        service cannot copy, where processes keep running, and where a continuation needs more memory."""
        timeout = self.point.recorded.request.timeouts.creation
        async with AsyncExitStack() as stack:
            if self.copies and memory == self.point.recorded.memory:
                fork = factory.fork(self.base, purpose="rollout", memory=memory, timeout=timeout)
                try:
                    copy = await stack.enter_async_context(fork)
                except SandboxUnsupported:
                    self.copies = False
                else:
                    yield copy
                    return
            machine = await stack.enter_async_context(
                factory.open(
                    task.image,
                    purpose="rollout",
                    cpu=task.cpu,
                    memory=memory,
                    timeout=timeout,
                    network=network_of(task, agent=True),
                )
            )
            replayed, _ = await _replayed(self.point, machine)
            self.add(replayed)
            yield machine

    def add(self, done: Replay) -> None:
        """Remember what diverged, and refuse what may not. Raises PointRefused."""
        self.divergences.update({(one.step, one.what): one for one in done.divergences})
        obstacle = done.obstacle
        if obstacle is not None and not self.point.allow_divergence:
            raise PointRefused(
                f"step {self.point.at}: the world is not the recorded one, since in step {obstacle.step} "
                f"{obstacle.what}; --allow-divergence measures it all the same"
            )


@asynccontextmanager
async def _state(point: MeasuredPoint, dependencies: AttemptDependencies) -> AsyncIterator[_State]:
    """The point's state, made in a sandbox of its own. Raises PointRefused, InfrastructureError."""
    recorded, run = point.recorded, f"{point.event_id}.{os.getpid()}-{uuid4().hex[:8]}"
    if (why := refusal(recorded.task, dependencies.sandbox_settings.task_network)) is not None:
        raise InfrastructureError(AbortCause.INVALID_REQUEST, why)
    published = 0

    async def publish(data: msgspec.Struct) -> None:
        nonlocal published
        published += 1
        await dependencies.publisher.event(
            make_event(
                data,
                id=f"{run}.{published}",
                source=SOURCE,
                campaign=MEASURED_CAMPAIGN,
                subject=f"points/{run}",
            )
        )

    factory = SandboxFactory(
        dependencies.sandboxes,
        dependencies.sandbox_settings,
        publish,
        key=run,
        labels={"campaign": MEASURED_CAMPAIGN, "rollout": recorded.request.rollout_id},
    )
    async with factory.open(
        recorded.task.image,
        purpose="replay",
        cpu=recorded.task.cpu,
        memory=recorded.memory,
        timeout=recorded.request.timeouts.creation,
        network=network_of(recorded.task, agent=True),
    ) as base:
        done, processes = await _replayed(point, base)
        state = _State(point, base, done.commands, copies=processes == 0)
        state.add(done)
        yield state


async def _replayed(point: MeasuredPoint, machine: SandboxMachine) -> tuple[Replay, int]:
    """The replay, and how many processes it left running."""
    recorded = point.recorded
    request, task = recorded.request, recorded.task
    await prepare(task, machine, request.timeouts.creation)
    before = await _processes(machine)
    try:
        done = await replay(
            recorded.executed(point.at),
            harness=planned_harness(request.harness, request.harness_version),
            task=task,
            machine=machine,
            timeouts=request.timeouts,
        )
    except CannotExecute as error:
        raise PointRefused(f"step {point.at}: {error}, so no continuation can begin here") from error
    return done, max(await _processes(machine) - before, 0)


async def _processes(machine: SandboxMachine) -> int:
    outcome = await machine.run("set -- /proc/[0-9]*; echo $#", timeout=COUNT_SECONDS, cwd="/")
    return int(outcome.output) if outcome.output.strip().isdigit() else 0


async def replay(
    commands: Sequence[Executed], *, harness: Harness, task: Task, machine: Machine, timeouts: Timeouts
) -> Replay:
    """Execute the commands in order, in a machine in the task's first state.

    Processes that a command left in the background run again, too. Raises InfrastructureError,
    CannotExecute.
    """
    found = []
    for command in commands:
        outcome, shown = await harness.execute(command.call, task, machine, timeouts)
        divergence = compare(command, outcome, shown)
        if divergence is not None:
            found.append(divergence)
    return Replay(len(commands), tuple(found))
