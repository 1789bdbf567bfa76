"""The metrics of a store: real events, written to real tables, read as Prometheus would."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.parser import text_string_to_metric_families

from orchard.processes.metrics import application
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import ModelSpec, RolloutRequest, TaskRef
from orchard.schemas.events import (
    AttemptInherited,
    AttemptReleased,
    Event,
    RolloutAborted,
    RolloutFinished,
    RolloutReconciled,
    make_event,
)
from orchard.schemas.identity import rollout_id
from orchard.schemas.llm_calls import ModelKind
from orchard.schemas.outcomes import AbortCause, ExitStatus, RolloutStatus
from orchard.schemas.rests import EndpointRested
from orchard.storage.writing.writer import Writer, WriterSettings
from orchard.streams.connection import connect
from orchard.streams.publisher import Publisher
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from tests.trajectory_log import llm_call


def facts(sample: int, cost: float | None) -> dict[str, object]:
    """What every outcome says."""
    return {
        "task_id": "t",
        "task_source": "s",
        "repo": "a/b",
        "harness": "h",
        "model": "m",
        "model_kind": ModelKind.MODEL,
        "sample": sample,
        "worker": "w",
        "started_at": datetime.now(UTC),
        "seconds": 9.0,
        "prompt_tokens": 100,
        "completion_tokens": 10,
        "cost_usd": cost,
        "seconds_creating": 1.0 + sample,
        "seconds_commands": 4.0,
    }


def rollout(sample: int) -> str:
    return rollout_id("demo", "t", "h", "m", sample)


def events() -> list[Event]:
    """Four rollouts requested: two finished, one aborted, one open."""
    task = TaskRef(task_id="t", source="s", repo="a/b", blob=BlobRef(sha256="0" * 64, size=1))
    made: list[tuple[int, object]] = [
        (
            n,
            RolloutRequest(
                rollout_id=rollout(n),
                campaign="demo",
                task=task,
                harness="h",
                model=ModelSpec(name="m"),
                sample=n,
            ),
        )
        for n in range(4)
    ]
    for n, cost in ((0, 0.25), (1, None)):
        made.append(
            (
                n,
                RolloutFinished(
                    status=RolloutStatus.COMPLETED,
                    exit_status=ExitStatus.SUBMITTED,
                    reward=1.0,
                    resolved=True,
                    **facts(n, cost),  # type: ignore[arg-type]
                ),
            )
        )
    made.append((3, RolloutReconciled(reason="test")))
    made.append((2, RolloutAborted(cause=AbortCause.LLM_UNAVAILABLE, **facts(2, 0.5))))  # type: ignore[arg-type]
    inherited = AttemptInherited(
        from_attempt=1,
        leaf="n",
        messages=8,
        turns=3,
        prompt_tokens=60,
        completion_tokens=6,
        cost_usd=None,
        seconds=1.0,
        replay_key="k",
    )
    made.append((3, inherited))
    made.append((3, AttemptReleased(reason="error", cause=AbortCause.LLM_UNAVAILABLE)))
    made.append((0, EndpointRested(endpoint="e", resting=False)))
    made.append((0, EndpointRested(endpoint="e", resting=True, reason="answered 429")))
    unseen = {"document": 2, "web_search": 1}
    made.append((0, llm_call(1, model="m", endpoint="e", seconds=3.0, tries=3, not_shown=unseen)))
    return [
        make_event(
            data,  # type: ignore[arg-type]
            id=f"e{number}",
            source="orchard/test",
            campaign="demo",
            rollout_id=rollout(n),
            attempt=1,
        )
        for number, (n, data) in enumerate(made)
    ]


async def test_outcomes_tokens_costs_and_sandbox_times_are_served(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    settings, store, stop = NatsSettings(), str(tmp_path / "store"), asyncio.Event()
    async with connect(settings, name="test", url=nats_server.url) as connection:
        await declare(connection, settings, [])
        await Publisher(connection).events(events())
        stop.set()
        await Writer(store, connection, WriterSettings()).run(stop)

    async with TestClient(TestServer(application(store))) as client:
        reply = await client.get("/metrics")
        samples = {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(await reply.text())
            for sample in family.samples
        }

    assert reply.status == 200
    assert (
        samples.items()
        >= {
            ("orchard_rollouts", "", "completed", "demo"): 2.0,
            ("orchard_rollouts", "aborted", "demo", "llm_unavailable"): 1.0,
            ("orchard_rollouts_open", "demo"): 1.0,
            ("orchard_tokens", "demo", "m", "prompt"): 300.0,
            ("orchard_tokens", "completion", "demo", "m"): 30.0,
            ("orchard_cost_usd", "demo", "m"): 0.75,
            ("orchard_rollouts_unpriced", "demo", "m"): 1.0,
            ("orchard_model_seconds", "0.95", "e", "m"): 3.0,
            ("orchard_model_tries", "answered", "e", "m"): 1.0,
            ("orchard_model_tries", "e", "m", "refused"): 2.0,
            ("orchard_parts_not_shown", "demo", "document"): 2.0,
            ("orchard_attempts_released", "demo", "llm_unavailable"): 1.0,
            ("orchard_endpoint_resting", "e"): 1.0,
            ("orchard_sandbox_seconds", "0.5", "creating"): 2.0,
            ("orchard_sandbox_seconds", "0.95", "commands"): 4.0,
            ("orchard_rollouts_reconciled", "demo"): 1.0,
            ("orchard_inherited_tokens", "demo"): 66.0,
            ("orchard_log_position",): 13.0,
        }.items()
    )


async def test_a_store_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    async with TestClient(TestServer(application(str(tmp_path / "missing")))) as client:
        reply = await client.get("/metrics")

        assert reply.status == 503
        assert "there is no store" in await reply.text()
