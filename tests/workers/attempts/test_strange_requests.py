"""Poison on a real queue: a real worker and the steward end every request, and neither ends of it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import msgspec
import pytest

from orchard.injector.client import AsyncSandboxClient
from orchard.schemas.campaigns import ModelSpec, RolloutRequest, TaskRef
from orchard.schemas.events import RolloutAborted, done_payload
from orchard.schemas.identity import rollout_id
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.queues import Queue
from orchard.schemas.requests import InvalidRequest, read_rollout_request
from orchard.storage.blobs import BlobStore
from orchard.streams import names
from orchard.streams.campaigns import CampaignBook
from orchard.streams.claims import Claims
from orchard.streams.connection import Connection, connect
from orchard.streams.entries import FIRST, EntryAddress, entry
from orchard.streams.publish import OutgoingMessage, store_all
from orchard.streams.publisher import Publisher
from orchard.streams.reading import bounds, next_message
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.tasks import end
from orchard.streams.topology import declare
from orchard.workers.attempts.deadletters import DeadLetters
from orchard.workers.attempts.dependencies import AttemptDependencies
from orchard.workers.attempts.queue_maintenance import maintain_queues
from orchard.workers.attempts.rollout import Attempt
from orchard.workers.attempts.worker import Worker, WorkerSettings
from orchard.workers.episode.sandboxes import SandboxSettings
from orchard.workers.llm.client import ModelClient
from tests.mutations import mutants

QUEUE = Queue()
LATER = "orchard.later.>"
SETTINGS = NatsSettings(ack_wait=5.0, heartbeat=1.0, max_deliver=2, patience=30.0)


@pytest.fixture
async def connection(nats_server: EmbeddedServer) -> AsyncIterator[Connection]:
    async with connect(SETTINGS, name="test", url=nats_server.url) as opened:
        await declare(opened, SETTINGS, [QUEUE])
        yield opened


@pytest.fixture
def request_of(blobs: BlobStore):
    """A request for a task that turns out to be none, so that no sandbox is needed to end it."""
    blob = blobs.put(b'{"task_id": 7}', "application/json")

    def request(sample: int) -> RolloutRequest:
        return RolloutRequest(
            rollout_id=rollout_id("demo", "t1", "mini-swe-agent", "m", sample),
            campaign="demo",
            task=TaskRef(task_id="t1", source="s", repo="a/b", blob=blob),
            harness="mini-swe-agent",
            model=ModelSpec(name="m"),
            sample=sample,
            max_tries=1,
        )

    return request


@pytest.fixture
async def drain(connection: Connection, blobs: BlobStore):
    """Run a worker of four slots beside the steward until the queue is empty, and there are so many dead
    letters; the worker."""

    async def drain(letters: int = 0) -> Worker:
        async with (
            ModelClient({}) as models,
            Claims(connection, QUEUE) as claims,
            AsyncSandboxClient(base_url="http://127.0.0.1:9") as sandboxes,
        ):
            dependencies = AttemptDependencies(
                worker="w",
                publisher=Publisher(connection),
                blobs=blobs,
                sandboxes=sandboxes,
                sandbox_settings=SandboxSettings(),
                models=models,
            )
            worker = Worker(
                dependencies,
                claims,
                CampaignBook(connection),
                WorkerSettings(slots=4),
                shutdown_seconds=0.0,
            )
            working = asyncio.create_task(worker.run())
            steward = asyncio.create_task(maintain_queues(connection))
            while (await bounds(connection, names.WORK)).messages or (
                (await bounds(connection, names.DEAD)).messages < letters
            ):
                done, _ = await asyncio.wait({working, steward}, timeout=0.1)
                assert not done, [task.exception() for task in done]
            # What is still unsettled by now has left the queue: an advisory that the steward has to read.
            while (await bounds(connection, names.ADVISORIES)).messages:
                await asyncio.sleep(0.05)
            worker.consumer.drain()
            await working
            await end(steward)
            return worker

    return drain


async def put(connection: Connection, bodies: list[bytes]) -> None:
    await store_all(
        connection,
        [OutgoingMessage(QUEUE.subject, body, f"request-{number}") for number, body in enumerate(bodies)],
    )


@pytest.mark.long
async def test_three_hundred_mutants_end_as_done_or_dead_letter(connection, drain, request_of) -> None:
    publisher = Publisher(connection)
    documents = [msgspec.json.encode(request_of(sample)) for sample in range(20)]
    bodies = list(mutants(documents, 300, seed=4))
    await put(connection, bodies)
    worker = await drain()
    assert worker.consumer.faults == 0
    letters = {letter.body: letter for letter in await DeadLetters(connection).list()}
    ends: Counter[str] = Counter()
    for body in bodies:
        try:
            rollout: RolloutRequest | None = read_rollout_request(body)
        except InvalidRequest as error:
            rollout = error.rollout
        outcome = rollout and await publisher.outcome(rollout.rollout_id)
        if rollout is None:
            assert letters[body].reason.startswith("terminated: ")
            ends["dead letter"] += 1
        else:
            assert outcome is not None
            assert isinstance(done_payload(outcome.event), RolloutAborted)
            ends["done"] += 1
    assert ends["done"] > 30
    assert ends["dead letter"] > 30


async def test_a_poison_request_of_a_sure_rollout_ends_that_rollout(connection, drain, request_of) -> None:
    request = msgspec.structs.replace(request_of(0), memory="lots")
    await put(connection, [msgspec.json.encode(request)])
    await drain()
    (letter,) = await DeadLetters(connection).list()
    assert "'lots' is not a resource quantity" in letter.reason
    outcome = await Publisher(connection).outcome(request.rollout_id)
    assert outcome is not None
    assert done_payload(outcome.event).cause is AbortCause.INVALID_REQUEST


class TestOfALaterVersion:
    """What an old worker does with requests of the new version, in the middle of an upgrade."""

    @pytest.fixture
    def waiting(self, connection):
        """Messages that wait in LATER: subject and body."""

        async def waiting() -> list[tuple[str, bytes]]:
            found = []
            message = await next_message(connection, names.LATER, 1, LATER)
            while message is not None:
                found.append((message.subject, message.data))
                message = await next_message(connection, names.LATER, message.sequence + 1, LATER)
            return found

        return waiting

    async def offer(self, connection: Connection, request: RolloutRequest, body: bytes) -> None:
        place = EntryAddress(request.campaign, request.rollout_id, request.fence)
        await Publisher(connection).offer(entry(QUEUE, place, FIRST, body))

    async def test_a_request_waits_for_a_later_worker_word_for_word(
        self, connection, drain, request_of, waiting
    ) -> None:
        document = msgspec.to_builtins(request_of(0))
        document["model"]["thinking"] = "high"
        body = msgspec.json.encode(document)
        await self.offer(connection, request_of(0), body)
        await drain()

        [(subject, kept)] = await waiting()
        assert kept == body
        assert request_of(0).rollout_id in subject
        assert await Publisher(connection).outcome(request_of(0).rollout_id) is None
        assert await Publisher(connection).started(request_of(0).rollout_id) is None

    async def test_so_does_one_for_a_harness_that_this_worker_lacks(
        self, connection, drain, request_of, waiting
    ) -> None:
        request = msgspec.structs.replace(
            request_of(0), harness="later", rollout_id=rollout_id("demo", "t1", "later", "m", 0)
        )
        await self.offer(connection, request, msgspec.json.encode(request))
        await drain()

        assert len(await waiting()) == 1

    async def test_a_task_is_not_worked_on_without_what_this_version_does_not_know(
        self, connection, drain, request_of, waiting, blobs
    ) -> None:
        blob = blobs.put(b'{"task_id": "t1", "weather": {"kind": "rain"}}', "application/json")
        request = msgspec.structs.replace(
            request_of(0), task=TaskRef(task_id="t1", source="s", repo="a/b", blob=blob)
        )
        await self.offer(connection, request, msgspec.json.encode(request))
        await drain()

        assert len(await waiting()) == 1
        assert await Publisher(connection).outcome(request.rollout_id) is None

    async def test_nobody_takes_it_and_it_is_a_dead_letter_with_the_reason(
        self, connection, drain, request_of, monkeypatch
    ) -> None:
        monkeypatch.setattr("orchard.workers.attempts.deadletters.LEFT_SECONDS", 0.0)
        monkeypatch.setattr("orchard.workers.attempts.deadletters.LEFT_TIMES", 3)
        document = {**msgspec.to_builtins(request_of(0)), "thinking": "high"}
        await self.offer(connection, request_of(0), msgspec.json.encode(document))
        await drain(letters=1)

        [letter] = await DeadLetters(connection).list()
        assert "it asks for thinking, which only a later version knows" in letter.reason
        outcome = await Publisher(connection).outcome(request_of(0).rollout_id)
        assert outcome is not None
        assert done_payload(outcome.event).cause is AbortCause.INVALID_REQUEST


async def test_a_fault_in_one_slot_is_counted_and_costs_the_others_nothing(
    connection, drain, request_of, monkeypatch
) -> None:
    async def broken(attempt: Attempt) -> None:
        if attempt.request.sample % 2:
            raise MemoryError("a slot's own trouble")
        await Attempt.publish(attempt, None)  # no struct: a fault while publishing

    monkeypatch.setattr(Attempt, "run", broken)
    monkeypatch.setattr(Worker, "_end", _fault_for_sample_three(Worker._end))
    requests = [request_of(sample) for sample in range(6)]
    await put(connection, [msgspec.json.encode(request) for request in requests])
    worker = await drain()
    assert worker.consumer.faults == SETTINGS.max_deliver
    (letter,) = await DeadLetters(connection).list()
    assert letter.reason == "terminated: KeyError: 'nobody thought of this'"
    for request in requests:
        outcome = await Publisher(connection).outcome(request.rollout_id)
        assert outcome is not None
        ended = done_payload(outcome.event)
        assert isinstance(ended, RolloutAborted)
        assert request.sample != 3 or ended.cause is AbortCause.ATTEMPTS_EXHAUSTED
        assert request.sample != 3 or (ended.cost_usd, ended.prompt_tokens, ended.seconds) == (None,) * 3


def _fault_for_sample_three(end):
    async def faulty(worker, attempt, data) -> None:
        if attempt.request.sample == 3:
            raise KeyError("nobody thought of this")
        await end(worker, attempt, data)

    return faulty
