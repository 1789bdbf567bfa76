"""The reconciler: what is on no queue comes back, is counted, and nothing else is touched."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from orchard.pipelines.campaigns.archiving import Archiving, CampaignProgress
from orchard.pipelines.campaigns.commands import Campaigns, OfferProgress
from orchard.pipelines.campaigns.ending import open_in_queues
from orchard.pipelines.campaigns.reconciling import Ledger, Reconciler, Suspect, missing, reconcilable, twice
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import (
    CampaignRecord,
    CampaignSpec,
    CampaignState,
    ModelSpec,
    RolloutRequest,
    TaskRef,
    rollout_requests,
)
from orchard.schemas.events import RolloutAborted, make_event, payload
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.positions import Position
from orchard.schemas.queues import Queue
from orchard.storage.blobs import BlobStore
from orchard.storage.settings import ArchiveSettings
from orchard.streams import names
from orchard.streams.campaigns import CampaignBook
from orchard.streams.claims import Claims
from orchard.streams.connection import Connection, connect
from orchard.streams.entries import after_attempt, rollout_entry
from orchard.streams.publisher import Publisher
from orchard.streams.reading import bounds, subjects
from orchard.streams.replay import replay
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from orchard.workers.attempts.deadletters import DeadLetters
from orchard.workers.attempts.reopen import aborted

SPEC = CampaignSpec(
    name="demo",
    tasks=(TaskRef(task_id="t", source="s", repo="a/b", blob=BlobRef(sha256="0" * 64, size=1)),),
    harnesses=("h",),
    models=(ModelSpec(name="m"),),
    samples=5,
)
REQUESTS = list(rollout_requests(SPEC))
RECORD = CampaignRecord(spec=SPEC.tasks[0].blob, spec_hash="h", size=10, offered=6)


@pytest.fixture
async def connection(tmp_path: Path) -> AsyncIterator[Connection]:
    settings = NatsSettings(ack_wait=60.0, heartbeat=10.0)
    async with (
        EmbeddedServer(tmp_path / "nats") as server,
        connect(settings, name="test", url=server.url) as opened,
    ):
        await declare(opened, settings, [Queue()])
        yield opened


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(str(tmp_path / "store"))


@pytest.fixture
async def four_lost(connection: Connection, blobs: BlobStore) -> None:
    """A campaign with one of its five rollouts on the queue."""
    await everything(Campaigns(connection, blobs).submit(SPEC))
    await connection.jetstream.purge_stream(names.WORK)
    await Publisher(connection).offer(rollout_entry(REQUESTS[0], "kept"))


async def everything(steps: AsyncIterator[OfferProgress]) -> None:
    async for _ in steps:
        pass


async def end(connection: Connection, request: RolloutRequest) -> int:
    """Give a rollout its outcome; the outcome's sequence."""
    return await Publisher(connection).terminal(
        make_event(
            aborted(request, AbortCause.LLM_UNAVAILABLE, "test", None),
            id=f"{request.rollout_id}.1.done",
            source="test",
            campaign="demo",
            rollout_id=request.rollout_id,
            attempt=1,
        )
    )


async def queued_requests(connection: Connection) -> list[RolloutRequest]:
    """Every request of the work queue."""
    found = []
    async with Claims(connection, Queue()) as claims:
        for _ in range((await bounds(connection, names.WORK)).messages):
            claim = await claims.next(10)
            assert claim is not None
            found.append(msgspec.json.decode(claim.body, type=RolloutRequest))
            await claim.complete()
    return found


@pytest.mark.usefixtures("four_lost")
async def test_an_open_rollout_on_no_queue_is_offered_again_and_told(
    connection: Connection, blobs: BlobStore
) -> None:
    await end(connection, REQUESTS[1])
    reconciler = Reconciler(connection, blobs)

    assert [await reconciler.look() for _ in range(3)] == [0, 3, 0]

    told = [
        stored.event.rollout_id
        async for stored in replay(connection, subjects="orchard.events.demo.*.rollout.reconciled")
        if stored.event
    ]
    lost = [request.rollout_id for request in REQUESTS[2:]]
    assert sorted(filter(None, told)) == sorted(lost)
    found = {request.rollout_id for request in await queued_requests(connection)}
    assert found == {REQUESTS[0].rollout_id, *lost}


async def test_what_is_running_or_delayed_is_where_it_should_be(
    connection: Connection, blobs: BlobStore
) -> None:
    await everything(Campaigns(connection, blobs).submit(SPEC))
    async with Claims(connection, Queue()) as claims:
        running, delayed, due = [await claims.next(10) for _ in range(3)]
        assert running and delayed and due
        for claim, delay in ((delayed, 3600.0), (due, 0.0)):
            request = msgspec.json.decode(claim.body, type=RolloutRequest)
            await claim.retry_later(rollout_entry(request, after_attempt(1)), delay, "test")
        async with asyncio.timeout(20):
            while not await subjects(connection, names.LATER, names.DUE_SUBJECTS):
                await asyncio.sleep(0.05)
        reconciler = Reconciler(connection, blobs)

        assert [await reconciler.look() for _ in range(3)] == [0, 0, 0]
        await running.complete()


@pytest.mark.usefixtures("four_lost")
async def test_a_rollout_seen_missing_once_may_have_been_on_its_way(
    connection: Connection, blobs: BlobStore
) -> None:
    reconciler = Reconciler(connection, blobs)
    assert await reconciler.look() == 0
    publisher = Publisher(connection)
    await publisher.offer_all([rollout_entry(request, "arrived") for request in REQUESTS[1:]])

    assert [await reconciler.look() for _ in range(2)] == [0, 0]


async def test_outcomes_that_a_server_has_lost_are_not_remembered(tmp_path: Path, blobs: BlobStore) -> None:
    """Their rollouts are open again, and on no queue."""
    settings = NatsSettings(ack_wait=60.0, heartbeat=10.0)
    async with (
        EmbeddedServer(tmp_path / "nats") as server,
        connect(settings, name="test", url=server.url) as connection,
    ):
        await declare(connection, settings, [Queue()])
        await everything(Campaigns(connection, blobs).submit(SPEC))
        await connection.jetstream.purge_stream(names.WORK)
        await server.stop()
        await asyncio.to_thread(shutil.copytree, tmp_path / "nats", tmp_path / "before")
        await server.start()
        for request in REQUESTS:
            await end(connection, request)
        reconciler = Reconciler(connection, blobs)
        assert [await reconciler.look() for _ in range(2)] == [0, 0]

        await server.stop()
        await asyncio.to_thread(shutil.rmtree, tmp_path / "nats")
        await asyncio.to_thread(shutil.copytree, tmp_path / "before", tmp_path / "nats")
        await server.start()

        assert [await reconciler.look() for _ in range(2)] == [0, len(REQUESTS)]


async def test_a_requeued_dead_letter_whose_request_was_lost_comes_back_at_its_fence(
    connection: Connection, blobs: BlobStore
) -> None:
    """Its campaign was over, and nobody resumed it."""
    await everything(Campaigns(connection, blobs).submit(SPEC))
    for request in REQUESTS[1:]:
        await end(connection, request)
    async with Claims(connection, Queue()) as claims:
        claim = await claims.next(10)
        assert claim is not None
        await DeadLetters(connection).reject(claim, "poison")
    await connection.jetstream.purge_stream(names.WORK)
    reconciler = Reconciler(connection, blobs)
    assert await reconciler.look() == 0
    letters = DeadLetters(connection)
    [letter] = await letters.list()
    requeued = await letters.requeue(letter.sequence)
    await connection.jetstream.purge_stream(names.WORK)

    assert [await reconciler.look() for _ in range(2)] == [0, 1]

    [found] = await queued_requests(connection)
    assert requeued.request is not None
    assert (found.rollout_id, found.fence) == (REQUESTS[0].rollout_id, requeued.request.fence)
    assert found.fence > 0


@pytest.mark.usefixtures("four_lost")
@pytest.mark.parametrize("state", [CampaignState.PAUSED, CampaignState.CANCELLED])
async def test_a_campaign_that_does_not_run_is_left_alone(
    connection: Connection, blobs: BlobStore, state: CampaignState
) -> None:
    book = CampaignBook(connection)
    known = await book.get("demo")
    assert known is not None
    await book.update("demo", msgspec.structs.replace(known[0], state=state), known[1])
    reconciler = Reconciler(connection, blobs)

    assert [await reconciler.look() for _ in range(3)] == [0, 0, 0]


async def test_what_a_dead_worker_held_of_a_cancelled_campaign_ends_and_is_not_archived_before(
    connection: Connection, blobs: BlobStore, tmp_path: Path
) -> None:
    """Its claim is never given back, and no other worker comes."""
    campaigns, publisher = Campaigns(connection, blobs), Publisher(connection)
    await everything(campaigns.submit(SPEC))
    async with Claims(connection, Queue()) as claims:
        claim = await claims.next(10)
        assert claim is not None
    await everything(campaigns.cancel("demo"))
    (left,) = await open_in_queues(connection, publisher, "demo")
    archiving = Archiving(connection, str(tmp_path / "store"), blobs, ArchiveSettings())
    known = await CampaignBook(connection).get("demo")
    assert known is not None
    progress = CampaignProgress(
        "demo", datetime.now(UTC), Position.of(1), SPEC.size, SPEC.size - 1, None, 0, ""
    )
    assert "1 rollouts that no one has ended" in await archiving._open_because(progress, known[0])

    reconciler = Reconciler(connection, blobs)
    assert [await reconciler.look() for _ in range(2)] == [0, 0]

    outcome = await publisher.outcome(left)
    assert outcome is not None and outcome.event is not None
    data = payload(outcome.event)
    assert isinstance(data, RolloutAborted) and data.cause is AbortCause.CANCELLED
    assert not await open_in_queues(connection, publisher, "demo")
    assert await archiving._open_because(progress, known[0]) == ""


async def test_a_plan_that_cannot_be_read_stops_nobody(connection: Connection, blobs: BlobStore) -> None:
    await CampaignBook(connection).create("a-lost-one", RECORD)
    await everything(Campaigns(connection, blobs).submit(SPEC))
    await connection.jetstream.purge_stream(names.WORK)
    reconciler = Reconciler(connection, blobs)

    assert [await reconciler.look() for _ in range(2)] == [0, SPEC.size]


def test_only_what_was_offered_must_have_a_request() -> None:
    replace = msgspec.structs.replace
    assert reconcilable(RECORD) == 6
    assert reconcilable(replace(RECORD, resumed=4)) == 4
    assert reconcilable(replace(RECORD, resumed=8)) == 6
    assert reconcilable(replace(RECORD, state=CampaignState.PAUSED)) == 0


def test_a_suspect_is_the_same_rollout_at_the_same_fence_twice() -> None:
    before = [Suspect(3, "c", 0), Suspect(1, "a", 0), Suspect(2, "b", 7)]
    now = [Suspect(2, "b", 9), Suspect(3, "c", 0), Suspect(1, "a", 0)]
    assert twice(before, now) == [Suspect(1, "a", 0), Suspect(3, "c", 0)]


def test_the_ledger_knows_what_is_open() -> None:
    ledger = Ledger()
    for request in REQUESTS:
        ledger.add(request.rollout_id)
    shard = REQUESTS[2].rollout_id[:2]
    assert ledger.open_in(shard, SPEC.size)[REQUESTS[2].rollout_id] == 2
    assert REQUESTS[2].rollout_id not in ledger.open_in(shard, 2), "not offered yet"
    ledger.end(2)
    ledger.end(2)
    assert (ledger.open, ledger.size) == (4, 5)
    assert missing(ledger.open_in(shard, SPEC.size), set()) == []
