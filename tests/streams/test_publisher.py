"""What is confirmed is stored, once, whatever happened to the server meanwhile."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
import pytest

from orchard.schemas.campaigns import RolloutRequest
from orchard.schemas.events import Event, RolloutReopened, RolloutStarted, make_event
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.queues import Queue
from orchard.streams import names
from orchard.streams import publisher as publisher_module
from orchard.streams.connection import Connection, connect
from orchard.streams.enqueue import Enqueued, EnqueueResult
from orchard.streams.errors import (
    MessageTooLarge,
    OutcomeRefused,
    QueueFull,
    StoreRefused,
    StreamsError,
    TopologyError,
    WrongSequence,
)
from orchard.streams.publish import OutgoingMessage
from orchard.streams.publisher import Publisher
from orchard.streams.reading import bounds
from orchard.streams.replay import replay
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from tests.entries import named


def reopening(sequence: int, rollout: str = "ab12") -> Event:
    data = RolloutReopened(superseded_sequence=sequence, cause=AbortCause.LLM_UNAVAILABLE, reason="test")
    return make_event(
        data, id=f"{rollout}.reopened", source="orchard/test", campaign="demo", rollout_id=rollout
    )


async def test_events_keep_their_order_and_their_sequence(
    connection: Connection, make_fact: Callable[[int], Event]
) -> None:
    events = [make_fact(number) for number in range(3000)]

    sequences = await Publisher(connection).events(events)

    assert sequences == list(range(1, 3001))
    assert [stored.event async for stored in replay(connection)] == events


async def test_publishing_again_stores_nothing_and_returns_the_first_sequence(
    connection: Connection, make_fact: Callable[[int], Event]
) -> None:
    publisher = Publisher(connection)
    first = await publisher.event(make_fact(1))
    await publisher.event(make_fact(2))

    assert await publisher.event(make_fact(1)) == first
    assert (await bounds(connection, names.EVENTS)).messages == 2


@pytest.mark.long
async def test_a_server_killed_while_publishing_loses_and_doubles_nothing(
    server: EmbeddedServer,
    connection: Connection,
    make_fact: Callable[[int], Event],
    kill_server: Callable[[EmbeddedServer], Awaitable[None]],
) -> None:
    publisher = Publisher(connection)
    half = asyncio.Event()

    async def one_by_one(first: int) -> None:
        for number in range(first, first + 400):
            await publisher.event(make_fact(number))
            if number == first + 100:
                half.set()

    async def kill_twice() -> None:
        await half.wait()
        for _ in range(2):
            await kill_server(server)
            await server.start()

    batch = [make_fact(number) for number in range(10_000, 20_000)]
    await asyncio.gather(
        *(one_by_one(lane * 1000) for lane in range(4)), publisher.events(batch), kill_twice()
    )

    stored = Counter([found.event.id async for found in replay(connection) if found.event])
    assert len(stored) == 4 * 400 + 10_000
    assert set(stored.values()) == {1}


async def test_a_request_survives_a_server_that_is_away_for_a_while(
    server: EmbeddedServer,
    connection: Connection,
    queue: Queue,
    kill_server: Callable[[EmbeddedServer], Awaitable[None]],
) -> None:
    await kill_server(server)
    request = asyncio.create_task(Publisher(connection).offer(named(queue, "r1", b"body")))
    await asyncio.sleep(0)

    await server.start()

    assert await request == Enqueued(EnqueueResult.STORED, 1)


@pytest.mark.parametrize("size", [8 * 1024 * 1024 - 10, 9 * 1024 * 1024])
async def test_a_message_over_the_limit_is_refused_before_anything_is_sent(
    connection: Connection, queue: Queue, size: int
) -> None:
    sent = connection.nats.stats["out_msgs"]

    with pytest.raises(
        MessageTooLarge, match="over the server's limit of 8388608: put large texts into blobs"
    ):
        await Publisher(connection).offer_all(
            [named(queue, "small", b"x"), named(queue, "large", b"x" * size)]
        )

    assert connection.nats.stats["out_msgs"] == sent


async def test_a_full_queue_refuses_and_keeps_what_it_has(
    connection: Connection, settings: NatsSettings, queue: Queue
) -> None:
    await declare(connection, msgspec.structs.replace(settings, work_max_messages=2), [queue])
    publisher = Publisher(connection)
    await publisher.offer_all([named(queue, "r1", b"1"), named(queue, "r2", b"2")])

    with pytest.raises(QueueFull, match="maximum messages exceeded"):
        await publisher.offer(named(queue, "r3", b"3"))

    assert (await bounds(connection, names.WORK)).messages == 2


async def test_a_missing_topology_is_one_clear_sentence(
    server: EmbeddedServer, make_fact: Callable[[int], Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchard.streams.publish.NOBODY_GRACE", 0.1)

    async with connect(NatsSettings(), name="test", url=server.url) as connection:
        with pytest.raises(TopologyError, match="declare the topology"):
            await Publisher(connection).event(make_fact(1))


async def test_a_server_without_room_is_one_clear_sentence(
    tmp_path: Path,
    settings: NatsSettings,
    make_fact: Callable[[int], Event],
    external_server: Callable[[str], AbstractAsyncContextManager[str]],
) -> None:
    store = tmp_path / "store"
    limits = f'jetstream {{ store_dir: "{store}", max_file_store: 64KB }}'
    async with (
        external_server(limits) as address,
        connect(settings, name="t", url=f"nats://{address}") as small,
    ):
        await declare(small, settings, [])

        with pytest.raises(StoreRefused, match=r"the server has no storage left .*free disk space"):
            await Publisher(small).events([make_fact(number) for number in range(1000)])


def _stands_still(pid: int) -> bool:
    """A thread may run on for a moment after the process is told to stop."""
    states = [
        path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")
    ]
    return set(states) == {"T"}


async def test_a_server_that_stores_nothing_any_more_is_one_clear_sentence(
    server: EmbeddedServer,
    connection: Connection,
    make_fact: Callable[[int], Event],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stopped process stands for one whose disk is full: connected, and no answer."""
    monkeypatch.setattr("orchard.streams.publish.ACK_TIMEOUT", 0.1)
    monkeypatch.setattr("orchard.streams.publish.STALL_GRACE", 0.3)
    os.kill(server.pid, signal.SIGSTOP)
    while not _stands_still(server.pid):
        await asyncio.sleep(0.01)
    try:
        with pytest.raises(StoreRefused, match="look for a full disk"):
            await Publisher(connection).event(make_fact(1))
    finally:
        os.kill(server.pid, signal.SIGCONT)


async def test_a_name_that_is_no_subject_is_one_clear_sentence(
    connection: Connection, make_fact: Callable[[int], Event]
) -> None:
    event = msgspec.structs.replace(make_fact(1), campaign="two words")

    with pytest.raises(StreamsError, match="names may not contain blanks"):
        await Publisher(connection).event(event)


async def test_of_two_attempts_racing_for_the_outcome_one_wins_and_the_other_knows(
    server: EmbeddedServer,
    connection: Connection,
    settings: NatsSettings,
    make_terminal: Callable[..., Event],
) -> None:
    async with connect(settings, name="other", url=server.url) as other:
        results = await asyncio.gather(
            Publisher(connection).terminal(make_terminal(1)),
            Publisher(other).terminal(make_terminal(2)),
            return_exceptions=True,
        )

    [won] = [result for result in results if isinstance(result, int)]
    [refused] = [result for result in results if isinstance(result, OutcomeRefused)]
    outcome = await Publisher(connection).outcome("ab12")
    assert outcome is not None and outcome.event is not None
    assert (refused.sequence, refused.event) == (won, outcome.event)
    assert outcome.event.attempt == 1 + [isinstance(result, int) for result in results].index(True)


async def test_ones_own_outcome_stored_already_counts_as_stored(
    connection: Connection, settings: NatsSettings, make_terminal: Callable[..., Event]
) -> None:
    short = msgspec.structs.replace(settings, event_dedupe=0.1)
    await declare(connection, short, [])
    publisher = Publisher(connection)
    event = make_terminal(1)
    first = await publisher.terminal(event)
    await asyncio.sleep(0.3)  # the dedupe window must be over: compare-and-set alone has to recognize it

    assert await publisher.terminal(event) == first


@pytest.mark.parametrize("fence", [False, True])
async def test_a_refusal_for_what_a_leader_had_taken_in_and_lost_is_no_refusal(
    connection: Connection,
    make_terminal: Callable[..., Event],
    monkeypatch: pytest.MonkeyPatch,
    *,
    fence: bool,
) -> None:
    """The subject has the expected sequence afterwards: nobody else's outcome stands there."""
    store = publisher_module.store
    refusals: list[int | None] = []

    async def refusing(connection: Connection, message: OutgoingMessage) -> int:
        if message.id == late.id and len(refusals) < 3:
            refusals.append(message.expected)
            raise WrongSequence("wrong last sequence")
        return await store(connection, message)

    monkeypatch.setattr(publisher_module, "store", refusing)
    publisher, late = Publisher(connection), make_terminal(2)
    expected = 0
    if fence:
        accepted = await publisher.terminal(make_terminal(1))
        expected = await publisher.terminal(reopening(accepted), fence=accepted)
    stored = await publisher.terminal(late, fence=expected)

    assert stored == (await bounds(connection, names.EVENTS)).last
    assert refusals == 3 * [expected]


async def test_a_reopened_rollout_takes_an_outcome_with_its_fence_only(
    connection: Connection, make_terminal: Callable[..., Event]
) -> None:
    publisher = Publisher(connection)
    aborted = await publisher.terminal(make_terminal(1))
    fence = await publisher.terminal(reopening(aborted), fence=aborted)

    with pytest.raises(OutcomeRefused) as late:
        await publisher.terminal(make_terminal(2), fence=0)
    assert late.value.sequence == fence

    assert await publisher.terminal(make_terminal(3), fence=fence) > fence


async def test_a_rollout_without_outcome_has_none(connection: Connection) -> None:
    assert await Publisher(connection).outcome("ffff") is None


async def test_attempt_numbers_are_taken_once_even_where_deliveries_repeat(
    server: EmbeddedServer,
    connection: Connection,
    settings: NatsSettings,
    make_request: Callable[[int], RolloutRequest],
) -> None:
    """A killed server may count a delivery twice: both claims come with the same lower bound."""
    rollout = make_request(0).rollout_id

    def started(number: int) -> Event:
        data = RolloutStarted(worker="w", request_sequence=1, deliveries=1)
        name = f"{rollout}.{number}.started"
        return make_event(
            data, id=name, source="orchard/test", campaign="demo", rollout_id=rollout, attempt=number
        )

    async with connect(settings, name="other", url=server.url) as other:
        taken = await asyncio.gather(
            *(Publisher(one).start(rollout, 4, started) for one in (connection, other, connection))
        )

    assert sorted(taken) == [4, 5, 6]
    stored = [found.event.attempt async for found in replay(connection) if found.event]
    assert stored == [4, 5, 6]
