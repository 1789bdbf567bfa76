"""`store restore-stream`: puts back into the streams of events what only the tables have, each by itself.

If the stream only lost its end, the lost events are published again in their order, which gives them the same
sequences. If it lost events in the middle, or has given lost sequences to new events, a whole new stream is
made on a second server: the tables' events under their sequences, then what else the damaged stream holds
(`storage.merge`). It then replaces the damaged one. Killed anywhere, the next run resumes or begins again.
"""

import asyncio
import secrets
import shutil
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, suppress
from datetime import datetime
from itertools import islice
from pathlib import Path

import msgspec

from orchard.schemas.events import DONE_TYPES
from orchard.schemas.positions import START, Position, own_sequence, sequence_in, stream_of
from orchard.schemas.subjects import EVENTS_PREFIX
from orchard.storage.archive.files import ArchiveFiles
from orchard.storage.archive.segments import is_fence
from orchard.storage.comparing import Piece, after_the_stream, side_by_side
from orchard.storage.delta import DataFile, StoreTable
from orchard.storage.derived import read_events
from orchard.storage.durable import write_whole
from orchard.storage.location import Location
from orchard.storage.lock import writer_lock
from orchard.storage.log import originals
from orchard.storage.merge import DoneEvent, LoggedMessage, Merge, filler
from orchard.storage.settings import ArchiveSettings, archive_url
from orchard.storage.tables import EVENTS
from orchard.streams import names
from orchard.streams.backup import replace_stream
from orchard.streams.connection import Connection, ConnectionLost, connect
from orchard.streams.errors import StreamsError, WrongSequence
from orchard.streams.event_streams import stream_count
from orchard.streams.names import stored_subject, stream_name
from orchard.streams.publish import OutgoingMessage, store, store_all
from orchard.streams.reading import Bounds, bounds
from orchard.streams.records import StoredEvent
from orchard.streams.replay import replay_batches
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare_events, declare_streams, events_config

_BATCH = 1024
_PLAN = "plan.json"
_JUDGED = ("sequence", "subject")
_DONE = f"{EVENTS_PREFIX}.done."
_GAP = f"{EVENTS_PREFIX}.restoring.gap"
"""Subject of messages that take a sequence that archiving has emptied, until they are purged."""


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    put_back: int = 0
    """Events that only the tables had."""
    moved: int = 0
    """Events of the damaged stream that have other sequences now."""
    lost: int = 0
    """Sequences whose events no longer exist; an `event.lost` replaces each."""
    last: int = 0


class _Damage(msgspec.Struct, kw_only=True):
    """What one stream lacks; sequences are over all streams."""

    stream: int
    watermark: int
    held: Bounds
    missing: list[int] = []
    """Sequences that the tables have and the stream lacks."""
    diverged: int | None = None
    """First sequence at which the stream has another event than the tables."""
    replaced: int = 0
    """Sequences at which it has another event."""
    holes: list[int] = []
    """Sequences that neither has."""

    @property
    def tail_only(self) -> bool:
        lost_end = self.watermark - self.held.last
        return self.diverged is None and not self.holes and len(self.missing) == max(lost_end, 0)


class _Plan(msgspec.Struct, frozen=True):
    """Identifies the stream and tables that a new stream is made from, so that another run can resume it."""

    watermark: int
    last: int
    messages: int
    result: Restored | None = None
    """Set when it is complete."""


Tell = Callable[[str, int, int], None]
"""Called with progress: the current phase, events done, events in all."""


async def restore_stream(
    store_url: str,
    connection: Connection,
    settings: NatsSettings,
    work: Path,
    *,
    archive: ArchiveSettings | None = None,
    tell: Tell = lambda *_: None,
) -> Restored:
    """Make each stream hold everything that it or the tables hold; nothing else may publish meanwhile.

    `work` is a local directory for the new stream, as large as the stream. What is in the archive has left
    the stream on purpose, and stays away. Raises StoreBusy, StreamsError.
    """
    location = Location.parse(store_url)
    archived = ArchiveFiles(archive_url(store_url, archive)).reached()
    with writer_lock(location):
        events = StoreTable(location, EVENTS)
        await declare_streams(connection, settings, max(len(events.watermark), 1))
        results = []
        for stream in range(await stream_count(connection)):
            files = [file for file in events.files() if file.rows and stream_of(file.last) == stream]
            watermark = events.watermark.last(stream)
            through = {campaign: reached.last(stream) for campaign, reached in archived.items()}
            apart = work / str(stream) if stream else work
            results.append(
                await _restore(connection, location, files, stream, watermark, settings, apart, through, tell)
            )
        await _mark(connection)
        return Restored(
            put_back=sum(one.put_back for one in results),
            moved=sum(one.moved for one in results),
            lost=sum(one.lost for one in results),
            last=results[0].last,
        )


async def _restore(
    connection: Connection,
    location: Location,
    files: list[DataFile],
    stream: int,
    watermark: int,
    settings: NatsSettings,
    work: Path,
    archived: dict[str, int],
    tell: Tell,
) -> Restored:
    """Restore one stream from its files of `events`, which reach `watermark`."""
    result = await _unfinished(connection, stream, watermark, work)
    if result is None:
        damage = await _compare(connection, location, files, stream, watermark, archived, tell)
        if damage.tail_only:
            return await _append(connection, location, files, damage, tell)
        result = await _build(connection, location, files, damage, settings, work, archived, tell)
    await _swap(connection, stream, settings, work, tell)
    return result


async def _bounds(connection: Connection, stream: int) -> Bounds:
    """The bounds of a stream, in sequences over all streams."""
    held = await bounds(connection, stream_name(stream))
    return Bounds(sequence_in(stream, held.first), sequence_in(stream, held.last), held.messages)


async def _unfinished(connection: Connection, stream: int, watermark: int, work: Path) -> Restored | None:
    """Return the result of an earlier run that was killed before the new stream was in place."""
    plan = _read_plan(work)
    if plan is None or plan.result is None:
        return None
    held = await _bounds(connection, stream)
    if not own_sequence(held.last) or (watermark, held.last, held.messages) == (
        plan.watermark,
        plan.last,
        plan.messages,
    ):
        return plan.result
    shutil.rmtree(work)  # the stream went on since
    return None


async def _compare(
    connection: Connection,
    location: Location,
    files: list[DataFile],
    stream: int,
    watermark: int,
    archived: dict[str, int],
    tell: Tell,
) -> _Damage:
    held = await _bounds(connection, stream)
    damage = _Damage(stream=stream, watermark=watermark, held=held)
    last = sequence_in(stream, 0)
    total = own_sequence(max(held.last, watermark))
    beyond = [file for file in files if file.first > held.last]
    beside = [file for file in files if file.first <= held.last]
    async with aclosing(_stream(connection, last + 1, held.last)) as batches:
        async for piece in side_by_side(batches, location, beside, last + 1):
            _judge(piece, damage, archived)
            last = piece.last
            tell("comparing", own_sequence(last), total)
    for piece in after_the_stream(last + 1, location, beyond, _JUDGED):
        _judge(piece, damage, archived)
        tell("comparing", own_sequence(piece.last), total)
    return damage


def _judge(piece: Piece, damage: _Damage, archived: dict[str, int]) -> None:
    held = {message.sequence for message in piece.stream}
    for sequence in piece.differences():
        if sequence in held:
            damage.diverged = damage.diverged or sequence
            damage.replaced += 1
    columns = (piece.rows.column(name).to_pylist() for name in _JUDGED)
    stored = dict(zip(*columns, strict=True))
    for sequence in range(piece.first, piece.last + 1):
        if sequence in held:
            continue
        if sequence not in stored:
            damage.holes.append(sequence)
        elif not _sealed(sequence, stored[sequence], archived):
            damage.missing.append(sequence)


def _sealed(sequence: int, subject: str, archived: dict[str, int]) -> bool:
    """Whether archiving removed the event from the stream; `archived` has the last sequence of this stream by
    campaign. Archiving goes by the subject: a message that cannot be read has no other campaign."""
    campaign = subject.removeprefix(f"{EVENTS_PREFIX}.").partition(".")[0]
    return sequence <= archived.get(campaign, 0) and not is_fence(subject)


async def _append(
    connection: Connection, location: Location, files: list[DataFile], damage: _Damage, tell: Tell
) -> Restored:
    """Publish the lost end again; each message only where the stream ends just before it."""
    done, total = 0, len(damage.missing)
    rows = _rows(location, files, damage.stream, damage.held.last)

    def take() -> list[LoggedMessage]:
        return list(islice(rows, _BATCH))

    batch = await asyncio.to_thread(take)
    while batch:
        coming = asyncio.create_task(asyncio.to_thread(take))  # while the server stores this one
        try:
            await _put_back(connection, batch)
        except WrongSequence as error:
            raise StreamsError(
                "something published to the stream while it was restored: stop it, and run restore-stream "
                "again"
            ) from error
        finally:
            following = await coming
        done += len(batch)
        tell("putting back", done, total)
        batch = following
    return Restored(put_back=done, last=(await _bounds(connection, damage.stream)).last)


async def _put_back(connection: Connection, batch: list[LoggedMessage]) -> None:
    """Store messages that follow each other.

    Each is stored only behind the one before it, so the answer to the last is for all. Where one was lost on
    the way, the server refuses all after it, and they are sent again.
    """
    messages = list(map(_message, batch))
    with suppress(ConnectionLost):
        for message in messages[:-1]:
            await connection.post(message.subject, message.payload, message.headers)
    try:
        await store(connection, messages[-1])
    except WrongSequence:
        held = (await _bounds(connection, stream_of(batch[-1].sequence))).last
        left = [message for logged, message in zip(batch, messages, strict=True) if logged.sequence > held]
        await store_all(connection, left)


async def _build(
    connection: Connection,
    location: Location,
    files: list[DataFile],
    damage: _Damage,
    settings: NatsSettings,
    work: Path,
    archived: dict[str, int],
    tell: Tell,
) -> Restored:
    """Make the whole stream on a second server, resuming where an earlier run was killed."""
    plan = _Plan(damage.watermark, damage.held.last, damage.held.messages)
    if _read_plan(work) != plan:
        shutil.rmtree(work, ignore_errors=True)
        _write_plan(work, plan)
    counted = Restored(
        put_back=len(damage.missing) + damage.replaced,
        lost=sum(damage.diverged is None or hole <= damage.watermark for hole in damage.holes),
        moved=0 if damage.diverged is None else damage.held.last - damage.diverged + 1,
    )
    beside = msgspec.structs.replace(_without_login(settings), event_max_bytes=-1, replicas=1)
    async with (
        EmbeddedServer(work / "nats", sync="10s") as server,
        connect(beside, name="restore", url=server.url) as target,
    ):
        await declare_events(target, beside, damage.stream)
        reached = (await _bounds(target, damage.stream)).last
        total = own_sequence(max(damage.watermark, damage.held.last))
        async with aclosing(_whole(connection, location, files, damage, archived)) as logged_messages:
            batch: list[LoggedMessage] = []
            async for logged in logged_messages:
                if logged.sequence > reached:
                    batch.append(logged)
                if len(batch) >= _BATCH:
                    await _put_back(target, batch)
                    reached, batch = batch[-1].sequence, []
                    tell("rebuilding", min(own_sequence(reached), total), total)
            if batch:
                await _put_back(target, batch)
                reached = batch[-1].sequence
        gaps = stored_subject(_GAP, damage.stream)
        await target.jetstream.purge_stream(stream_name(damage.stream), subject=gaps)
    result = msgspec.structs.replace(counted, last=reached)
    _write_plan(work, msgspec.structs.replace(plan, result=result))
    return result


def _without_login(settings: NatsSettings) -> NatsSettings:
    """Settings for a server on this machine, whose address has its own login."""
    login = ("credentials", "user", "password_env", "token_env", "tls_ca", "tls_cert", "tls_key")
    return msgspec.structs.replace(settings, **dict.fromkeys(login))


async def _whole(
    connection: Connection,
    location: Location,
    files: list[DataFile],
    damage: _Damage,
    archived: dict[str, int],
) -> AsyncGenerator[LoggedMessage, None]:
    """Yield every message of the restored stream, in order."""
    parting = damage.diverged
    first = sequence_in(damage.stream, 1)
    async with aclosing(_stream(connection, first, damage.held.last)) as batches:
        async for piece in side_by_side(batches, location, files, first):
            for logged in _logged_messages(piece, damage, archived):
                yield logged
    if parting is None:
        return
    merge = Merge(
        _outcomes(location, files),
        _rows(location, files, damage.stream, min([parting, *damage.missing]) - 1),
        damage.watermark + 1,
    )
    async with aclosing(_stream(connection, parting, damage.held.last)) as batches:
        async for batch in batches:
            for message in batch:
                for placed in merge.place(_logged(message)):
                    yield placed


def _logged_messages(piece: Piece, damage: _Damage, archived: dict[str, int]) -> Iterator[LoggedMessage]:
    """Yield the messages of a piece; of a stream that diverged, up to where the tables end."""
    parting = damage.diverged
    last = piece.last if parting is None else min(piece.last, damage.watermark)
    held = {message.sequence: message for message in piece.stream}
    stored = {original.sequence: original for original in originals(piece.rows)}
    different = set(piece.differences())
    for sequence in range(piece.first, last + 1):
        message, row = held.get(sequence), stored.get(sequence)
        if parting is not None and sequence >= parting and row is None:
            message = None  # it is placed after the tables' events
        if message is not None and sequence not in different:
            yield _logged(message)
        elif row is None:
            yield filler(sequence, 0)
        elif message is None and _sealed(sequence, row.subject, archived):
            yield LoggedMessage(sequence, _GAP, 0, b"")
        else:
            yield LoggedMessage(sequence, row.subject, row.stored_at, row.raw)


def _outcomes(location: Location, files: list[DataFile]) -> dict[str, DoneEvent]:
    """Return the newest event on each rollout's `done` subject according to the tables."""
    found: dict[str, DoneEvent] = {}
    for rows in read_events(location, files, START):
        for row in rows.select(["sequence", "subject", "type", "rollout_id", "attempt"]).to_pylist():
            if row["type"] in DONE_TYPES and row["subject"].startswith(_DONE):
                found[row["rollout_id"]] = DoneEvent(row["type"], row["attempt"], row["sequence"])
    return found


async def _swap(connection: Connection, stream: int, settings: NatsSettings, work: Path, tell: Tell) -> None:
    """Replace the damaged stream by the new one.

    Stream 0 keeps the mark of the damaged one until all are complete: the server shows it while it grows, and
    a guard that took what it sees then for a loss after the restore would hold for ever.
    """
    plan = _read_plan(work)
    assert plan is not None and plan.result is not None
    tell("replacing the stream", 0, 1)
    config, name = events_config(settings, stream), stream_name(stream)
    config.metadata = (await connection.jetstream.stream_info(name)).config.metadata
    async with (
        EmbeddedServer(work / "nats", sync="10s") as server,
        connect(_without_login(settings), name="restore", url=server.url) as source,
    ):
        await replace_stream(source, connection, name, config)
    shutil.rmtree(work)
    tell("replacing the stream", 1, 1)


async def _mark(connection: Connection) -> None:
    """Tell every guard that what its process saw confirmed no longer counts."""
    config = (await connection.jetstream.stream_info(names.EVENTS)).config
    metadata = (config.metadata or {}) | {names.RESTORED: secrets.token_hex(8)}
    await connection.jetstream.update_stream(config.evolve(metadata=metadata))


async def _stream(connection: Connection, start: int, last: int) -> AsyncGenerator[list[StoredEvent], None]:
    if last < start:
        return
    async with aclosing(replay_batches(connection, start)) as arriving:
        async for batch in arriving:
            yield [message for message in batch if message.sequence <= last]


def _rows(location: Location, files: list[DataFile], stream: int, after: int) -> Iterator[LoggedMessage]:
    for rows in read_events(location, files, Position.up_to([max(after, sequence_in(stream, 0))])):
        for original in originals(rows):
            yield LoggedMessage(original.sequence, original.subject, original.stored_at, original.raw)


def _logged(message: StoredEvent) -> LoggedMessage:
    return LoggedMessage(message.sequence, message.subject, _nanoseconds(message.time), message.raw)


def _message(logged: LoggedMessage) -> OutgoingMessage:
    extra = {names.EXPECTED_LAST: str(own_sequence(logged.sequence - 1))}
    if logged.time:
        extra[names.STORED_AT] = str(logged.time)
    stored = stored_subject(logged.subject, stream_of(logged.sequence))
    return OutgoingMessage(subject=stored, payload=logged.raw, id="", extra=extra)


def _nanoseconds(time: datetime) -> int:
    return int(time.timestamp()) * 1_000_000_000 + time.microsecond * 1000


def _read_plan(work: Path) -> _Plan | None:
    try:
        return msgspec.json.decode((work / _PLAN).read_bytes(), type=_Plan)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _write_plan(work: Path, plan: _Plan) -> None:
    write_whole(work, _PLAN, msgspec.json.encode(plan))
