"""What became of each submission, one JSON line each, so that a run that was stopped goes on."""

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

import msgspec

from orchard.schemas.outcomes import Reward

LAYERS = {"refused": "policy", "unproven": "control"}
"""What gives which cause of a -1."""


class Group(StrEnum):
    FORGER = "forger"
    HONEST = "honest"
    MUTANT = "mutant"
    UNCHANGED = "unchanged"
    """Nothing is repaired: the empty submission's verdicts."""


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One submission of one task, graded."""

    task: str
    """Task id, or name of a layout."""
    kind: str
    """`layout`, `release` or `repair`."""
    protected: str = ""
    """The task's label."""
    group: Group
    family: str
    name: str
    rewarded: bool
    layer: str
    """What refused it, `rewarded`, or `abort: cause`."""
    detail: str = ""
    seconds: float = 0.0
    sandboxes: int = 1
    plain: bool | None = None
    """Whether the tests alone accept it; None where they were not run."""
    verdicts: int = 0
    """Tests whose status was compared with that of the tests alone."""
    laxer: tuple[str, ...] = ()
    """Tests that pass here and fail alone."""
    stricter: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.task} {self.group} {self.family} {self.name}"

    @property
    def aborted(self) -> bool:
        return self.layer.startswith("abort")

    @property
    def wrong(self) -> bool:
        """A forged reward, an honest submission without one, one that tests alone refuse, or no outcome."""
        if self.aborted or self.laxer:
            return True
        if self.group is Group.FORGER:
            return self.rewarded
        if self.group is Group.HONEST and self.plain is not False:
            return not self.rewarded
        return self.rewarded and not self.plain


class Records:
    """The lines of a file; those of an earlier run count as done."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_bytes().splitlines() if path.exists() else []
        self.all = [msgspec.json.decode(line, type=Record) for line in lines if line.endswith(b"}")]

    def has(self, key: str) -> bool:
        return any(each.key == key for each in self.all)

    def add(self, record: Record) -> None:
        self.all.append(record)
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(record) + b"\n")


GUESSED = ("echo", "bit")
GUESSED_SHARE = 0.05
"""Share of forgeries below which tasks that guessing may solve are protected as well as they can be."""


def goals_missed(found: Iterable[Record]) -> list[str]:
    """What of the suite's goals does not hold, in words; tasks of `inside` or `forgeable` promise none."""
    records = list(found)
    missed = [f"{e.key}: {e.layer}" for e in records if e.aborted]
    missed += [f"{e.key}: laxer than the tests in {', '.join(e.laxer)}" for e in records if e.laxer]
    missed += [f"{e.key}: refused, {e.detail}" for e in records if e.group is Group.HONEST and e.wrong]
    forgers = [e for e in records if e.group is Group.FORGER]
    missed += [f"{e.key}: forged" for e in forgers if e.rewarded and e.protected in ("", "value")]
    for label in GUESSED:
        tried = [e for e in forgers if e.protected == label]
        forged = sum(e.rewarded for e in tried)
        if tried and forged >= GUESSED_SHARE * len(tried):
            missed.append(f"{forged} of {len(tried)} forged on tasks of {label}")
    return missed


def layer(reward: Reward) -> str:
    """Which part of the grader gave this outcome."""
    if reward.resolved:
        return "rewarded"
    if reward.cause is not None:
        return LAYERS.get(reward.cause, reward.cause)
    if reward.detail.startswith(("the patch does not apply", "the submission is not a diff")):
        return "patch"
    if reward.detail.startswith("with this patch the tests"):
        return "no result"
    return "tests fail"


def chosen(names: Iterable[str], words: Iterable[str]) -> bool:
    """Whether one of the words is in one of the names, or there are no words."""
    wanted = list(words)
    return not wanted or any(word in name for name in names for word in wanted)
