"""Closed campaigns leave the stream for the archive; whoever reads the whole log sees no difference."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest

from orchard.pipelines.campaigns import archiving as pipelines_archiving
from orchard.pipelines.campaigns.archiving import Archiving
from orchard.pipelines.campaigns.commands import CampaignError, Campaigns
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import CampaignRecord, CampaignState
from orchard.schemas.events import Event
from orchard.schemas.groups import RunStarted
from orchard.schemas.positions import Position
from orchard.schemas.subjects import EVENTS_PREFIX, campaign_subjects, done_subject
from orchard.storage.archive import listing
from orchard.storage.archive.history import whole_log
from orchard.storage.archive.segments import SEGMENT_BYTES
from orchard.storage.archive.sizes import sizes
from orchard.storage.archive.verify import verify_archive
from orchard.storage.blobs import BlobStore
from orchard.storage.digest import store_digests
from orchard.storage.errors import ArchiveCorrupt, ArchiveRefused, EventsLost, OtherStream
from orchard.storage.reader import open_tables
from orchard.storage.settings import ArchiveSettings
from orchard.storage.upkeep.maintenance import check, rebuild_derived, rebuild_events
from orchard.storage.writing.writer import Writer
from orchard.streams import names
from orchard.streams.campaigns import CampaignBook
from orchard.streams.connection import Connection, connect
from orchard.streams.errors import OutcomeRefused
from orchard.streams.publisher import Publisher
from orchard.streams.reading import bounds, message_at, subjects
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from tests.s3_server import CREDENTIALS, s3_service

Write = Callable[..., Awaitable[None]]
PLAN = BlobRef(sha256="0" * 64, size=1)


@pytest.fixture
def archiving(connection: Connection, store: str) -> Archiving:
    return Archiving(connection, store, BlobStore(store), ArchiveSettings())


async def _create(
    connection: Connection, campaign: str, size: int, state: CampaignState = CampaignState.RUNNING
) -> None:
    record = CampaignRecord(spec=PLAN, spec_hash=campaign, size=size, offered=size, state=state)
    await CampaignBook(connection).create(campaign, record)


async def _interleaved(publisher: Publisher, *logs: Iterable[Event]) -> None:
    """Events of several campaigns, mixed as workers mix them."""
    waiting = [list(reversed(list(events))) for events in logs]
    chance = random.Random(5)
    mixed = []
    while waiting := [events for events in waiting if events]:
        mixed.append(chance.choice(waiting).pop())
    await publisher.events(mixed)


def _rollouts(log, count: int, text: str = "hello") -> list[Event]:
    return [event for sample in range(count) for event in log.whole_rollout(sample, text=text)]


async def _archive(archiving: Archiving, campaign: str) -> None:
    async for _ in archiving.archive(campaign):
        pass


@pytest.mark.long
async def test_archive_and_stream_rebuild_what_was_live(
    connection: Connection, publisher: Publisher, store: str, write: Write, log, archiving, tmp_path
) -> None:
    first, second = log.__class__("first"), log.__class__("second")
    await _create(connection, "first", 8)
    await _interleaved(publisher, _rollouts(first, 8), _rollouts(second, 5))
    odd = {"Nats-Msg-Id": "odd", "Trace": "a;b"}
    await connection.jetstream.publish(f"{EVENTS_PREFIX}.first.00.odd", b"\xff\x00 not an event", headers=odd)
    await write()
    await _archive(archiving, "first")
    await publisher.events(_rollouts(log.__class__("third"), 2))
    await write()
    live = store_digests(store)

    held = await subjects(connection, names.EVENTS, campaign_subjects("first"))
    assert {subject.split(".", 4)[4] for subject in held} == {"campaign.archived", "campaign.state_changed"}
    fences = [done_subject(first.rollout(sample)) for sample in range(8)]
    assert set(fences) <= set(await subjects(connection, names.EVENTS, f"{EVENTS_PREFIX}.done.*"))

    await rebuild_events(store, connection)
    rebuild_derived(store)
    assert store_digests(store) == live
    assert check(store) == []
    fresh = str(tmp_path / "fresh")
    await write_to(fresh, connection, archiving.shelf.location.url)
    assert store_digests(fresh) == live
    assert verify_archive(archiving.shelf, store).findings == []


async def write_to(store: str, connection: Connection, archive: str) -> None:
    """A writer of another store, which has to read the archive to begin with."""
    stop = asyncio.Event()
    stop.set()
    await Writer(store, connection, None, ArchiveSettings(url=archive)).run(stop)


async def test_archiving_leaves_the_memory_of_the_writers_process_to_the_writer(
    publisher: Publisher, write: Write, log, archiving, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = []

    def opened(*args: Any, **options: Any) -> duckdb.DuckDBPyConnection:
        tables = open_tables(*args, **options)
        limits.extend(tables.execute("select current_setting('memory_limit')").fetchall())
        return tables

    for module in (listing, pipelines_archiving):
        monkeypatch.setattr(module, "open_tables", opened)
    await publisher.events(_rollouts(log.__class__("first"), 1))
    await write()

    assert await archiving.closed() == ["first"]
    await _archive(archiving, "first")

    assert len(limits) > 2 and set(limits) == {("286.1 MiB",)}


async def test_a_segment_holds_messages_byte_for_byte(
    connection: Connection, publisher: Publisher, write: Write, log, archiving
) -> None:
    await publisher.events(_rollouts(log, 1))
    raw = b'{"id": "spaces  stay", \xff}'
    await connection.jetstream.publish(
        f"{EVENTS_PREFIX}.demo.00.odd", raw, headers={"Nats-Msg-Id": "m-1", "Other": "ä"}
    )
    last = (await bounds(connection, names.EVENTS)).last
    stored = {n: await message_at(connection, names.EVENTS, n) for n in range(1, last + 1)}
    await write()
    await _archive(archiving, "demo")
    (part,) = archiving.shelf.parts("demo")
    manifest = archiving.shelf.manifest(part)
    (segment,) = manifest.segments
    sealed = [m for messages in archiving.shelf.messages("demo", segment) for m in messages]
    assert [m.sequence for m in sealed] == list(stored)
    for message in sealed:
        original = stored[message.sequence]
        assert original is not None
        assert (message.subject, message.data, message.headers) == (
            original.subject,
            original.data,
            original.headers,
        )
    assert sealed[-1].headers == {"Nats-Msg-Id": "m-1", "Other": "ä"}
    assert manifest.subjects == {
        f"{EVENTS_PREFIX}.demo.*.{kind}": 1
        for kind in ("rollout.requested", "message.appended", "llm.called", "reward.assigned", "odd")
    } | {f"{EVENTS_PREFIX}.done.*": 1, f"{EVENTS_PREFIX}.started.*": 1}


@pytest.mark.slow
async def test_an_archive_may_be_on_s3(
    connection: Connection, publisher: Publisher, store: str, write: Write, log, monkeypatch
) -> None:
    with s3_service("orchard") as url:
        for name, value in (CREDENTIALS | {"AWS_ENDPOINT_URL": url}).items():
            monkeypatch.setenv(name, value)
        settings = ArchiveSettings(url="s3://orchard/sealed")
        archiving = Archiving(connection, store, BlobStore(store), settings)
        await publisher.events(_rollouts(log, 3))
        await write()
        await _archive(archiving, "demo")
        await write()
        live = store_digests(store)
        assert verify_archive(archiving.shelf, store).findings == []
        await rebuild_events(store, connection, settings)
        rebuild_derived(store)
        assert store_digests(store) == live
        assert await archiving.closed() == []


async def test_a_late_outcome_of_an_archived_rollout_is_refused(
    publisher: Publisher, write: Write, log, archiving
) -> None:
    await publisher.events(_rollouts(log, 2))
    await write()
    await _archive(archiving, "demo")
    with pytest.raises(OutcomeRefused):
        await publisher.terminal(log.finished(log.rollout(0), attempt=2))


@pytest.mark.long
async def test_what_comes_after_archiving_goes_into_another_part(
    connection: Connection, publisher: Publisher, store: str, write: Write, log, archiving
) -> None:
    await publisher.events(_rollouts(log, 2))
    await write()
    await _archive(archiving, "demo")
    await write()
    assert await archiving.closed() == []
    await publisher.event(log.message(log.rollout(0), attempt=2))
    await write()
    assert await archiving.closed() == ["demo"]
    assert await archiving.closed(timedelta(days=1)) == []
    await _archive(archiving, "demo")
    await write()
    assert await archiving.closed() == []
    assert len(archiving.shelf.parts("demo")) == 2
    live = store_digests(store)
    await rebuild_events(store, connection)
    rebuild_derived(store)
    assert store_digests(store) == live


@pytest.mark.slow
async def test_a_large_campaign_is_archived_in_parts_and_segments(
    connection: Connection, publisher: Publisher, store: str, write: Write, log, archiving, monkeypatch
) -> None:
    monkeypatch.setattr(listing, "_LISTED", listing._LISTED.replace(str(listing.PART_EVENTS), "20"))
    monkeypatch.setattr(listing, "PART_EVENTS", 20)
    monkeypatch.setattr("orchard.storage.archive.segments.SEGMENT_BYTES", 4000)
    await publisher.events(_rollouts(log, 10))
    await write()
    live = store_digests(store)
    await _archive(archiving, "demo")
    parts = archiving.shelf.parts("demo")
    assert len(parts) == 3
    assert all(len(archiving.shelf.manifest(part).segments) > 1 for part in parts)
    assert sum(part.removed for part in parts) == 40
    await write()
    assert verify_archive(archiving.shelf, store).findings == []
    found = []
    async with aclosing(whole_log(connection, archiving.shelf, 7, until=60)) as batches:
        async for batch in batches:
            found += [message.sequence for message in batch]
    assert found == list(range(7, 61))
    assert SEGMENT_BYTES > 4000
    assert live["events"] != store_digests(store)["events"]  # the log has recorded the three parts


@pytest.mark.long
@pytest.mark.parametrize(
    ("size", "state", "closed"),
    [
        (3, CampaignState.RUNNING, True),
        (3, CampaignState.PAUSED, True),
        (4, CampaignState.RUNNING, False),
        (4, CampaignState.PAUSED, False),
        (4, CampaignState.CANCELLED, True),
    ],
)
async def test_only_closed_campaigns_are_archived(
    connection: Connection,
    publisher: Publisher,
    write: Write,
    log,
    archiving,
    size: int,
    state: CampaignState,
    closed: bool,
) -> None:
    await _create(connection, "demo", size, state)
    await publisher.events(_rollouts(log, 3))
    await write()
    assert await archiving.closed() == (["demo"] if closed else [])
    if not closed:
        with pytest.raises(ArchiveRefused, match="not closed, it has 3 outcomes for 4 rollouts"):
            await _archive(archiving, "demo")


async def test_a_campaign_whose_archive_cannot_be_written_keeps_no_other_back(
    publisher: Publisher, store: str, write: Write, log, archiving, caplog
) -> None:
    for name in ("blocked", "whole"):
        await publisher.events(_rollouts(log.__class__(name), 1))
    await write()
    (Path(store) / "archive").mkdir()
    (Path(store) / "archive" / "blocked").write_text("not a directory")

    await archiving.look(timedelta(0))

    assert len(archiving.shelf.parts("whole")) == 1
    assert "campaign blocked is not archived" in caplog.text


@pytest.mark.parametrize("damage", ["missing", "not JSON"])
async def test_a_run_without_its_plan_is_named_and_keeps_no_other_back(
    publisher: Publisher, store: str, write: Write, log, archiving, caplog, damage: str
) -> None:
    plan = BlobStore(store).put(b"not JSON")
    run, whole = log.__class__("a-run"), log.__class__("whole")
    await publisher.events(_rollouts(whole, 1))
    started = RunStarted(run="a-run", plan=plan, plan_hash="h", tasks=1, method="bar")
    await publisher.event(run.event(started))
    await write()
    if damage == "missing":
        for file in Path(store).rglob(plan.sha256):
            file.unlink()

    assert await archiving.closed() == ["a-run", "whole"]
    await archiving.look(timedelta(0))

    assert len(archiving.shelf.parts("whole")) == 1
    assert "campaign a-run is not archived" in caplog.text


async def test_archiving_outlives_a_table_that_duckdb_cannot_read(
    publisher: Publisher, store: str, write: Write, log, archiving, caplog
) -> None:
    await publisher.events(_rollouts(log, 1))
    await write()
    for file in (Path(store) / "tables" / "rollouts_all").glob("*.parquet"):
        file.write_bytes(b"damaged")

    await archiving.look(timedelta(0))

    assert "archiving waits" in caplog.text


@pytest.mark.long
async def test_an_archived_campaign_is_resumed_only_after_restore(
    connection: Connection, publisher: Publisher, store: str, write: Write, log, archiving
) -> None:
    await _create(connection, "demo", 2)
    await publisher.events(_rollouts(log, 2))
    await write()
    await _archive(archiving, "demo")
    campaigns = Campaigns(connection, BlobStore(store))
    with pytest.raises(CampaignError, match="is archived: `orchard log restore demo`"):
        async for _ in campaigns.resume("demo"):
            pass
    async for _ in archiving.restore("demo"):
        pass
    found = await CampaignBook(connection).get("demo")
    assert found is not None
    assert found[0].state is CampaignState.PAUSED
    await write()
    with open_tables(store) as tables:
        assert tables.execute("select state from campaigns where campaign = 'demo'").fetchall() == [
            ("paused",)
        ]


@pytest.mark.slow
async def test_any_flipped_byte_is_found(
    publisher: Publisher, store: str, write: Write, log, archiving
) -> None:
    await publisher.events(_rollouts(log, 4))
    await write()
    await _archive(archiving, "demo")
    await write()
    chance = random.Random(11)
    files = sorted(Path(archiving.shelf.location.url, "demo").iterdir())
    assert len(files) == 2
    for file in files:
        whole = file.read_bytes()
        for _ in range(6):
            place = chance.randrange(len(whole))
            flipped = bytearray(whole)
            flipped[place] ^= 1 << chance.randrange(8)
            file.write_bytes(flipped)
            assert verify_archive(archiving.shelf, store).findings, f"byte {place} of {file.name}"
        file.write_bytes(whole[:-1])
        assert verify_archive(archiving.shelf, store).findings
        file.unlink()
        assert verify_archive(archiving.shelf, store).findings
        file.write_bytes(whole)
    assert verify_archive(archiving.shelf, store).findings == []


async def test_holes_without_a_manifest_are_refused_and_named(
    connection: Connection, publisher: Publisher, write: Write, log, archiving, tmp_path
) -> None:
    await publisher.events(_rollouts(log, 4))
    await write()
    await _archive(archiving, "demo")
    await connection.jetstream.purge_stream(names.EVENTS, subject=done_subject(log.rollout(0)))
    other = str(tmp_path / "other")
    settings = ArchiveSettings(url=str(tmp_path / "nothing"))
    with pytest.raises(EventsLost, match="event 1 is neither in the stream nor in the archive"):
        await rebuild_events(other, connection, settings)
    url = archiving.shelf.location.url
    assert await rebuild_events(other, connection, ArchiveSettings(url=url)) == Position.of(
        25
    )  # the fence has a copy
    await connection.jetstream.purge_stream(names.EVENTS, subject=f"{EVENTS_PREFIX}.demo.*.campaign.archived")
    with pytest.raises(EventsLost, match="event 25 is neither"):
        await rebuild_events(str(tmp_path / "third"), connection, ArchiveSettings(url=url))


async def test_the_archive_of_another_stream_is_refused(
    publisher: Publisher, write: Write, log, archiving, tmp_path
) -> None:
    await publisher.events(_rollouts(log, 2))
    await write()
    await _archive(archiving, "demo")
    await publisher.events(_rollouts(log.__class__("second"), 2))
    for directory in ("a", "b"):
        (tmp_path / directory).mkdir()
    async with (
        EmbeddedServer(tmp_path / "a") as server,
        connect(NatsSettings(), name="other", url=server.url) as other,
    ):
        await declare(other, NatsSettings(), [])
        strange = log.__class__("third")
        await Publisher(other).events(_rollouts(strange, 2))
        await other.jetstream.purge_stream(names.EVENTS, subject=campaign_subjects("third"))
        with pytest.raises(OtherStream, match="the archive is of another stream"):
            await rebuild_events(
                str(tmp_path / "b"), other, ArchiveSettings(url=archiving.shelf.location.url)
            )


async def test_a_stream_that_lost_events_is_not_archived(
    connection: Connection, publisher: Publisher, write: Write, log, archiving
) -> None:
    await publisher.events(_rollouts(log, 3))
    await write()
    await connection.jetstream.purge_stream(
        names.EVENTS, subject=f"{EVENTS_PREFIX}.demo.*.message.appended", keep=1
    )
    before = (await bounds(connection, names.EVENTS)).messages
    with pytest.raises(EventsLost, match="nothing was removed, run `orchard store check`"):
        await _archive(archiving, "demo")
    assert (await bounds(connection, names.EVENTS)).messages == before
    assert archiving.shelf.parts() == []


async def test_nothing_leaves_the_stream_for_a_part_that_is_broken(
    connection: Connection, publisher: Publisher, write: Write, log, archiving, monkeypatch
) -> None:
    await publisher.events(_rollouts(log, 3))
    await write()
    put = archiving.shelf.put_segment
    monkeypatch.setattr(
        archiving.shelf, "put_segment", lambda name, segment, data: put(name, segment, data[:-9])
    )
    before = await bounds(connection, names.EVENTS)
    with pytest.raises(ArchiveCorrupt):
        await _archive(archiving, "demo")
    assert await bounds(connection, names.EVENTS) == before


async def test_status_counts_what_is_still_in_the_stream(
    connection: Connection, publisher: Publisher, store: str, write: Write, log, archiving, prose
) -> None:
    await _interleaved(
        publisher,
        _rollouts(log.__class__("first"), 6, prose(20_000)),
        _rollouts(log.__class__("second"), 6, prose(2_000)),
    )
    await write()
    before = sizes(store, {})
    assert before["first"].events == 24
    assert before["second"].events == 24
    assert before["done"].events == before["started"].events == 12
    assert 6 * 20_000 < before["first"].bytes < 7 * 20_000
    assert 6 * 2_000 < before["second"].bytes < before["first"].bytes / 4
    await _archive(archiving, "first")
    await write()
    (part,) = archiving.shelf.parts()
    after = sizes(store, {"first": Position.of(part.through)})
    assert after["first"].events == 1  # what says that it was archived
    assert after["second"] == before["second"]
    held = (await bounds(connection, names.EVENTS)).messages
    assert sum(size.events for size in after.values()) == held
