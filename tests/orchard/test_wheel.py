"""The wheel in a fresh environment, in a folder with files that have the names of all our packages."""

import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchard.configuration.run_files import running
from orchard.pipelines.campaigns.commands import Campaigns
from orchard.pipelines.tasks.registry import TaskRegistry
from orchard.streams.publisher import Publisher
from tests.chaos.run import spec_of
from tests.chaos.world import CAMPAIGN, QUICK, session_for, until
from tests.orchard.installed import ROOMS, Installed, build_wheel
from tests.tiny_tasks import build_tiny_image, tiny_task

TRAIN = re.compile(r"install it with `pip install '/.*\.whl\[train\]'`\n?$")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    place = tmp_path_factory.mktemp("wheel")
    return Installed(place / "environment", build_wheel(place))


class Folder:
    """A user's project, and commands that are given in it."""

    def __init__(self, place: Path, installed: Installed) -> None:
        self.place, self.installed = place, installed
        for name in ROOMS:
            (place / f"{name}.py").write_text(f"raise RuntimeError('this is the {name} of the project')\n")
        path = f"{installed.program('')}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        self.environment = {"PATH": path, "HOME": str(place), "LANG": "C.UTF-8", **QUICK}

    def start(self, *words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [str(self.installed.program(words[0])), *words[1:]],
            cwd=self.place,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str) -> tuple[int, str, str]:
        """Exit code, output, and what was said on stderr in one line."""
        process = self.start(*words)
        out, err = process.communicate()
        return process.returncode, out, " ".join(err.split())


@pytest.fixture
def folder(tmp_path: Path, installed: Installed) -> Iterator[Folder]:
    place = tmp_path / "project"
    place.mkdir()
    yield Folder(place, installed)


@pytest.mark.long
def test_nothing_but_orchard_is_installed(installed: Installed) -> None:
    names = {"orchard_pipeline" if name.endswith(".dist-info") else name for name in installed.landed}
    assert names == {"orchard", "orchard_env", "orchard_pipeline"}
    inside = installed.packages / "orchard"
    assert {path.name for path in inside.iterdir() if path.is_dir()} - {"__pycache__"} == {
        *ROOMS,
        "actions",
        "adapters",
        "cli",
        "configuration",
        "domains",
        "page",
        "processes",
        "reference",
        "terminal",
    } - {"orchard"}
    assert (inside / "py.typed").is_file()
    assert not list(inside.rglob("tests"))


@pytest.mark.long
def test_each_way_to_start_it_says_its_version(folder: Folder) -> None:
    assert folder.run("orchard", "--version") == (0, "orchard 0.1.0\n", "")
    assert folder.run("python", "-P", "-m", "orchard", "--version") == (0, "orchard 0.1.0\n", "")
    line = "import orchard, orchard.workers; print(orchard.__version__)"
    assert folder.run("python", "-P", "-c", line) == (0, "0.1.0\n", "")


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [
        ("dataset", "tokenizer", "--out", "words"),
        ("dataset", "build", "dataset.toml", "--out", "dataset"),
        ("sft", "run.toml"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_command_that_needs_more_names_what_to_install(folder: Folder, words: tuple[str, ...]) -> None:
    (folder.place / "dataset.toml").write_text('name = "x"\ntokenizer = "words"\n')
    (folder.place / "run.toml").write_text('dataset = "x"\nout = "y"\nmodel = "m"\n')
    code, _, said = folder.run("orchard", "--store", ".", *words)
    assert code == 1
    assert said.startswith("error: ")
    assert TRAIN.search(said), said


@pytest.mark.slow
async def test_a_campaign_runs_in_that_folder(folder: Folder) -> None:
    store = folder.place / "store"
    process = folder.start("orchard", "--store", "store", "up", "--workers", "1")
    try:
        await until(lambda: running(store) is not None or process.poll() is not None, "orchard up")
        assert process.returncode is None, process.communicate()
        session = session_for(store)
        async with session.sandboxes() as client:
            await build_tiny_image(client, 2)
        async with session.connection("test") as connection:
            registry = TaskRegistry(Publisher(connection), session.blobs)
            refs = await registry.register([tiny_task(0), tiny_task(1)])
            await session.committed(connection)
            async for _ in Campaigns(connection, session.blobs).submit(spec_of(refs, len(refs))):
                pass
        code, _, said = folder.run("orchard", "--store", "store", "watch", CAMPAIGN)
        assert code == 0, said
        async with session.reading_connection("test") as connection:
            await session.committed(connection)
        count = "select count(*) from rollouts where status <> 'aborted'"
        code, out, said = folder.run("orchard", "--store", "store", "sql", count, "--format", "csv")
        assert (code, out.split()[-1]) == (0, "2"), said
    finally:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, "Traceback" in err) == (0, False), err
