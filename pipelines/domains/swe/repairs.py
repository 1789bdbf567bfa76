"""A family of small repair tasks, made by a generator: a module with one seeded bug, and real pytest tests.

They exist so that a model of a million parameters, trained from nothing on one machine, can be seen to learn
(`make demo-sft`, `make demo-rl`). A task is drawn from its number and the seed alone. Training and held-out
tasks never share a combination of bug kind, function and arguments.
"""

import asyncio
import difflib
import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.domains.swe import layout
from orchard.pipelines.domains.swe.environments import pack_directory
from orchard.pipelines.domains.swe.packages import PackageCache
from orchard.pipelines.tasks.sandboxes import open_sandbox
from orchard.pipelines.tasks.trees import pack
from orchard.schemas.identity import digest
from orchard.schemas.tasks import SWETests, Task
from orchard.workers.episode.diffs import parse_diff
from orchard.workers.episode.sandboxes import SandboxMachine, classified

SOURCE = "repairs"
IMAGE = "orchard/repairs:1"
WORKDIR = "/testbed"
HELD_OUT_SHARE = 5
"""One combination of kind, function and first argument in this many is held out."""
HELD_OUT_FILES = 260

IMPORTS = ("import math", "import re", "import json", "import os")
"""A module begins with the first few of these, or none: only who reads it knows the line of its bug."""
FORMS = ("    return {}\n", "    result = {}\n    return result\n")


class Split(StrEnum):
    TRAIN = "train"
    HELD_OUT = "held-out"


class Takes(StrEnum):
    NUMBERS = "numbers"
    NUMBER = "number"
    LIST = "list"


@dataclass(frozen=True)
class RepairCase:
    """One call: its arguments in source, and its results before and after the repair."""

    written: str
    right: str
    wrong: str


@dataclass(frozen=True)
class BugKind:
    """The right result of a function in words, the expression for it, and wrong ones. `{a}` and `{b}`
    stand for its arguments, `{k}` for a number."""

    name: str
    says: str
    right: str
    wrong: tuple[str, ...]
    takes: Takes = Takes.NUMBERS


KINDS = (
    BugKind("sum", "the sum of {a} and {b}", "{a} + {b}", ("{a} - {b}", "{a} * {b}")),
    BugKind("difference", "{a} minus {b}", "{a} - {b}", ("{a} + {b}", "{b} - {a}")),
    BugKind("product", "the product of {a} and {b}", "{a} * {b}", ("{a} + {b}", "{a} - {b}")),
    BugKind("quotient", "the whole quotient of {a} by {b}", "{a} // {b}", ("{a} % {b}", "{b} // {a}")),
    BugKind("remainder", "the remainder of {a} by {b}", "{a} % {b}", ("{a} // {b}", "{b} % {a}")),
    BugKind("larger", "the larger of {a} and {b}", "max({a}, {b})", ("min({a}, {b})", "{a}")),
    BugKind("smaller", "the smaller of {a} and {b}", "min({a}, {b})", ("max({a}, {b})", "{b}")),
    BugKind(
        "distance", "the distance between {a} and {b}", "abs({a} - {b})", ("{a} - {b}", "abs({a} + {b})")
    ),
    BugKind("greater", "whether {a} is greater than {b}", "{a} > {b}", ("{a} < {b}", "{a} >= {b}")),
    BugKind("at-least", "whether {a} is at least {b}", "{a} >= {b}", ("{a} > {b}", "{a} <= {b}")),
    BugKind("less", "whether {a} is less than {b}", "{a} < {b}", ("{a} > {b}", "{a} <= {b}")),
    BugKind("equal", "whether {a} equals {b}", "{a} == {b}", ("{a} != {b}", "{a} >= {b}")),
    BugKind("both", "whether {a} and {b} are both positive", "{a} > 0 and {b} > 0", ("{a} > 0 or {b} > 0",)),
    BugKind("either", "whether {a} or {b} is positive", "{a} > 0 or {b} > 0", ("{a} > 0 and {b} > 0",)),
    BugKind("even", "whether {a} is even", "{a} % 2 == 0", ("{a} % 2 == 1", "{a} / 2 == 0"), Takes.NUMBER),
    BugKind("odd", "whether {a} is odd", "{a} % 2 == 1", ("{a} % 2 == 0", "{a} / 2 == 1"), Takes.NUMBER),
    BugKind("times", "{a} times {k}", "{a} * {k}", ("{a} + {k}", "{a} - {k}"), Takes.NUMBER),
    BugKind("plus", "{a} plus {k}", "{a} + {k}", ("{a} - {k}", "{a} * {k}"), Takes.NUMBER),
    BugKind("total", "the sum of all {a}", "sum({a})", ("len({a})", "max({a})"), Takes.LIST),
    BugKind("count", "the number of {a}", "len({a})", ("sum({a})", "len({a}) - 1"), Takes.LIST),
    BugKind("first", "the first of {a}", "{a}[0]", ("{a}[1]", "{a}[-1]"), Takes.LIST),
    BugKind("last", "the last of {a}", "{a}[-1]", ("{a}[0]", "{a}[1]"), Takes.LIST),
    BugKind("largest", "the largest of {a}", "max({a})", ("min({a})", "{a}[-1]"), Takes.LIST),
    BugKind("smallest", "the smallest of {a}", "min({a})", ("max({a})", "{a}[0]"), Takes.LIST),
    BugKind("reversed", "{a} in reverse", "{a}[::-1]", ("{a}[::1]", "sorted({a})"), Takes.LIST),
    BugKind("sorted", "{a} in order", "sorted({a})", ("{a}[::-1]", "list({a})"), Takes.LIST),
    BugKind("rest", "{a} without the first", "{a}[1:]", ("{a}[:-1]", "{a}[:1]"), Takes.LIST),
    BugKind("front", "{a} without the last", "{a}[:-1]", ("{a}[1:]", "{a}[-1:]"), Takes.LIST),
)

PLACES = (
    *("shop", "bank", "farm", "game", "lab", "mail", "park", "school", "store", "team", "town", "zoo"),
    *("cafe", "club", "dock", "fleet", "garden", "hotel", "mine", "office"),
)
FUNCTIONS = (
    *("area", "balance", "bonus", "budget", "charge", "code", "cost", "depth", "discount", "energy"),
    *("fee", "figure", "gain", "goal", "grade", "height", "index", "income", "level", "limit"),
    *("loss", "margin", "mark", "measure", "offer", "order", "payment", "place", "points", "price"),
    *("profit", "quota", "range", "rank", "rate", "rating", "ratio", "result", "reward", "score"),
    *("share", "size", "speed", "stock", "supply", "target", "tax", "term", "total", "trend"),
    *("usage", "value", "volume", "wage", "weight", "width", "worth", "output"),
)
PAIRS = (("left", "right"), ("first", "second"), ("old", "new"), ("low", "high"), ("start", "end"))
LISTS = ("items", "values", "parts", "rows")


def repair_tasks(
    count: int | None,
    seed: int,
    split: Split,
    kinds: Collection[str] = (),
    functions: int = len(FUNCTIONS),
) -> Iterator[Task]:
    """The first `count` tasks of a split (None: all), no two of any split in one file; of some kinds of bug,
    or of all.

    Few `functions`, the first so many names of them, are in many places each: then nobody can know by heart
    which of them is where. Raises ValueError for more than there are files, and for kinds that there are not.
    """
    chosen = [kind for kind in KINDS if not kinds or kind.name in kinds]
    if len(chosen) < len(kinds):
        raise ValueError(
            f"unknown kinds among {list(kinds)}: choose of {', '.join(kind.name for kind in KINDS)}"
        )
    dice = random.Random(f"repairs:{seed}")
    files = [(place, function) for place in PLACES for function in FUNCTIONS]
    dice.shuffle(files)
    mine = files[HELD_OUT_FILES:] if split is Split.TRAIN else files[:HELD_OUT_FILES]
    names = {function for function in FUNCTIONS[:functions] if _has_any(split, function, chosen)}
    mine = [(place, function) for place, function in mine if function in names]
    if count is not None and count > len(mine):
        raise ValueError(f"the {split} split has {len(mine)} repair tasks, not {count}")
    for number, (place, function) in enumerate(mine[:count]):
        dice = random.Random(f"repairs:{seed}:{split}:{number}")
        yield _task(split, place, function, dice, number, chosen)


def repair_files(tasks: Iterable[Task]) -> dict[str, str]:
    """What the image of these tasks holds under WORKDIR: path to text, each module with its bug."""
    files = {"README": "Modules with a bug each.\n", "pytest.ini": "[pytest]\npythonpath = .\n"}
    for task in tasks:
        (change,) = parse_diff(task.gold_patch)
        (hunk,) = change.hunks  # the whole module, see _diff
        files[change.path] = "".join(f"{line[1:]}\n" for line in hunk.lines if line[0] in " -")
    return files


def _task(
    split: Split, place: str, function: str, dice: random.Random, number: int, kinds: Sequence[BugKind]
) -> Task:
    kind, names = _drawn(split, function, dice, kinds)
    says, right = kind.says.format(**names), kind.right.format(**names)
    wrong = dice.choice(kind.wrong).format(**names)
    arguments = [names["a"], names["b"]] if kind.takes is Takes.NUMBERS else [names["a"]]
    cases = _cases(right, wrong, arguments, kind.takes, dice)
    path, test = f"{place}/{function}.py", f"tests/test_{place}_{function}.py"
    imports = IMPORTS[: dice.randint(0, len(IMPORTS))]
    header = "".join(f"{line}\n" for line in imports) + ("\n" if imports else "")
    header += f'def {function}({", ".join(arguments)}):\n    """Return {says}."""\n'
    form = dice.choice(FORMS)
    reported = cases[0]
    return Task(
        task_id=f"repair-{split}-{number}",
        source=SOURCE,
        repo=f"repairs/{kind.name}",
        image=IMAGE,
        base_commit="HEAD",
        statement=f"{path}: {function}({reported.written}) gives {reported.wrong}, not {reported.right}. "
        f"It should return {says}.",
        gold_patch=_diff(path, header + form.format(wrong), header + form.format(right)),
        workdir=WORKDIR,
        memory="256Mi",
        grading=SWETests(
            test_patch=_diff(test, "", _tests(place, function, says, cases)),
            test_command=f"{layout.PYTHON} -m pytest -rA -q --tb=line -p no:cacheprovider {test}",
            fail_to_pass=(f"{test}::test_reported", f"{test}::test_others"),
            pass_to_pass=(f"{test}::test_documented",),
            test_files=(test,),
            timeout_seconds=60.0,
        ),
        labels={"family": SOURCE, "kind": kind.name, "call": f"{function}({reported.written})"},
    )


def _has_any(split: Split, function: str, kinds: Sequence[BugKind]) -> bool:
    """Whether a function can be in a split at all: with few kinds, all of its combinations may be in one."""
    return any(_in_split(split, kind, function, first) for kind in kinds for first, _ in _arguments(kind))


def _drawn(
    split: Split, function: str, dice: random.Random, kinds: Sequence[BugKind]
) -> tuple[BugKind, dict[str, str]]:
    """A kind and names that belong to the split."""
    while True:
        kind = dice.choice(kinds)
        first, second = dice.choice(_arguments(kind))
        number = dice.randint(2, 9)
        if _in_split(split, kind, function, first):
            return kind, {"a": first, "b": second, "k": str(number)}


def _arguments(kind: BugKind) -> Sequence[tuple[str, str]]:
    """Names of the kind's arguments, to choose from."""
    return PAIRS if kind.takes is not Takes.LIST else [(name, "") for name in LISTS]


def _in_split(split: Split, kind: BugKind, function: str, first: str) -> bool:
    combination = digest([kind.name, function, first], 8)
    return (int(combination, 16) % HELD_OUT_SHARE == 0) == (split is Split.HELD_OUT)


def _cases(
    right: str, wrong: str, arguments: list[str], takes: Takes, dice: random.Random
) -> list[RepairCase]:
    """Make four calls whose right and wrong results differ."""
    cases: list[RepairCase] = []
    while len(cases) < 4:
        if takes is Takes.LIST:
            values: list[Any] = [[dice.randint(1, 20) for _ in range(dice.randint(3, 5))]]
        else:
            values = [dice.randint(-9 if "> 0" in right else 1, 12) for _ in arguments]
        scope = dict(zip(arguments, values, strict=True))
        try:
            results = repr(eval(right, {}, scope)), repr(eval(wrong, {}, scope))
        except ZeroDivisionError:
            continue
        written = ", ".join(map(repr, values))
        if results[0] != results[1] and all(case.written != written for case in cases):
            cases.append(RepairCase(written=written, right=results[0], wrong=results[1]))
    return cases


def _tests(place: str, function: str, says: str, cases: list[RepairCase]) -> str:
    reported, *others = cases
    lines = [f"from {place}.{function} import {function}", "", "", "def test_reported():"]
    lines += [f"    assert {function}({reported.written}) == {reported.right}"]
    lines += ["", "", "def test_others():"]
    lines += [f"    assert {function}({case.written}) == {case.right}" for case in others]
    lines += ["", "", "def test_documented():", f"    assert {says!r} in {function}.__doc__", ""]
    return "\n".join(lines)


def _diff(path: str, old: str, new: str) -> str:
    fromfile = f"a/{path}" if old else "/dev/null"
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), fromfile, f"b/{path}", n=1000
    )
    return f"diff --git a/{path} b/{path}\n" + ("" if old else "new file mode 100644\n") + "".join(lines)


PYTEST = "pytest==9.2.0"
_REPOSITORY = f"""\
set -e
mkdir -p {layout.WORKDIR}
{layout.PYTHON} -m tarfile -e /tmp/modules.tar {layout.WORKDIR}
rm /tmp/modules.tar
cd {layout.WORKDIR}
printf '__pycache__/\\n' > .git-ignored
git init -q .
mv .git-ignored .git/info/exclude
git config core.autocrlf false
{layout.STAT_CACHE}git add -A
git -c user.name=orchard -c user.email=orchard@localhost -c commit.gpgsign=false commit -q -m 'Modules'
"""


async def build_repair_image(
    client: AsyncSandboxClient, cache: PackageCache, tasks: Sequence[Task], *, base_image: str = "host"
) -> None:
    """Make the image that `tasks` run in; an older one of the same name gives way.

    Raises IndexFailed when pytest cannot be fetched, InfrastructureError when the sandbox service fails, and
    RuntimeError when the base image lacks git or Python.
    """
    environment = await asyncio.to_thread(pack_directory, Path(await cache.environment([PYTEST])))
    modules = pack({path: text.encode() for path, text in repair_files(tasks).items()})
    async with open_sandbox(
        client, base_image, purpose="synthesis", cpu="1", memory="1Gi", timeout=120.0
    ) as machine:
        await machine.write("/tmp/site-packages.tar", environment)
        await machine.write("/tmp/modules.tar", modules)
        await _done(machine, layout.environment_script("python3", "/tmp/site-packages.tar"))
        await _done(machine, _REPOSITORY)
        with classified():
            await machine.sandbox.snapshot(IMAGE)


async def _done(machine: SandboxMachine, script: str) -> None:
    outcome = await machine.run(script, timeout=300.0, cwd="/")
    if outcome.returncode != 0:
        raise RuntimeError(f"the image {IMAGE} could not be built: {outcome.output.strip()[-300:]}")
