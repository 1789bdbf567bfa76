"""One entry on each subject: what an answer of the server means, and how due requests wait their turn."""

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from orchard.schemas.campaigns import RolloutRequest
from orchard.schemas.events import Event
from orchard.schemas.queues import Queue
from orchard.streams import enqueue, names
from orchard.streams.claims import Claim, Claims
from orchard.streams.connection import Connection
from orchard.streams.delayed import Delayed
from orchard.streams.enqueue import Enqueued, EnqueueResult, enqueue_later
from orchard.streams.entries import (
    FIRST,
    EntryAddress,
    address_in,
    after_attempt,
    entry,
    in_round,
    rollout_entry,
    successor,
    work_subject,
)
from orchard.streams.errors import NameReused
from orchard.streams.publish import OutgoingMessage, PublishResult
from orchard.streams.publisher import Publisher
from orchard.streams.reading import bounds, subjects
from orchard.streams.tasks import end
from tests.entries import named

Make = Callable[[int], RolloutRequest]


@pytest.fixture
async def claims(connection: Connection, queue: Queue) -> AsyncIterator[Claims]:
    async with Claims(connection, queue) as opened:
        yield opened


@pytest.fixture
async def forwarding(connection: Connection) -> AsyncIterator[None]:
    task = asyncio.create_task(Delayed(connection).run())
    yield
    await end(task)


async def claimed(claims: Claims) -> Claim:
    claim = await claims.next(10)
    assert claim is not None
    return claim


async def test_the_server_refuses_a_second_entry_of_what_is_queued_or_running(
    connection: Connection, claims: Claims, make_request: Make
) -> None:
    publisher = Publisher(connection)
    request = make_request(0)
    await publisher.offer(rollout_entry(request, FIRST))

    assert (await publisher.offer(rollout_entry(request, in_round(1)))).result is EnqueueResult.OCCUPIED
    claim = await claimed(claims)
    assert (await publisher.offer(rollout_entry(request, in_round(1)))).result is EnqueueResult.OCCUPIED
    reopened = msgspec.structs.replace(request, fence=7)
    assert (await publisher.offer(rollout_entry(reopened, in_round(1)))).result is EnqueueResult.STORED
    await claim.complete()
    assert (await publisher.offer(rollout_entry(request, in_round(1)))).result is EnqueueResult.STORED


async def test_an_entry_that_was_sent_before_is_known_or_taken(
    connection: Connection, claims: Claims, make_request: Make
) -> None:
    publisher, one = Publisher(connection), rollout_entry(make_request(0), FIRST)
    first = await publisher.offer(one)

    assert await publisher.offer(one) == Enqueued(EnqueueResult.KNOWN, first.sequence)
    await (await claimed(claims)).complete()
    assert (await publisher.offer(one)).result is EnqueueResult.TAKEN
    assert (await bounds(connection, names.WORK)).messages == 0


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same subject", "another subject"])
async def test_a_name_that_belongs_to_another_body_is_an_error(
    connection: Connection, queue: Queue, elsewhere: bool
) -> None:
    publisher = Publisher(connection)
    await publisher.offer(named(queue, "r1", b"one"))
    other = named(queue, "r1", b"other")
    if elsewhere:
        other = msgspec.structs.replace(other, address=EntryAddress("demo", "another"))

    with pytest.raises(NameReused, match="the message id r1 belongs to another request"):
        await publisher.offer(other)


async def test_a_delayed_request_of_another_body_under_the_same_name_is_an_error(
    connection: Connection, queue: Queue
) -> None:
    await enqueue_later(connection, named(queue, "r1", b"one"), 3600)

    with pytest.raises(NameReused):
        await enqueue_later(connection, named(queue, "r1", b"other"), 3600)


async def test_an_entry_whose_answer_was_lost_counts_as_stored(
    connection: Connection, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of two sends arrived; the second meets it, or finds it taken."""
    one = named(queue, "r1", b"body")
    first = await Publisher(connection).offer(one)
    results_of = enqueue.results_of

    async def sent_twice(connection: Connection, messages: list[OutgoingMessage]) -> list[PublishResult]:
        return [result._replace(resent=True) for result in await results_of(connection, messages)]

    monkeypatch.setattr(enqueue, "results_of", sent_twice)
    assert await Publisher(connection).offer(one) == Enqueued(EnqueueResult.STORED, first.sequence)
    await connection.jetstream.purge_stream(names.WORK)
    assert (await Publisher(connection).offer(one)).result is EnqueueResult.STORED
    assert (await bounds(connection, names.WORK)).messages == 0


@pytest.mark.usefixtures("forwarding")
async def test_what_is_due_waits_for_its_predecessor_and_lets_others_pass(
    connection: Connection, claims: Claims, make_request: Make
) -> None:
    publisher = Publisher(connection)
    await publisher.offer(rollout_entry(make_request(0), FIRST))
    still_claimed = await claimed(claims)
    for number in (0, 1):
        await enqueue_later(connection, rollout_entry(make_request(number), after_attempt(1)), 0)

    other = await claimed(claims)
    assert msgspec.json.decode(other.body, type=RolloutRequest) == make_request(1)
    await still_claimed.complete()

    mine = await claimed(claims)
    assert (mine.message_id, mine.deliveries) == (rollout_entry(make_request(0), after_attempt(1)).name, 1)


@pytest.mark.usefixtures("forwarding")
async def test_what_is_due_is_dropped_once_its_rollout_has_an_outcome(
    connection: Connection, claims: Claims, make_request: Make, make_terminal: Callable[..., Event]
) -> None:
    """Its predecessor is still claimed, by a worker that says no more."""
    publisher, request = Publisher(connection), make_request(0)
    await publisher.offer(rollout_entry(request, FIRST))
    held = await claimed(claims)
    await publisher.terminal(make_terminal(1, request.rollout_id))
    await enqueue_later(connection, rollout_entry(request, after_attempt(1)), 0)

    async with asyncio.timeout(20):
        while (await bounds(connection, names.LATER)).messages:
            await asyncio.sleep(0.05)

    assert await subjects(connection, names.WORK, ">") == {held.subject: 1}
    await held.complete()


async def test_an_offer_of_what_is_delayed_is_withdrawn(
    connection: Connection, make_request: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its old entry was acknowledged between the first look at LATER and the offer."""
    publisher, request = Publisher(connection), make_request(0)
    await enqueue_later(connection, rollout_entry(request, after_attempt(1)), 3600)
    one = rollout_entry(request, in_round(1))
    assert [placed.result for placed in await publisher.offer_absent([one])] == [EnqueueResult.OCCUPIED]
    look = Publisher._delayed
    looks = 0

    async def later_than_the_first_look(self: Publisher, entries: list[object]) -> set[EntryAddress]:
        nonlocal looks
        looks += 1
        return set() if looks == 1 else await look(self, entries)  # type: ignore[arg-type]

    monkeypatch.setattr(Publisher, "_delayed", later_than_the_first_look)

    assert [placed.result for placed in await publisher.offer_absent([one])] == [EnqueueResult.OCCUPIED]

    assert looks == 2
    assert (await bounds(connection, names.WORK)).messages == 0


async def test_an_entry_of_the_version_before_is_forwarded_and_claimed(
    connection: Connection, queue: Queue, claims: Claims
) -> None:
    """It delayed requests under a digest of their name, and let all be due on one subject."""
    due = OutgoingMessage(queue.due_subject, b"old", "x", extra={names.ORIGINAL_ID: "r1"})
    await connection.post(due.subject, due.payload, due.headers)
    task = asyncio.create_task(Delayed(connection).run())

    claim = await claimed(claims)

    assert (claim.body, claim.subject, claim.message_id) == (b"old", queue.subject, "r1")
    await claim.complete()
    task.cancel()


def test_names_differ_in_key_fence_occasion_and_body(queue: Queue) -> None:
    occasions = [
        FIRST,
        in_round(1),
        in_round(2),
        after_attempt(1),
        after_attempt(2),
        successor("a"),
        successor("b"),
    ]
    made = [
        entry(queue, EntryAddress("demo", key, fence), occasion, body).name
        for key in ("a1", "b2")
        for fence in (0, 5)
        for occasion in occasions
        for body in (b"1", b"2")
    ]
    assert len(set(made)) == len(made) == 2 * 2 * 7 * 2


def test_a_subject_names_its_place_and_older_ones_do_not(queue: Queue) -> None:
    one = entry(queue, EntryAddress("demo", "ab12", 7), FIRST, b"")
    assert one.subject == "orchard.work.rollout.swe.normal.demo.ab.ab12.7"
    assert [address_in(subject) for subject in (one.subject, one.later_subject, one.due_subject)] == [
        one.address
    ] * 3
    assert work_subject(one.due_subject) == one.subject
    assert address_in(queue.subject) is None
    assert address_in(f"{queue.later_subject}.0123456789abcdef01234567") is None
