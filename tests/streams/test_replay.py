"""Replays give every stored message once, in order, whatever it contains and whatever the server does."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import pytest
from nats.js.api import ConsumerConfig, ConsumerInfo

from orchard.schemas.events import Event, UnknownPayload, encode_event, payload
from orchard.schemas.positions import Position
from orchard.streams import names
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher
from orchard.streams.replay import arrivals, replay, replay_batches
from orchard.streams.server import EmbeddedServer


async def test_a_replay_starts_where_it_is_told_and_ends_at_the_end(
    connection: Connection, make_fact: Callable[[int], Event]
) -> None:
    await Publisher(connection).events([make_fact(number) for number in range(1500)])

    assert [stored.sequence async for stored in replay(connection, 501)] == list(range(501, 1501))
    assert [stored async for stored in replay(connection, 1501)] == []


async def test_an_empty_stream_replays_nothing(connection: Connection) -> None:
    assert [stored async for stored in replay(connection)] == []


async def test_strange_messages_never_stop_a_replay(
    connection: Connection, make_fact: Callable[[int], Event]
) -> None:
    subject = "orchard.events.demo.ab.strange"
    unknown = encode_event(make_fact(1)).replace(b'"sandbox.deleted"', b'"sandbox.sublimated"')
    for raw in (b"", b"\xff\x00 not JSON", b'{"id": 1}', unknown):
        await connection.jetstream.publish(subject, raw)
    await Publisher(connection).event(make_fact(2))

    stored = [found async for found in replay(connection)]

    assert [found.raw for found in stored[:4]] == [b"", b"\xff\x00 not JSON", b'{"id": 1}', unknown]
    assert [found.event is None for found in stored] == [True, True, True, False, False]
    assert stored[3].event is not None and isinstance(payload(stored[3].event), UnknownPayload)


async def test_a_filtered_replay_gives_matching_subjects_only_and_ends(
    connection: Connection, make_fact: Callable[[int], Event]
) -> None:
    await connection.jetstream.publish("orchard.events.other.ab.x", b"x")
    await Publisher(connection).event(make_fact(1))
    await connection.jetstream.publish("orchard.events.other.ab.y", b"y")

    found = [stored.subject async for stored in replay(connection, subjects="orchard.events.demo.>")]

    assert found == ["orchard.events.demo.ab.sandbox.deleted"]
    assert [stored async for stored in replay(connection, subjects="orchard.events.none.>")] == []


async def test_following_misses_and_repeats_nothing_over_killed_servers(
    server: EmbeddedServer,
    connection: Connection,
    make_fact: Callable[[int], Event],
    kill_server: Callable[[EmbeddedServer], Awaitable[None]],
) -> None:
    total = 4000

    async def follow() -> list[int]:
        seen: list[int] = []
        async with aclosing(replay(connection, follow=True)) as events:
            async for stored in events:
                seen.append(stored.sequence)
                if len(seen) == total:
                    break
        return seen

    following = asyncio.create_task(follow())
    for part in range(4):
        await Publisher(connection).events([make_fact(part * 1000 + number) for number in range(1000)])
        if part < 3:
            await kill_server(server)
            await server.start()

    assert await asyncio.wait_for(following, 60) == list(range(1, total + 1))


async def test_a_replay_waits_for_what_its_replica_lacks(
    connection: Connection, make_fact: Callable[[int], Event]
) -> None:
    """The server of a reader's consumer may lag behind the leader that said how long the stream is. Here the
    second event comes after the consumer has said that there is no other."""
    await Publisher(connection).event(make_fact(1))
    read: list[int] = []
    async with aclosing(arrivals(connection, 1, until=Position.of(2))) as batches:
        read += [one.sequence for one in await anext(batches)]
        await Publisher(connection).event(make_fact(2))
        async for batch in batches:
            read += [one.sequence for one in batch]

    assert read == [1, 2]


async def test_an_idle_reader_gets_empty_batches_to_commit_by(connection: Connection) -> None:
    async with aclosing(replay_batches(connection, follow=True, idle=0.1)) as batches:
        assert await anext(batches) == []


async def test_a_reader_removes_its_consumer(
    connection: Connection, make_fact: Callable[[int], Event]
) -> None:
    await Publisher(connection).event(make_fact(1))

    assert len([stored async for stored in replay(connection)]) == 1

    assert await connection.jetstream.consumers_info(names.EVENTS) == []


@pytest.mark.parametrize(("count", "size"), [(1500, 10), (12, 3_000_000)])
async def test_one_consumer_reads_on_over_requests_that_are_done(
    connection: Connection, count: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request for more messages ends by their number, or by their bytes: the server would cut off a client
    that asks for 256 messages of 7 MB at once."""
    made: list[str] = []
    add_consumer = connection.jetstream.add_consumer

    async def counted(stream: str, config: ConsumerConfig) -> ConsumerInfo:
        made.append(stream)
        return await add_consumer(stream, config)

    for number in range(count):
        publish = connection.jetstream.publish if number == count - 1 else connection.nats.publish
        await publish("orchard.events.demo.ab.large", b"%d" % number + b" " * size)
    monkeypatch.setattr(connection.jetstream, "add_consumer", counted)

    stored = [int(found.raw) async for found in replay(connection)]

    assert stored == list(range(count))
    assert made == [names.EVENTS]
