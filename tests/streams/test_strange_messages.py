"""Messages that a server takes and a client library does not expect: none ends reading, or a process."""

import asyncio
from urllib.parse import urlsplit

import msgspec

from orchard.schemas.queues import Queue
from orchard.schemas.replay_pointers import pointer_subject
from orchard.streams.batches import messages_of
from orchard.streams.claims import Claims
from orchard.streams.connection import Connection
from orchard.streams.delayed import Delayed
from orchard.streams.health import reports
from orchard.streams.names import ADVISORIES, DAMAGED, EVENTS, LATER, MAX_DELIVERIES, WORK
from orchard.streams.publish import OutgoingMessage, store
from orchard.streams.pull import NAK, Puller, settle
from orchard.streams.queued import queued, running_now
from orchard.streams.reading import bounds, last_message, message_at
from orchard.streams.replay import replay
from orchard.streams.replay_pointers import ReplayPointers
from orchard.streams.server import MAX_PAYLOAD, EmbeddedServer
from orchard.streams.stream_check import StreamGuard
from orchard.streams.stream_state import ExpectedStream
from orchard.streams.undelivered import Undelivered
from orchard.workers.attempts.deadletters import DeadLetters
from tests.mutations import DEEP
from tests.streams.conftest import Eventually

STRANGE = [
    (b"orchard.events.\xff\xfe.00.x", None, b"{}"),
    (b"orchard.events.a\x00b.00.x", None, b"{}"),
    (b"orchard.events.vertical\x0btab.00.x", None, b"{}"),
    (b"orchard.events.form\x0cfeed.00.x", None, b""),
    (b"orchard.events.a.00.b", b"NATS/1.0\r\nno colon\r\n\r\n", b"{}"),
    (b"orchard.events.a.00.c", b"NATS/1.0\r\nBad: \xff\r\n \xe2: x\r\n: empty\r\n\r\n", b"{}"),
    (b"orchard.events.a.00.d", b"XXXX/9.9 abc\r\n\r\n", b"{}"),
    (b"orchard.events.a.00.e", b"NATS/1.0 \xff\xfe\r\n\r\n", b""),
    (b"orchard.events.a.00.f", b"NATS/1.0 503\r\n\r\n", b""),
    (b"orchard.events.a.00.g", b"NATS/1.0\r\nStatus: 409\r\n\r\n", b""),
    (
        b"orchard.events.a.00.h",
        b"NATS/1.0\r\nStatus: 204\r\nNats-Sequence: x\r\nNats-Time-Stamp: x\r\n\r\n",
        b"",
    ),
    (b"orchard.events.a.00.i", b"NATS/1.0\r\nOrchard-Stored-At: yesterday\r\n\r\n", b"{}"),
    (b"orchard.events.a.00.j", b"NATS/1.0\r\nOrchard-Stored-At: " + b"9" * 30 + b"\r\n\r\n", b"{}"),
]
"""Subject, header block and body."""


async def test_every_strange_message_is_read_once_and_in_order(
    connection: Connection, server: EmbeddedServer
) -> None:
    await _publish(server.url, STRANGE)
    read = [(stored.sequence, stored.raw) async for stored in replay(connection)]
    assert read == [(number, body) for number, (_, _, body) in enumerate(STRANGE, 1)]
    for number, (_, _, body) in enumerate(STRANGE, 1):
        found = await message_at(connection, EVENTS, number)
        assert found is not None
        assert found.data == body
    batches = [batch async for batch in messages_of(connection, EVENTS, "orchard.events.>")]
    assert [(found.sequence, found.data) for batch in batches for found in batch] == read


async def test_strange_subjects_and_headers_of_requests_hold_up_no_other(
    connection: Connection, server: EmbeddedServer, queue: Queue
) -> None:
    place = f"{queue.subject}.demo.ab.abcdef"
    await _publish(
        server.url,
        [
            (f"{place}.²".encode(), None, b"{}"),
            (f"{queue.later_subject}.demo.ab.abcdef.²".encode(), None, b"{}"),
            (f"{place}.1".encode(), b"NATS/1.0 503\r\n\r\n", b""),
            (f"{place}.2".encode(), b"NATS/1.0\r\nOrchard-Swept: often\r\n\r\n", b"{}"),
        ],
    )
    assert (await queued(connection, "demo")).everything == {"abcdef"}
    puller = Puller(connection, WORK, queue.consumer)
    for _ in range(3 * connection.settings.max_deliver):
        message = await puller.pull(20)
        assert message is not None
        await settle(connection, message.reply.decode(), NAK)
    assert await puller.pull(0.1) is None
    await puller.close()
    assert await running_now(connection, "demo") == {"abcdef"}
    await connection.jetstream.purge_stream(ADVISORIES)
    assert await Undelivered(connection, DeadLetters(connection).bury).sweep_once() == 3


async def test_a_due_request_that_can_go_nowhere_is_a_dead_letter_and_the_next_one_goes(
    connection: Connection, server: EmbeddedServer, queue: Queue, eventually: Eventually
) -> None:
    used = b"NATS/1.0\r\nNats-Msg-Id: used\r\n\r\n"
    again = b"NATS/1.0\r\nOrchard-Message-Id: used\r\n\r\n"
    await _publish(
        server.url,
        [
            (f"{queue.subject}.demo.ab.abcdef.0".encode(), used, b"{}"),
            (f"{queue.due_subject}.demo.cd.cdef01.0".encode(), again, b"another body"),
            (b"orchard.due.nowhere", None, b"x" * MAX_PAYLOAD),
            (f"{queue.due_subject}.demo.ef.ef0123.0".encode(), None, b"good"),
        ],
    )
    delayed = asyncio.create_task(Delayed(connection).run())

    async def settled() -> bool:
        assert not delayed.done(), delayed
        return (await bounds(connection, LATER)).messages == 0

    await eventually(settled)
    assert await last_message(connection, WORK, f"{queue.subject}.demo.ef.ef0123.0") is not None
    letters = await DeadLetters(connection).list()
    assert {letter.body[:7] for letter in letters} == {b"another", b"xxxxxxx"}
    assert len(letters) == 2
    delayed.cancel()


async def test_a_request_as_large_as_a_message_can_be_leaves_the_queue(
    connection: Connection, queue: Queue
) -> None:
    """Its dead letter has headers of its own, for which it leaves no room; a message id may have 64 KiB."""
    await store(connection, OutgoingMessage(f"{queue.subject}.demo.ab.abcdef.0", b"x" * MAX_PAYLOAD, ""))
    await store(connection, OutgoingMessage(f"{queue.subject}.demo.ab.abcdef.1", b"y", "m" * 65_000))
    letters = DeadLetters(connection)
    async with Claims(connection, queue) as claims:
        for _ in range(2):
            claim = await claims.next(20)
            assert claim is not None
            await letters.reject(claim, "no request")
    large, small = await letters.list()
    assert f"of its {MAX_PAYLOAD} bytes the first {len(large.body)} are kept" in large.reason
    assert (small.body, set(small.message_id)) == (b"y", {"m"})
    assert (await bounds(connection, WORK)).messages == 0


async def test_what_cannot_be_read_of_marks_reports_and_trails_is_left_out_or_holds(
    connection: Connection, server: EmbeddedServer, eventually: Eventually
) -> None:
    deep = b"[" * DEEP
    notice = b'{"type":"t","stream":"s","consumer":"c","stream_seq":-1,"timestamp":"2026-01-01T00:00:00Z"}'
    advisory = MAX_DELIVERIES.replace("*", "c").encode()
    await _publish(
        server.url,
        [
            (b"orchard.health.a", None, deep),
            (b"orchard.health.b", b"NATS/1.0 503\r\n\r\n", b""),
            (pointer_subject("abcdef").encode(), None, b'{"a":' + deep),
            (DAMAGED.encode(), None, b'{"a":' + deep),
            (advisory, None, notice),
            (advisory, None, notice.replace(b"-1", b"9" * 30)),
        ],
    )
    assert await reports(connection) == []
    assert await ReplayPointers(connection).find("abcdef") is None
    undelivered = asyncio.create_task(Undelivered(connection, DeadLetters(connection).bury).run())

    async def settled() -> bool:
        assert not undelivered.done(), undelivered
        return (await bounds(connection, ADVISORIES)).messages == 0

    await eventually(settled)
    undelivered.cancel()
    guard = StreamGuard(connection, connection.settings, _nothing_known, settle=0.0)
    assert await guard.check()
    assert "cannot be read" in connection.held


async def _nothing_known() -> ExpectedStream:
    return ExpectedStream()


async def _publish(url: str, messages: list[tuple[bytes, bytes | None, bytes]]) -> None:
    """Over a bare socket, since the library refuses to send most of this; returns when the server has all."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    login = {"user": place.username, "pass": place.password} if place.username else {}
    options = {"verbose": False, "headers": True, **login}
    writer.write(b"CONNECT " + msgspec.json.encode(options) + b"\r\n")
    for subject, headers, body in messages:
        if headers is None:
            writer.write(b"PUB %b %d\r\n%b\r\n" % (subject, len(body), body))
        else:
            size = len(headers) + len(body)
            writer.write(b"HPUB %b %d %d\r\n%b%b\r\n" % (subject, len(headers), size, headers, body))
    writer.write(b"PING\r\n")
    while (line := await reader.readline()) != b"PONG\r\n":
        assert line.startswith(b"INFO"), line
    writer.close()
