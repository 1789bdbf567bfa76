"""A team's money for a day: beyond it rollouts are put off, none fails, and all go on the next day."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.campaigns.commands import Campaigns
from orchard.pipelines.campaigns.team_quotas import TeamQuotas
from orchard.schemas.access import TeamHold
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import CampaignSpec, ModelSpec, TaskRef, rollout_requests
from orchard.schemas.events import Event, encode_event, make_event, payload
from orchard.schemas.queues import Queue
from orchard.schemas.subjects import event_subject
from orchard.storage.blobs import BlobStore
from orchard.streams import consumer, names
from orchard.streams.awaiting import Releases
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher
from orchard.streams.queued import queued
from orchard.streams.replay import replay
from orchard.streams.settings import TeamSettings
from orchard.streams.team_holds import TeamHolds
from orchard.streams.topology import declare
from tests.pipelines.rl.working import one_worker
from tests.trajectory_log import judge_call, llm_call

VISION = Queue(team="vision")
SPEC = CampaignSpec(
    name="demo",
    tasks=(TaskRef(task_id="t", source="s", repo="a/b", blob=BlobRef(sha256="0" * 64, size=1)),),
    harnesses=("orchard-bash",),
    models=(ModelSpec(name="m"),),
    samples=3,
    team="vision",
)
ROLLOUTS = {request.rollout_id for request in rollout_requests(SPEC)}
NOON = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
Write = Callable[[], Awaitable[str]]


def call(number: int, time: datetime = NOON, campaign: str = "demo") -> Event:
    """A model call of 0.25 USD."""
    return make_event(
        llm_call(number),
        id=f"{campaign}.{number}",
        source="test",
        campaign=campaign,
        rollout_id="ab",
        time=time,
    )


def quotas(connection: Connection, store: str, usd: float | None) -> TeamQuotas:
    return TeamQuotas(connection, store, {"vision": TeamSettings(usd_per_day=usd), "other": TeamSettings()})


@pytest.fixture
async def blobs(connection: Connection, tmp_path: Path) -> BlobStore:
    """Of the store of a pipeline that has the campaign."""
    await declare(connection, connection.settings, [VISION])
    blobs = BlobStore(str(tmp_path / "store"))
    async for _ in Campaigns(connection, blobs, "ana").submit(SPEC):
        pass
    return blobs


async def held(connection: Connection) -> list[bool]:
    """What the log says of teams: held or lifted, in order."""
    found = [payload(one.event) async for one in replay(connection) if one.event]
    return [not one.lifted for one in found if isinstance(one, TeamHold)]


async def test_money_of_the_day_is_counted_by_tables_and_stream(
    connection: Connection, blobs: BlobStore, committed: Write
) -> None:
    publisher, holds = Publisher(connection), TeamHolds(connection)
    await publisher.events([call(0), call(1, NOON - timedelta(days=1)), call(2, campaign="of-no-team")])
    await committed()
    first = quotas(connection, blobs.url, 0.5)
    await first.look(NOON)
    assert await holds.all() == {}
    await publisher.events([call(3)])
    await first.look(NOON)
    await quotas(connection, blobs.url, 0.5).look(NOON)  # another steward
    assert [hold.reason for hold in (await holds.all()).values()] == [
        "team vision has spent 0.5 USD of 0.5 USD of this day"
    ]
    assert await held(connection) == [True], "told once"


async def test_judges_count_whether_tables_or_stream_have_their_calls(
    connection: Connection, blobs: BlobStore, committed: Write
) -> None:
    publisher, holds = Publisher(connection), TeamHolds(connection)
    judged = [
        make_event(
            judge_call(0.5), id=f"j{number}", source="test", campaign="demo", rollout_id="ab", time=NOON
        )
        for number in range(2)
    ]
    await publisher.events(judged[:1])
    await committed()
    watch = quotas(connection, blobs.url, 1.25)
    await watch.look(NOON)
    await publisher.events([judged[1], call(0)])
    await watch.look(NOON)
    assert [hold.reason for hold in (await holds.all()).values()] == [
        "team vision has spent 1.25 USD of 1.25 USD of this day"
    ]


async def test_a_call_whose_time_has_no_zone_is_of_utc(connection: Connection, blobs: BlobStore) -> None:
    event = msgspec.structs.replace(call(0), time=NOON.replace(tzinfo=None))
    await connection.jetstream.publish(event_subject(event), encode_event(event))
    await quotas(connection, blobs.url, 0.25).look(NOON)
    assert await TeamHolds(connection).of("vision") is not None


async def test_a_held_team_is_put_off_and_comes_back(
    connection: Connection, blobs: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "CLAIM_WAIT_SECONDS", 0.2)
    await Publisher(connection).events([call(0)])
    await quotas(connection, blobs.url, 0.25).look(datetime.now(UTC))

    async with (
        AsyncSandboxClient("http://127.0.0.1:9") as nowhere,
        one_worker(connection, nowhere, blobs, {}, slots=2, queue=VISION),
    ):
        async with asyncio.timeout(30):
            while (await queued(connection, "demo")).delayed != ROLLOUTS:
                await asyncio.sleep(0.05)
    info = await connection.jetstream.consumer_info(names.WORK, VISION.consumer)
    assert (info.num_pending, info.num_ack_pending) == (0, 0), "a scaler starts nobody for them"
    kinds = {one.event.type async for one in replay(connection) if one.event}
    assert not kinds & {"rollout.started", "rollout.aborted", "request.dead_lettered"}
    releases = Releases(connection)
    assert await releases.look() == 0
    await quotas(connection, blobs.url, 5.0).look(datetime.now(UTC))
    assert await releases.look() == 3
    assert (await queued(connection, "demo")).waiting == ROLLOUTS
    assert await held(connection) == [True, False]


async def test_the_next_day_has_its_own_money(connection: Connection, blobs: BlobStore) -> None:
    await Publisher(connection).events([call(0)])
    watch = quotas(connection, blobs.url, 0.25)
    await watch.look(NOON)
    assert await TeamHolds(connection).of("vision") is not None
    await watch.look(NOON + timedelta(days=1))
    assert await TeamHolds(connection).of("vision") is None
