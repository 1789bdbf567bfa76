"""A commit of a local git repository becomes a task that proves itself, in real sandboxes."""

import subprocess
from pathlib import Path

import pytest

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.domains.swe.before_after import reporting
from orchard.pipelines.domains.swe.environments import Environments, SynthesisSettings
from orchard.pipelines.domains.swe.own_repository import (
    CommitTaskSettings,
    files_of_tests,
    make_task,
    read_change,
)
from orchard.pipelines.domains.swe.packages import PackageCache
from orchard.pipelines.tasks.errors import NotATask, TaskError
from orchard.pipelines.tasks.proving import ValidationSettings
from orchard.pipelines.tasks.validate import Validator
from orchard.schemas.events import TaskValidated
from orchard.schemas.tasks import SWETests
from orchard.storage.blobs import BlobStore

MEAN = "def mean(values):\n    return sum(values) / len(values)\n"
BETTER_MEAN = "def mean(values):\n    return sum(values) / len(values) if values else 0.0\n"
TESTS = "from averages import mean\n\n\ndef test_mean():\n    assert mean([1, 3]) == 2\n"
MORE_TESTS = TESTS + "\n\ndef test_nothing_has_the_mean_zero():\n    assert mean([]) == 0.0\n"
PROJECT = '[project]\nname = "averages"\nversion = "1.0"\n'
"""What the repository is about; nothing in its commits but the third solves the task."""


def git(repository: Path, *words: str) -> str:
    """Run git as somebody; what it says."""
    who = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(repository), *who, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit(repository: Path, message: str, **files: str) -> str:
    """Commit these files, `__` in a name for a slash; the commit's id."""
    for name, text in files.items():
        path = repository / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", message)
    return git(repository, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Of three commits: a beginning, documentation, and a solution with its test."""
    path = tmp_path / "averages"
    path.mkdir()
    git(path, "init", "-q")
    files = {
        "src__averages__init.py": "",
        "src__averages.py": MEAN,
        "tests__test_averages.py": TESTS,
        "pyproject.toml": PROJECT,
        ".gitattributes": "tests export-ignore\n",
    }
    commit(path, "First", **files)
    commit(path, "Say more", **{"README.md": "Averages\n"})
    better = {"src__averages.py": BETTER_MEAN, "tests__test_averages.py": MORE_TESTS}
    commit(path, "The mean of nothing is 0\n\nSigned-off-by: A <a@b>", **better)
    return path


@pytest.mark.slow
async def test_a_commit_becomes_a_task_that_proves_itself(
    repository: Path,
    sandboxes: AsyncSandboxClient,
    cache: PackageCache,
    settings: SynthesisSettings,
    tmp_path: Path,
) -> None:
    change = read_change(repository / "src", "HEAD^", "HEAD")
    wanted = CommitTaskSettings(tests="pytest -q", setup=("echo built > built.txt",), seconds=60.0)
    environments = Environments(sandboxes, cache, settings)
    task = await make_task(change, wanted, environments)

    assert isinstance(task.grading, SWETests)
    assert task.grading.fail_to_pass == ("tests/test_averages.py::test_nothing_has_the_mean_zero",)
    assert task.grading.pass_to_pass == ("tests/test_averages.py::test_mean",)
    assert "The mean of nothing is 0" in task.statement
    assert "Signed-off-by" not in task.statement
    assert "src/averages.py" in task.gold_patch
    assert "test_averages" not in task.gold_patch
    async with await sandboxes.create_sandbox(task.image, cpu="1", memory="512Mi") as sandbox:
        seen = await sandbox.exec(
            "git log --all --oneline | wc -l; git status --porcelain; git cat-file --batch-all-objects "
            "--batch | grep -c 'else 0.0'; cat README.md; ls tests built.txt",
            cwd=task.workdir,
        )
    assert seen.stdout.split() == ["1", "0", "Averages", "built.txt", "tests:", "test_averages.py"]

    validator = Validator(sandboxes, BlobStore(str(tmp_path / "store")), ValidationSettings(runs=1))
    proven = await validator.validate(task)
    assert isinstance(proven.event, TaskValidated), proven.event

    untested = read_change(repository, "HEAD~2", "HEAD^")
    with pytest.raises(NotATask, match="no test fails before the change and passes after it"):
        await make_task(untested, wanted, environments)


def test_what_is_no_task_is_said_before_anything_is_made(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="has no commit 'nosuch'"):
        read_change(repository, "nosuch", "HEAD")
    with pytest.raises(TaskError, match="not a git repository"):
        read_change(tmp_path, "HEAD^", "HEAD")
    commit(repository, "Only tests", tests__test_averages_more="")
    with pytest.raises(TaskError, match="only tests change"):
        read_change(repository, "HEAD^", "HEAD")


def test_a_command_is_made_to_name_each_test() -> None:
    assert reporting("pytest -q")[0].startswith("pytest -q -rA ")
    assert reporting("python -m unittest") == ("python -m unittest -v", "unittest")
    assert reporting("make check", "junit") == ("make check", "junit")


def test_a_module_with_doctests_is_no_test_file() -> None:
    tests = ["tests/test_a.py::test_b[1]", "README.rst::README.rst", "shop/sums.py::shop.sums.mean", "plain"]
    assert files_of_tests(tests) == {"tests/test_a.py", "README.rst"}
