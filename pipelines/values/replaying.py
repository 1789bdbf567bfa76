"""Executing recorded commands again, and telling what the world did differently."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from orchard.pipelines.values.recorded import Executed
from orchard.schemas.campaigns import Timeouts
from orchard.schemas.messages import MessageNode
from orchard.schemas.tasks import Task
from orchard.workers.harnesses.interface import Harness
from orchard.workers.machine import CommandOutcome, Machine
from orchard.workers.trace import output_sha256

_DURATION = re.compile(r"\b(?:\d+m ?)?\d+(?:\.\d+)? ?(?:ns|us|µs|ms|s|secs?|seconds?)\b")
_LISTED = re.compile(
    r"^([-bcdlps][-rwxsStT]{9}[.+@]? .*?) [A-Z][a-z]{2} [ \d]\d (?:\d\d:\d\d| \d{4})(?= )", re.M
)
_SHOWN = 80


@dataclass(frozen=True)
class Divergence:
    """A command that did not do what is recorded of it."""

    step: int
    what: str
    """In words, for a sentence that goes on after the step."""
    timing: bool
    """Nothing differs but durations, and times of files in a long listing."""


@dataclass(frozen=True)
class Replay:
    """What came of executing recorded commands again."""

    commands: int
    divergences: tuple[Divergence, ...]

    @property
    def diverged(self) -> tuple[int, ...]:
        """The steps, each once."""
        return tuple(sorted({one.step for one in self.divergences}))

    @property
    def obstacle(self) -> Divergence | None:
        """The first divergence that is more than timing."""
        return next((one for one in self.divergences if not one.timing), None)


async def replay(
    commands: Sequence[Executed], *, harness: Harness, task: Task, machine: Machine, timeouts: Timeouts
) -> Replay:
    """Execute the commands, in their order, in a machine that is as the task begins.

    Processes that a command left behind in the background run again, too. Raises InfrastructureError.
    """
    found = []
    for command in commands:
        outcome, shown = await harness.execute(command.call, task, machine, timeouts)
        divergence = compare(command, outcome, shown)
        if divergence is not None:
            found.append(divergence)
    return Replay(len(commands), tuple(found))


def compare(command: Executed, outcome: CommandOutcome, shown: str) -> Divergence | None:
    """What differs between the record and an `outcome`, of which the model would be `shown` so much."""
    recorded, result = command.node, command.node.result
    if result is None:
        raise ValueError(f"the message {recorded.node_id} is no result of a command")
    said = f"`{_short(command.call.arguments)}`"
    if outcome.returncode != result.returncode or outcome.timed_out != result.timed_out:
        what = f"{said} returned {_ending(outcome)} where {_recorded_ending(recorded)} is recorded"
        return Divergence(command.step, what, timing=False)
    if output_sha256(outcome.output) == result.output_sha256:
        return None
    # Of an output that is cut, the rest of the record is its hash alone: it may differ in anything.
    whole = outcome.output.strip() in shown
    timing = whole and timeless(shown) == timeless(recorded.content)
    than = "times than are recorded, and nothing else" if timing else "things than are recorded"
    return Divergence(command.step, f"{said} printed other {than}", timing)


def timeless(text: str) -> str:
    """The text without its durations, such as `0.012s`, and without the times in what `ls -l` prints."""
    return _DURATION.sub("#", _LISTED.sub(r"\1 #", text))


def _ending(outcome: CommandOutcome) -> str:
    return "no code in time" if outcome.timed_out else str(outcome.returncode)


def _recorded_ending(node: MessageNode) -> str:
    assert node.result is not None
    return "none in time" if node.result.timed_out else str(node.result.returncode)


def _short(arguments: str) -> str:
    line = " ".join(arguments.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."
