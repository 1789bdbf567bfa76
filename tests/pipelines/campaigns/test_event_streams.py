"""Campaigns whose rollouts are spread over several event streams."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from orchard.pipelines.campaigns import commands
from orchard.pipelines.campaigns.commands import Campaigns
from orchard.pipelines.campaigns.reconciling import Reconciler
from orchard.schemas.campaigns import rollout_ids, rollout_requests, spec_hash
from orchard.schemas.health import Condition, ProcessReport
from orchard.schemas.identity import rollout_stream
from orchard.schemas.queues import Queue
from orchard.storage.blobs import BlobStore
from orchard.streams import consumer, names
from orchard.streams.campaigns import CampaignBook
from orchard.streams.connection import Connection, connect
from orchard.streams.errors import TopologyError
from orchard.streams.publisher import Publisher
from orchard.streams.reading import subjects
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from orchard.workers.attempts import retries, worker
from tests.attempts_world import QUICK_RETRIES
from tests.pipelines.campaigns.test_campaigns import (
    SPEC,
    all_have,
    everything,
    working,
)

ONE = NatsSettings(ack_wait=1.5, heartbeat=0.3)
FOUR = msgspec.structs.replace(ONE, event_streams=4)
WIDE = msgspec.structs.replace(SPEC, event_streams=4)


@pytest.fixture
async def connection(tmp_path: Path) -> AsyncIterator[Connection]:
    async with (
        EmbeddedServer(tmp_path / "nats") as server,
        connect(FOUR, name="test", url=server.url) as opened,
    ):
        await declare(opened, FOUR, [Queue()])
        yield opened


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(str(tmp_path / "store"))


@pytest.fixture
def campaigns(connection: Connection, blobs: BlobStore, monkeypatch: pytest.MonkeyPatch) -> Campaigns:
    monkeypatch.setattr(commands, "BATCH", 2)
    monkeypatch.setattr(consumer, "CLAIM_WAIT_SECONDS", 0.2)
    monkeypatch.setattr(worker, "ROLLOUTS", QUICK_RETRIES)
    monkeypatch.setattr(retries, "ROLLOUTS", QUICK_RETRIES)
    return Campaigns(connection, blobs)


def test_the_plan_names_the_streams_and_keeps_its_hash_with_one() -> None:
    assert [one.partition("-")[0] for one in rollout_ids(WIDE)] == list(rollout_ids(SPEC))
    assert {rollout_stream(one) for one in rollout_ids(SPEC)} == {0}
    assert [one.rollout_id for one in rollout_requests(WIDE)] == list(rollout_ids(WIDE))
    assert spec_hash(WIDE) != spec_hash(SPEC)
    assert spec_hash(SPEC) == "80da6bacb78b3777fc3dee3458470cd8"


async def test_a_campaign_runs_ends_and_is_resumed_in_its_streams(
    connection: Connection, blobs: BlobStore, campaigns: Campaigns
) -> None:
    await everything(campaigns.submit(SPEC))
    rollouts = list(rollout_ids(WIDE))
    assert len({rollout_stream(one) for one in rollouts}) > 1
    async with working(connection, blobs):
        await all_have(connection, ["rollout.aborted"], rollouts)
        assert (await everything(campaigns.resume("demo"))).offered == len(rollouts)
        await all_have(connection, ["rollout.aborted", "rollout.reopened", "rollout.aborted"], rollouts)
    assert await subjects(connection, names.EVENTS, "orchard.events.done.*") == {
        f"orchard.events.done.{one}": 3 for one in rollouts if not rollout_stream(one)
    }


async def test_workers_with_another_setting_carry_it_out(
    connection: Connection, blobs: BlobStore, campaigns: Campaigns
) -> None:
    """The ids of the rollouts tell the streams, and no setting."""
    await everything(campaigns.submit(SPEC))
    async with (
        connect(ONE, name="another", url=connection.url) as another,
        working(another, blobs),
    ):
        await all_have(connection, ["rollout.aborted"], list(rollout_ids(WIDE)))


async def test_a_campaign_is_refused_beside_a_process_that_reads_one_stream(
    connection: Connection, campaigns: Campaigns
) -> None:
    async def report(condition: Condition) -> None:
        said = ProcessReport(
            name="old-1", kind="worker", host="h", pid=1, started=datetime.now(UTC), condition=condition
        )
        await connection.jetstream.publish("orchard.health.old", msgspec.json.encode(said))

    await report(Condition.OK)
    with pytest.raises(TopologyError, match="old-1 of an earlier version would not read all"):
        await everything(campaigns.submit(SPEC))
    assert await subjects(connection, names.WORK, names.WORK_SUBJECTS) == {}
    await report(Condition.STOPPED)
    await everything(campaigns.submit(SPEC))
    assert len(await subjects(connection, names.WORK, names.WORK_SUBJECTS)) == SPEC.size


async def test_a_campaign_keeps_the_streams_that_it_was_submitted_with(
    connection: Connection, blobs: BlobStore, campaigns: Campaigns
) -> None:
    """A submit that is killed, and repeated under another setting, gives no rollout another stream."""
    async with connect(NatsSettings(), name="earlier", url=connection.url) as earlier:
        steps = Campaigns(earlier, blobs).submit(SPEC)
        await anext(steps)
        await anext(steps)
        await steps.aclose()
    assert (await everything(campaigns.submit(SPEC))).done == SPEC.size
    assert (await everything(campaigns.submit(msgspec.structs.replace(SPEC, name="other")))).done == SPEC.size

    for name, streams in (("demo", 1), ("other", 4)):
        found = await CampaignBook(connection).get(name)
        assert found is not None
        plan = msgspec.json.decode(blobs.get(found[0].spec), type=type(SPEC))
        assert plan.event_streams == streams
        assert (await everything(campaigns.submit(plan))).offered == 0


async def test_what_is_on_no_queue_is_offered_again_under_its_id(
    connection: Connection, blobs: BlobStore, campaigns: Campaigns
) -> None:
    await everything(campaigns.submit(SPEC))
    await connection.jetstream.purge_stream(names.WORK)
    reconciler = Reconciler(connection, blobs)

    assert [await reconciler.look() for _ in range(3)] == [0, SPEC.size, 0]

    waiting = await subjects(connection, names.WORK, names.WORK_SUBJECTS)
    assert {subject.split(".")[-2] for subject in waiting} == {*rollout_ids(WIDE)}
    assert await Publisher(connection).outcomes(list(rollout_ids(WIDE))) == [None] * SPEC.size
