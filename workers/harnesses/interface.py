"""The interface of all harnesses: in-process loops, browsers and external programs."""

import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol

from orchard.schemas.campaigns import Budget, ModelSpec, Takeover, Timeouts, acting
from orchard.schemas.llm_calls import CallKind
from orchard.schemas.messages import MessageNode, ToolCall
from orchard.schemas.outcomes import ExitStatus
from orchard.schemas.tasks import Task
from orchard.workers.episode.budgets import time_left
from orchard.workers.episode.machine import CommandOutcome, Machine
from orchard.workers.episode.message_tree import MessageTree
from orchard.workers.episode.worlds import OpenWorld
from orchard.workers.gateway.recording import Recording
from orchard.workers.gateway.server import Gateway, GatewayAccess
from orchard.workers.llm.answers import Completion
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.errors import ContextLengthExceeded, OutOfTime, context_too_small


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One attempt at one task: everything a harness may touch."""

    task: Task
    machine: Machine
    model: ModelClient
    student: ModelSpec
    """The model of the rollout."""
    takeover: Takeover | None = None
    """Teacher that acts in its place from a turn on."""
    trace: MessageTree
    budget: Budget
    timeouts: Timeouts
    seconds: float = inf
    """Most seconds that the harness can take, waiting included, so that what follows has its time too."""
    seed: int
    """Passed to the endpoint as `seed`; derived from the rollout id, so every sample differs and repeats."""
    history: tuple[MessageNode, ...] = ()
    """Messages to continue from, root first. The trace has them, and their commands have run in the
    machine."""
    name: str = "attempt"
    """The attempt's rollout and number."""
    gateway: Gateway = field(default_factory=Gateway)
    world: OpenWorld | None = None
    """What the task has beside its sandbox; it then decides what is graded."""

    @property
    def spec(self) -> ModelSpec:
        """The model that acts in the present turn."""
        return acting(self.student, self.takeover, self.trace.totals.turns)

    async def ask(
        self, leaf: str, tools: Sequence[dict[str, Any]], *, pictures: int | None = None
    ) -> tuple[str, Completion]:
        """Asks the model to continue the path that ends at `leaf`; returns the new node and the completion.
        The model is shown the last `pictures` of the path, or all.

        An answer that the trace recalls from a dead attempt is not asked for again. Raises as
        ModelClient.complete does: OutOfTime if the wall clock runs out meanwhile, which a harness need not
        catch. CONTEXT_TOO_SMALL if the first prompt is too long.
        """
        spec = self.spec
        if (known := await self.trace.recalled(leaf)) is not None:
            self.model.recall(spec, known[1])
            return known
        prompt = await self.trace.prompt(leaf, pictures)
        asked = time.monotonic()
        try:
            completion = await self.model.complete(
                spec,
                prompt.messages,
                list(tools),
                seed=self.seed,
                timeout=self.timeouts.model_call,
                wall=time_left(self.trace.totals, self.budget),
            )
        except ContextLengthExceeded as error:
            if not self.trace.totals.turns:
                raise context_too_small(error) from error
            raise
        except OutOfTime:
            self.trace.waited(time.monotonic() - asked)
            raise
        if self.world is None:
            return await self.trace.answered(leaf, completion, images_shown=prompt.images), completion
        node = await self.trace.answered(
            leaf, completion, call_kind=CallKind.MAIN, tools=tools, images_shown=prompt.images
        )
        return node, completion

    def door(self) -> AbstractAsyncContextManager[GatewayAccess]:
        """Opens an address at which a program asks this episode's model, in any API, and is recorded in its
        trace. Call `recording.check()` when the program has ended, however it did."""
        recording = Recording(
            self.trace,
            self.model,
            lambda: self.spec,
            self.budget,
            seed=self.seed,
            timeout=self.timeouts.model_call,
        )
        return self.gateway.open(self.name, recording)


@dataclass(frozen=True, kw_only=True)
class HarnessResult:
    """How the loop ended by itself. Infrastructure failures are raised, never returned."""

    exit_status: ExitStatus
    submission: str
    """The diff, if a patch is judged: submitted, or the state left behind when a budget was used up."""
    leaf: str


def text_action(text: str) -> ToolCall:
    """Wraps the text of an answer as a call, for a harness without tools: the answer itself is the action."""
    return ToolCall(id="", name="", arguments=text)


class CannotExecute(Exception):
    """The call means nothing without the attempt that made it."""


class Harness(Protocol):
    """The loop around the model. Name it as a base class: optional members have their defaults here."""

    name: str
    tools: tuple[dict[str, Any], ...]
    tools_in_log: bool = False
    """Whether they differ from task to task, so that each call of the model has them in the log."""
    replayable: bool = False
    """Whether its commands, executed again in their order in a new machine, restore the state, so that an
    attempt may replay one that died. False if state is outside of the machine."""
    version: str | None = None
    """Version of the package that it is made of, for the events of its rollouts; None: Orchard's own."""
    digest: str | None = None
    """SHA-256 of the configuration that decides what its model reads."""

    async def run(self, episode: Episode) -> HarnessResult:
        """Drives the model until it submits or a budget is used up. Raises InfrastructureError."""

    async def execute(
        self,
        call: ToolCall,  # noqa: ARG002
        task: Task,  # noqa: ARG002
        machine: Machine,  # noqa: ARG002
        timeouts: Timeouts,  # noqa: ARG002
    ) -> tuple[CommandOutcome, str]:
        """Executes one recorded call as `run` does; returns its outcome and what the model is shown of it.
        Raises CannotExecute if a call needs the attempt that made it: its program, its browser, its
        services."""
        raise CannotExecute(f"a call of the harness {self.name!r} cannot be executed without its attempt")
