"""Trails: the newest one is found, a lost one harms nobody, and their events are read alone."""

import asyncio
from collections.abc import Awaitable, Callable

from orchard.schemas.events import Event
from orchard.schemas.llm_calls import LLMCall, Usage
from orchard.schemas.messages import MessageNode, Role
from orchard.schemas.replay_pointers import SEGMENT_EVENTS, ReplayPointer, pointer_subject
from orchard.streams import names
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher
from orchard.streams.reading import bounds
from orchard.streams.server import EmbeddedServer
from orchard.workers.attempts.replay import ReplayState
from tests.streams.conftest import Eventually
from tests.trajectory_log import llm_call

ROLLOUT = "0" * 24


def trail(*events: int, attempt: int = 1) -> ReplayPointer:
    return ReplayPointer(attempt=attempt, replay_key="k", events=events)


async def test_the_newest_trail_is_found_and_no_other_is_kept(
    connection: Connection, eventually: Eventually
) -> None:
    trails = Publisher(connection).replay_pointers
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
    trails = Publisher(connection).replay_pointers
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
    trails = Publisher(connection).replay_pointers
    await connection.jetstream.delete_stream(names.TRAILS)

    async with asyncio.timeout(10):
        await trails.leave(ROLLOUT, trail(1))
        await trails.forget(ROLLOUT)
        assert await trails.find(ROLLOUT) is None


async def test_a_trail_that_cannot_be_read_is_none(connection: Connection) -> None:
    await connection.jetstream.publish(pointer_subject(ROLLOUT), b"no trail")
    assert await Publisher(connection).replay_pointers.find(ROLLOUT) is None


async def test_the_events_of_a_trail_are_read_in_their_order_without_those_that_are_gone(
    connection: Connection, make_fact: Callable[[int], Event]
) -> None:
    publisher = Publisher(connection)
    sequences = await publisher.events([make_fact(number) for number in range(5)])
    found = await publisher.replay_pointers.events([*sequences[1:4], 99])
    assert [stored.sequence for stored in found] == sequences[1:4]
    assert [stored.event and stored.event.id for stored in found] == ["fact-1", "fact-2", "fact-3"]


async def test_a_long_trail_is_written_in_pieces_that_come_back_whole_and_go_with_it(
    connection: Connection, eventually: Eventually
) -> None:
    """Linear: of 1,600 answers the bytes published are a few hundred for each, not thousands."""
    trails = Publisher(connection).replay_pointers
    inheritance = ReplayState(trails, ROLLOUT, 2, "k")
    before = connection.nats.stats["out_bytes"]
    for answer in range(1600):
        await inheritance.note(_call(), 10_000_000 + 2 * answer)
        await inheritance.note(_message(), 10_000_001 + 2 * answer)
    assert connection.nats.stats["out_bytes"] - before < 1600 * 1000
    whole = tuple(range(10_000_000, 10_003_200))

    async def found() -> bool:
        trail = await Publisher(connection).replay_pointers.find(ROLLOUT)
        return trail is not None and trail.events == whole[:-1]  # as of the newest answer

    await eventually(found)
    await inheritance.distrust_last_answer()

    async def shorter() -> bool:
        trail = await Publisher(connection).replay_pointers.find(ROLLOUT)
        return trail is not None and trail.events == whole[:-2]

    await eventually(shorter)
    await trails.forget(ROLLOUT)

    async def gone() -> bool:
        return not (await bounds(connection, names.TRAILS)).messages

    await eventually(gone)


async def test_a_trail_that_has_lost_a_piece_is_none(connection: Connection, eventually: Eventually) -> None:
    trails = Publisher(connection).replay_pointers
    await trails.leave(
        ROLLOUT, ReplayPointer(attempt=1, replay_key="k", events=tuple(range(130)), segments=1)
    )
    assert await trails.find(ROLLOUT) is None
    await trails.seal(ROLLOUT, 1, 0, range(SEGMENT_EVENTS))

    async def found() -> bool:
        return (trail := await trails.find(ROLLOUT)) is not None and trail.events == tuple(range(130))

    await eventually(found)


def _message() -> MessageNode:
    return MessageNode(node_id="n", parent="p", role=Role.ASSISTANT, turn=1, content="")


def _call() -> LLMCall:
    return llm_call(1, parent="p", node="n", usage=Usage(prompt_tokens=1, completion_tokens=1), seconds=1.0)
