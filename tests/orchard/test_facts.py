"""`--json`: what programs read of commands, by its schema and with jq."""

import asyncio
import json
import subprocess
from pathlib import Path

import jsonschema
import msgspec
import pytest
import pytest_asyncio
import typer
from typer.testing import CliRunner

from orchard.actions.abort_reasons import abort_reasons
from orchard.actions.campaign_status import CampaignView, PipelineView, State
from orchard.actions.campaigns import StoreStatus
from orchard.cli.app import app
from orchard.cli.campaign_facts import status_facts
from orchard.cli.facts_schema import facts_schema, facts_types
from orchard.cli.measuring import AgreementListing, AnnotatorAgreement
from orchard.cli.reference import walk
from orchard.cli.tasks import HackListing, PolicyHacks
from orchard.configuration.run_files import RunFiles
from orchard.pipelines.tasks.registry import TaskRegistry
from orchard.pipelines.values.calibration import CalibrationPoint, agreement
from orchard.storage.blobs import BlobStore
from orchard.storage.reader import open_tables
from orchard.storage.writing.writer import Writer
from orchard.streams.connection import connect
from orchard.streams.publisher import Publisher
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from tests.pipelines.rl.written_log import assembled, plan_of, run_settings
from tests.tiny_tasks import tiny_task
from tests.trajectory_log import CAMPAIGN, Author


def check(command: str, text: str) -> None:
    """Checks an output against the schema of its command."""
    document = json.loads(facts_schema())
    jsonschema.validate(json.loads(text), {**document["commands"][command], "$defs": document["$defs"]})


def jq(query: str, text: str) -> str:
    return subprocess.run(["jq", "-r", query], input=text, text=True, capture_output=True, check=True).stdout


@pytest.mark.long
def test_the_status_of_campaigns_has_reasons_and_hints() -> None:
    reasons = abort_reasons([{"cause": "llm_refused", "detail": "a wrong key", "rollouts": 2}])
    view = CampaignView("c", 3, State.RUNNING, {"resolved": 1, "aborted: llm_refused": 2}, reasons=reasons)
    text = msgspec.json.encode(status_facts(StoreStatus([view], PipelineView()))).decode()
    check("status", text)
    assert jq(".campaigns[] | .name, .outcomes.resolved, .reasons[0].detail", text).split("\n")[:3] == [
        "c",
        "1",
        "a wrong key",
    ]
    assert "`orchard resume c`" in jq(".hints[0]", text)
    check("status", msgspec.json.encode(status_facts(StoreStatus([], held="held", tasks=(2, 1)))).decode())


@pytest.mark.long
def test_what_doctor_finds_is_one_object_and_the_exit_status_stays(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["--store", str(tmp_path), "doctor", "--json"])
    check("doctor", done.stdout)
    bad = jq("[.findings[] | select(.good | not)] | length", done.stdout)
    assert done.exit_code == (int(bad) > 0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "query", "says"),
    [
        ("sandbox cost", ".lines[0].name", "Daytona"),
        ("cost", ".by, (.lines | length)", "campaign\n0"),
        ("config", ".worker.domain", "swe"),
        ("logs", ".logs | length", "0"),
        ("images list", ".images[0]", "host"),
        ("harness list", '.programs[] | select(.harness == "codex") | .installed', ""),
    ],
)
def test_what_is_listed_is_one_object(tmp_path: Path, command: str, query: str, says: str) -> None:
    done = CliRunner().invoke(app, ["--store", str(tmp_path), *command.split(), "--json"])
    check(command, done.stdout)
    assert jq(query, done.stdout) == f"{says}\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with a task, a campaign of two rollouts and a group of a run."""
    place = tmp_path_factory.mktemp("facts")
    author = Author()
    async with (
        EmbeddedServer(place / "nats") as server,
        connect(NatsSettings(), name="test", url=server.url) as connection,
    ):
        await declare(connection, NatsSettings(), [])
        publisher = Publisher(connection)
        await TaskRegistry(publisher, BlobStore(str(place / "store"))).register([tiny_task(1)])
        await publisher.events(
            [
                *author.rollout(0, ["ls"], resolved=True),
                *author.rollout(1, ["ls"], resolved=False),
                assembled(plan_of(run_settings()), 0, (0, 1), (1.0, -1.0)),
            ]
        )
        stop = asyncio.Event()
        stop.set()
        await Writer(str(place / "store"), connection).run(stop)
    (place / "store" / "suite.toml").write_text(
        'name = "s"\nharnesses = ["orchard-bash"]\n'
        f'task_sets = [{{ source = "{tiny_task(1).source}", unproven = true }}]\n'
        'models = [{ name = "m" }]\n'
    )
    return str(place / "store")


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "words", "query", "says"),
    [
        ("tasks show", [tiny_task(1).task_id], ".fail_to_pass | length", "1"),
        ("show", ["ROLLOUT"], 'select(.role == "assistant") | .turn', "1"),
        ("rl groups", ["run"], ".groups[] | .positive, .members, .state", "1"),
        ("rl what-if", [CAMPAIGN, "--size", "2", "--budget", "4"], ".settings[0].cell.bar.size", "2"),
        ("eval run", ["STORE/suite.toml", "--plan"], ".rollouts, .cells[0].like, .without_price[0]", "1"),
        ("harness show", ["codex"], ".program.name", "codex"),
    ],
)
def test_what_is_shown_of_one_thing_is_one_object(
    store: str, command: str, words: list[str], query: str, says: str
) -> None:
    if "ROLLOUT" in words:
        with open_tables(store, views=["rollouts"]) as tables:
            ((rollout,),) = tables.execute("select rollout_id from rollouts where resolved").fetchall()
            words = [rollout]
    words = [word.replace("STORE", store) for word in words]
    done = CliRunner().invoke(app, ["--store", store, *command.split(), *words, "--json"])
    assert done.exit_code == 0, (done.output, done.exception)
    for line in done.stdout.splitlines():
        check(command, line)
    assert jq(query, done.stdout).split("\n")[0] == says


@pytest.mark.long
def test_measured_values_and_rates_of_cheating_follow_their_schemas() -> None:
    points = [CalibrationPoint("a", 1, 0.5, 0.4, 0.2, 0.6, 8)]
    one = AnnotatorAgreement(annotator="a", model="m", rollouts=1, agreement=agreement(points), plot="p.png")
    check("values report", msgspec.json.encode(AgreementListing(annotators=[one])).decode())
    names = {"campaign": "c", "harness": "h", "model": "m", "policy_version": None}
    rate = PolicyHacks(**names, rollouts=4, hacks=1, rate=0.25, low=0.1, high=0.6)
    check("tasks hacks", msgspec.json.encode(HackListing(rates=[rate])).decode())


WITHOUT_JSON = {
    "runs until it is stopped": """
        up, worker, writer, steward, oracle, ui, serve-policy, dataset worker, values worker, rl coordinator,
        rl trainer, sandbox mcp""",
    "changes something, and says in a sentence what": """
        submit, pause, cancel, resume, note, sft, quickstart, tasks import, tasks from-source,
        tasks synthesize, tasks validate, tasks impossible, tasks from-jsonl, tasks from-harbor,
        tasks from-repo, harness install, sandbox prepull, images import, images pull, images build,
        images delete,
        store compact, store vacuum, store rebuild, store restore-stream, dead requeue, log archive,
        log restore, dataset build, dataset import, trajectories import, values annotate, values rubrics,
        values measure, rl run""",
    "writes files, and names them": """
        report, tasks funnel, dataset tokenizer, dataset export, dataset card, trajectories export,
        rl export, values train""",
    "has `--format json`": "sql",
    "prints TOML": "eval published",
}
"""Commands that print no facts of their own, by reason."""


def test_every_command_prints_facts_for_programs_or_has_a_reason_not_to() -> None:
    every = dict(walk(typer.main.get_command(app), "orchard"))
    option = {
        path.removeprefix("orchard ")
        for path, command in every.items()
        if any("--json" in parameter.opts for parameter in command.params)
    }
    assert option == set(facts_types())
    reasons = {name.strip() for listed in WITHOUT_JSON.values() for name in listed.split(",")}
    assert option | reasons == {path.removeprefix("orchard ") for path in every}
    assert not option & reasons


def test_the_log_of_a_process_is_found_by_its_name(tmp_path: Path) -> None:
    folder = RunFiles(tmp_path).logs
    folder.mkdir(parents=True)
    (folder / "writer.log").write_bytes(
        b"".join(b"line %d\n" % number for number in range(500)) + b"\x1b[2J\n"
    )
    run = ["--store", str(tmp_path), "logs"]
    assert CliRunner().invoke(app, run).output == "writer\n"
    shown = CliRunner().invoke(app, [*run, "writer", "--lines", "3"]).output
    assert shown.splitlines() == ["line 498", "line 499", "\\x1b[2J"]
    (folder / "worker-1.log").touch()
    empty = CliRunner().invoke(app, [*run, "worker-1"])
    assert (empty.stdout, empty.stderr) == ("", "worker-1 has logged nothing yet\n")
    refused = CliRunner().invoke(app, [*run, "writr"]).exception
    assert "no log for process 'writr' in" in str(refused) and "available logs: worker-1, writer" in str(
        refused
    )


def test_a_misspelt_command_gets_the_nearest_suggested() -> None:
    told = CliRunner().invoke(app, ["submitt"])
    assert told.exit_code == 2 and "Did you mean 'submit'?" in told.stderr
