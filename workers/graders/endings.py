"""How a check ended: with a verdict, or without one and why.

What counts as a verdict is listed here. Any other ending is none, and does not count against the agent: a
control, the same check without the agent, decides who is responsible (`orchard.workers.graders.state`).
"""

import asyncio
import math
import signal
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum

import msgspec

from orchard.schemas.decoding import Unreadable, decode_text
from orchard.schemas.tasks import Task, task_hash
from orchard.workers.episode.machine import CommandOutcome
from orchard.workers.episode.networks import SHUT, asked
from orchard.workers.graders.shells import Files
from orchard.workers.masking import masked

_QUOTED = 80
"""Characters that an error quotes of a reward that cannot be read."""


class Lack(StrEnum):
    """The reason that there is no verdict. Equal reasons are equal symptoms."""

    TIME = "time"
    MEMORY = "memory"
    DISK = "disk"
    KILLED = "killed"
    NOT_STARTED = "not_started"
    """Also if its files cannot be written, or its interpreter is missing."""
    NO_REWARD = "no_reward"
    BAD_REWARD = "bad_reward"


STEADY = frozenset({Lack.DISK, Lack.NOT_STARTED, Lack.NO_REWARD, Lack.BAD_REWARD})
"""Reasons that do not depend on the load of a machine."""


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    said: str
    """Describes the ending to people, after "the check"."""
    solved: bool = False
    parts: dict[str, float] = {}
    score: float | None = None
    lack: Lack | None = None
    """The reason for a missing verdict; None: there is one."""


def by_status(outcome: CommandOutcome, limit: float) -> Ending:
    """Reads an exit status as a verdict: 0 is solved, and any other that a program chooses is not. 126, 127
    and those of signals, to 192, are the shell's: it could not execute something, or was killed."""
    if (ending := _cut_short(outcome, limit)) is not None:
        return ending
    solved = outcome.returncode == 0
    ending = Ending(said=f"exited with {outcome.returncode}", solved=solved, parts={"check": float(solved)})
    return _unless_out_of_memory(ending, outcome)


def by_reward(
    outcome: CommandOutcome, limit: float, path: str, content: bytes | None, resolved_at: float | None = None
) -> Ending:
    """Reads a file of rewards as a verdict, as Harbor does: a number in text, or numbers by name in JSON, of
    which `reward` counts, or the only one; several without it are kept, and not solved. A reward of
    `resolved_at` or more is solved; None: one of exactly 1. The command exits with 0 when it has run the
    tests, whatever their results. `content` is None if no file was left."""
    if (ending := _cut_short(outcome, limit)) is not None:
        return ending
    if outcome.returncode != 0:
        return Ending(said=f"could not be begun ({outcome.returncode})", lack=Lack.NOT_STARTED)
    if content is None:
        return Ending(said=f"left no reward at {path}", lack=Lack.NO_REWARD)
    try:
        rewards = _rewards(content, json=path.endswith(".json"))
    except (Unreadable, ValueError, OverflowError) as error:
        said = f"left a reward that is none at {path}: {masked(str(error)).text[:_QUOTED]}"
        return Ending(said=said, lack=Lack.BAD_REWARD)
    score = score_of(rewards)
    said = "numbers by name, and no reward" if score is None else f"the reward {score:g}"
    ending = Ending(said=f"gave {said}", solved=reached(score, resolved_at), parts=rewards, score=score)
    return _unless_out_of_memory(ending, outcome)


def score_of(numbers: Mapping[str, float]) -> float | None:
    """The number that counts: `reward`, or the only one; None if there is no such."""
    return numbers.get("reward", next(iter(numbers.values())) if len(numbers) == 1 else None)


def reached(score: float | None, resolved_at: float | None) -> bool:
    """Whether a score is solved: one of `resolved_at` or more; None: of exactly 1."""
    if resolved_at is None:
        return score == 1.0
    return score is not None and score >= resolved_at


def _rewards(content: bytes, *, json: bool) -> dict[str, float]:
    text = content.decode()
    if not text.strip():
        raise ValueError("the file is empty")
    if not json:
        return {"reward": _number(float(text))}
    found = decode_text(text)
    if not isinstance(found, dict):
        raise ValueError("it has no numbers by name")
    return {name: _number(value) for name, value in found.items()}


def _number(value: object) -> float:
    number = float(value) if isinstance(value, int | float) else math.nan
    if not math.isfinite(number):
        raise ValueError(f"no finite number: {value!r}")
    return number


def _cut_short(outcome: CommandOutcome, limit: float) -> Ending | None:
    if outcome.timed_out:
        return Ending(said=f"did not end within {limit:g} s", lack=Lack.TIME)
    if outcome.returncode in (126, 127):
        what = "could not be executed" if outcome.returncode == 126 else "did not find what it is to execute"
        return Ending(said=f"{what} ({outcome.returncode})", lack=Lack.NOT_STARTED)
    if 0 < outcome.returncode - 128 < signal.NSIG:
        lack = Lack.MEMORY if outcome.out_of_memory else Lack.KILLED
        return Ending(said=f"was killed by signal {outcome.returncode - 128}", lack=lack)
    return None


def _unless_out_of_memory(ending: Ending, outcome: CommandOutcome) -> Ending:
    """Drops the verdict "not solved" if a process was killed for memory meanwhile."""
    if ending.solved or not outcome.out_of_memory:
        return ending
    return Ending(said=f"{ending.said}, and something was killed for memory", lack=Lack.MEMORY)


class Controls:
    """What one worker has learned of its tasks without an agent, so that it asks once for each."""

    def __init__(self) -> None:
        self._known: dict[str, Ending] = {}
        self._shells: dict[str, tuple[Files, ...]] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    def turn(self, what: str) -> asyncio.Lock:
        """Returns the lock under which this worker makes something once."""
        return self._turns.setdefault(what, asyncio.Lock())

    async def shells(self, task: Task, look: Callable[[], Awaitable[tuple[Files, ...]]]) -> tuple[Files, ...]:
        """Returns the task's own shells; looks at them if they are not known yet."""
        key = task_hash(task)
        async with self.turn(key):
            if key not in self._shells:
                self._shells[key] = await look()
            return self._shells[key]

    async def of(self, task: Task, run: Callable[[], Awaitable[Ending]]) -> Ending:
        """Returns how the task's check ends without the agent; runs it if that is not known yet."""
        key = task_hash(task)
        async with self.turn(key):
            if key not in self._known:
                ending = await run()
                if not _repeats(task, ending):
                    return ending
                self._known[key] = ending
            return self._known[key]


def _repeats(task: Task, ending: Ending) -> bool:
    """Whether a control would end so again: not if a network or a busy machine may have influenced it."""
    return asked(task) == SHUT and (ending.lack is None or ending.lack in STEADY)
