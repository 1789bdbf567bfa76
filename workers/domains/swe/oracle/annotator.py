"""The oracle as an annotator: it derives values of steps from the gold patch, without a model, over the same
wire.

It reads the prompt of `pipelines/values/prompt.py`: headings at the beginning of lines, all free text behind
bars. The value rises when the right file is opened, the failure is reproduced and an edit makes lines of the
gold patch; it falls at an edit that makes none of them, and at the end.
"""

import re

import msgspec

from orchard.schemas.tasks import Task
from orchard.workers.episode.diffs import FileDiff, Hunk, parse_diff

BASE = 0.4
OPENED = 0.15
REPRODUCED = 0.12
TOUCHED = 0.12
"""Increase of the value at the first occurrence of each."""
CEILING = 0.9
WRONG = 0.15
"""Value after an edit that makes no line of the gold patch."""
FINAL = 0.05

_STEP = re.compile(r"^## Step (\d+)$", re.MULTILINE)
_STEPS = re.compile(r"^There are (\d+) steps, numbered 0 to", re.MULTILINE)
_PART = re.compile(r"^(Thought|Action|Result):.*$\n((?:^\|.*$\n?)*)", re.MULTILINE)
_EDIT = re.compile(
    r"\bsed -i|\bgit apply\b|\bwrite_(?:text|bytes)\(|\bpatch -p|\btee\b|\bed -s|>>? *[\w./-]+\.py\b"
)
_FAILURE = re.compile(r"\b(?:FAILED|FAIL|Error|Exception|Traceback|assert)\b|<returncode>[1-9]")
_RUN = re.compile(r"\b(?:pytest|python3?|unittest|tox|make)\b")


def is_annotation(text: str) -> bool:
    """Whether a user's message asks for values of steps."""
    return _STEPS.search(text) is not None


def unbarred(text: str) -> str:
    """Removes the prompt's bars, so that a statement can be found in it."""
    return re.sub(r"^\| ?", "", text, flags=re.MULTILINE)


def annotate(task: Task, text: str) -> str:
    """Answers the prompt about a trajectory of `task` with a JSON array."""
    gold = parse_diff(task.gold_patch)
    count = int(_STEPS.findall(text)[-1])
    values = [{"step": -1, "p_resolve": BASE, "reasoning": "oracle: base rate"}]
    p, done = BASE, set[str]()
    for number, actions, results in _steps(text):
        p, reason = _after(p, done, gold, actions, results)
        last = number == count - 1
        if last:
            p, reason = min(p, FINAL), "it ends unsolved"
        values.append({"step": number, "p_resolve": round(p, 2), "reasoning": f"oracle: {reason}"})
    return msgspec.json.encode(values).decode()


def _after(p: float, done: set[str], gold: list[FileDiff], actions: str, results: str) -> tuple[float, str]:
    """Returns the value after a step with its reason; `done` records what was gained before."""
    if _EDIT.search(actions):
        made = {name for name, hunk in _hunks(gold) if makes(hunk, actions)}
        if new := made - done:
            done |= new
            return min(CEILING, max(p, BASE) + TOUCHED * len(new)), "the edit makes lines of the gold patch"
        if not made:
            return min(p, WRONG), "the edit makes no line of the gold patch"
    for file in gold:
        if file.old_path and file.old_path not in done and file.old_path in actions:
            done.add(file.old_path)
            return min(CEILING, p + OPENED), f"opens {file.old_path}"
    if "reproduced" not in done and p >= BASE and _RUN.search(actions) and _FAILURE.search(results):
        done.add("reproduced")
        return min(CEILING, p + REPRODUCED), "reproduces the failure"
    return p, "changes nothing"


def _hunks(gold: list[FileDiff]) -> list[tuple[str, Hunk]]:
    return [(f"{file.path}:{hunk.new_start}", hunk) for file in gold for hunk in file.hunks]


def makes(hunk: Hunk, commands: str) -> bool:
    """Whether commands write all lines that a hunk adds; for one that only removes, whether they contain the
    removed lines."""
    lines = [line.strip() for line in hunk.added or hunk.removed if line.strip()]
    return bool(lines) and all(line in commands or repr(line)[1:-1] in commands for line in lines)


def _steps(text: str) -> list[tuple[int, str, str]]:
    parts = _STEP.split(text)
    found = []
    for number, body in zip(parts[1::2], parts[2::2], strict=True):
        pieces: dict[str, list[str]] = {"Thought": [], "Action": [], "Result": []}
        for kind, barred in _PART.findall(body):
            pieces[kind].append(unbarred(barred))
        found.append((int(number), "\n".join(pieces["Action"]), "\n".join(pieces["Result"])))
    return found
