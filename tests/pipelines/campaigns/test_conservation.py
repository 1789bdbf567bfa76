"""requested = accepted + aborted + waiting + delayed + running + parked + not offered, at any moment."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from orchard.pipelines.campaigns import conservation
from orchard.pipelines.campaigns.commands import Campaigns, OfferProgress
from orchard.pipelines.campaigns.conservation import Balance, RolloutChange, apply_changes, balances, place
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
from orchard.schemas.events import make_event
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.queues import Queue
from orchard.storage.blobs import BlobStore
from orchard.storage.upkeep.maintenance import check
from orchard.storage.writing.writer import Writer, WriterSettings
from orchard.streams import names
from orchard.streams.campaigns import CampaignBook
from orchard.streams.claims import Claims
from orchard.streams.connection import Connection, connect
from orchard.streams.entries import after_attempt, rollout_entry
from orchard.streams.publisher import Publisher
from orchard.streams.queued import Queued
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from orchard.workers.attempts.reopen import aborted

SPEC = CampaignSpec(
    name="demo",
    tasks=(TaskRef(task_id="t", source="s", repo="a/b", blob=BlobRef(sha256="0" * 64, size=1)),),
    harnesses=("h",),
    models=(ModelSpec(name="m"),),
    samples=12,
)
REQUESTS = list(rollout_requests(SPEC))
IDS = [request.rollout_id for request in REQUESTS]


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conservation, "PAUSE_SECONDS", 0.05)


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
def store(tmp_path: Path) -> str:
    return str(tmp_path / "store")


@pytest.fixture
def blobs(store: str) -> BlobStore:
    return BlobStore(store)


async def _everything(steps: AsyncIterator[OfferProgress]) -> None:
    async for _ in steps:
        pass


async def _write(connection: Connection, store: str) -> None:
    stop = asyncio.Event()
    stop.set()
    await Writer(store, connection).run(stop)


async def _end(connection: Connection, request: RolloutRequest, attempt: int = 1) -> None:
    await Publisher(connection).terminal(
        make_event(
            aborted(request, AbortCause.LLM_UNAVAILABLE, "test", None),
            id=f"{request.rollout_id}.{attempt}.done",
            source="test",
            campaign="demo",
            rollout_id=request.rollout_id,
            attempt=attempt,
        )
    )


async def _only(connection: Connection, store: str, blobs: BlobStore) -> Balance:
    (balance,) = await balances(connection, store, blobs)
    return balance


async def test_every_place_is_counted_while_the_writer_lags(
    connection: Connection, store: str, blobs: BlobStore
) -> None:
    await _everything(Campaigns(connection, blobs).submit(SPEC))
    async with Claims(connection, Queue()) as claims:
        ended, delayed, held = [await claims.next(5.0) for _ in range(3)]
        assert ended is not None
        assert delayed is not None
        assert held is not None
        await _end(connection, REQUESTS[0])
        await ended.complete()
        await _write(connection, store)
        await delayed.retry_later(rollout_entry(REQUESTS[1], after_attempt(1)), 600.0, "test")
        balance = await _only(connection, store, blobs)
        await _end(connection, REQUESTS[2])  # the writer does not know of it
        later = await _only(connection, store, blobs)
    assert balance.holds
    assert (balance.requested, balance.aborted) == (12, 1)
    assert (balance.delayed, balance.running, balance.waiting) == ({IDS[1]}, {IDS[2]}, set(IDS[3:]))
    assert later.holds
    assert (later.aborted, later.running) == (2, set())


async def test_a_request_in_no_queue_is_named(connection: Connection, store: str, blobs: BlobStore) -> None:
    await _everything(Campaigns(connection, blobs).submit(SPEC))
    await _write(connection, store)
    assert check(store) == []
    await connection.jetstream.purge_stream(names.WORK, subject=rollout_entry(REQUESTS[4], "any").subject)
    balance = await _only(connection, store, blobs)
    assert not balance.holds
    (finding,) = balance.findings()
    assert finding.startswith(f"campaign demo: rollout {IDS[4]} is without an outcome and in no queue")


@pytest.mark.parametrize("lost", [3, 12])
async def test_what_moves_during_the_check_is_no_false_alarm(
    connection: Connection, store: str, blobs: BlobStore, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """Requests are put on the queue after the queues were listed, and end before they are looked at again."""
    monkeypatch.setattr(conservation, "_ONE_BY_ONE", 5)
    await _everything(Campaigns(connection, blobs).submit(SPEC))
    await _write(connection, store)
    await connection.jetstream.purge_stream(names.WORK)
    list_queues = conservation.queued

    async def listed_too_early(connection: Connection, campaign: str) -> Queued:
        found = await list_queues(connection, campaign)
        monkeypatch.setattr(conservation, "queued", list_queues)
        for request in REQUESTS[:lost]:
            await Publisher(connection).offer(rollout_entry(request, "moved"))
        for request in REQUESTS[lost:]:
            await _end(connection, request)
        return found

    monkeypatch.setattr(conservation, "queued", listed_too_early)
    balance = await _only(connection, store, blobs)
    assert balance.findings() == []
    assert (len(balance.running), balance.aborted) == (lost, 12 - lost)


async def test_paused_and_cancelled_campaigns_have_terms_of_their_own(
    connection: Connection, store: str, blobs: BlobStore
) -> None:
    campaigns = Campaigns(connection, blobs)
    await _everything(campaigns.submit(SPEC))
    await campaigns.pause("demo")
    await connection.jetstream.purge_stream(names.WORK)  # workers put a paused campaign's requests aside
    paused = await _only_written(connection, store, blobs)
    assert paused.holds
    assert (paused.state, paused.parked) == ("paused", set(IDS))
    await _everything(campaigns.cancel("demo"))
    cancelled = await _only_written(connection, store, blobs)
    assert cancelled.holds
    assert (cancelled.state, cancelled.aborted, cancelled.parked) == ("cancelled", 12, set())


async def _only_written(connection: Connection, store: str, blobs: BlobStore) -> Balance:
    await _write(connection, store)
    return await _only(connection, store, blobs)


async def test_a_submit_that_was_killed_has_not_offered_the_rest(
    connection: Connection, store: str, blobs: BlobStore
) -> None:
    await _everything(Campaigns(connection, blobs).submit(SPEC))
    book = CampaignBook(connection)
    known = await book.get("demo")
    assert known is not None
    record = CampaignRecord(
        spec=known[0].spec, spec_hash=known[0].spec_hash, size=12, offered=7, state=CampaignState.RUNNING
    )
    await book.update("demo", record, known[1])
    for request in REQUESTS[7:]:
        await connection.jetstream.purge_stream(names.WORK, subject=rollout_entry(request, "any").subject)
    balance = await _only_written(connection, store, blobs)
    assert balance.holds
    assert balance.unoffered == set(IDS[7:])


@pytest.mark.long
async def test_it_holds_at_any_moment_while_everything_moves(
    connection: Connection, store: str, blobs: BlobStore
) -> None:
    """Workers end, delay and give back requests, a writer lags, and every check holds."""
    campaigns = Campaigns(connection, blobs)
    spec = CampaignSpec(
        name="busy", tasks=SPEC.tasks, harnesses=SPEC.harnesses, models=SPEC.models, samples=150
    )
    stop = asyncio.Event()
    publisher = Publisher(connection)

    async def work(seed: int) -> None:
        chance = random.Random(seed)
        tries = 0
        async with Claims(connection, Queue()) as claims:
            while (claim := await claims.next(0.5)) is not None or not submitting.done():
                if claim is None:
                    continue
                request = _decode(claim.body)
                tries += 1
                if chance.random() < 0.3:
                    entry = rollout_entry(request, after_attempt(1000 * seed + tries))
                    await claim.retry_later(entry, chance.choice([0.01, 600.0]), "test")
                else:
                    await publisher.terminal(
                        make_event(
                            aborted(request, AbortCause.LLM_UNAVAILABLE, "test", None),
                            id=f"{request.rollout_id}.done",
                            source="test",
                            campaign="busy",
                            rollout_id=request.rollout_id,
                            attempt=1,
                        )
                    )
                    await claim.complete()

    writer = asyncio.create_task(
        Writer(store, connection, WriterSettings(commit_rows=20, commit_seconds=0.5)).run(stop)
    )
    submitting = asyncio.create_task(_everything(campaigns.submit(spec)))
    moving = [submitting]
    moving += [asyncio.create_task(work(seed)) for seed in range(3)]
    checks = 0
    while not all(task.done() for task in moving) or checks < 3:
        for balance in await balances(connection, store, blobs) if Path(store, "tables").exists() else []:
            assert balance.findings() == []
            assert balance.holds
            checks += 1
        await asyncio.sleep(0.01)
    stop.set()
    await asyncio.gather(writer, *moving)
    (balance,) = await balances(connection, store, blobs)
    assert balance.holds
    assert balance.requested == 150
    assert balance.aborted > 0
    assert balance.delayed
    assert not balance.running


def _decode(body: bytes) -> RolloutRequest:
    return msgspec.json.decode(body, type=RolloutRequest)


def test_changes_after_the_tables_are_applied_in_their_order() -> None:
    found = {"c": Balance("c", accepted=1, aborted=1, requested=4, open={"a", "b"})}
    changes = [
        RolloutChange("rollout.finished", "c", "a"),
        RolloutChange("rollout.reopened", "c", "was-aborted"),
        RolloutChange("rollout.requested", "c", "b"),
        RolloutChange("rollout.requested", "c", "new"),
        RolloutChange("rollout.aborted", "c", "new"),
        RolloutChange("rollout.finished", "c", "stranger"),
    ]
    apply_changes(found, changes, {"a", "b", "was-aborted"}, {"was-aborted": "aborted"})
    assert found["c"] == Balance(
        "c", accepted=2, aborted=1, requested=5, open={"b", "was-aborted"}, strangers={"stranger"}
    )


def test_a_rollout_in_a_queue_that_was_never_requested_is_named() -> None:
    balance = Balance("c", accepted=1, requested=1, strangers={"x"})
    place(balance, Queued(set(), set(), set()), None)
    assert not balance.holds
    assert balance.findings() == ["campaign c: rollout x is never requested: report this"]
