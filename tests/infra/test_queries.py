"""Every query of the dashboard and the alarms asks for series and labels that a running system serves.

The exporter of NATS and kube-state-metrics are not here: their names are those of their sources.
"""

import asyncio
import json
import re
from pathlib import Path

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.parser import text_string_to_metric_families

from orchard.injector.local.backend import LocalBackend
from orchard.injector.orchestrator.metrics import ServiceMetrics
from orchard.processes.metrics import application
from orchard.processes.probe import probing
from orchard.storage.writing.writer import Writer, WriterSettings
from orchard.streams.connection import connect
from orchard.streams.publisher import Publisher
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from tests.infra.conftest import INFRA, free_ports
from tests.infra.test_alarms import ALARMS
from tests.orchard.test_metrics import events

BOARD = json.loads((INFRA / "chart" / "files" / "dashboard.json").read_text())
QUERIES = [
    *(target["expr"] for panel in BOARD["panels"] for target in panel["targets"]),
    *(rule["expr"] for rule in ALARMS.values()),
]
PROMETHEUS = {"namespace", "job", "pod"}
"""Labels that Prometheus gives to whatever it asks."""

SERVER = {"server_name", "is_meta_leader"}
STREAM = SERVER | {"stream_name", "is_stream_leader"}
CONSUMER = STREAM | {"consumer_name", "is_consumer_leader"}
OTHERS = {
    "up": {"job"},
    **{f"server_{name}": SERVER for name in ("total_message_bytes", "max_storage", "total_streams")},
    **{f"stream_{name}": STREAM for name in ("last_seq", "total_messages")},
    **{f"consumer_{name}": CONSUMER for name in ("num_pending", "num_ack_pending", "delivered_consumer_seq")},
    "kube_pod_status_unschedulable": {"namespace"},
    "kube_job_status_active": {"namespace", "job_name"},
    "kube_job_status_failed": {"namespace", "job_name"},
    "kube_cronjob_created": {"namespace", "cronjob"},
    "kube_cronjob_status_last_successful_time": {"namespace", "cronjob"},
    "kube_deployment_status_replicas_available": {"namespace", "deployment"},
    "kube_pod_container_status_waiting_reason": {"namespace", "pod", "reason"},
    "kube_pod_init_container_status_waiting_reason": {"namespace", "pod", "reason"},
    "node_systemd_unit_state": {"namespace", "name", "state"},
    "node_systemd_timer_last_trigger_seconds": {"namespace", "name"},
    "keda_scaled_job_errors_total": {"namespace", "exported_namespace"},
    "keda_scaler_detail_errors_total": {"namespace", "exported_namespace"},
    "ALERTS": {"alertname", "alertstate", "namespace"},
}
"""Labels by name: NATS' exporter (collector/jsz.go, without its prefix), kube-state-metrics, KEDA."""


@pytest.fixture
async def exported(nats_server: EmbeddedServer, tmp_path: Path) -> dict[str, set[str] | None]:
    """Labels by series of what our processes serve; None where the family has no sample at the moment."""
    settings, store, stop = NatsSettings(), str(tmp_path / "store"), asyncio.Event()
    (port,) = free_ports(1)
    async with (
        connect(settings, name="test", url=nats_server.url) as connection,
        probing(port, "writer", connection),
        aiohttp.ClientSession() as http,
    ):
        await declare(connection, settings, [])
        await Publisher(connection).events(events())
        stop.set()
        await Writer(store, connection, WriterSettings()).run(stop)
        async with http.get(f"http://127.0.0.1:{port}/metrics") as reply:
            texts = [await reply.text()]
    async with TestClient(TestServer(application(store))) as client:
        texts.append(await (await client.get("/metrics")).text())
    service = ServiceMetrics({"k": "key-1"})
    service.answered("GET", "/", 200, 0.1)
    texts.append((await service.exposition(LocalBackend(tmp_path, start_agent=False))).decode())
    found: dict[str, set[str] | None] = {
        "orchard_nats_certificate_end_seconds": {"process"}
    }  # with TLS alone
    for family in (one for text in texts for one in text_string_to_metric_families(text)):
        parts = ("_bucket", "_count", "_sum") if family.type == "histogram" else ("_total", "")
        found |= dict.fromkeys(f"{family.name}{part}" for part in parts)
        found |= {sample.name: set(sample.labels) for sample in family.samples}
    return found


def selectors(query: str) -> list[tuple[str, set[str]]]:
    """Names of series, each with the labels that it is selected by."""
    found = []
    for name, braces in re.findall(r"([A-Za-z_]\w*)?\{([^}]*)\}", query):
        labels = dict(re.findall(r'(\w+)(?:=~|!~|!=|=)"([^"]*)"', braces))
        found.append((name or labels.pop("__name__"), set(labels)))
    return found


async def test_each_asks_for_what_is_there(exported: dict[str, set[str] | None]) -> None:
    known = {**exported, **OTHERS}
    for query in QUERIES:
        grouped = {
            label.strip() for labels in re.findall(r"by \(([^)]*)\)", query) for label in labels.split(",")
        }
        asked = selectors(query)
        assert asked, query
        for pattern, labels in asked:
            name = pattern.removeprefix("(jetstream|nats)_")
            names = [each for each in known if re.fullmatch(name, each)]
            assert names, f"nobody serves {pattern}, of {query}"
            for each in names:
                if (there := known[each]) is not None:
                    assert labels <= there | PROMETHEUS, f"{each} has no {labels - there}"
        labels_of_all = [
            known[n] for p, _ in asked for n in known if re.fullmatch(p.removeprefix("(jetstream|nats)_"), n)
        ]
        if None not in labels_of_all:
            there = set().union(*(each or set() for each in labels_of_all))
            assert grouped - {"le"} <= there | PROMETHEUS, query


@pytest.mark.parametrize("query", QUERIES)
def test_each_asks_for_one_release_alone(query: str) -> None:
    for _, labels in selectors(query):
        assert labels & {"namespace", "exported_namespace"}, query
