"""Each alarm, driven to its limit and across it, by Prometheus' own tool; and what the processes say.

Series of ours are those that the code exports. Names of the NATS exporter, KEDA and kube-state-metrics are
from their documentation: none of these programs is here.
"""

import subprocess
from pathlib import Path
from typing import Any

import aiohttp
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
WELL = {
    "orchard_log_position": "100x240",
    'orchard_process_working{process="writer"}': "1x240",
    'orchard_process_working{process="steward"}': "1x240",
    'orchard_process_held{process="writer"}': "0x240",
    'orchard_nats_certificate_end_seconds{process="writer"}': f"{90 * DAY}x240",
    HACKS: "0.01x240",
    'orchard_rollouts_reconciled{campaign="c"}': "2x240",
    'orchard_model_tries{endpoint="e",model="m",ending="answered"}': "900x240",
    'orchard_model_tries{endpoint="e",model="m",ending="refused"}': "90x240",
    'orchard_model_seconds{endpoint="e",model="m",quantile="0.5"}': "20x240",
    'orchard_attempts_released{campaign="c",cause="llm_unavailable"}': "3x240",
    'orchard_endpoint_resting{endpoint="e"}': "0x240",
    'jetstream_stream_last_seq{stream_name="ORCHARD_EVENTS"}': "100x240",
    'jetstream_stream_total_messages{stream_name="ORCHARD_LATER"}': "5x240",
    'jetstream_stream_total_messages{stream_name="ORCHARD_DEAD"}': "0x240",
    'jetstream_server_total_message_bytes{server_name="nats-0"}': "10x240",
    'jetstream_server_max_storage{server_name="nats-0"}': "100x240",
    'jetstream_server_total_streams{server_name="nats-0",is_meta_leader="true"}': "5x240",
    'jetstream_server_total_streams{server_name="nats-1",is_meta_leader="false"}': "5x240",
    'up{job="nats",pod="nats-0"}': "1x240",
    'up{job="nats",pod="nats-1"}': "1x240",
    'up{job="nats",pod="nats-2"}': "1x240",
    'keda_scaled_job_errors_total{scaledJob="w"}': "4x240",
    'kube_pod_status_unschedulable{namespace="orchard",pod="w"}': "0x240",
}
"""Four hours of a fleet that is well, a value a minute, starting at the epoch."""

TROUBLE: dict[str, dict[str, str | None]] = {
    "OrchardRolloutsReconciled": {'orchard_rollouts_reconciled{campaign="c"}': "2x119 3x120"},
    "OrchardWriterLate": {'jetstream_stream_last_seq{stream_name="ORCHARD_EVENTS"}': "100x119 101x120"},
    "OrchardWriterStopped": {"orchard_log_position": "100x119 _x120"},
    "OrchardRequestsDelayed": {
        'jetstream_stream_total_messages{stream_name="ORCHARD_LATER"}': "100x119 101x120"
    },
    "OrchardRewardHacking": {HACKS: "0.05x119 0.06x120"},
    "OrchardDeadLetters": {'jetstream_stream_total_messages{stream_name="ORCHARD_DEAD"}': "0x119 1x120"},
    "OrchardNatsDisk": {'jetstream_server_total_message_bytes{server_name="nats-0"}': "80x119 81x120"},
    "OrchardHeld": {'orchard_process_held{process="writer"}': "0x119 1x120"},
    "OrchardProcessDown": {'orchard_process_working{process="steward"}': "1x119 _x120"},
    "OrchardNatsNoQuorum": {
        'jetstream_server_total_streams{server_name="nats-0",is_meta_leader="true"}': "5x119 _x120"
    },
    "OrchardNatsServerMissing": {'up{job="nats",pod="nats-2"}': "1x119 0x120"},
    "OrchardKedaErrors": {'keda_scaled_job_errors_total{scaledJob="w"}': "4x119 4+1x120"},
    "OrchardPodsNotScheduled": {'kube_pod_status_unschedulable{namespace="orchard",pod="w"}': "0x119 1x120"},
    "OrchardModelRefuses": {
        'orchard_model_tries{endpoint="e",model="m",ending="refused"}': "225x119 226x120"
    },
    "OrchardModelDown": {'orchard_attempts_released{campaign="c",cause="llm_unavailable"}': "20x119 21x120"},
    "OrchardModelRests": {'orchard_endpoint_resting{endpoint="e"}': "0x119 1x120"},
    "OrchardModelSlow": {'orchard_model_seconds{endpoint="e",model="m",quantile="0.5"}': "120x119 121x120"},
    "OrchardCertificateEnds": {
        'orchard_nats_certificate_end_seconds{process="writer"}': f"{14 * DAY + 119 * 60}x240"
    },
}
"""For each alarm, what changes after two hours: at its limit until then, over it afterwards."""


def test_each_alarm_is_silent_at_its_limit_and_speaks_beyond_it(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(RULES))
    assert TROUBLE.keys() == ALARMS.keys()
    cases = [_case(alarm, changes) for alarm, changes in TROUBLE.items()]
    well = {
        "name": "a fleet that is well",
        "interval": "1m",
        "input_series": _series(WELL),
        "promql_expr_test": [{"expr": "ALERTS", "eval_time": "239m", "exp_samples": []}],
    }
    text = yaml.safe_dump(
        {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [well, *cases]}
    )
    (tmp_path / "tests.yaml").write_text(text)

    ran = subprocess.run(
        [PROMTOOL, "test", "rules", "tests.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_each_has_a_sentence_and_what_to_do() -> None:
    for name, rule in ALARMS.items():
        assert rule["labels"]["severity"] in ("critical", "warning"), name
        assert rule["annotations"]["summary"] and rule["annotations"]["description"], name


def test_what_they_ask_of_the_pipeline_it_tells() -> None:
    asked = {name for name in (each.partition("{")[0] for each in WELL) if name.startswith("orchard_")}
    assert asked <= {*FAMILIES, *HELP}


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


def _case(alarm: str, changes: dict[str, str | None]) -> dict[str, Any]:
    """Silent until the change, alone beyond it."""
    waits = ALARMS[alarm].get("for", "0m")
    late = f"{120 + int(waits.removesuffix('m')) + 16}m"
    names = 'count by (alertname) (ALERTS{alertstate="firing"})'
    return {
        "name": alarm,
        "interval": "1m",
        "input_series": _series({**WELL, **changes}),
        "promql_expr_test": [
            {"expr": names, "eval_time": "118m", "exp_samples": []},
            {
                "expr": f'count by (alertname) (ALERTS{{alertstate="firing",alertname="{alarm}"}})',
                "eval_time": late,
                "exp_samples": [{"labels": f'{{alertname="{alarm}"}}', "value": 1}],
            },
        ],
    }


def _series(values: dict[str, Any]) -> list[dict[str, str]]:
    return [{"series": name, "values": text} for name, text in values.items()]


async def _asked(client: aiohttp.ClientSession, path: str) -> tuple[int, str]:
    async with client.get(path) as answer:
        return answer.status, await answer.text()
