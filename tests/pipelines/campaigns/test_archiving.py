"""Which campaigns are closed, as a pure decision, and what an archived run refuses."""

from datetime import UTC, datetime

import pytest

from orchard.pipelines.campaigns.archiving import CampaignProgress, open_because
from orchard.pipelines.rl.coordinator import RunError, refuse_archived
from orchard.schemas.archives import CampaignArchived
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import CampaignRecord, CampaignState
from orchard.schemas.events import make_event
from orchard.schemas.positions import Position
from orchard.streams.connection import connect
from orchard.streams.publisher import Publisher
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare


def _progress(requested: int = 4, outcomes: int = 4, version: int = 0) -> CampaignProgress:
    return CampaignProgress(
        "c", datetime(2026, 1, 1, tzinfo=UTC), Position.of(99), requested, outcomes, None, version, ""
    )


def _record(state: CampaignState = CampaignState.RUNNING, **values: int) -> CampaignRecord:
    return CampaignRecord(
        spec=BlobRef(sha256="0" * 64, size=1),
        spec_hash="h",
        state=state,
        **({"size": 4, "offered": 4} | values),
    )


@pytest.mark.parametrize(
    ("progress", "record", "steps", "reason"),
    [
        (_progress(), _record(), None, ""),
        (_progress(), None, None, ""),
        (_progress(requested=0, outcomes=0), None, None, ""),
        (_progress(outcomes=3), _record(), None, "has 3 outcomes for 4 rollouts"),
        (_progress(outcomes=3), None, None, "has 3 outcomes for 4 rollouts"),
        (_progress(outcomes=3), _record(CampaignState.PAUSED), None, "has 3 outcomes for 4 rollouts"),
        (_progress(outcomes=3), _record(CampaignState.CANCELLED), None, ""),
        (_progress(3, 3), _record(offered=3), None, "was submitted up to rollout 3 of 4"),
        (_progress(), _record(resumed=2), None, "is being resumed, up to rollout 2 of 4"),
        (_progress(version=6), None, 8, "is a run that has made 6 of 8 policies"),
        (_progress(version=8), None, 8, ""),
        (_progress(outcomes=3, version=8), None, 8, "has 3 outcomes for 4 rollouts"),
    ],
)
def test_a_campaign_is_closed_when_nothing_will_happen_by_itself(
    progress: CampaignProgress, record: CampaignRecord | None, steps: int | None, reason: str
) -> None:
    assert open_because(progress, record, steps) == reason


async def test_an_archived_run_does_not_begin_again(nats_server: EmbeddedServer) -> None:
    archived = CampaignArchived(
        manifest_sha256="0" * 64,
        after=0,
        through=9,
        first_sequence=1,
        last_sequence=9,
        events=9,
        removed=8,
        bytes=100,
    )
    async with connect(NatsSettings(), name="test", url=nats_server.url) as connection:
        await declare(connection, NatsSettings(), [])
        await refuse_archived(connection, "run")
        await Publisher(connection).event(make_event(archived, id="a", source="test", campaign="run"))
        with pytest.raises(RunError, match="run 'run' is finished and archived"):
            await refuse_archived(connection, "run")
