"""A domain in a package of its own: a worker finds it by its entry point and runs its rollouts."""

import inspect
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchard.schemas.campaigns import ModelSpec
from orchard.schemas.events import RolloutFinished, payload
from orchard.schemas.llm_calls import ModelKind
from orchard.schemas.plugins import Kind, PluginError, PluginSettings
from orchard.schemas.tasks import PluginGrading, Task, WorldUse
from orchard.streams.server import EmbeddedServer
from orchard.workers import discovery, plugins
from orchard.workers import domain as domains
from orchard.workers.harnesses import default_harness, fingerprint, get_harness
from orchard.workers.judges import get_protocol
from orchard.workers.oracle.server import OracleServer
from tests.attempts_world import world
from tests.sandbox_service import LocalService

METADATA = "Metadata-Version: 2.1\nName: counting\nVersion: 1.0\n"
PACKAGE = {
    "counting-1.0.dist-info/METADATA": METADATA,
    "counting-1.0.dist-info/entry_points.txt": "[orchard.worker_domains]\ncounting = counting:DOMAIN\n"
    "[orchard.harnesses]\nalone = counting.loop:Alone\n",
    "counting/prompts/system.txt": "Count with the tool `add`.",
    "counting/__init__.py": """
from orchard.plugins import WorkerDomain

DOMAIN = WorkerDomain(
    name="counting",
    package="counting",
    default_harness="counting-loop",
    oracle="counting.oracle:Player",
    standby="counting.world:standby",
    sources=("*.py", "prompts/*"),
)
""",
    "counting/loop.py": """
from pathlib import Path

from orchard.plugins import ExitStatus, Harness, HarnessResult

HARNESSES = {"counting-loop": "Loop"}

SYSTEM = (Path(__file__).parent / "prompts" / "system.txt").read_text()


class Loop(Harness):
    name, tools, tools_in_log = "counting-loop", (), True

    async def run(self, episode):
        leaf = await episode.trace.user(await episode.trace.system(SYSTEM), episode.task.statement)
        while True:
            leaf, answer = await episode.ask(leaf, episode.world.tools)
            if not answer.tool_calls:
                return HarnessResult(exit_status=ExitStatus.FINISHED, submission="", leaf=leaf)
            for call in answer.tool_calls:
                outcome, shown = await episode.world.call(call)
                leaf = await episode.trace.result(leaf, call, shown, outcome)


class Alone(Loop):
    name = "alone"
""",
    "counting/world.py": """
import json
from contextlib import asynccontextmanager

import msgspec

from orchard.plugins import CommandOutcome, Reward

GRADERS = {"counting": "Grader"}
WORLDS = {"counting": "Counter"}

ASKED = []


class Goal(msgspec.Struct):
    total: int


class Open:
    tools = ({"type": "function", "function": {"name": "add", "parameters": {}}},)
    about = ""

    def __init__(self):
        self.total = 0

    def bounded(self, budget):
        return budget

    async def call(self, call):
        self.total += json.loads(call.arguments)["number"]
        return CommandOutcome(output="", returncode=0, seconds=0.0), f"It is {self.total}."

    async def hand_in(self, ended, messages):
        return str(self.total)


class Counter:
    name, settings = "counting", Goal

    @asynccontextmanager
    async def open(self, settings, opening):
        yield Open()


class Grader:
    name, in_place, settings = "counting", True, Goal

    async def grade(self, settings, judgement):
        right = judgement.submission == str(settings.total)
        return Reward(value=1.0 if right else -1.0, resolved=right, grader=self.name)


class Nothing:
    def take(self, task, memory):
        ASKED.append(task.task_id)


async def standby(shared, client, sandboxes, worker):
    return Nothing()
""",
    "counting/oracle.py": """
from orchard.plugins import ToolCall
from orchard.workers.llm.answers import ORACLE_FINGERPRINT
from orchard.workers.oracle.replies import Reply, usage
from orchard.workers.oracle.replies import Turn

JUDGES = {"counting-3": "Protocol"}


class Player:
    def __init__(self, tasks, mix):
        pass

    async def start(self):
        pass

    def plays(self, request):
        return request.tool_names == ["add"]

    async def reply(self, request):
        calls = (ToolCall(id="", name="add", arguments='{"number": 2}'),)
        done = "It is 4." in request.spoken("tool")
        turn = Turn(text="Four.") if done else Turn(text="Two more.", calls=calls)
        cost = usage(request.messages, request.tools, turn)
        return Reply(id="1", model=request.model, fingerprint=ORACLE_FINGERPRINT, turn=turn, usage=cost)


class Protocol:
    version, words = "counting-3", ""

    async def judge(self, evidence, ask):
        raise NotImplementedError
""",
}
TASK = Task(
    task_id="four",
    source="counting",
    repo="counting",
    image="host",
    workdir="/tmp",
    statement="Count to four.",
    grading=PluginGrading(grader="counting", settings={"total": 4}, in_place=True),
    world=WorldUse(kind="counting", settings={"total": 4}),
)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[LocalService]:
    service = LocalService(tmp_path / "state")
    yield service
    service.stop()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages with that of the domain."""
    folder = tmp_path / "site"
    for name, text in PACKAGE.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(folder)
    forget()
    yield folder
    monkeypatch.undo()
    forget()


def forget() -> None:
    """Let installed packages be looked for, and this one be imported, again."""
    for module in [name for name in sys.modules if name.partition(".")[0] == "counting"]:
        del sys.modules[module]
    discovery.installed.cache_clear()
    domains.domains.cache_clear()
    plugins.configure(PluginSettings(), Path())


@pytest.mark.long
@pytest.mark.usefixtures("site")
async def test_a_worker_runs_a_domain_that_it_has_never_heard_of(
    nats_server: EmbeddedServer, service: LocalService, tmp_path: Path
) -> None:
    harness = default_harness("counting")
    assert harness == "counting-loop" and get_protocol("counting").version == "counting-3"
    async with (
        OracleServer(lambda: ()) as oracle,
        world(nats_server.url, service.url, tmp_path / "store", ()) as place,
    ):
        models = (ModelSpec(name="oracle"),)
        (rollout,) = await place.submit(TASK, harnesses=(harness,), models=models)
        async with place.working(base_url=oracle.url):
            done = payload((await place.outcomes(rollout))[rollout])
    assert isinstance(done, RolloutFinished), done
    assert (done.reward, done.submission, done.turns, done.model_kind) == (1.0, "4", 3, ModelKind.ORACLE)
    from counting.world import ASKED  # type: ignore[import-not-found]

    assert ASKED == ["four"]


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("counting-loop", "loop.py"),
        ("counting-loop", "world.py"),
        ("counting-loop", "prompts/system.txt"),
        ("counting-loop", "../counting-1.0.dist-info/METADATA"),
        ("alone", "../counting-1.0.dist-info/METADATA"),
    ],
)
def test_the_fingerprint_of_a_harness_covers_the_files_and_the_version_of_its_package(
    site: Path, name: str, file: str
) -> None:
    harness = get_harness(name)
    before = fingerprint(harness)
    changed = (site / "counting" / file).read_text().replace("Version: 1.0", "Version: 1.1") + "\n"
    (site / "counting" / file).write_text(changed)
    forget()
    assert fingerprint(harness) != before


@pytest.mark.parametrize("record", domains.domains().values(), ids=lambda record: record.name)
def test_the_sources_of_a_domain_hold_its_harnesses_and_all_prompts(record: domains.WorkerDomain) -> None:
    folder = Path(str(sys.modules[record.package].__file__)).parent
    prompts = {file for file in folder.rglob("*.py") if "prompts" in file.stem}
    classes = {
        Path(inspect.getfile(type(discovery.load(each)))) for each in record.components[Kind.HARNESS].values()
    }
    assert classes
    assert {*prompts, *classes} <= {*record.files()}


def test_a_domain_that_cannot_be_loaded_is_left_out_and_named(
    site: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (site / "counting/second.py").write_text("from orchard.workers.domains.swe import DOMAIN\n")
    entries = "[orchard.worker_domains]\ncounting = counting:NOTHING\nother = counting.world:Goal\n"
    entries += "swe = counting.second:DOMAIN\n"
    (site / "counting-1.0.dist-info/entry_points.txt").write_text(entries)
    forget()
    with caplog.at_level(logging.WARNING):
        assert sorted(domains.domains()) == ["claw", "gui", "swe"]
    assert "'counting' (counting:NOTHING) is left out" in caplog.text
    assert "the name 'swe' is taken" in caplog.text
    assert "'other' (counting.world:Goal) is left out" in caplog.text


def test_a_plug_in_may_not_hide_a_component_of_a_domain(site: Path) -> None:
    plugins.configure(PluginSettings(graders={"counting": "counting.world:Grader"}), site)
    with pytest.raises(PluginError, match=r"'counting' \(graders\) has the name of a built-in one"):
        plugins.check({})


def test_a_module_of_a_domain_names_its_components_and_is_not_imported_for_it(site: Path) -> None:
    module = "raise AssertionError('imported')\n"
    (site / "counting/tens.py").write_text(f'{module}GRADERS = {{"tens": "Tens", "tens-2": "Second"}}\n')
    (site / "counting/steps").mkdir()
    (site / "counting/steps/__init__.py").write_text(f'{module}GRADERS = {{\n    "steps": "Steps",\n}}\n')
    assert discovery.components_in("counting", "GRADERS") == {
        "counting": "counting.world:Grader",
        "steps": "counting.steps:Steps",
        "tens": "counting.tens:Tens",
        "tens-2": "counting.tens:Second",
    }
    (site / "counting/typed.py").write_text('GRADERS: dict[str, str] = {"typed": "Typed"}\n')
    with pytest.raises(TypeError, match=r"typed\.py: write GRADERS as a dictionary of texts"):
        discovery.components_in("counting", "GRADERS")


def test_every_component_of_orchards_own_domains_can_be_loaded() -> None:
    for kind in domains.COMPONENTS:
        for name in domains.components(kind):
            assert plugins.find(kind, name) is not None
    for record in domains.domains().values():
        for reference in (*record.gradings.values(), record.standby):
            assert not reference or discovery.load(reference) is not None
