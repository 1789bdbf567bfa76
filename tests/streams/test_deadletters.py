"""Requests that leave the queue without an outcome are kept, end their rollout, and come back by one call."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime

import msgspec
import pytest

from orchard.schemas.campaigns import RolloutRequest
from orchard.schemas.events import (
    Event,
    RolloutAborted,
    RolloutFinished,
    RolloutReopened,
    make_event,
    payload,
)
from orchard.schemas.outcomes import AbortCause, ExitStatus, RolloutStatus
from orchard.schemas.queues import Queue
from orchard.streams import names
from orchard.streams.claims import Claim, Claims
from orchard.streams.connection import Connection
from orchard.streams.enqueue import work_message
from orchard.streams.entries import FIRST, rollout_entry
from orchard.streams.errors import NatsUnreachable, NotRequeued
from orchard.streams.publish import store
from orchard.streams.publisher import Publisher
from orchard.streams.reading import bounds
from orchard.streams.replay import replay
from orchard.streams.topology import declare
from orchard.streams.undelivered import Undelivered
from orchard.workers.attempts.deadletters import DeadLetters
from orchard.workers.attempts.queue_maintenance import maintain_queues
from tests.entries import named

Eventually = Callable[[Callable[[], Awaitable[bool]]], Awaitable[None]]


@pytest.fixture
async def claims(connection: Connection, queue: Queue) -> AsyncIterator[Claims]:
    async with Claims(connection, queue) as opened:
        yield opened


async def claimed(claims: Claims) -> Claim:
    claim = await claims.next(10)
    assert claim is not None
    return claim


async def fail_every_delivery(connection: Connection, queue: Queue) -> None:
    """Claim and die, as often as the queue allows, until the server has noticed: it does when someone asks
    for work once more."""
    for _ in range(connection.settings.max_deliver):
        async with Claims(connection, queue) as dying:
            await claimed(dying)
    async with Claims(connection, queue) as next_worker:
        assert await next_worker.next(2 * connection.settings.ack_wait) is None


def finished(request: RolloutRequest) -> Event:
    """An agent's own end of the rollout."""
    data = RolloutFinished(
        task_id=request.task.task_id,
        task_source=request.task.source,
        repo=request.task.repo,
        harness=request.harness,
        model=request.model.name,
        model_kind=request.model.kind,
        sample=request.sample,
        worker="w",
        started_at=datetime.now(UTC),
        seconds=1.0,
        status=RolloutStatus.COMPLETED,
        exit_status=ExitStatus.SUBMITTED,
        reward=1.0,
        resolved=True,
    )
    rollout = request.rollout_id
    return make_event(
        data, id=f"{rollout}.9.done", source="orchard/test", campaign="demo", rollout_id=rollout
    )


async def unreachable(*_: object) -> int:
    raise NatsUnreachable("gone")


async def types_of(connection: Connection, rollout: str | None) -> list[str]:
    return [
        stored.event.type
        async for stored in replay(connection)
        if stored.event is not None and stored.event.rollout_id == rollout
    ]


async def test_past_max_deliver_a_rollout_ends_and_its_request_is_kept(
    connection: Connection,
    queue: Queue,
    make_request: Callable[[int], RolloutRequest],
    eventually: Eventually,
) -> None:
    request = make_request(0)
    body = msgspec.json.encode(request)
    await Publisher(connection).offer(named(queue, "r1", body))
    await fail_every_delivery(connection, queue)
    keeper = asyncio.create_task(maintain_queues(connection))
    letters = DeadLetters(connection)

    async def gone() -> bool:
        return (await bounds(connection, names.WORK)).messages == 0 and len(await letters.list()) == 1

    await eventually(gone)
    keeper.cancel()
    [letter] = await letters.list()
    assert (letter.reason, letter.deliveries, letter.body) == ("max_deliver", 2, body)
    outcome = await Publisher(connection).outcome(request.rollout_id)
    assert outcome is not None and outcome.event is not None
    aborted = payload(outcome.event)
    assert isinstance(aborted, RolloutAborted)
    assert (aborted.cause, outcome.event.attempt) == (AbortCause.ATTEMPTS_EXHAUSTED, 2)
    assert await types_of(connection, request.rollout_id) == ["rollout.aborted", "request.dead_lettered"]


async def test_a_requeued_rollout_is_open_again_and_its_attempts_go_on(
    connection: Connection,
    queue: Queue,
    claims: Claims,
    make_request: Callable[[int], RolloutRequest],
    make_terminal: Callable[..., Event],
) -> None:
    publisher, letters = Publisher(connection), DeadLetters(connection)
    await publisher.offer(named(queue, "r1", msgspec.json.encode(make_request(0))))
    await DeadLetters(connection).reject(await claimed(claims), "a harness that nobody has")
    [letter] = await letters.list()

    done = await letters.requeue(letter.sequence, "fixed")

    claim = await claimed(claims)
    request = msgspec.json.decode(claim.body, type=RolloutRequest)
    assert request == done.request
    assert request.attempt_base + claim.deliveries > 1
    assert list(await letters.list()) == []
    newest = await publisher.outcome(request.rollout_id)
    assert newest is not None and newest.event is not None
    assert (newest.event.type, newest.sequence) == ("rollout.reopened", request.fence)
    finished = make_terminal(3, request.rollout_id)
    assert await publisher.terminal(finished, request.fence) > request.fence
    await claim.complete()
    assert await types_of(connection, request.rollout_id) == [
        "rollout.aborted",
        "request.dead_lettered",
        "rollout.reopened",
        "request.requeued",
        "rollout.aborted",
    ]


async def test_a_requeue_that_was_killed_half_way_goes_on(
    connection: Connection,
    queue: Queue,
    claims: Claims,
    make_request: Callable[[int], RolloutRequest],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publisher, letters = Publisher(connection), DeadLetters(connection)
    await publisher.offer(named(queue, "r1", msgspec.json.encode(make_request(0))))
    await DeadLetters(connection).reject(await claimed(claims), "poison")
    [letter] = await letters.list()
    with monkeypatch.context() as patch:
        patch.setattr(Publisher, "offer", unreachable)
        with pytest.raises(NatsUnreachable):
            await letters.requeue(letter.sequence)
    reopening = await publisher.outcome(make_request(0).rollout_id)

    done = await letters.requeue(letter.sequence)

    assert reopening is not None and done.request is not None
    assert done.request.fence == reopening.sequence
    assert (await claimed(claims)).body == msgspec.json.encode(done.request)


async def test_a_rollout_with_an_outcome_has_no_dead_letter(
    connection: Connection,
    queue: Queue,
    make_request: Callable[[int], RolloutRequest],
    eventually: Eventually,
    make_terminal: Callable[..., Event],
) -> None:
    """A worker that stored the outcome and died before acknowledging, every time."""
    request = make_request(0)
    await Publisher(connection).offer(named(queue, "r1", msgspec.json.encode(request)))
    sequence = await Publisher(connection).terminal(make_terminal(1, request.rollout_id))
    await fail_every_delivery(connection, queue)
    keeper = asyncio.create_task(maintain_queues(connection))

    async def gone() -> bool:
        return (await bounds(connection, names.WORK)).messages == 0

    await eventually(gone)
    keeper.cancel()
    outcome = await Publisher(connection).outcome(request.rollout_id)
    assert outcome is not None and outcome.sequence == sequence
    assert list(await DeadLetters(connection).list()) == []


async def test_the_sweep_finds_what_left_no_advisory_and_spares_open_claims(
    connection: Connection,
    queue: Queue,
    claims: Claims,
    make_request: Callable[[int], RolloutRequest],
) -> None:
    publisher, letters = Publisher(connection), DeadLetters(connection)
    undelivered = Undelivered(connection, letters.bury)
    stuck = work_message(named(queue, "stuck", msgspec.json.encode(make_request(0))))
    often = {names.SWEPT: str(connection.settings.max_deliver)}
    await store(connection, stuck._replace(extra=often))
    await fail_every_delivery(connection, queue)
    await publisher.offer(named(queue, "open", msgspec.json.encode(make_request(1))))
    held = await claimed(claims)

    await connection.jetstream.purge_stream(names.ADVISORIES)

    assert await undelivered.sweep_once() == 0
    await held.complete()
    assert await undelivered.sweep_once() == 1

    [letter] = await letters.list()
    assert (letter.reason, letter.message_id) == ("swept", "stuck")
    assert (await bounds(connection, names.WORK)).messages == 0


async def test_what_an_older_version_made_the_queue_pass_over_is_delivered(
    connection: Connection, queue: Queue, make_request: Callable[[int], RolloutRequest]
) -> None:
    """It declares its own consumer, which claims from fewer subjects, and looks for work once. The server
    passes over all the others for ever."""
    requests = [make_request(sample) for sample in range(3)]
    await Publisher(connection).offer_all([rollout_entry(request, FIRST) for request in requests])
    current = (await connection.jetstream.consumer_info(names.WORK, queue.consumer)).config
    await connection.jetstream.add_consumer(names.WORK, current.evolve(filter_subjects=[queue.subject]))
    async with Claims(connection, queue) as claims:
        assert await claims.next(0.5) is None
        letters = DeadLetters(connection)

        assert await Undelivered(connection, letters.bury).sweep_once() == 0  # the filter is put back first
        assert await Undelivered(connection, letters.bury).sweep_once() == len(requests)

        bodies = {(await claimed(claims)).body for _ in requests}
    assert bodies == {msgspec.json.encode(request) for request in requests}
    assert list(await letters.list()) == []
    filters = (await connection.jetstream.consumer_info(names.WORK, queue.consumer)).config.filter_subjects
    assert set(filters or []) == set(queue.filters)


async def test_poison_is_announced_though_no_rollout_is_known(
    connection: Connection, queue: Queue, claims: Claims, eventually: Eventually
) -> None:
    await Publisher(connection).offer(named(queue, "r1", b"\xff not a request"))
    keeper = asyncio.create_task(maintain_queues(connection))
    await DeadLetters(connection).reject(await claimed(claims), "not JSON")

    async def announced() -> bool:
        return await types_of(connection, None) == ["request.dead_lettered"]

    await eventually(announced)
    keeper.cancel()
    [letter] = await DeadLetters(connection).list()
    requeued = await DeadLetters(connection).requeue(letter.sequence)
    assert requeued.request is None
    assert (await claimed(claims)).body == b"\xff not a request"


async def test_a_letter_that_does_not_exist_is_one_clear_sentence(connection: Connection) -> None:
    with pytest.raises(NotRequeued, match="there is no dead letter 7"):
        await DeadLetters(connection).requeue(7)


@pytest.mark.parametrize("ended", [False, True])
async def test_the_letter_of_a_rollout_that_was_reopened_since_is_removed(
    connection: Connection, claims: Claims, make_request: Callable[[int], RolloutRequest], ended: bool
) -> None:
    letters, publisher = DeadLetters(connection), Publisher(connection)
    request = make_request(0)
    await publisher.offer(rollout_entry(request, FIRST))
    await DeadLetters(connection).reject(await claimed(claims), "poison")
    [letter] = await letters.list()
    aborted = await publisher.outcome(request.rollout_id)
    assert aborted is not None
    reopened = RolloutReopened(
        superseded_sequence=aborted.sequence, cause=AbortCause.INVALID_REQUEST, reason="resumed"
    )
    fence = await publisher.terminal(
        make_event(reopened, id="again", source="test", campaign="demo", rollout_id=request.rollout_id),
        aborted.sequence,
    )
    if ended:
        await publisher.terminal(finished(request), fence)
    newest = await publisher.outcome(request.rollout_id)

    assert (await letters.requeue(letter.sequence)).sequence is None
    assert await letters.list() == []
    assert await publisher.outcome(request.rollout_id) == newest
    assert (await bounds(connection, names.WORK)).messages == 0


async def test_a_sequence_used_again_neither_hides_a_letter_nor_kills_the_new_request(
    connection: Connection,
    queue: Queue,
    claims: Claims,
    make_request: Callable[[int], RolloutRequest],
    eventually: Eventually,
) -> None:
    """Power is lost, and with it the tail of the work stream: its next message has an old sequence."""
    publisher, letters = Publisher(connection), DeadLetters(connection)
    for sample in (0, 1):
        await publisher.offer(rollout_entry(make_request(sample), FIRST))
        claim = await claimed(claims)
        await letters.reject(claim, f"poison {sample}")
        assert claim.sequence == 1
        await lose_the_work_stream(connection, queue)
    await publisher.offer(rollout_entry(make_request(2), FIRST))
    keeper = asyncio.create_task(maintain_queues(connection))

    async def notices_are_read() -> bool:
        return (await bounds(connection, names.ADVISORIES)).messages == 0

    await eventually(notices_are_read)
    keeper.cancel()
    assert [letter.reason for letter in await letters.list()] == [
        "terminated: poison 0",
        "terminated: poison 1",
    ]
    assert (await claimed(claims)).body == msgspec.json.encode(make_request(2))


async def lose_the_work_stream(connection: Connection, queue: Queue) -> None:
    """As if it had lost everything."""
    await connection.jetstream.delete_stream(names.WORK)
    await declare(connection, connection.settings, [queue])
