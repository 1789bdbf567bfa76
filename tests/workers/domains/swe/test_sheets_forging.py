"""A task that code passes which repairs nothing and knows nothing of it is labelled at validation."""

import time

import msgspec
import pytest

from orchard.schemas.protection import Protected
from orchard.workers.domains.swe.preparing import TaskRepository
from orchard.workers.domains.swe.sheets.making import SheetMaker
from orchard.workers.domains.swe.testing import plan_of

BASE = """
def named(title, name):
    return title


def twice(name):
    return name + name
"""
GOLD = BASE.replace("return title\n", "return name\n")
TESTS = """
from small import named, twice


def test_named():
    name = "jo".replace("o", "oan")
    assert named("doctor", name) == name


def test_twice():
    assert twice("a").startswith("a")


def test_twice_whole():
    assert twice("a") == "aa"
"""
FILE = "tests/test_small.py"


@pytest.mark.parametrize(
    ("must", "keep", "why"),
    [
        ("named", [], "an argument of the answer's type in place of each answer"),
        ("named", ["twice"], "an argument of the answer's type in place of each answer"),
        ("named", ["twice_whole"], ""),
    ],
)
async def test_a_task_is_forgeable_where_an_argument_in_place_of_each_answer_passes(
    shop, task, pristine, must, keep, why
):
    shop.write({"small.py": BASE})
    shop.git("add", "-A")
    shop.git("commit", "-qm", "small")
    grading = msgspec.structs.replace(
        task.grading,
        test_patch=shop.diff({FILE: TESTS}),
        test_command=f"python -m pytest -p no:cacheprovider -rA {FILE}",
        fail_to_pass=(f"{FILE}::test_{must}",),
        pass_to_pass=tuple(f"{FILE}::test_{each}" for each in keep),
        test_files=(FILE,),
    )
    small = msgspec.structs.replace(
        task,
        base_commit=shop.git("rev-parse", "HEAD").strip(),
        gold_patch=shop.diff({"small.py": GOLD}),
        grading=grading,
    )
    repository = TaskRepository(small, grading, pristine, time.monotonic() + 600)
    sheet = await SheetMaker(small, grading, plan_of(grading), repository.prepared).make()
    assert (sheet.label is Protected.FORGEABLE) == bool(why)
    assert why in sheet.why
