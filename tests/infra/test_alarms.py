"""Each alarm, driven to its limit and across it, by Prometheus' own tool; and what the processes say.

Series of ours are those that the code exports. Names of the NATS exporter, KEDA and kube-state-metrics are
from their documentation, and those of node_exporter from Debian's: none of these programs runs here.
"""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from orchard.processes.metrics import FAMILIES
from orchard.processes.probe import HELP, probing
from orchard.streams.connection import connect
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from tests.infra.conftest import INFRA, free_ports

PROMTOOL = Path(__file__).parents[2] / ".venv" / ".promtool" / "usr" / "bin" / "promtool"
RULES = yaml.safe_load((INFRA / "chart" / "files" / "rules.yaml").read_text())["spec"]
ALARMS = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}

DAY = 86400
HACKS = 'orchard_hack_rate{campaign="c",harness="h",model="m",policy_version="",bound="low"}'
QUEUE = 'stream_name="ORCHARD_WORK",consumer_name="rollout-swe-normal"'
NORMAL: dict[str, str] = {
    "orchard_log_position": "100",
    'orchard_process_working{process="writer"}': "1",
    'orchard_process_working{process="steward"}': "1",
    'orchard_process_held{process="writer"}': "0",
    'orchard_nats_certificate_end_seconds{process="writer"}': f"{90 * DAY}",
    HACKS: "0.01",
    'orchard_rollouts{campaign="c",status="aborted",cause="sandbox_died"}': "7",
    'orchard_rollouts_reconciled{campaign="c"}': "2",
    'orchard_model_tries{endpoint="e",model="m",ending="answered"}': "900",
    'orchard_model_tries{endpoint="e",model="m",ending="refused"}': "90",
    'orchard_model_seconds{endpoint="e",model="m",quantile="0.5"}': "20",
    'orchard_attempts_released{campaign="c",cause="llm_unavailable"}': "3",
    'orchard_endpoint_resting{endpoint="e"}': "0",
    'orchard_sandbox_backend_up{pod="o-1"}': "1",
    'jetstream_stream_last_seq{stream_name="ORCHARD_EVENTS"}': "100",
    'jetstream_stream_total_messages{stream_name="ORCHARD_LATER"}': "5",
    'jetstream_stream_total_messages{stream_name="ORCHARD_DEAD"}': "0",
    f"jetstream_consumer_num_pending{{{QUEUE}}}": "9",
    f"jetstream_consumer_num_ack_pending{{{QUEUE}}}": "4",
    f"jetstream_consumer_delivered_consumer_seq{{{QUEUE}}}": "0+1",
    'jetstream_server_total_message_bytes{server_name="nats-0"}': "10",
    'jetstream_server_max_storage{server_name="nats-0"}': "100",
    'jetstream_server_total_streams{server_name="nats-0",is_meta_leader="true"}': "5",
    'jetstream_server_total_streams{server_name="nats-1",is_meta_leader="false"}': "5",
    'up{job="nats",pod="nats-0"}': "1",
    'up{job="nats",pod="nats-1"}': "1",
    'up{job="nats",pod="nats-2"}': "1",
    'keda_scaled_job_errors_total{scaledJob="w"}': "4",
    'keda_scaler_detail_errors_total{scaledJob="w"}': "4",
    'kube_pod_status_unschedulable{pod="w"}': "0",
    'kube_deployment_status_replicas_available{deployment="orchestrator"}': "2",
    'kube_cronjob_created{cronjob="archiver"}': f"{-9 * DAY}",
    'kube_cronjob_created{cronjob="janitor"}': f"{-9 * DAY}",
    'kube_cronjob_status_last_successful_time{cronjob="archiver"}': "0+60",
    'kube_cronjob_status_last_successful_time{cronjob="janitor"}': "0+60",
    'up{job="log-host"}': "1",
    'node_systemd_unit_state{name="orchard-archiver.timer",state="active"}': "1",
    'node_systemd_unit_state{name="orchard-archiver.service",state="failed"}': "0",
    'node_systemd_timer_last_trigger_seconds{name="orchard-archiver.timer"}': "0+60",
    **{f'kube_job_status_failed{{job_name="w-{number}"}}': "0" for number in range(4)},
    'kube_pod_container_status_waiting_reason{pod="w",reason="ImagePullBackOff"}': "0",
    'kube_pod_init_container_status_waiting_reason{pod="w",reason="ErrImagePull"}': "0",
}
"""Series of a fleet that is well, all of the namespace `orchard`: the value, or the first one and its growth
a minute."""

Faulty = dict[str, tuple[str, str]]
"""By series: the value at its limit, or where nothing is wrong, and the value beyond."""

FAULTS: list[tuple[str, Faulty]] = [
    ("OrchardRolloutsReconciled", {'orchard_rollouts_reconciled{campaign="c"}': ("2", "3")}),
    ("OrchardWriterLate", {'jetstream_stream_last_seq{stream_name="ORCHARD_EVENTS"}': ("100", "101")}),
    ("OrchardWriterStopped", {"orchard_log_position": ("100", "_")}),
    (
        "OrchardRequestsDelayed",
        {'jetstream_stream_total_messages{stream_name="ORCHARD_LATER"}': ("100", "101")},
    ),
    ("OrchardRewardHacking", {HACKS: ("0.05", "0.06")}),
    ("OrchardDeadLetters", {'jetstream_stream_total_messages{stream_name="ORCHARD_DEAD"}': ("0", "1")}),
    ("OrchardNatsDisk", {'jetstream_server_total_message_bytes{server_name="nats-0"}': ("80", "81")}),
    ("OrchardHeld", {'orchard_process_held{process="writer"}': ("0", "1")}),
    ("OrchardProcessDown", {'orchard_process_working{process="steward"}': ("1", "_")}),
    ("OrchardProcessDown", {'orchard_process_working{process="writer"}': ("1", "0")}),
    (
        "OrchardNatsNoQuorum",
        {'jetstream_server_total_streams{server_name="nats-0",is_meta_leader="true"}': ("5", "_")},
    ),
    ("OrchardNatsServerMissing", {'up{job="nats",pod="nats-2"}': ("1", "0")}),
    ("OrchardKedaErrors", {'keda_scaled_job_errors_total{scaledJob="w"}': ("4", "4+1")}),
    ("OrchardKedaErrors", {'keda_scaler_detail_errors_total{scaledJob="w"}': ("4", "4+1")}),
    ("OrchardQueueStuck", {f"jetstream_consumer_num_ack_pending{{{QUEUE}}}": ("1", "0")}),
    ("OrchardQueueStuck", {f"jetstream_consumer_delivered_consumer_seq{{{QUEUE}}}": ("0+1", "119")}),
    ("OrchardSandboxServiceDown", {'orchard_sandbox_backend_up{pod="o-1"}': ("1", "0")}),
    ("OrchardSandboxServiceDown", {'orchard_sandbox_backend_up{pod="o-1"}': ("1", "_")}),
    (
        "OrchardSandboxServiceDown",
        {'kube_deployment_status_replicas_available{deployment="orchestrator"}': ("1", "0")},
    ),
    ("OrchardAborts", {'orchard_rollouts{campaign="c",status="aborted",cause="sandbox_died"}': ("7", "28")}),
    ("OrchardAborts", {'orchard_rollouts{campaign="d",status="aborted",cause="blocked"}': ("_", "21")}),
    (
        "OrchardJobsFail",
        {f'kube_job_status_failed{{job_name="w-{n}"}}': ("0" if n == 3 else "1", "1") for n in range(4)},
    ),
    (
        "OrchardCronJobsMissed",
        {
            'kube_cronjob_status_last_successful_time{cronjob="archiver"}': (
                f"{-2 * DAY + 120 * 60}",
                f"{-2 * DAY + 120 * 60}",
            )
        },
    ),
    (
        "OrchardCronJobsMissed",
        {'kube_cronjob_status_last_successful_time{cronjob="janitor"}': ("0+60", "3600")},
    ),
    (
        "OrchardCronJobsMissed",
        {
            'kube_cronjob_status_last_successful_time{cronjob="janitor"}': ("_", "_"),
            'kube_cronjob_created{cronjob="janitor"}': ("3600", "3600"),
        },
    ),
    (
        "OrchardArchiverMissed",
        {'node_systemd_unit_state{name="orchard-archiver.timer",state="active"}': ("1", "0")},
    ),
    (
        "OrchardArchiverMissed",
        {'node_systemd_unit_state{name="orchard-archiver.timer",state="active"}': ("1", "_")},
    ),
    (
        "OrchardArchiverMissed",
        {'node_systemd_unit_state{name="orchard-archiver.service",state="failed"}': ("0", "1")},
    ),
    (
        "OrchardArchiverMissed",
        {
            'node_systemd_timer_last_trigger_seconds{name="orchard-archiver.timer"}': (
                f"{-2 * DAY + 120 * 60}",
                f"{-2 * DAY + 120 * 60}",
            )
        },
    ),
    (
        "OrchardPodsCannotStart",
        {'kube_pod_container_status_waiting_reason{pod="w",reason="ImagePullBackOff"}': ("0", "1")},
    ),
    (
        "OrchardPodsCannotStart",
        {'kube_pod_init_container_status_waiting_reason{pod="w",reason="ErrImagePull"}': ("0", "1")},
    ),
    ("OrchardPodsNotScheduled", {'kube_pod_status_unschedulable{pod="w"}': ("0", "1")}),
    (
        "OrchardModelRefuses",
        {'orchard_model_tries{endpoint="e",model="m",ending="refused"}': ("225", "226")},
    ),
    (
        "OrchardModelDown",
        {'orchard_attempts_released{campaign="c",cause="llm_unavailable"}': ("20", "21")},
    ),
    ("OrchardModelRests", {'orchard_endpoint_resting{endpoint="e"}': ("0", "1")}),
    ("OrchardModelSlow", {'orchard_model_seconds{endpoint="e",model="m",quantile="0.5"}': ("120", "121")}),
    (
        "OrchardCertificateEnds",
        {
            'orchard_nats_certificate_end_seconds{process="writer"}': (
                f"{14 * DAY + 119 * 60}",
                f"{14 * DAY + 119 * 60}",
            )
        },
    ),
]
"""What each alarm is for; it is silent at the limit, fires beyond it and ends when all is well again."""

LOOKS_BACK = {"OrchardQueueStuck": 180}
"""Minutes after which an alarm's condition holds at the latest, where they are many."""
BEGINS = 120
"""Minute in which a fault begins."""


@pytest.mark.long
def test_each_alarm_is_silent_at_its_limit_fires_beyond_it_and_ends(tmp_path: Path) -> None:
    assert {alarm for alarm, _ in FAULTS} == ALARMS.keys()

    assert _promtool(tmp_path, [_case("jetstream", *fault) for fault in FAULTS]) == ""


@pytest.mark.long
def test_figures_of_the_other_exporter_do_too_and_another_release_hides_nothing(tmp_path: Path) -> None:
    """The exporter of NATS' own chart; the release beside is well all the time, in a namespace of its own."""
    others = {_labelled(name, "other"): value for name, value in NORMAL.items()}

    assert _promtool(tmp_path, [_case("nats", *fault, others) for fault in FAULTS]) == ""


def test_nothing_fires_while_all_is_well(tmp_path: Path) -> None:
    well = _case("jetstream", "Orchard.*", {})
    well["promql_expr_test"] = [{"expr": "ALERTS", "eval_time": f"{BEGINS}m", "exp_samples": []}]

    assert _promtool(tmp_path, [well]) == ""


def test_alarms_of_two_releases_are_two() -> None:
    assert all(rule["labels"]["namespace"] == "orchard" for rule in ALARMS.values())


def test_each_has_a_sentence_and_what_to_do() -> None:
    for name, rule in ALARMS.items():
        assert rule["labels"]["severity"] in ("critical", "warning"), name
        assert rule["annotations"]["summary"] and rule["annotations"]["description"], name


def test_what_they_ask_of_the_pipeline_it_tells() -> None:
    asked = {name for name in (each.partition("{")[0] for each in NORMAL) if name.startswith("orchard_")}
    assert asked - {"orchard_sandbox_backend_up"} <= {*FAMILIES, *HELP}


async def test_a_process_says_that_it_works_and_why_it_does_not(nats_server: EmbeddedServer) -> None:
    (port,) = free_ports(1)
    async with (
        connect(NatsSettings(), name="test", url=nats_server.url) as connection,
        probing(port, "writer", connection, lambda: {"orchard_writer_position": 7.0}),
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client,
    ):
        assert await _asked(client, "/healthy") == (200, "ok\n")
        assert await _asked(client, "/ready") == (200, "ok\n")
        _, text = await _asked(client, "/metrics")
        assert 'orchard_process_working{process="writer"} 1.0' in text
        assert 'orchard_writer_position{process="writer"} 7.0' in text

        connection.judge("the stream has lost events: run `orchard store restore-stream`", "")

        assert await _asked(client, "/ready") == (503, f"{connection.held}\n")
        assert await _asked(client, "/healthy") == (200, "ok\n")
        _, text = await _asked(client, "/metrics")
        assert 'orchard_process_working{process="writer"} 0.0' in text
        assert 'orchard_process_held{process="writer"} 1.0' in text


def _case(
    exporter: str, alarm: str, faulty: Faulty, others: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Silent at the limit and before the alarm's time is over, firing then, silent when all is well again."""
    waits = int(ALARMS.get(alarm, {}).get("for", "0m").removesuffix("m"))
    fires = BEGINS + LOOKS_BACK.get(alarm, 0) + waits + 16
    ends, last = fires + 2, fires + 80
    looks = {name: f"{value}x{last}" for name, value in NORMAL.items() if name not in faulty}
    for name, (limit, beyond) in faulty.items():
        after = NORMAL.get(name, limit)
        if name.startswith("orchard_rollouts"):
            after = beyond  # a sum over all time does not fall
        if "successful_time" in name or "last_trigger" in name:
            after = f"{60 * ends}+60"
        looks[name] = " ".join(
            f"{value}x{minutes if value == '_' else minutes - 1}"  # `_x1` is one value, `0x1` are two
            for value, minutes in ((limit, BEGINS), (beyond, ends - BEGINS), (after, last - ends))
        )
    series = {_labelled(name, "orchard"): values for name, values in looks.items()}
    others = {name: f"{value}x{last}" for name, value in (others or {}).items()}
    series = {name.replace("jetstream_", f"{exporter}_"): values for name, values in series.items()}
    firing = f'count by (alertname) (ALERTS{{alertstate="firing",alertname="{alarm}"}})'
    heard = [{"labels": f'{{alertname="{alarm}"}}', "value": 1}]
    early = [{"expr": firing, "eval_time": f"{BEGINS + waits - 1}m", "exp_samples": []}] if waits else []
    return {
        "name": alarm,
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in {**series, **others}.items()],
        "promql_expr_test": [
            {"expr": firing, "eval_time": f"{BEGINS - 1}m", "exp_samples": []},
            *early,
            {
                "expr": firing,
                "eval_time": f"{fires}m",
                "exp_samples": heard,
            },
            {"expr": firing, "eval_time": f"{last - 1}m", "exp_samples": []},
        ],
    }


def _labelled(series: str, namespace: str) -> str:
    name, _, labels = series.removesuffix("}").partition("{")
    return f'{name}{{namespace="{namespace}"{"," if labels else ""}{labels}}}'


def _promtool(directory: Path, cases: list[dict[str, Any]]) -> str:
    """What it complains of; each case, named after its alarm, has the rule of that alarm alone."""
    for number, case in enumerate(cases):
        group = {
            "name": "g",
            "rules": [rule for name, rule in ALARMS.items() if re.fullmatch(case["name"], name)],
        }
        files = {
            "rules": {"groups": [group]},
            "test": {"rule_files": [f"rules-{number}.yaml"], "tests": [case]},
        }
        for name, content in files.items():
            (directory / f"{name}-{number}.yaml").write_text(yaml.safe_dump(content))
    command = [str(PROMTOOL), "test", "rules", *(f"test-{number}.yaml" for number in range(len(cases)))]
    ran = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    return "" if ran.returncode == 0 else ran.stdout + ran.stderr


async def _asked(client: aiohttp.ClientSession, path: str) -> tuple[int, str]:
    async with client.get(path) as answer:
        return answer.status, await answer.text()
