"""Odd tests as question sheets: their verdicts are those of the tests themselves, and a forger earns none.

Each file of `odd/` is one repository. A case is a defect in its module, written
`<<base || gold || other || wrong>>`, and its tests after `---`. A comment on a test is its label, which is
`value` or `echo` without one. Before the first case stands the head of the test file, after `=== file: path`
another file; a text that begins with its label is run too.
"""

import re
import time
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest

from orchard.schemas.tasks import SWETests, Task
from orchard.workers.domains.swe.preparing import TaskRepository
from orchard.workers.domains.swe.sheets.answering import answered_run
from orchard.workers.domains.swe.sheets.fresh import by_rote
from orchard.workers.domains.swe.sheets.making import SheetMaker
from orchard.workers.domains.swe.sheets.variants import original_of
from orchard.workers.domains.swe.testing import plan_of, run_tests
from orchard.workers.domains.swe.verdict import PASSING
from tests.workers.conftest import MovedMachine, Shop, SubprocessMachine, image_with

pytestmark = pytest.mark.long

ODD = Path(__file__).with_name("odd")
FILE = "tests/test_odd.py"
LIBRARIES = {
    "libraries": ("numpy", "hypothesis", "attrs", "sortedcontainers", "pytest-asyncio", "typing_extensions"),
    "tables": ("pandas", "numpy", "python-dateutil", "six"),
}
"""What the image of a repository has beside pytest."""
VARIANTS = ("base", "gold", "other", "wrong")
HOLE = re.compile(r"<<(.*?)>>", re.DOTALL)
LABEL = re.compile(r"^( *)(?:async )?def (test\w*)\(.*:(?:  # (\w+))?$|^class (\w+)", re.MULTILINE)
FORGER = """


class Same(int):
    def __eq__(self, other):
        return True

    def __getattr__(self, name):
        return self

    def __call__(self, *_, **__):
        return self

    def __iter__(self):
        return iter(())

    __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __eq__
    __hash__ = int.__hash__


for name, value in list(globals().items()):
    if type(value) is type(lambda: 0) and not name.startswith("_"):
        globals()[name] = lambda *_, **__: Same()
"""


class OddRepository:
    """A repository of `odd/`: its files by variant, and the label of each test function."""

    def __init__(self, path: Path) -> None:
        head, *sections = re.split(r"^=== ", path.read_text(), flags=re.MULTILINE)
        module, tests, self.files = [], [head], {}
        for section in sections:
            name, _, body = section.partition("\n")
            if name.startswith("file: "):
                self.files[name.removeprefix("file: ")] = body
            else:
                code, _, cases = body.partition("---\n")
                module.append(code)
                tests.append(cases)
        self.module = "".join(module)
        names = re.findall(r"^(?:async )?(?:def|class) (\w+)|^(\w+) = ", self.module, flags=re.MULTILINE)
        public = [one or two for one, two in names if not (one or two).startswith("_")]
        self.files |= {
            FILE: f"from subject import {', '.join(public)}\n" + "\n".join(tests),
            "tests/__init__.py": "",
        }
        self.labels, owner = {}, ""
        for indent, test, label, group in LABEL.findall(self.files[FILE]):
            owner = group or (owner if indent else "")
            if test:
                self.labels["::".join(filter(None, (owner, test)))] = label or "asked"
        self.texts = {path: text[3:].split()[0] for path, text in self.files.items() if text[:3] == ".. "}
        self.labels |= {Path(path).name: label for path, label in self.texts.items()}

    def accepts(self, test: str, label: str) -> bool:
        expected = self.expected(test)
        return label in ("value", "echo") if expected == "asked" else label == expected

    def expected(self, test: str) -> str:
        name = _without_module(test.partition("[")[0].partition("::")[2])
        inherited = (label for each, label in self.labels.items() if each.endswith(name.rpartition("::")[2]))
        return self.labels.get(name) or next(inherited)

    def subject(self, variant: str) -> str:
        if variant == "forger":
            return self.subject("base") + FORGER
        at = VARIANTS.index(variant)

        def filled(hole: re.Match[str]) -> str:
            choices = [each.strip(" ") for each in hole[1].split("||")]
            return choices[at] if len(choices) == 4 else choices[min(at, 1)]

        return HOLE.sub(filled, self.module)


def _without_module(name: str) -> str:
    """Returns the name of a function whose docstring a test is."""
    return name.removeprefix("tests.test_odd.")


def task_of(shop: Shop, odd: OddRepository, statuses: dict[str, dict[str, str]]) -> Task:
    """The task of which all tests that pass with the gold patch must pass."""
    base, gold = statuses["base"], statuses["gold"]
    options = ["--doctest-modules"] if odd.texts else []
    must = [test for test, status in gold.items() if status == "PASSED" and base.get(test) != "PASSED"]
    return Task(
        task_id="odd__1",
        source="test",
        repo="example/odd",
        image="host",
        statement="Odd tests fail.",
        base_commit=shop.git("rev-parse", "HEAD").strip(),
        workdir=str(shop.directory),
        gold_patch=shop.diff({"subject.py": odd.subject("gold")}),
        grading=SWETests(
            test_patch=shop.diff(odd.files),
            test_command=" ".join(["python -m pytest -p no:cacheprovider -rA", *options, FILE, *odd.texts]),
            fail_to_pass=tuple(must),
            pass_to_pass=tuple(sorted(set(gold) - set(must))),
            test_files=(FILE, *odd.texts),
            timeout_seconds=120.0,
        ),
    )


@pytest.mark.parametrize(
    "group",
    [
        pytest.param(path.stem, marks=pytest.mark.slow if path.stem == "libraries" else ())
        for path in sorted(ODD.glob("*.txt"))
    ],
)
async def test_a_sheet_judges_odd_tests_as_they_do(group, tmp_path, programs):
    odd = OddRepository(ODD / f"{group}.txt")
    shop = Shop(tmp_path / "repository")
    shop.write({"subject.py": odd.subject("base")})
    shop.git("add", "-A")
    shop.git("commit", "-q", "-m", "odd")
    libraries = LIBRARIES.get(group)
    machine = SubprocessMachine(image_with(tmp_path / "image", *libraries) if libraries else programs)
    numbers, logs, rote = count(), {}, {}

    @asynccontextmanager
    async def pristine():
        there = tmp_path / "machines" / str(next(numbers))
        shop.git("clone", "-q", ".", str(there))
        yield MovedMachine(machine, shop.directory, there)

    async def judged(task, sheet=None):
        """Statuses by variant, of the tests or of the sheet."""
        repository = TaskRepository(task, task.grading, pristine, time.monotonic() + 600)
        found = {}
        async with pristine() as opened:
            checkout = await repository.begin(opened)
            assert await repository.bring_tests(checkout, "", sheet)
            for variant in (*VARIANTS, "forger"):
                await opened.write(f"{task.workdir}/subject.py", odd.subject(variant).encode())
                run = await run_tests(task, task.grading, opened, checkout, sheet=sheet is not None)
                logs[variant] = run.log
                found[variant] = (answered_run(sheet, run) if sheet else run).statuses
                rote[variant] = by_rote(sheet, run.told) if sheet else {}
        return found

    unknown = [f"{FILE}::test_x", *(f"{path}::{Path(path).name}" for path in odd.texts)]
    plain = await judged(task_of(shop, odd, {"base": {}, "gold": dict.fromkeys(unknown, "PASSED")}))
    task = task_of(shop, odd, plain)
    ran, written = (
        {_without_module(test.rpartition("::")[2].partition("[")[0]) for test in each}
        for each in (plain["gold"], odd.labels)
    )
    assert ran == written, f"tests that did not run: {logs['gold']}"
    assert set(task.grading.fail_to_pass) | set(task.grading.pass_to_pass) == set(plain["gold"])
    repository = TaskRepository(task, task.grading, pristine, time.monotonic() + 600)
    sheet = await SheetMaker(task, task.grading, plan_of(task.grading), repository.prepared).make()
    asked = await judged(task, sheet)

    labels = {test.name: str(test.label) for test in sheet.tests.values()}
    otherwise = {
        (test, variant): (plain[variant].get(test), asked[variant].get(test))
        for variant in VARIANTS
        for test in plain["gold"]
        if (plain[variant].get(test) in PASSING) != (asked[variant].get(test) in PASSING)
    }
    forged = {
        test
        for test in task.grading.fail_to_pass
        if asked["forger"].get(test) in PASSING and labels.get(test) in ("value", "echo")
    }
    assert otherwise == {}
    assert forged == set()
    assert {
        test: (label, odd.expected(test))
        for test, label in labels.items()
        if test in task.grading.fail_to_pass and not odd.accepts(test, label)
    } == {}
    assert (rote["gold"], rote["other"]) == ({}, {})
    if group == "shared":
        varied = {original_of(name.partition("[")[0].partition("::")[2]) for name in sheet.fresh}
        assert len(varied) >= 8 and "test_of_the_same_fixture" not in varied
    for variant, passing in (("gold", True), ("other", True), ("base", False), ("wrong", False)):
        strange = {t for t in task.grading.fail_to_pass if (plain[variant].get(t) in PASSING) != passing}
        assert strange == set(), f"the case itself: {variant}"
