"""Trails: the newest one is found, a lost one harms nobody, and their events are read alone."""

import asyncio
from collections.abc import Awaitable, Callable

from orchard.schemas.events import Event
from orchard.schemas.trails import Trail, trail_subject
from orchard.streams import names
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher
from orchard.streams.reading import bounds
from orchard.streams.server import EmbeddedServer
from tests.streams.conftest import Eventually

ROLLOUT = "0" * 24


def trail(*events: int, attempt: int = 1) -> Trail:
    return Trail(attempt=attempt, replay_key="k", events=events)


async def test_the_newest_trail_is_found_and_no_other_is_kept(
    connection: Connection, eventually: Eventually
) -> None:
    trails = Publisher(connection).trails
    assert await trails.find(ROLLOUT) is None
    for end in range(1, 4):
        await trails.leave(ROLLOUT, trail(*range(end)))
    await trails.leave("1" * 24, trail(7))

    async def found() -> bool:
        return await trails.find(ROLLOUT) == trail(0, 1, 2)

    await eventually(found)
    assert (await bounds(connection, names.TRAILS)).messages == 2


async def test_a_trail_is_kept_over_a_killed_server_and_goes_when_it_is_forgotten(
    connection: Connection,
    server: EmbeddedServer,
    kill_server: Callable[[EmbeddedServer], Awaitable[None]],
    eventually: Eventually,
) -> None:
    trails = Publisher(connection).trails
    await trails.leave(ROLLOUT, trail(1))

    async def found() -> bool:
        return await trails.find(ROLLOUT) == trail(1)

    await eventually(found)
    await kill_server(server)
    await server.start()
    assert await trails.find(ROLLOUT) == trail(1)

    await trails.forget(ROLLOUT)

    async def gone() -> bool:
        return await trails.find(ROLLOUT) is None and not (await bounds(connection, names.TRAILS)).messages

    await eventually(gone)


async def test_without_the_stream_nothing_fails(connection: Connection) -> None:
    trails = Publisher(connection).trails
    await connection.jetstream.delete_stream(names.TRAILS)

    async with asyncio.timeout(10):
        await trails.leave(ROLLOUT, trail(1))
        await trails.forget(ROLLOUT)
        assert await trails.find(ROLLOUT) is None


async def test_a_trail_that_cannot_be_read_is_none(connection: Connection) -> None:
    await connection.jetstream.publish(trail_subject(ROLLOUT), b"no trail")
    assert await Publisher(connection).trails.find(ROLLOUT) is None


async def test_the_events_of_a_trail_are_read_in_their_order_without_those_that_are_gone(
    connection: Connection, make_fact: Callable[[int], Event]
) -> None:
    publisher = Publisher(connection)
    sequences = await publisher.events([make_fact(number) for number in range(5)])
    found = await publisher.trails.events([*sequences[1:4], 99])
    assert [stored.sequence for stored in found] == sequences[1:4]
    assert [stored.event and stored.event.id for stored in found] == ["fact-1", "fact-2", "fact-3"]
