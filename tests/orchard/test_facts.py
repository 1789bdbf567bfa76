"""`--json`: what programs read of commands, by its schema and with jq."""

import json
import subprocess
from pathlib import Path

import jsonschema
import msgspec
import pytest
from typer.testing import CliRunner

from orchard.actions.abort_reasons import abort_reasons
from orchard.actions.campaign_status import CampaignView, PipelineView, State, Status
from orchard.cli.app import app
from orchard.cli.facts import status_facts
from orchard.cli.facts_schema import FACTS, facts_schema
from orchard.cli.measuring import AgreementListing, AnnotatorAgreement
from orchard.cli.tasks import HackListing, PolicyHacks
from orchard.configuration.run_files import RunFiles
from orchard.pipelines.values.calibration import CalibrationPoint, agreement


def check(command: str, text: str) -> None:
    """Checks an output against the schema of its command."""
    document = json.loads(facts_schema())
    jsonschema.validate(json.loads(text), {**document["commands"][command], "$defs": document["$defs"]})


def jq(query: str, text: str) -> str:
    return subprocess.run(["jq", "-r", query], input=text, text=True, capture_output=True, check=True).stdout


def test_the_status_of_campaigns_has_reasons_and_hints() -> None:
    reasons = abort_reasons([{"cause": "llm_refused", "detail": "a wrong key", "rollouts": 2}])
    view = CampaignView("c", 3, State.RUNNING, {"resolved": 1, "aborted: llm_refused": 2}, reasons=reasons)
    text = msgspec.json.encode(status_facts("", Status([view], PipelineView()))).decode()
    check("status", text)
    assert jq(".campaigns[] | .name, .outcomes.resolved, .reasons[0].detail", text).split("\n")[:3] == [
        "c",
        "1",
        "a wrong key",
    ]
    assert "`orchard resume c`" in jq(".hints[0]", text)
    check("status", msgspec.json.encode(status_facts("held", None)).decode())


def test_what_doctor_finds_is_one_object_and_the_exit_status_stays(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["--store", str(tmp_path), "doctor", "--json"])
    check("doctor", done.stdout)
    bad = jq("[.findings[] | select(.good | not)] | length", done.stdout)
    assert done.exit_code == (int(bad) > 0)


@pytest.mark.parametrize(
    ("command", "query", "says"),
    [
        ("cost", ".lines[0].name", "Daytona"),
        ("images list", ".images[0]", "host"),
        ("harness list", '.programs[] | select(.harness == "codex") | .installed', ""),
    ],
)
def test_what_is_listed_is_one_object(tmp_path: Path, command: str, query: str, says: str) -> None:
    done = CliRunner().invoke(app, ["--store", str(tmp_path), *command.split(), "--json"])
    check(command, done.stdout)
    assert jq(query, done.stdout) == f"{says}\n"


def test_measured_values_and_rates_of_cheating_follow_their_schemas() -> None:
    points = [CalibrationPoint("a", 1, 0.5, 0.4, 0.2, 0.6, 8)]
    one = AnnotatorAgreement(annotator="a", model="m", rollouts=1, agreement=agreement(points), plot="p.png")
    check("values report", msgspec.json.encode(AgreementListing(annotators=[one])).decode())
    names = {"campaign": "c", "harness": "h", "model": "m", "policy_version": None}
    rate = PolicyHacks(**names, rollouts=4, hacks=1, rate=0.25, low=0.1, high=0.6)
    check("tasks hacks", msgspec.json.encode(HackListing(rates=[rate])).decode())


@pytest.mark.parametrize("command", FACTS)
def test_every_command_with_facts_has_the_option(command: str) -> None:
    assert "--json" in CliRunner().invoke(app, [*command.split(), "--help"]).output


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
    refused = CliRunner().invoke(app, [*run, "writr"]).exception
    assert "no process 'writr' has a log" in str(refused) and "there is writer" in str(refused)
