"""Teams of the chart's values on a real server with the accounts of the chart."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from orchard.pipelines.campaigns.commands import Campaigns
from orchard.pipelines.campaigns.team_quotas import TeamQuotas
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import CampaignSpec, ModelSpec, TaskRef
from orchard.schemas.events import make_event
from orchard.schemas.queues import Queue
from orchard.storage.blobs import BlobStore
from orchard.streams.claims import Claims
from orchard.streams.publisher import Publisher
from orchard.streams.settings import TeamSettings, queues_in
from orchard.streams.team_holds import TeamHolds
from orchard.streams.topology import declare
from tests.entries import named
from tests.infra.conftest import Manifests
from tests.infra.test_chart import queue, queues, rendered, teams
from tests.infra.test_nats_accounts import ConnectAs, connect_as
from tests.trajectory_log import llm_call

__all__ = ["connect_as"]

VISION = Queue(team="vision")
TEAMS = {"vision": TeamSettings(slots=16, usd_per_day=0.25)}
SPEC = CampaignSpec(
    name="demo",
    tasks=(TaskRef(task_id="t", source="s", repo="a/b", blob=BlobRef(sha256="0" * 64, size=1)),),
    harnesses=("h",),
    models=(ModelSpec(name="m"),),
    samples=3,
    team="vision",
)


@pytest.fixture
def built() -> dict[str, Manifests]:
    values = teams(vision={"maxWorkers": 1, "slots": 16, "usdPerDay": 0.25})
    return {"cloud": Manifests(rendered(*queues(queue("swe")), *values))}


async def test_each_role_may_do_its_part_for_a_team(
    built: dict[str, Manifests], connect_as: ConnectAs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchard.pipelines.campaigns.commands.planned_versions", lambda _: {})
    declared = queues_in(built["cloud"].one("ConfigMap", "settings")["data"]["ORCHARD_NATS__QUEUES"])
    blobs = BlobStore(str(tmp_path / "store"))
    async with (
        connect_as("writer") as writer,
        connect_as("operator") as operator,
        connect_as("steward") as steward,
        connect_as("worker") as worker,
    ):
        await declare(writer, writer.settings, declared, TEAMS)
        await declare(worker, worker.settings, [Queue(), VISION], TEAMS)
        await declare(operator, operator.settings, [VISION], TEAMS)
        async for _ in Campaigns(operator, blobs, "ana").submit(SPEC):
            pass
        async with Claims(worker, Queue(), [VISION], TEAMS) as claims:
            claim = await claims.next(10.0)
            assert claim is not None and claim.queue == VISION
            await claim.retry_later(named(VISION, "again", b"{}"), 60.0, "a test")
        call = make_event(llm_call(0), id="c", source="test", campaign="demo", rollout_id="ab")
        await Publisher(worker).event(call)
        await TeamQuotas(steward, blobs.url, TEAMS).look(datetime.now(UTC))
        assert await TeamHolds(worker).of("vision") is not None
        assert await TeamHolds(operator).all()
