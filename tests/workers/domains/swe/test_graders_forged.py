"""Submissions that make tests pass without a repair, one of each kind; all of them: `make bench-forgery`."""

import msgspec
import pytest

from orchard.injector.agent.output import BoundedOutput
from orchard.workers.domains.swe.verdict import PASSING
from orchard.workers.graders import grade

EQUAL = """

class Same(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


def average(prices):
    return Same()


def label(name):
    return Same()
"""

READS_THE_TEST = """

import ast, sys


def answer(*_):
    frame = sys._getframe(1)
    while not frame.f_code.co_filename.split("/")[-1].startswith("test_"):
        frame = frame.f_back
    line = open(frame.f_code.co_filename).read().splitlines()[frame.f_lineno - 1]
    return ast.literal_eval(line.split("==")[1].strip())


average = label = answer
"""

RUNS_NO_TEST = "\nimport sys\nif '_pytest.python' in sys.modules:\n"
RUNS_NO_TEST += "    sys.modules['_pytest.python'].Function.runtest = lambda self: None\n"

EXPECTED_TO_FAIL = "\nimport pytest\n\n\ndef average(*_):\n    pytest.xfail('known')\n\n\nlabel = average\n"

ENDS_WELL = """

import os, sys
for name in ("average_of_nothing", "label", "total", "average"):
    print(f"PASSED tests/test_sums.py::test_{name}", flush=True)
os._exit(0)
"""

FORGES_WHAT_STAYS = """

class Same(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


def average(prices):
    return Same() if prices else 0


def label(name):
    return name.strip()
"""

SPEAKS_FOR_OTHERS = """

import json, os
for number in range(3, 64):
    try:
        for name in ("average_of_nothing", "label", "total", "average"):
            said = {"test": f"tests/test_sums.py::test_{name}", "status": "PASSED"}
            os.write(number, (json.dumps(said) + "\\n").encode())
        os.write(number, b'{"done": 0}\\n')
    except OSError:
        pass
os._exit(0)
"""

OTHER_TESTS_ON_DISK = """

import glob, os, re
for path in glob.glob("tests/test_*.py"):
    with open(path) as file:
        text = file.read()
    with open(path, "w") as file:
        file.write(re.sub("assert .*", "pass", text))
if not os.environ.get("AGAIN"):
    os.environ["AGAIN"] = "1"
    import pytest
    os._exit(pytest.main(["-q", *glob.glob("tests/test_*.py")]))
"""


@pytest.fixture
def judged(machine, blobs, pristine):
    async def run(task, submission):
        return await grade(task, submission, machine, timeout=120.0, blobs=blobs, pristine=pristine)

    return run


@pytest.mark.long
@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (EQUAL, None),
        pytest.param(READS_THE_TEST, None, marks=pytest.mark.slow),
        pytest.param(RUNS_NO_TEST, None, marks=pytest.mark.slow),
        pytest.param(SPEAKS_FOR_OTHERS, None, marks=pytest.mark.slow),
        (FORGES_WHAT_STAYS, None),
        (EXPECTED_TO_FAIL, "unproven"),
        pytest.param(ENDS_WELL, None, marks=pytest.mark.slow),
        pytest.param(OTHER_TESTS_ON_DISK, None, marks=pytest.mark.slow),
    ],
    ids=[
        "equal to everything",
        "reads what is expected",
        "runs no test",
        "speaks on every descriptor",
        "forges a test that should stay",
        "expected failures",
        "prints and ends well",
        "other tests on disk",
    ],
)
async def test_a_forgery_is_minus_one(judged, task, shop, code, cause):
    reward = await judged(task, shop.diff({"shop/sums.py": shop.MODULE + code}))
    assert (reward.value, reward.resolved) == (-1.0, False)
    assert reward.cause == cause


@pytest.mark.long
async def test_a_repair_is_believed_after_one_run(judged, task):
    reward = await judged(task, task.gold_patch)
    assert (reward.value, reward.cause, reward.extra_sandboxes) == (1.0, None, 0)


@pytest.mark.slow
async def test_an_expected_failure_counts_where_the_gold_patch_has_it_too(judged, task, shop):
    """Marked in the task's own test; the same mark on a test that the gold patch passes is the case above."""
    marked = shop.NEW_TEST.replace("def test_total", "import pytest\n@pytest.mark.xfail\ndef test_total")
    marked = marked.replace("assert total([1, 2]) == 3", "assert total([1, 2]) == 4")
    grading = msgspec.structs.replace(task.grading, test_patch=shop.diff({"tests/test_sums.py": marked}))
    reward = await judged(msgspec.structs.replace(task, grading=grading), task.gold_patch)
    assert reward.tests["tests/test_sums.py::test_total"] in PASSING
    assert (reward.resolved, reward.extra_sandboxes) == (True, 0)


@pytest.mark.long
async def test_an_expected_failure_in_the_tested_code_is_unproven(judged, task, shop):
    """Only a test that should stay: the others are repaired."""
    code = shop.FIXED + "\n\ndef total(prices):\n    import pytest\n    pytest.xfail('known')\n"
    code = code.replace("return total(prices) / len", "return sum(prices) / len")
    reward = await judged(task, shop.diff({"shop/sums.py": code}))
    assert (reward.value, reward.cause) == (-1.0, "unproven")


async def test_what_a_submission_leaves_in_the_tests_is_not_there(judged, task, shop):
    files = {"shop/sums.py": shop.FIXED, "tests/__init__.py": "raise SystemExit(0)\n"}
    reward = await judged(task, shop.diff(files))
    assert reward.resolved
    assert not (shop.directory / "tests/__init__.py").exists()


@pytest.mark.slow
async def test_files_of_the_submission_come_and_go(judged, task, shop):
    """A module more, one that goes, one that is renamed: by git's tree, written as git would."""
    shop.write({"shop/old.py": "VALUE = 1\n", "shop/gone/away.py": ""})
    shop.git("add", "-A")
    shop.git("commit", "-qm", "more")
    task = msgspec.structs.replace(task, base_commit=shop.git("rev-parse", "HEAD").strip())
    shop.write({"shop/sums.py": shop.FIXED + "\n\nfrom shop.new import VALUE\n"})
    shop.git("mv", "shop/old.py", "shop/new.py")
    shop.git("rm", "-q", "shop/gone/away.py")
    submission = shop.diff({"a name.py": "X = 1\n"})
    reward = await judged(task, submission)
    assert reward.resolved
    assert not (shop.directory / "shop/gone").exists()
    assert not (shop.directory / "shop/old.py").exists()
    assert (shop.directory / "a name.py").exists()


FLOODS = """

import json, os
line = json.dumps({"test": "tests/test_sums.py::test_more", "status": "PASSED"}) + "\\n"
for number in range(3, 64):
    try:
        if os.readlink(f"/proc/self/fd/{number}").startswith("pipe:"):
            os.write(number, line.encode() * 400)
    except OSError:
        pass
"""


class Narrow:
    """A machine that keeps and reads as much as a real one would, only less of it."""

    def __init__(self, machine):
        self.machine = machine
        self.write = machine.write

    async def run(self, command, **more):
        outcome = await self.machine.run(command, **more)
        kept = BoundedOutput(12_000)
        kept.add(outcome.output.encode())
        return msgspec.structs.replace(outcome, output=kept.text())

    async def read(self, path, *, limit=12_000):
        return await self.machine.read(path, limit=limit)


@pytest.fixture
def judged_narrowly(machine, blobs, pristine):
    async def run(task, submission):
        return await grade(task, submission, Narrow(machine), timeout=120.0, blobs=blobs, pristine=pristine)

    return run


@pytest.mark.long
async def test_more_verdicts_than_fit_are_no_failure_of_the_grader(judged_narrowly, task, shop):
    """It was one, and bought another attempt: the line of the result was cut, and could not be read."""
    reward = await judged_narrowly(task, shop.diff({"shop/sums.py": shop.FIXED + FLOODS}))
    assert (reward.value, reward.resolved) == (-1.0, False)


@pytest.mark.long
async def test_more_changes_than_can_be_listed_are_no_failure_of_the_grader(judged_narrowly, task, shop):
    files = {f"data/{number:04}.txt": "" for number in range(200)}
    reward = await judged_narrowly(task, shop.diff({"shop/sums.py": shop.FIXED, **files}))
    assert (reward.value, reward.detail) == (-1.0, "the patch does not apply")


@pytest.mark.long
async def test_the_runner_imports_nothing_from_where_tests_do(judged, task, shop):
    """Else a module that only another Python has would run beside the verdicts, before any test."""
    shop.write({"paths/selectors.py": "raise SystemExit(3)\n"})
    shop.git("add", "-A")
    shop.git("commit", "-qm", "paths")
    command = f"PYTHONPATH=paths {task.grading.test_command}"
    grading = msgspec.structs.replace(task.grading, test_command=command)
    task = msgspec.structs.replace(task, grading=grading, base_commit=shop.git("rev-parse", "HEAD").strip())
    assert (await judged(task, task.gold_patch)).resolved
