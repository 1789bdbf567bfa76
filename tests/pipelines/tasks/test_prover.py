"""Proofs on a queue: by any worker, once for each request, whoever dies."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from orchard.actions.reporter import Reporter
from orchard.actions.session import Session
from orchard.actions.tasks import register_tasks, validate_tasks
from orchard.configuration.config import Config
from orchard.pipelines.domain import PROVE
from orchard.pipelines.tasks.prover import TaskProver
from orchard.pipelines.tasks.registry import TaskRegistry, reference
from orchard.pipelines.tasks.validate import Validation, Validator
from orchard.schemas.events import TaskRejected, TaskValidated, payload
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.requests import ProveRequest
from orchard.schemas.subjects import answered_subject
from orchard.schemas.tasks import StateCheck, Task, task_hash
from orchard.storage.writing.writer import Writer, WriterSettings
from orchard.streams import names
from orchard.streams.answers import OfferedRequests
from orchard.streams.claims import Claims
from orchard.streams.consumer import Consumer, RetryPolicy
from orchard.streams.entries import FIRST
from orchard.streams.publisher import Publisher
from orchard.streams.reading import bounds, subjects
from orchard.streams.replay import replay
from orchard.streams.server import EmbeddedServer
from orchard.streams.topology import declare
from orchard.workers.attempts.deadletters import DeadLetters
from orchard.workers.failures import InfrastructureError
from tests.attempts_world import SETTINGS, World, world
from tests.killing import killed_in_the_middle
from tests.sandbox_service import LocalService

TASK = Task(
    task_id="letter",
    source="prompts",
    repo="letters",
    image="host",
    workdir="/tmp",
    statement="Write `Dear Ada` to the file letter.",
    gold_patch="echo Dear Ada > letter\n",
    grading=StateCheck(
        files={"/tmp/expected": "Dear Ada\n"},
        command="diff /tmp/expected /tmp/letter",
        timeout_seconds=20.0,
    ),
)
WRONG = msgspec.structs.replace(TASK, task_id="wrong", gold_patch="echo Dear Bob > letter")


class Noted(Reporter):
    def __init__(self) -> None:
        self.notes: list[tuple[str, str]] = []
        self.done: list[int] = []

    def note(self, text: str, label: str = "") -> None:
        self.notes.append((label, text))

    def progress(self, title: str, done: int, total: int | None, doing: str = "") -> None:
        del title, total, doing
        self.done.append(done)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory):
    service = LocalService(tmp_path_factory.mktemp("proofs") / "state")
    yield service
    service.stop()


@pytest.fixture
async def place(nats_server: EmbeddedServer, service: LocalService, tmp_path: Path) -> AsyncIterator[World]:
    """Two tasks in a store that is being written."""
    async with world(nats_server.url, service.url, tmp_path / "store", ()) as made:
        await declare(made.connection, SETTINGS, [PROVE])
        await TaskRegistry(Publisher(made.connection), made.blobs).register([TASK, WRONG])
        stop = asyncio.Event()
        writer = Writer(str(made.store), made.connection, WriterSettings(commit_seconds=0.1))
        writing = asyncio.create_task(writer.run(stop))
        await session(made).committed(made.connection)
        yield made
        stop.set()
        await writing


def session(place: World) -> Session:
    config = msgspec.convert(
        {
            "store": str(place.store),
            "nats": {"url": place.nats_url, "ack_wait": SETTINGS.ack_wait, "heartbeat": SETTINGS.heartbeat},
            "sandbox": {"url": place.sandbox_url},
        },
        Config,
    )
    return Session(config)


def a_prover(place: World) -> TaskProver:
    return TaskProver(Publisher(place.connection), place.blobs, place.sandboxes)


def request(place: World, task: Task = TASK, fence: int = 0, runs: int = 1) -> ProveRequest:
    return ProveRequest(task=reference(task, place.blobs), task_hash=task_hash(task), runs=runs, fence=fence)


async def offer(place: World, one: ProveRequest) -> None:
    await Publisher(place.connection).offer(a_prover(place).entry(one, FIRST))


@asynccontextmanager
async def proving(place: World) -> AsyncIterator[Consumer]:
    async with Claims(place.connection, PROVE) as claims, asyncio.TaskGroup() as group:
        consumer = Consumer(claims, DeadLetters(place.connection), {PROVE.kind: a_prover(place)}, slots=2)
        group.create_task(consumer.run())
        yield consumer
        consumer.drain()


async def verdicts(place: World, task: Task = TASK) -> list[TaskValidated | TaskRejected]:
    found = replay(place.connection, subjects=answered_subject(PROVE.kind, task_hash(task)))
    return [payload(stored.event) async for stored in found if stored.event]  # type: ignore[misc]


async def settled(place: World) -> None:
    async with asyncio.timeout(60):
        while (await bounds(place.connection, names.WORK)).messages:
            await asyncio.sleep(0.02)


@pytest.mark.long
async def test_the_command_has_tasks_proven_and_tells_of_each(place: World) -> None:
    told = Noted()
    found = await validate_tasks(session(place), ids=[], runs=1, concurrency=2, told=told)
    assert (found.valid, found.rejected, found.undecided) == (1, 1, 0)
    assert told.done == [0, 1, 2]
    assert len(told.notes) == 1 and told.notes[0][1].startswith("wrong: gold_does_not_resolve")
    assert await validate_tasks(session(place), ids=[], runs=1, concurrency=2) == (0, 0, 0)
    again = await validate_tasks(session(place), ids=["letter"], runs=1, concurrency=2)
    assert again.valid == 1, "a task that is named is proven again"
    check = msgspec.structs.replace(TASK.grading, check_in="fresh")
    proven = msgspec.structs.replace(TASK, grading=check)
    for one in (TASK, proven):  # the one of the import, and the one that its proof has made of it
        assert [type(verdict) for verdict in await verdicts(place, one)] == [TaskValidated]
    assert await register_tasks(session(place), [TASK]) == 0, "it is the task that is there"


@pytest.mark.long
async def test_a_prover_that_is_killed_costs_nothing(place: World) -> None:
    async def begun() -> None:
        while not await place.sandboxes.list_sandboxes({"purpose": "validation"}):
            await asyncio.sleep(0.02)

    await offer(place, request(place, runs=20))
    await killed_in_the_middle(("worker", "--kinds", "prove"), place.environment, begun())
    assert await verdicts(place) == []
    async with proving(place):
        await settled(place)
    [verdict] = await verdicts(place)
    assert isinstance(verdict, TaskValidated) and verdict.runs == 20


@pytest.mark.long
async def test_a_second_verdict_on_a_request_is_refused(
    place: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prover that was presumed dead comes back with another verdict."""
    true, other = Validator.validate, "the other's"

    async def overtaken(validator: Validator, task: Task) -> Validation:
        found = await true(validator, task)
        event = msgspec.structs.replace(found.event, detail=other)
        await TaskRegistry(Publisher(place.connection), place.blobs).record(
            msgspec.structs.replace(found, event=event), request(place)
        )
        return found

    monkeypatch.setattr(Validator, "validate", overtaken)
    await offer(place, request(place))
    async with proving(place):
        await settled(place)
    assert [verdict.detail for verdict in await verdicts(place)] == [other]


async def test_a_request_that_has_its_verdict_is_not_proven_again(place: World) -> None:
    async with proving(place):
        for _ in range(2):
            await offer(place, request(place))
            await settled(place)
    assert len(await verdicts(place)) == 1


@pytest.mark.long
async def test_what_infrastructure_fails_is_tried_again_and_in_the_end_undecided_but_never_rejected(
    place: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    async def fails(_: Validator, task: Task) -> Validation:
        tried.append(task.task_id)
        raise InfrastructureError(AbortCause.SANDBOX_UNAVAILABLE, "no sandbox today")

    monkeypatch.setattr(Validator, "validate", fails)
    policy = RetryPolicy(on=(InfrastructureError,), first=0.05, most=2)
    monkeypatch.setattr(TaskProver, "retries", policy)
    monkeypatch.setattr("orchard.streams.answers.LOOK_SECONDS", 0.2)
    told = Noted()
    async with place.kept():
        found = await validate_tasks(session(place), ids=["letter"], runs=1, concurrency=1, told=told)
    assert (found.valid, found.rejected, found.undecided) == (0, 0, 1)
    assert len(tried) == 3 and await verdicts(place) == []
    assert told.notes == [("not judged:", "letter: sandbox_unavailable: no sandbox today")]


@pytest.mark.long
async def test_a_command_that_is_stopped_leaves_nothing_on_the_queue(
    place: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()

    async def hangs(_: Validator, task: Task) -> Validation:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError(task.task_id)

    with monkeypatch.context() as patch:
        patch.setattr(Validator, "validate", hangs)
        command = asyncio.create_task(validate_tasks(session(place), ids=[], runs=1, concurrency=1))
        await begun.wait()
        command.cancel()
        with pytest.raises(asyncio.CancelledError):
            await command
    assert not await subjects(place.connection, names.WORK, "orchard.work.prove.>")
    found = await validate_tasks(session(place), ids=[], runs=1, concurrency=2)
    assert (found.valid, found.rejected) == (1, 1)


async def test_two_commands_share_the_requests(place: World) -> None:
    """The second one offers nothing twice, and both are told of the verdict."""
    both = [OfferedRequests(place.connection, PROVE.kind) for _ in range(2)]
    for requests in both:
        await requests.offer(
            [task_hash(TASK)],
            lambda _, fence, occasion: a_prover(place).entry(request(place, fence=fence), occasion),
        )
    assert len(await subjects(place.connection, names.WORK, "orchard.work.prove.>")) == 1
    async with proving(place):
        for requests in both:
            assert [one.key async for one in requests.answers()] == [task_hash(TASK)]
    assert len(await verdicts(place)) == 1


def test_one_queue_for_proofs_of_every_domain() -> None:
    assert PROVE.subject == "orchard.work.prove.tasks.normal"
