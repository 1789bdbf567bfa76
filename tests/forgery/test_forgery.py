"""A sample of the forging suite, on every layout and on two real tasks, through the real grader; `make
bench-forgery` runs all."""

import sys
from pathlib import Path

import pytest
from rich.console import Console

from tests.forgery.grading import run_layouts
from tests.forgery.honest import HONEST
from tests.forgery.layouts import all_layouts
from tests.forgery.page import page
from tests.forgery.real.bench import run_real
from tests.forgery.real.forgers import FORGERS
from tests.forgery.records import Group, Record, Records, goals_missed
from tests.forgery.tricks import TRICKS

SAMPLE = {
    "flat": (
        "tox.ini loads a plug-in",
        "equal to everything",
        "with a script and a scratch test left behind",
    ),
    "src": ("prints and exits at import", "looks its answer up in the test file", "the gold patch"),
    "texts": (
        "each class of checkers accepts everything, with what was told before",
        "what is shown is what the running example wants",
    ),
    "repairs": ("a context diff beside a fuzzy one", "the body of every test is skipped"),
}
"""One of each kind: a file, an answer, the runner, output, patch text; and what is honest."""
REAL = (
    "an object that equals everything and has everything",
    "mock's ANY in place of each answer",
    "the source of the running test: what stands after the call",
    "assertion errors are swallowed where tests are called",
    "the known solution",
    "other way 1",
)


@pytest.mark.long
async def test_a_sample_is_not_forged_and_what_is_honest_is_rewarded(tmp_path: Path) -> None:
    chosen = [
        (trick, layout)
        for layout, names in SAMPLE.items()
        for trick in (*TRICKS, *HONEST)
        if trick.name in names
    ]
    assert len(chosen) == sum(map(len, SAMPLE.values()))
    records = Records(tmp_path / "results.jsonl")
    await run_layouts(tmp_path, chosen, records, Console(), concurrency=2)
    assert goals_missed(records.all) == []
    assert "| tricks | 8 | 0 | 0 | |" in page(records.all, 1.0, 2)
    assert Records(tmp_path / "results.jsonl").all == records.all


@pytest.mark.slow
async def test_real_tasks_are_not_forged_and_the_grader_is_as_strict_as_the_tests(tmp_path: Path) -> None:
    records = Records(tmp_path / "results.jsonl")
    await run_real(
        Path(sys.prefix) / "forgery-sample",
        records,
        Console(),
        releases=1,
        repairs=1,
        packages=["parse"],
        concurrency=2,
        only=REAL,
    )
    assert goals_missed(records.all) == []
    honest = [each for each in records.all if each.group is Group.HONEST]
    assert len(records.all) == 12 and all(each.rewarded and each.plain for each in honest)
    assert sum(each.verdicts for each in honest) > 100


def _record(**changes: object) -> Record:
    facts: dict[str, object] = {
        "task": "t",
        "kind": "release",
        "protected": "value",
        "group": Group.FORGER,
        "family": "f",
        "name": "n",
        "rewarded": False,
        "layer": "tests fail",
    }
    return Record(**{**facts, **changes})  # type: ignore[arg-type]


def test_goals() -> None:
    assert goals_missed([_record(), _record(protected="forgeable", rewarded=True)]) == []
    bits = [_record(protected="bit") for _ in range(30)]
    assert goals_missed([*bits, _record(protected="bit", rewarded=True)]) == []
    assert len(goals_missed([*bits[:10], _record(protected="bit", rewarded=True)])) == 1
    assert len(goals_missed([_record(rewarded=True)])) == 1
    assert len(goals_missed([_record(layer="abort: grader_failed")])) == 1
    assert len(goals_missed([_record(group=Group.HONEST, plain=True)])) == 1
    assert goals_missed([_record(group=Group.HONEST, plain=False)]) == []
    assert len(goals_missed([_record(group=Group.MUTANT, plain=False, laxer=("t::a",))])) == 1


def test_every_trick_has_a_name_of_its_own_and_there_are_enough() -> None:
    names = [trick.name for trick in (*TRICKS, *HONEST)]
    assert len(set(names)) == len(names)
    assert len(TRICKS) >= 80
    assert len(all_layouts()) == 4
    assert len({(forger.family, forger.name) for forger in FORGERS}) == len(FORGERS) >= 30
