"""A task that code passes which repairs nothing and knows nothing of it is labelled at validation."""

import time

import msgspec
import pytest

from orchard.schemas.protection import Protected
from orchard.workers.domains.swe.preparing import TaskRepository
from orchard.workers.domains.swe.sheets.making import SheetMaker
from orchard.workers.domains.swe.testing import plan_of

pytestmark = pytest.mark.long

BASE = """
def named(title, name):
    return title


def twice(name):
    return name
"""
GOLD = BASE.replace("return name\n", "return name + name\n").replace("return title\n", "return name\n")
TESTS = """
from small import named, twice


def test_named():
    name = "jo".replace("o", "oan")
    assert named("doctor", name) == name


def test_twice():
    assert twice("a") == "aa"
"""
FILE = "tests/test_small.py"


@pytest.mark.parametrize(
    ("must", "why"),
    [("named", "code that repairs nothing gets a +1 by an argument of the answer's type"), ("twice", "")],
)
async def test_a_task_is_forgeable_where_an_argument_in_place_of_each_answer_passes(
    shop, task, pristine, must, why
):
    shop.write({"small.py": BASE})
    shop.git("add", "-A")
    shop.git("commit", "-qm", "small")
    grading = msgspec.structs.replace(
        task.grading,
        test_patch=shop.diff({FILE: TESTS}),
        test_command=f"python -m pytest -p no:cacheprovider -rA {FILE}",
        fail_to_pass=(f"{FILE}::test_{must}",),
        pass_to_pass=(),
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
