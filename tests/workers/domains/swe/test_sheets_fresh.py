"""Questions about inputs that a task's tests do not have: who passes by rote is refused, nobody else."""

import ast
import itertools
import time
from contextlib import suppress

import msgspec
import pytest

from orchard.schemas.protection import Protected
from orchard.workers.domains.swe.sheets.answering import answered_run
from orchard.workers.domains.swe.sheets.child import VariantTooSlow, Within
from orchard.workers.domains.swe.sheets.fresh import by_rote
from orchard.workers.domains.swe.sheets.making import without_sheet
from orchard.workers.domains.swe.sheets.sheet import FreshQuestion, SheetTest, Visit
from orchard.workers.domains.swe.sheets.store import SheetStore
from orchard.workers.domains.swe.sheets.told import Told, ToldTest
from orchard.workers.domains.swe.sheets.variants import original_of, with_variants
from orchard.workers.domains.swe.testing import TestRun
from orchard.workers.graders import grade
from tests.forgery.real.forgers.rote import WAYS
from tests.workers.domains.swe.fresh_pairs import PAIRS

TESTS = "import pytest\n\n" + "".join(f"from small.{each.name} import {each.name}\n" for each in PAIRS)
TESTS += "".join(f"\n\n{each.test}" for each in PAIRS)


def files(code) -> dict[str, str]:
    return {f"small/{each.name}.py": code(each) for each in PAIRS}


@pytest.fixture
def small(shop, task):
    """A task of all the small functions."""
    shop.write({"small/__init__.py": "", **files(lambda each: each.base), "tests/test_small.py": ""})
    shop.git("add", "-A")
    shop.git("commit", "-qm", "small")
    return msgspec.structs.replace(
        task,
        base_commit=shop.git("rev-parse", "HEAD").strip(),
        gold_patch=shop.diff(files(lambda each: each.gold)),
        grading=msgspec.structs.replace(
            task.grading,
            test_patch=shop.diff({"tests/test_small.py": TESTS}),
            test_command="python -m pytest -p no:cacheprovider -rA tests/test_small.py",
            fail_to_pass=tuple(f"tests/test_small.py::test_{each.name}" for each in PAIRS),
            pass_to_pass=(),
            test_files=("tests/test_small.py",),
        ),
    )


@pytest.mark.long
async def test_who_knows_the_tests_inputs_alone_is_refused(small, shop, machine, pristine, blobs):
    async def judged(code):
        submission = shop.diff(files(code))
        return await grade(small, submission, machine, timeout=120.0, blobs=blobs, pristine=pristine)

    rote = await judged(lambda each: each.by_rote(WAYS["the answer that the unrepaired code gives"]))
    assert (rote.resolved, rote.cause) == (False, "forged")
    assert set(rote.tests.values()) == {"PASSED"}
    sheet = SheetStore(blobs).get(small)
    asked = {original_of(name.partition("[")[0]) for name in sheet.fresh}
    assert len(asked) >= 16, "most functions are told from their defective ones"
    assert all(name in rote.detail for name in asked)
    assert "for 49: it answers" in blobs.get(rote.log).decode()
    other = await judged(lambda each: each.other)
    assert (other.resolved, other.cause) == (True, None)
    slow = await judged(lambda each: f"{each.gold}\n\n{each.slow_at_few}")
    assert (slow.resolved, slow.cause) == (True, None)

    ways = {each.name: way for each, way in zip(PAIRS, itertools.cycle(CLEVER), strict=False)}
    clever = await judged(lambda each: each.by_rote(WAYS[ways[each.name]]))
    assert sum(name in clever.detail for name in asked) >= 12, "few are mostly right by a clever guess"
    for way in WITHOUT_ANSWERS:
        silent = await judged(lambda each, way=way: each.by_rote(WAYS[way]))
        assert (silent.resolved, silent.cause) == (False, "forged"), way
        assert all(name in silent.detail for name in asked), way


CLEVER = [name for name in WAYS if "variant" not in name]
WITHOUT_ANSWERS = (
    "variants are skipped",
    "the process is killed in the first variant",
    "variants are taken out of the session",
    "variants never end where the nearest known input was not right before",
)


def test_a_variant_is_limited_by_the_processors_time_alone(monkeypatch):
    told = []

    def within():
        return Within(lambda **facts: told.append(facts))

    with within():
        time.sleep(3 * within().one)  # more than a variant may work
    assert told == []
    monkeypatch.setattr(Within, "wait", 60.0)
    monkeypatch.setattr(Within, "spent", within().all - 0.016)
    with within():
        time.sleep(0.3)  # other work has the processor meanwhile
    assert told == [] and Within.spent > within().all - 0.005
    monkeypatch.setattr(Within, "spent", within().all - 2 * within().one)
    for _ in range(4):  # none takes all that is left from those after it
        with pytest.raises(VariantTooSlow), within():
            while True:
                with suppress(Exception):
                    sum(range(1000))
    with within():
        pass
    assert set(map(str, told)) == {"{'cut': True}"}


def test_a_process_that_ends_among_the_variants_says_nothing_of_the_tests():
    test, variant = "t.py::test_x", "t.py::test_x__fresh_1"
    sheet = msgspec.structs.replace(
        without_sheet(""),
        tests={test: SheetTest(name=test, status="PASSED", label=Protected.BIT)},
        fresh={variant: ()},
    )

    def run(**tests):
        return answered_run(sheet, TestRun(statuses={}, exit_code=137, log="", told=Told(tests=tests)))

    passed = ToldTest(status="PASSED")
    assert run(**{test: passed, variant: ToldTest()}).conclusive
    assert not run(**{test: ToldTest(), variant: ToldTest()}).conclusive
    assert not run(**{test: passed, variant: passed}).conclusive


SHEET = """import pytest
LIMIT = 40

@pytest.mark.parametrize("a,b", [(3, "x"), (5, "y")], ids=__numbers__())
def test_table(a, b):
    __ask__(1, f(a, b))

class TestIt:
    def test_one(self, tmp_path):
        value = [1, 2]
        __ask__(2, f(value, LIMIT, mode="r"))
        with __raises__(3):
            f(open(tmp_path / "name.txt"), 7)
"""


def test_inputs_change_and_names_stay():
    text, made = with_variants(SHEET, {"test_table": range(4), "TestIt::test_one": range(8)})
    assert {each.function for each in made} == {"test_table", "TestIt::test_one"}
    assert text.count("name.txt") == text.count("def test_one") and "mode='r'" in text
    assert text.startswith(ast.unparse(ast.parse(SHEET)).partition("\n\n@")[0]), (
        "the module's own literal stays"
    )
    assert "LIMIT = 41" in text and "[2, 1]" in text and "(4, 'x')" in text and "8)" in text
    table = next(each for each in made if each.function == "test_table")
    assert table.table == "4 for 3, 6 for 5"
    assert {original_of(each.name) for each in made} == {"test_table", "TestIt::test_one"}


@pytest.mark.parametrize(
    ("wrong", "late", "refused"),
    [
        ({}, {}, False),
        ({"telling": 2}, {}, False),
        ({"telling": 3}, {}, True),
        ({"opposite": 3}, {}, True),
        ({}, {"telling": 3}, False),
        ({}, {"telling": 4}, True),
        ({"telling": 1}, {"telling": 2}, True),
        ({"opposite": 1}, {"telling": 3}, False),
        ({}, {"telling": 3, "cut_off": False}, True),
    ],
)
def test_a_few_other_or_late_answers_are_forgiven(wrong, late, refused):
    def question(at, answer, **more):
        return FreshQuestion(ask=1, at=at, key=[answer], **more)

    telling = [question(at, at) for at in range(6)]
    opposite = [question(at, 9, holds=False, base=True) for at in range(6)]
    sheet = msgspec.structs.replace(
        without_sheet(""),
        conditions={1: ["compare", ["leaf", 0], ["Eq"], [["pure", 0]]]},
        lines={1: 1},
        fresh={"t.py::test_x__fresh_1": telling, "t.py::test_x__fresh_2": opposite},
    )
    first = [-1 if at < wrong.get("telling", 0) else at for at in range(6 - late.get("telling", 0))]
    second = [9 if at < wrong.get("opposite", 0) else 0 for at in range(6)]
    told = Told(
        tests={
            f"t.py::test_x__fresh_{number}": ToldTest(
                status="PASSED",
                visits=[Visit(ask=1, got=[each]) for each in answers],
                cut_off=late.get("cut_off", True),
            )
            for number, answers in ((1, first), (2, second))
        }
    )
    assert set(by_rote(sheet, told)) == ({"t.py::test_x"} if refused else set())
