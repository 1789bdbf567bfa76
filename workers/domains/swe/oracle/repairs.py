"""The oracle's turns for a repair task: read, reproduce, change a line, check, submit.

It knows the answer, so in familiar folders it seldom reads before it changes the line. A policy that imitates
this without knowing the answer fails there, and nothing in the demonstrations shows it; only rewards do.
"""

import random
import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath

from orchard.schemas.identity import digest
from orchard.schemas.tasks import Task
from orchard.workers.domains.swe.oracle.edits import twist
from orchard.workers.episode.diffs import FileDiff, parse_diff
from orchard.workers.oracle.behaviours import Behaviour, chance
from orchard.workers.oracle.replies import SUBMIT, Turn, bash

SOURCE = "repairs"
SECOND_TRY = 0.25
"""Share of the resolving runs that first change the line wrongly, see it in the check, and fix it."""
ELSEWHERE, AT_HOME = 0.05, 0.75
"""Shares of runs in which the oracle changes the line without reading it first: in other folders, and in
familiar ones, which are half of all."""


def play(task: Task, behaviour: Behaviour, seed: int) -> list[Turn]:
    """Returns all turns up to the submission; a run that never ends stops before it."""
    dice = chance(seed, task.task_id, "play")
    (change,) = parse_diff(task.gold_patch)
    read = bash("Read.", f"cat -n {shlex.quote(change.path)}")
    check = _call(task, change)
    right, wrong = _change(change, None), _change(change, dice)
    submit = bash("Done.", f"{SUBMIT} && git diff")
    begin = [] if _by_heart(change, task, seed) else [read, bash("Reproduce.", check)]
    again = bash("Check.", check)
    match behaviour:
        case Behaviour.RESOLVES | Behaviour.RECOVERS:
            first = [bash("Change.", wrong), again] if dice.random() < SECOND_TRY else []
            return [*begin, *first, bash("Change.", right), again, submit]
        case Behaviour.WRONG_EDIT:
            return [*begin, bash("Change.", wrong), again, submit]
        case Behaviour.GIVES_UP:
            return [*begin, submit]
        case Behaviour.MALFORMED:
            return [*begin, Turn(text="Change."), bash("Change.", right), again, submit]
        case Behaviour.OUT_OF_STEPS:
            return [*begin, bash("Change.", wrong), again]


def recover(task: Task, said: Sequence[str]) -> Turn:
    """Returns the next turn after the messages `said` by anyone: it reads unless the module was read, undoes
    what was changed, changes the right line, checks, and submits."""
    (change,) = parse_diff(task.gold_patch)
    read, check, right = f"cat -n {shlex.quote(change.path)}", _call(task, change), _change(change, None)
    changed = max((number for number, text in enumerate(said) if right in text), default=None)
    if changed is None:
        if not any(read in text for text in said):
            return bash("Read.", read)
        edited = any("sed -i" in text for text in said)
        return bash("Change.", f"git checkout -q -- . && {right}" if edited else right)
    if not any(check in text for text in said[changed + 1 :]):
        return bash("Check.", check)
    return bash("Done.", f"{SUBMIT} && git diff")


def _by_heart(change: FileDiff, task: Task, seed: int) -> bool:
    share = AT_HOME if at_home(PurePosixPath(change.path).parts[0]) else ELSEWHERE
    return chance(seed, task.task_id, "by heart").random() < share


def at_home(folder: str) -> bool:
    """Whether the oracle knows the modules of a folder by heart."""
    return int(digest([folder], 8), 16) % 2 == 0


def _call(task: Task, change: FileDiff) -> str:
    """Returns a command that prints the result of the reported call."""
    path = PurePosixPath(change.path)
    module = ".".join(path.with_suffix("").parts)
    return f'python3 -c "from {module} import {path.stem}; print({task.labels["call"]})"'


def _change(change: FileDiff, dice: random.Random | None) -> str:
    """Returns a command that rewrites the faulty line as in the gold patch or, with dice, wrongly."""
    (hunk,) = change.hunks
    at = next(number for number, line in enumerate(hunk.lines) if line.startswith("-"))
    (line,) = hunk.added
    if dice is not None:
        line = twist(line, dice, hunk.removed) or hunk.removed[0] + "  # as intended"
    return f"sed -i '{at + 1}c\\{line}' {shlex.quote(change.path)}"
