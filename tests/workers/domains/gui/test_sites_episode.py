"""Rollouts on generated sites: real queue, sandboxes and Chromium, the oracle with mistakes over its wire."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from orchard.pipelines.domains.gui.synthesis import synthesize
from orchard.schemas.campaigns import Budget, ModelSpec, Timeouts
from orchard.schemas.events import RolloutFinished, payload
from orchard.schemas.gui import GuiSubmission
from orchard.streams.server import EmbeddedServer
from orchard.workers.oracle.server import OracleServer
from tests.attempts_world import World, world
from tests.sandbox_service import LocalService


@pytest.fixture
async def place(nats_server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[World]:
    service = LocalService(tmp_path / "state")
    try:
        async with (
            OracleServer(lambda: ()) as oracle,
            world(nats_server.url, service.url, tmp_path / "store", ()) as made,
        ):
            made.model.url = oracle.url
            yield made
    finally:
        service.stop()


@pytest.mark.slow
async def test_the_oracles_log_holds_successes_and_failures_graded_by_records(place: World) -> None:
    tasks = [
        *synthesize(2, 3, sites=("tiny",)),
        *synthesize(2, 2, kinds=("shop.collect", "calendar.cancel"), sites=("shop", "calendar")),
    ]
    rollouts = await place.submit(
        *tasks,
        samples=3,
        models=(ModelSpec(name="oracle/0.35"),),
        harnesses=("browser",),
        budget=Budget(steps=15),
        timeouts=Timeouts(),
        max_tries=2,
    )
    async with place.working(slots=2):
        outcomes = await place.outcomes(*rollouts)
    values = []
    for stored in outcomes.values():
        data = payload(stored)
        assert isinstance(data, RolloutFinished), data
        text = data.submission or place.blobs.get(data.submission_blob).decode()  # type: ignore[arg-type]
        outcome = msgspec.json.decode(text, type=GuiSubmission)
        assert outcome.records is not None
        values.append(data.reward)
    assert len(values) == 15 and {0.0, 1.0} <= {*values} <= {-1.0, 0.0, 1.0}
    assert await place.rows("select distinct system_fingerprint from llm_calls") == [
        ("orchard-oracle/sites",)
    ]
