"""One consumer for every queue: what becomes of a request, whatever its handler does."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from orchard.schemas.queues import Queue
from orchard.schemas.requests import read_known
from orchard.streams import names
from orchard.streams.claims import Claims
from orchard.streams.connection import Connection
from orchard.streams.consumer import ClaimedRequest, Consumer, PutOff, RetryPolicy
from orchard.streams.entries import FIRST, EntryAddress, QueueEntry, entry
from orchard.streams.errors import AwaitsEndpoint
from orchard.streams.publisher import Publisher
from orchard.streams.reading import bounds, last_message, next_message
from orchard.workers.attempts.deadletters import DeadLetters
from tests.streams.conftest import Eventually

QUEUE = Queue()


class Errand(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    failures: int = 0


class Unlucky(Exception):
    """Says nothing of the request."""


class Errands:
    """A handler that does what the test says."""

    retries = RetryPolicy(on=(Unlucky,), first=30.0, longest=40.0, most=2)

    def __init__(self, do: Callable[[ClaimedRequest[Errand]], object]) -> None:
        self._do = do
        self.done: list[str] = []

    def read(self, body: bytes) -> Errand:
        return read_known(body, Errand, "an errand request")

    def entry(self, request: Errand, occasion: str) -> QueueEntry:
        return entry(QUEUE, EntryAddress("demo", request.name), occasion, msgspec.json.encode(request))

    async def handle(self, delivery: ClaimedRequest[Errand]) -> PutOff | None:
        result = self._do(delivery)
        if asyncio.iscoroutine(result):
            await result
        self.done.append(delivery.request.name)
        return None


@asynccontextmanager
async def consuming(
    connection: Connection, handler: Errands, slots: int = 1, shutdown: float | None = None
) -> AsyncIterator[Consumer]:
    async with Claims(connection, QUEUE) as claims, asyncio.TaskGroup() as group:
        consumer = Consumer(
            claims,
            DeadLetters(connection),
            {QUEUE.kind: handler},
            slots=slots,
            shutdown_seconds=shutdown,
        )
        group.create_task(consumer.run())
        yield consumer
        consumer.drain()


async def offer(connection: Connection, handler: Errands, *errands: Errand) -> None:
    for one in errands:
        await Publisher(connection).offer(handler.entry(one, FIRST))


def raising(error: Exception) -> Callable[[ClaimedRequest[Errand]], None]:
    def do(_: ClaimedRequest[Errand]) -> None:
        raise error

    return do


async def empty(connection: Connection) -> bool:
    return not (await bounds(connection, names.WORK)).messages


async def test_a_body_that_is_no_request_is_a_dead_letter_and_the_others_are_done(
    connection: Connection, eventually: Eventually
) -> None:
    handler = Errands(lambda _: None)
    bodies = [b"", b"\xff\xfe", b"[" * 5000, b'{"name": 7}', b"null"]
    for number, body in enumerate(bodies):
        await Publisher(connection).offer(entry(QUEUE, EntryAddress("demo", f"bad-{number}"), FIRST, body))
    await offer(connection, handler, Errand(name="good"))
    async with consuming(connection, handler):
        await eventually(lambda: empty(connection))
    assert handler.done == ["good"]
    letters = await DeadLetters(connection).list()
    assert sorted(letter.body for letter in letters) == sorted(bodies)
    assert all(letter.reason.startswith("terminated: not an errand request: ") for letter in letters)


async def test_what_a_later_version_asks_for_is_left_to_it_word_for_word(
    connection: Connection, eventually: Eventually
) -> None:
    handler = Errands(lambda _: None)
    body = b'{"name":"a","colour":"red"}'
    await Publisher(connection).offer(entry(QUEUE, EntryAddress("demo", "a"), FIRST, body))
    async with consuming(connection, handler):
        await eventually(lambda: empty(connection))
    waiting = await next_message(connection, names.LATER, 1, names.LATER_SUBJECTS)
    assert waiting is not None and waiting.data == body
    assert handler.done == []


async def test_a_failure_of_something_else_is_tried_again_later_and_counted(
    connection: Connection, eventually: Eventually
) -> None:
    handler = Errands(raising(Unlucky("the shop is closed")))
    await offer(connection, handler, Errand(name="a"), Errand(name="b", failures=1))
    async with consuming(connection, handler):
        await eventually(lambda: empty(connection))
    found = {}
    for name in ("a", "b"):
        subject = handler.entry(Errand(name=name), FIRST).later_subject
        waiting = await last_message(connection, names.LATER, subject)
        found[name] = waiting and msgspec.json.decode(waiting.data, type=Errand).failures
    assert found == {"a": 1, "b": 2}
    assert await DeadLetters(connection).list() == []


async def test_the_last_failure_makes_a_dead_letter_with_its_reason(
    connection: Connection, eventually: Eventually
) -> None:
    handler = Errands(raising(Unlucky("the shop is closed")))
    await offer(connection, handler, Errand(name="a", failures=2))
    async with consuming(connection, handler):
        await eventually(lambda: empty(connection))
    [letter] = await DeadLetters(connection).list()
    assert letter.reason == "terminated: the shop is closed"


async def test_an_endpoint_that_rests_is_waited_for_and_no_failure_is_counted(
    connection: Connection, eventually: Eventually
) -> None:
    rest = AwaitsEndpoint("it rests")
    rest.key, rest.seconds = "default", 60.0
    handler = Errands(raising(rest))
    await offer(connection, handler, Errand(name="a"))
    async with consuming(connection, handler):
        await eventually(lambda: empty(connection))
    waiting = await next_message(connection, names.LATER, 1, names.LATER_SUBJECTS)
    assert waiting is not None and waiting.headers[names.AWAITS] == "default"
    assert msgspec.json.decode(waiting.data, type=Errand).failures == 0


async def test_an_error_that_nobody_expected_costs_its_request_a_delivery_and_the_others_nothing(
    connection: Connection, eventually: Eventually
) -> None:
    def do(delivery: ClaimedRequest[Errand]) -> None:
        if delivery.request.name == "odd":
            raise KeyError("nobody thought of this")

    handler = Errands(do)
    await offer(connection, handler, Errand(name="odd"), Errand(name="a"), Errand(name="b"))
    async with consuming(connection, handler) as consumer:
        await eventually(lambda: empty(connection))
    assert sorted(handler.done) == ["a", "b"]
    [letter] = await DeadLetters(connection).list()
    assert letter.reason == "terminated: KeyError: 'nobody thought of this'"
    assert consumer.faults == connection.settings.max_deliver


@pytest.mark.parametrize("told", [1, 2], ids=["shutdown is over", "told twice"])
async def test_what_runs_when_the_process_drains_goes_back_whole(connection: Connection, told: int) -> None:
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    handler = Errands(lambda delivery: delivery.run(work()))
    await offer(connection, handler, Errand(name="a", failures=1), Errand(name="waiting"))
    async with consuming(connection, handler, shutdown=0.0 if told == 1 else None) as consumer:
        await begun.wait()
        for _ in range(told):
            consumer.drain()
    assert handler.done == []
    back = handler.entry(Errand(name="a"), FIRST)
    for subject in (back.later_subject, back.due_subject):
        if (found := await last_message(connection, names.LATER, subject)) is not None:
            break
    assert found is not None and msgspec.json.decode(found.data, type=Errand) == Errand(name="a", failures=1)


def test_waits_double_up_to_the_longest() -> None:
    policy = RetryPolicy(first=5.0, longest=300.0)
    assert [policy.delay(failures) for failures in (1, 2, 3, 7, 2000)] == [5.0, 10.0, 20.0, 300.0, 300.0]
