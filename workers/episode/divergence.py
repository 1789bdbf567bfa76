"""Compares what a recorded command did with what it does when it is executed again."""

import hashlib
import re
from dataclasses import dataclass

from orchard.schemas.messages import Image, MessageNode, ToolCall
from orchard.workers.episode.machine import CommandOutcome

_DURATION = re.compile(r"\b(?:\d+m ?)?\d+(?:\.\d+)? ?(?:ns|us|µs|ms|s|secs?|seconds?)\b")
_LISTED = re.compile(
    r"^([-bcdlps][-rwxsStT]{9}[.+@]? .*?) [A-Z][a-z]{2} [ \d]\d (?:\d\d:\d\d| \d{4})(?= )", re.M
)
_SHOWN = 80


@dataclass(frozen=True)
class Executed:
    step: int
    call: ToolCall
    node: MessageNode


@dataclass(frozen=True)
class Divergence:
    step: int
    what: str
    """Describes the difference, for a sentence that continues after the step."""
    timing: bool
    """Whether only durations differ, or times of files in a long listing."""


def compare(
    command: Executed, outcome: CommandOutcome, shown: str, images: tuple[Image, ...] = ()
) -> Divergence | None:
    """Returns the difference between the record and a repeated command's `outcome`, of which the model would
    see the text `shown` and these `images`; None if there is none."""
    recorded, result = command.node, command.node.result
    if result is None:
        raise ValueError(f"the message {recorded.node_id} has no result of a command")
    said = f"`{_short(command.call.arguments)}`"
    if outcome.returncode != result.returncode or outcome.timed_out != result.timed_out:
        what = f"{said} returned {_ending(outcome)} where {_recorded_ending(recorded)} is recorded"
        return Divergence(command.step, what, timing=False)
    if _seen(images) != _seen(recorded.images):
        return Divergence(command.step, f"{said} showed other pictures than are recorded", timing=False)
    if output_sha256(outcome.output) == result.output_sha256:
        return None
    # Of an output that is cut, the rest of the record is its hash alone: it may differ in anything.
    whole = outcome.output.strip() in shown
    timing = whole and timeless(shown) == timeless(recorded.content)
    than = "times than are recorded, and nothing else" if timing else "things than are recorded"
    return Divergence(command.step, f"{said} printed other {than}", timing)


def timeless(text: str) -> str:
    """Removes durations, such as `0.012s`, and the times in what `ls -l` prints."""
    return _DURATION.sub("#", _LISTED.sub(r"\1 #", text))


def output_sha256(output: str) -> str:
    """Hashes a command's whole output, before any cut; this is what a replay compares."""
    return hashlib.sha256(output.encode()).hexdigest()


def _seen(images: tuple[Image, ...]) -> list[str]:
    return [image.blob.sha256 for image in images]


def _ending(outcome: CommandOutcome) -> str:
    return "no code in time" if outcome.timed_out else str(outcome.returncode)


def _recorded_ending(node: MessageNode) -> str:
    assert node.result is not None
    return "none in time" if node.result.timed_out else str(node.result.returncode)


def _short(arguments: str) -> str:
    line = " ".join(arguments.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."
