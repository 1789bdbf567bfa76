"""Two tiny releases become a proven task in real sandboxes, without a network."""

import io
import tarfile
from pathlib import Path

import msgspec
import pytest

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.domains.swe.environments import Environments, SynthesisSettings
from orchard.pipelines.domains.swe.packages import PackageCache
from orchard.pipelines.domains.swe.releases import ReleasePair
from orchard.pipelines.domains.swe.synthesize import Rejection, Synthesizer
from orchard.pipelines.tasks.proving import ValidationSettings
from orchard.pipelines.tasks.validate import Validator
from orchard.schemas.events import TaskRejected, TaskValidated
from orchard.schemas.tasks import SWETests, Task, task_hash
from orchard.storage.blobs import BlobStore

OLD_MODULE = '__version__ = "1.0.0"\n\n\ndef mean(values):\n    return sum(values) / len(values)\n'
NEW_MODULE = (
    '__version__ = "1.1.0"\n\n\ndef mean(values):\n'
    "    if not values:\n        return 0.0\n    return sum(values) / len(values)\n"
)
OLD_TESTS = "from averages import mean\n\n\ndef test_mean():\n    assert mean([1, 3]) == 2\n"
NEW_TESTS = OLD_TESTS + "\n\ndef test_nothing_has_the_mean_zero():\n    assert mean([]) == 0.0\n"
SECOND_CHANGE = """
for value in 1 2; do
  echo "value = $value" > changing.py && touch -d @1000000000 changing.py
  python3 -c 'import changing; print(changing.value)'
done
"""
"""Two changes of one length within one second, each checked at once."""


def _sdist(version: str, module: str, tests: str) -> bytes:
    files = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: averages\nVersion: {version}\n",
        "CHANGES.md": "# Changes\n\n" + ("## 1.1.0\n\nThe mean of nothing is 0.\n\n" * (version != "1.0.0")),
        "pyproject.toml": '[build-system]\nrequires = ["no-such-backend"]\nbuild-backend = "absent"\n',
        "src/averages/__init__.py": module,
        "tests/test_averages.py": tests,
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, text in files.items():
            info = tarfile.TarInfo(f"averages-{version}/{path}")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


@pytest.fixture
def averages(cache: PackageCache, tmp_path: Path, settings: SynthesisSettings) -> PackageCache:
    """Sdists that are there already too."""
    releases = {
        "1.0.0": (OLD_MODULE, OLD_TESTS),
        "1.1.0": (NEW_MODULE, NEW_TESTS),
        "1.1.1": (NEW_MODULE, NEW_TESTS),
    }
    (tmp_path / "cache" / "sdists").mkdir(parents=True)
    for version, (module, tests) in releases.items():
        (tmp_path / "cache" / "sdists" / f"averages-{version}.tar.gz").write_bytes(
            _sdist(version, module, tests)
        )
    _newer_release(cache.environment_path([settings.pytest]))
    return cache


def _newer_release(environment: Path) -> None:
    """As if a dependency of the test runner had brought the package that the task is about."""
    files = {
        "averages/__init__.py": NEW_MODULE,
        "averages-1.1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: averages\nVersion: 1.1.0\n",
        "averages-1.1.0.dist-info/RECORD": "averages/__init__.py,,\naverages-1.1.0.dist-info/METADATA,,\n",
    }
    for path, text in files.items():
        (environment / path).parent.mkdir(exist_ok=True)
        (environment / path).write_text(text)


@pytest.mark.slow
async def test_two_releases_become_a_task_that_proves_itself(
    sandboxes: AsyncSandboxClient, averages: PackageCache, settings: SynthesisSettings, tmp_path: Path
) -> None:
    synthesizer = Synthesizer(sandboxes, averages, settings)
    pair = ReleasePair(package="averages", old="1.0.0", new="1.1.0")

    made = [
        each
        async for each in synthesizer.many([pair, ReleasePair(package="averages", old="1.1.0", new="1.1.1")])
    ]

    (task,) = [each for each in made if isinstance(each, Task)]
    (rejection,) = [each for each in made if isinstance(each, Rejection)]
    assert rejection.reason == "no_source_change"
    assert isinstance(task.grading, SWETests)
    assert task.grading.fail_to_pass == ("tests/test_averages.py::test_nothing_has_the_mean_zero",)
    assert task.grading.pass_to_pass == ("tests/test_averages.py::test_mean",)
    assert "ZeroDivisionError: division by zero" in task.statement
    assert "The mean of nothing is 0." in task.statement
    assert "__version__" not in task.gold_patch

    async with await sandboxes.create_sandbox(task.image, cpu="1", memory="512Mi") as sandbox:
        changed = await sandbox.exec("git status --porcelain", cwd="/testbed")
        found = await sandbox.exec("cd /opt/env/lib/*/site-packages && ls -d *averages*", cwd="/")
        second_change = await sandbox.exec(SECOND_CHANGE, cwd="/tmp")
        imported = await sandbox.exec(
            ["python", "-c", "import averages; print(averages.__file__, averages.__version__)"], cwd="/"
        )
    assert changed.stdout == ""
    assert second_change.stdout == "1\n2\n", "the second one must not run the bytecode of the first"
    assert found.stdout.split() == ["_averages_source.pth", "averages-1.0.0.dist-info"]
    assert imported.stdout.split() == ["/testbed/src/averages/__init__.py", "1.0.0"]

    validator = Validator(sandboxes, BlobStore(str(tmp_path / "store")), ValidationSettings(runs=2))
    proven = await validator.validate(task)
    assert isinstance(proven.event, TaskValidated), proven.event
    assert proven.event.task_hash == task_hash(task)
    assert proven.event.runs == 2

    easy = msgspec.structs.replace(task.grading, fail_to_pass=task.grading.pass_to_pass, pass_to_pass=())
    solved = await validator.validate(msgspec.structs.replace(task, grading=easy))
    assert isinstance(solved.event, TaskRejected)
    assert solved.event.reason == "empty_resolves"

    nowhere = await validator.validate(msgspec.structs.replace(task, image="pypi/absent:1"))
    assert isinstance(nowhere.event, TaskRejected)
    assert nowhere.event.reason == "image_missing"

    again = [each async for each in synthesizer.many([pair], known={task.task_id})]
    assert again == []
    assert await sandboxes.list_sandboxes() == []


@pytest.mark.long
async def test_requirements_that_this_python_does_not_have_need_no_image_of_their_own(
    sandboxes: AsyncSandboxClient, cache: PackageCache, settings: SynthesisSettings
) -> None:
    environments = Environments(sandboxes, cache, settings)

    image = await environments.image([settings.pytest])

    elsewhere = 'colorama; platform_system == "Windows"'
    assert await environments.image([settings.pytest, elsewhere]) == image
