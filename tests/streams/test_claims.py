"""One request a slot, alive while its process is, settled in exactly one way."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest

from orchard.schemas.events import Event
from orchard.schemas.queues import Queue
from orchard.streams import names
from orchard.streams.claims import Claim, Claims
from orchard.streams.client import Frame
from orchard.streams.connection import Connection, connect
from orchard.streams.delayed import Delayed
from orchard.streams.errors import OutcomeRefused
from orchard.streams.publisher import Publisher
from orchard.streams.pull import _Slot
from orchard.streams.reading import bounds, delete_message
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.tasks import end
from orchard.streams.topology import declare
from orchard.workers.attempts.deadletters import DeadLetters
from tests.entries import named

Eventually = Callable[[Callable[[], Awaitable[bool]]], Awaitable[None]]


@pytest.fixture
async def claims(connection: Connection, queue: Queue) -> AsyncIterator[Claims]:
    async with Claims(connection, queue) as opened:
        yield opened


async def claimed(claims: Claims, timeout: float = 10.0) -> Claim:
    claim = await claims.next(timeout)
    assert claim is not None
    return claim


async def test_every_slot_gets_a_request_of_its_own(
    connection: Connection, queue: Queue, claims: Claims
) -> None:
    await Publisher(connection).offer_all(
        [named(queue, f"r{number}", b"%d" % number) for number in range(20)]
    )

    taken = await asyncio.gather(*(claimed(claims) for _ in range(20)))

    assert sorted(int(claim.body) for claim in taken) == list(range(20))
    assert {claim.deliveries for claim in taken} == {1}
    info = await connection.jetstream.consumer_info(names.WORK, queue.consumer)
    assert (info.num_ack_pending, info.num_pending) == (20, 0)
    await asyncio.gather(*(claim.complete() for claim in taken))
    assert (await bounds(connection, names.WORK)).messages == 0


async def test_an_empty_queue_gives_none(claims: Claims) -> None:
    assert await claims.next(0.1) is None


async def test_a_waiting_slot_is_served_as_soon_as_a_request_comes(
    connection: Connection, queue: Queue, claims: Claims
) -> None:
    waiting = asyncio.create_task(claimed(claims, 30))
    await asyncio.sleep(0)

    await Publisher(connection).offer(named(queue, "r1", b"body"))

    assert (await waiting).body == b"body"


async def test_a_request_that_comes_in_the_instant_of_a_cancellation_goes_back_at_once(
    connection: Connection, queue: Queue, claims: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_frame = _Slot._on_frame

    def cancelled_too(slot: _Slot, frame: Frame) -> None:
        on_frame(slot, frame)
        waiting.cancel()

    with monkeypatch.context() as patched:
        patched.setattr(_Slot, "_on_frame", cancelled_too)
        waiting = asyncio.create_task(claimed(claims, 30))
        await asyncio.sleep(0)
        await Publisher(connection).offer(named(queue, "r1", b"body"))
        with pytest.raises(asyncio.CancelledError):
            await waiting

    claim = await claimed(claims)  # long before the server takes it back by itself
    assert (claim.body, claim.deliveries) == (b"body", 2)


@pytest.mark.long
async def test_heartbeats_go_on_while_the_main_loop_is_blocked(
    connection: Connection, settings: NatsSettings, queue: Queue, claims: Claims
) -> None:
    await Publisher(connection).offer(named(queue, "r1", b"body"))
    claim = await claimed(claims)

    until = time.monotonic() + 2 * settings.ack_wait
    while time.monotonic() < until:
        sum(range(1000))  # nothing of the main loop runs in these two leases

    assert await claims.next(0.3) is None
    assert not claim.lost.is_set()
    await claim.complete()


async def test_a_claim_whose_process_died_is_delivered_again(
    server: EmbeddedServer, connection: Connection, settings: NatsSettings, queue: Queue, claims: Claims
) -> None:
    await Publisher(connection).offer(named(queue, "r1", b"body"))
    async with connect(settings, name="dying", url=server.url) as other:
        async with Claims(other, queue) as dying:
            first = await claimed(dying)

        second = await claimed(claims)

        assert (first.deliveries, second.deliveries) == (1, 2)
        assert first.sequence == second.sequence


async def test_a_worker_presumed_dead_loses_the_race_for_the_outcome(
    connection: Connection, queue: Queue, claims: Claims, make_terminal: Callable[..., Event]
) -> None:
    publisher = Publisher(connection)
    await publisher.offer(named(queue, "r1", b"body"))
    async with Claims(connection, queue) as dying:
        late = await claimed(dying)
    again = await claimed(claims)
    await publisher.terminal(make_terminal(again.deliveries))
    await again.complete()

    with pytest.raises(OutcomeRefused) as refused:
        await publisher.terminal(make_terminal(late.deliveries))
    await late.complete()

    assert refused.value.event is not None and refused.value.event.attempt == 2
    assert (await bounds(connection, names.WORK)).messages == 0


async def test_a_claim_says_when_its_heartbeats_are_not_confirmed(
    server: EmbeddedServer,
    connection: Connection,
    queue: Queue,
    claims: Claims,
    kill_server: Callable[[EmbeddedServer], Awaitable[None]],
) -> None:
    await Publisher(connection).offer(named(queue, "r1", b"body"))
    claim = await claimed(claims)

    await kill_server(server)

    await asyncio.wait_for(claim.lost.wait(), 20)


async def test_a_claim_outlives_a_restart_of_the_server(
    server: EmbeddedServer,
    connection: Connection,
    queue: Queue,
    claims: Claims,
    kill_server: Callable[[EmbeddedServer], Awaitable[None]],
) -> None:
    await Publisher(connection).offer_all([named(queue, "r1", b"1"), named(queue, "r2", b"2")])
    claim = await claimed(claims)

    await kill_server(server)
    await server.start()
    await claim.complete()

    assert (await claimed(claims)).body == b"2"


async def test_a_cancelled_wait_takes_nothing_with_it(
    connection: Connection, queue: Queue, claims: Claims, eventually: Eventually
) -> None:
    async def asked() -> bool:
        return (await connection.jetstream.consumer_info(names.WORK, queue.consumer)).num_waiting == 1

    waiting = asyncio.create_task(claims.next(30))
    await eventually(asked)
    await end(waiting)

    await Publisher(connection).offer(named(queue, "r1", b"body"))

    assert (await claimed(claims)).body == b"body"


async def test_a_claim_is_settled_once(connection: Connection, queue: Queue, claims: Claims) -> None:
    await Publisher(connection).offer(named(queue, "r1", b"body"))
    claim = await claimed(claims)
    await claim.complete()

    with pytest.raises(RuntimeError, match="settled already"):
        await claim.complete()


@pytest.mark.parametrize("number", [0, 1, 2])
async def test_a_request_that_is_gone_already_is_deleted(
    connection: Connection, queue: Queue, number: int
) -> None:
    """As by the acknowledgement of before a server was lost, while its claim is completed again."""
    publisher = Publisher(connection)
    placed = [await publisher.offer(named(queue, name, b"body")) for name in ("first", "middle", "last")]

    for _ in range(2):
        await delete_message(connection, names.WORK, placed[number].sequence)

    assert (await connection.jetstream.stream_info(names.WORK)).state.messages == 2


async def test_retry_later_is_invisible_until_due_and_survives_a_killed_server(
    server: EmbeddedServer,
    connection: Connection,
    queue: Queue,
    claims: Claims,
    kill_server: Callable[[EmbeddedServer], Awaitable[None]],
    eventually: Eventually,
) -> None:
    await Publisher(connection).offer(named(queue, "r1", b"first"))
    claim = await claimed(claims)

    await claim.retry_later(named(queue, "r1-again", b"again"), delay=2.0, reason="the endpoint is down")

    info = await connection.jetstream.consumer_info(names.WORK, queue.consumer)
    due = await connection.jetstream.consumer_info(names.LATER, names.DUE_CONSUMER)
    assert (info.num_pending, info.num_ack_pending, due.num_pending) == (0, 0, 0)
    assert (await bounds(connection, names.LATER)).messages == 1
    await kill_server(server)
    await server.start()
    forwarding = asyncio.create_task(Delayed(connection).run())
    again = await claimed(claims, 20.0)
    assert (again.body, again.deliveries, again.message_id) == (b"again", 1, "r1-again")

    async def gone() -> bool:
        return (await bounds(connection, names.LATER)).messages == 0

    await eventually(gone)
    forwarding.cancel()


async def test_a_delayed_request_waits_for_room_on_a_full_queue(
    connection: Connection, settings: NatsSettings, queue: Queue, claims: Claims, eventually: Eventually
) -> None:
    await declare(connection, msgspec.structs.replace(settings, work_max_messages=1), [queue])
    publisher = Publisher(connection)
    await publisher.offer(named(queue, "r1", b"first"))
    await publisher.offer(named(queue, "r2", b"second"), delay=0.1)
    forwarding = asyncio.create_task(Delayed(connection).run())

    async def tried() -> bool:
        info = await connection.jetstream.consumer_info(names.LATER, names.DUE_CONSUMER)
        return info.num_ack_pending == 1

    await eventually(tried)
    await (await claimed(claims)).complete()

    assert (await claimed(claims)).body == b"second"
    forwarding.cancel()


async def test_a_rejected_request_is_a_dead_letter_with_its_reason(
    connection: Connection, queue: Queue, claims: Claims
) -> None:
    await Publisher(connection).offer(named(queue, "r1", b"not a request"))
    claim = await claimed(claims)

    await DeadLetters(connection).reject(claim, "not JSON:\nline 1")

    [letter] = await DeadLetters(connection).list()
    assert (letter.reason, letter.body) == ("terminated: not JSON: line 1", b"not a request")
    assert (letter.message_id, letter.subject, letter.deliveries) == ("r1", claim.subject, 1)
    assert (await bounds(connection, names.WORK)).messages == 0


@pytest.mark.parametrize("cap", ["max_waiting", "max_ack_pending"])
async def test_a_cap_that_is_hit_is_logged(
    server: EmbeddedServer, settings: NatsSettings, queue: Queue, caplog: pytest.LogCaptureFixture, cap: str
) -> None:
    tight = msgspec.structs.replace(settings, **{cap: 1})
    caplog.set_level(logging.WARNING, "orchard.streams.pull")
    async with connect(tight, name="test", url=server.url) as connection:
        await declare(connection, tight, [queue])
        async with Claims(connection, queue) as claims:
            if cap == "max_ack_pending":
                await Publisher(connection).offer_all([named(queue, "r1", b"1"), named(queue, "r2", b"2")])
                await claimed(claims)
            await asyncio.gather(claims.next(0.3), claims.next(0.3))

    assert any(f"nats.{cap} allows" in text for text in caplog.messages)


async def test_idle_slots_are_lent_and_the_own_queue_comes_first(
    connection: Connection, settings: NatsSettings, queue: Queue
) -> None:
    other = Queue(priority="high")
    await declare(connection, settings, [other])
    publisher = Publisher(connection)
    await publisher.offer_all([named(other, "o1", b"lent"), named(queue, "r1", b"own")])

    async with Claims(connection, queue, [other]) as claims:
        for body, whose, timeout in ((b"own", queue, 10.0), (b"lent", other, 0.1)):
            claim = await claimed(claims, timeout)
            assert (claim.body, claim.queue) == (body, whose)
            await claim.complete()
        assert await claims.next(0.1) is None
    assert (await bounds(connection, names.WORK)).messages == 0
