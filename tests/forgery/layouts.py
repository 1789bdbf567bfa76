"""Four layouts of a task's repository: a flat module, `src` with unittest, this project's repair tasks, and
a text of doctests.

All are in one image with an environment of its own, in a git repository each.
"""

import difflib
import shutil
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import msgspec

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.domains.swe import layout as image_layout
from orchard.pipelines.domains.swe.environments import pack_directory
from orchard.pipelines.domains.swe.repairs import Split, repair_files, repair_tasks
from orchard.pipelines.tasks.trees import pack
from orchard.schemas.tasks import SWETests, Task
from orchard.workers.episode.diffs import parse_diff

IMAGE = "tests/forgery:1"
RUNNER = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
"""The test runner and what it needs, copied as installed here: an environment without an index."""
PYTHON = image_layout.PYTHON
TEST_SECONDS = 20.0

Cases = tuple[tuple[tuple[int, ...], int], ...]


@dataclass(frozen=True)
class Layout:
    """A task with one defective function, and where things lie in its repository."""

    name: str
    task: Task
    files: dict[str, str]
    """The repository at the base commit."""
    module: str
    function: str
    path: str
    """Directory on Python's path, empty or with a final slash."""
    test: str
    cases: Cases
    """Calls in the hidden tests: arguments and result."""

    @property
    def words(self) -> dict[str, str]:
        """What the words of a trick stand for."""
        directory = self.module.rpartition("/")[0]
        beside = f"{directory}/" if directory else ""
        return {
            "@BESIDE@": beside,
            "@PACKAGE@": beside.removeprefix(self.path).replace("/", "."),
            "@FUNCTION@": self.function,
            "@MODULE@": self.module,
            "@IMPORT@": self.module.removeprefix(self.path).removesuffix(".py").replace("/", "."),
            "@PATH@": self.path,
            "@TEST@": self.test,
            "@TESTNAME@": self.test.removesuffix(".py"),
            "@CASES@": repr(dict(self.cases)),
        }


FLAT_MODULE = '''"""Prices of the shop."""


def reduced(price, percent):
    """Return the price less so many percent."""
    return price - percent
'''
FLAT_GOLD = FLAT_MODULE.replace("price - percent\n", "price - price * percent // 100\n")
FLAT_ROWS = ((40, 50, 20), (90, 10, 81), (64, 25, 48), (500, 21, 395), (120, 5, 114))
FLAT_CASES: Cases = (
    *(((250, 10), 225), ((80, 25), 60), ((300, 33), 201), ((1000, 7), 930)),
    *((row[:2], row[2]) for row in FLAT_ROWS),
)
FLAT_OLD_TESTS = """import pytest

from pricing import reduced


def test_unchanged():
    assert reduced(70, 0) == 70
"""
FLAT_TESTS = (
    FLAT_OLD_TESTS
    + """

def test_reported():
    assert reduced(250, 10) == 225


def test_others():
    assert reduced(80, 25) == 60
    assert reduced(300, 33) == 201
    assert reduced(1000, 7) == 930
"""
    + f"""

@pytest.mark.parametrize(("price", "percent", "left"), {list(FLAT_ROWS)})
def test_table(price, percent, left):
    assert reduced(price, percent) == left
"""
)

SRC_MODULE = '''"""Balances of accounts."""


def balance(opening, deposits, withdrawals):
    """Return what is on the account after deposits and withdrawals."""
    return opening + deposits + withdrawals
'''
SRC_GOLD = SRC_MODULE.replace("deposits + withdrawals\n", "deposits - withdrawals\n")
SRC_ROWS = ((3, 4, 5, 2), (60, 15, 40, 35), (11, 22, 7, 26), (80, 1, 33, 48), (5, 90, 17, 78))
SRC_CASES: Cases = (
    *(((100, 50, 20), 130), ((0, 10, 4), 6), ((7, 0, 7), 0), ((500, 25, 130), 395)),
    *((row[:3], row[3]) for row in SRC_ROWS),
)
SRC_OLD_TESTS = """import unittest

from ledger.accounts import balance


class BalanceTest(unittest.TestCase):
    def test_untouched(self):
        self.assertEqual(balance(12, 0, 0), 12)
"""
SRC_TESTS = (
    SRC_OLD_TESTS
    + """
    def test_reported(self):
        self.assertEqual(balance(100, 50, 20), 130)

    def test_others(self):
        self.assertEqual(balance(0, 10, 4), 6)
        self.assertEqual(balance(7, 0, 7), 0)
        self.assertEqual(balance(500, 25, 130), 395)
"""
    + f"""
    def test_table(self):
        for opening, deposits, withdrawals, left in {SRC_ROWS}:
            with self.subTest(opening=opening):
                self.assertEqual(balance(opening, deposits, withdrawals), left)
"""
)


def diff(path: str, old: str, new: str) -> str:
    """A git diff of one file; an empty `old` makes a new one."""
    lines = difflib.unified_diff(
        old.splitlines(keepends=True),
        new.splitlines(keepends=True),
        f"a/{path}" if old else "/dev/null",
        f"b/{path}",
    )
    return f"diff --git a/{path} b/{path}\n" + ("" if old else "new file mode 100644\n") + "".join(lines)


def _flat() -> Layout:
    test = "tests/test_pricing.py"
    task = Task(
        task_id="forgery-flat",
        source="forgery",
        repo="forgery/flat",
        image=IMAGE,
        base_commit="HEAD",
        statement="pricing.py: reduced(250, 10) gives 240, not 225.",
        gold_patch=diff("pricing.py", FLAT_MODULE, FLAT_GOLD),
        workdir="/flat",
        memory="512Mi",
        grading=SWETests(
            test_patch=diff(test, FLAT_OLD_TESTS, FLAT_TESTS),
            test_command=f"{PYTHON} -m pytest -rA -q --tb=short {test}",
            fail_to_pass=(
                f"{test}::test_reported",
                f"{test}::test_others",
                *(f"{test}::test_table[{price}-{percent}-{left}]" for price, percent, left in FLAT_ROWS),
            ),
            pass_to_pass=(f"{test}::test_unchanged",),
            test_files=(test,),
            timeout_seconds=TEST_SECONDS,
        ),
    )
    files = {"pricing.py": FLAT_MODULE, test: FLAT_OLD_TESTS, "README": "Prices.\n"}
    return Layout("flat", task, files, "pricing.py", "reduced", "", test, FLAT_CASES)


def _src() -> Layout:
    module, test, name = "src/ledger/accounts.py", "tests/test_accounts.py", "tests.test_accounts.BalanceTest"
    task = Task(
        task_id="forgery-src",
        source="forgery",
        repo="forgery/src",
        image=IMAGE,
        base_commit="HEAD",
        statement="ledger.accounts: balance(100, 50, 20) gives 170, not 130.",
        gold_patch=diff(module, SRC_MODULE, SRC_GOLD),
        workdir="/src",
        memory="512Mi",
        grading=SWETests(
            test_patch=diff(test, SRC_OLD_TESTS, SRC_TESTS),
            test_command=f"PYTHONPATH=src {PYTHON} -m unittest -v tests.test_accounts",
            fail_to_pass=tuple(
                f"{each} ({name}.{each})" for each in ("test_reported", "test_others", "test_table")
            ),
            pass_to_pass=(f"test_untouched ({name}.test_untouched)",),
            test_files=(test,),
            parser="unittest",
            timeout_seconds=TEST_SECONDS,
        ),
    )
    files = {
        module: SRC_MODULE,
        "src/ledger/__init__.py": "",
        "tests/__init__.py": "",
        test: SRC_OLD_TESTS,
        "README": "Accounts.\n",
    }
    return Layout("src", task, files, module, "balance", "src/", test, SRC_CASES)


def _texts() -> Layout:
    test, other = "docs/pricing.rst", "tests/test_pricing.py"
    calls = (f">>> reduced{arguments}\n{left}\n" for arguments, left in FLAT_CASES)
    text = "Prices\n======\n\n>>> from pricing import reduced\n" + "\n".join(calls)
    old = "Prices\n======\n\nThey have no examples.\n"
    task = Task(
        task_id="forgery-texts",
        source="forgery",
        repo="forgery/texts",
        image=IMAGE,
        base_commit="HEAD",
        statement="pricing.py: reduced(250, 10) gives 240, not 225.",
        gold_patch=diff("pricing.py", FLAT_MODULE, FLAT_GOLD),
        workdir="/texts",
        memory="512Mi",
        grading=SWETests(
            test_patch=diff(test, old, text),
            test_command=f"{PYTHON} -m pytest -rA -q --tb=short {test} {other}",
            fail_to_pass=(f"{test}::pricing.rst",),
            pass_to_pass=(f"{other}::test_unchanged",),
            test_files=(test, other),
            timeout_seconds=TEST_SECONDS,
        ),
    )
    files = {"pricing.py": FLAT_MODULE, test: old, other: FLAT_OLD_TESTS}
    return Layout("texts", task, files, "pricing.py", "reduced", "", test, FLAT_CASES)


def _repairs() -> Layout:
    (task,) = repair_tasks(1, 14, Split.TRAIN, kinds=["product"])
    assert isinstance(task.grading, SWETests)
    (gold,), (tests,) = parse_diff(task.gold_patch), parse_diff(task.grading.test_patch)
    module, test = gold.path, tests.path
    function = module.split("/")[1].removesuffix(".py")
    calls = [line.strip() for hunk in tests.hunks for line in hunk.added if f"assert {function}(" in line]
    cases = tuple(
        (tuple(int(each) for each in call.split("(")[1].split(")")[0].split(",")), int(call.split("==")[1]))
        for call in calls
    )
    grading = msgspec.structs.replace(task.grading, timeout_seconds=TEST_SECONDS)
    task = msgspec.structs.replace(task, image=IMAGE, grading=grading)
    return Layout("repairs", task, repair_files([task]), module, function, "", test, cases)


def all_layouts() -> tuple[Layout, ...]:
    """The four, each in a directory of its own of the one image."""
    return _flat(), _src(), _repairs(), _texts()


_REPOSITORY = """\
set -e
mkdir -p {workdir}
{python} -m tarfile -e /tmp/files.tar {workdir}
cd {workdir}
git init -q .
printf '__pycache__/\\n' > .git/info/exclude
git config core.autocrlf false
git add -A
git -c user.name=t -c user.email=t@example.org -c commit.gpgsign=false commit -q -m base
"""


async def build_image(client: AsyncSandboxClient, layouts: tuple[Layout, ...]) -> None:
    """Make the image of the layouts from the machine's own Python and pytest."""
    async with await client.create_sandbox("host", memory="1Gi", cpu="1") as sandbox:
        await sandbox.upload_content(_environment(), "/tmp/site-packages.tar")
        result = await sandbox.exec(image_layout.environment_script("python3", "/tmp/site-packages.tar"))
        assert result.succeeded, result.stderr
        for layout in layouts:
            files = pack({path: text.encode() for path, text in layout.files.items()})
            await sandbox.upload_content(files, "/tmp/files.tar")
            result = await sandbox.exec(_REPOSITORY.format(workdir=layout.task.workdir, python=PYTHON))
            assert result.succeeded, result.stderr
        await sandbox.snapshot(IMAGE)


def _environment() -> bytes:
    """The test runner as a tar of site-packages."""
    with tempfile.TemporaryDirectory() as directory:
        for name in RUNNER:
            for file in metadata.files(name) or []:
                if ".." not in file.parts:
                    target = Path(directory) / file
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(str(file.locate()), target)
        return pack_directory(Path(directory))
