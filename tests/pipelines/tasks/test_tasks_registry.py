"""Tasks go into the store as a blob and events, and come back by what they are."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from orchard.pipelines.tasks.errors import TaskError
from orchard.pipelines.tasks.protection import BELOW, WITHOUT_LABEL, protected_tasks
from orchard.pipelines.tasks.registry import (
    TaskRegistry,
    known_hashes,
    needs_of,
    read_task_refs,
    read_tasks,
    stored_tasks,
)
from orchard.pipelines.tasks.validate import Validation
from orchard.schemas.events import TaskRejected, TaskValidated
from orchard.schemas.protection import Protected
from orchard.schemas.queues import Queue
from orchard.schemas.tasks import (
    CheckSandbox,
    StageChecks,
    StateCheck,
    SWETests,
    Task,
    TaskStage,
    task_hash,
)
from orchard.storage.blobs import BlobStore
from orchard.storage.writing.writer import Writer
from orchard.streams.connection import Connection, connect
from orchard.streams.publisher import Publisher
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare

GOLD = "diff --git a/m.py b/m.py\n--- a/m.py\n+++ b/m.py\n@@ -1 +1 @@\n-a\n+b\n"


def _task(
    name: str, *, repo: str = "pypi/m", source: str = "pypi-releases", keep: tuple[str, ...] = ()
) -> Task:
    return Task(
        task_id=name,
        source=source,
        repo=repo,
        image="m:1",
        statement="Fix it.",
        gold_patch=GOLD,
        grading=SWETests(test_patch="", test_command="true", fail_to_pass=("t",), pass_to_pass=keep),
    )


def _valid(task: Task) -> TaskValidated:
    return TaskValidated(task_id=task.task_id, task_hash=task_hash(task), runs=3, seconds=1.5)


@pytest.fixture
async def connection(nats_server: EmbeddedServer) -> AsyncIterator[Connection]:
    settings = NatsSettings()
    async with connect(settings, name="test", url=nats_server.url) as connection:
        await declare(connection, settings, [Queue()])
        yield connection


@pytest.fixture
def store(tmp_path: Path) -> str:
    (tmp_path / "store").mkdir()
    return str(tmp_path / "store")


@pytest.fixture
def registry(connection: Connection, store: str) -> TaskRegistry:
    return TaskRegistry(Publisher(connection), BlobStore(store))


async def _commit(connection: Connection, store: str) -> None:
    """Bring the tables up to the end of the stream."""
    stop = asyncio.Event()
    stop.set()
    await Writer(store, connection).run(stop)


async def test_a_task_comes_back_as_it_was(
    registry: TaskRegistry, connection: Connection, store: str
) -> None:
    task = _task("m__1-2")
    (reference,) = await registry.register([task])
    await _commit(connection, store)
    assert read_tasks(store) == [task]
    assert read_task_refs(store, only_valid=False) == [reference]
    assert known_hashes(store) == {"m__1-2": task_hash(task)}


async def test_a_check_after_processes_ended_is_known_before_a_campaign_begins(
    registry: TaskRegistry, connection: Connection, store: str
) -> None:
    stopped = StateCheck(files={}, command="true", check_in="stopped")
    stages = tuple(TaskStage(name=name, statement="Do it.", check=stopped) for name in "ab")
    gradings = {
        "one": stopped,
        "stages": StageChecks(stages=stages),
        "fresh": msgspec.structs.replace(stopped, check_in="fresh"),
        "own": msgspec.structs.replace(stopped, sandbox=CheckSandbox(image="m:1")),
    }
    refs = await registry.register(
        msgspec.structs.replace(_task(name), grading=grading) for name, grading in gradings.items()
    )
    await _commit(connection, store)
    assert {name for name, each in needs_of(store, refs).items() if each.stopped} == {"one", "stages"}


async def test_registering_again_adds_nothing(
    registry: TaskRegistry, connection: Connection, store: str
) -> None:
    task = _task("m__1-2")
    await registry.register([task])
    await registry.register([task])
    await _commit(connection, store)
    assert await registry.register([task], known_hashes(store)) == []
    assert len(stored_tasks(store)) == 1


async def test_only_proven_tasks_are_for_campaigns_unless_asked(
    registry: TaskRegistry, connection: Connection, store: str
) -> None:
    good, bad, new = _task("good"), _task("bad"), _task("new")
    await registry.register([good, bad, new])
    await registry.record(Validation(original=good, task=good, event=_valid(good)))
    refused = TaskRejected(task_id="bad", task_hash=task_hash(bad), reason="empty_resolves", detail="why")
    await registry.record(Validation(original=bad, task=bad, event=refused))
    await _commit(connection, store)
    assert [ref.task_id for ref in read_task_refs(store)] == ["good"]
    states = {task.ref.task_id: (task.state, task.reason) for task in stored_tasks(store)}
    assert states == {
        "good": ("valid", ""),
        "bad": ("rejected", "empty_resolves"),
        "new": ("imported", ""),
    }


async def test_a_task_without_its_unsteady_tests_takes_the_place_of_the_first(
    registry: TaskRegistry, connection: Connection, store: str
) -> None:
    first = _task("m", keep=("steady", "unsteady"))
    left = _task("m", keep=("steady",))
    await registry.register([first])
    await registry.record(
        Validation(original=first, task=left, event=_valid(left), dropped={"unsteady": "unsteady changes"})
    )
    await _commit(connection, store)
    assert read_tasks(store, only_valid=True) == [left]


async def test_tasks_are_chosen_by_source_repository_and_id(
    registry: TaskRegistry, connection: Connection, store: str
) -> None:
    tasks = [_task("a__1"), _task("a__2"), _task("b__1", repo="pypi/b"), _task("s__1", source="swe-bench")]
    await registry.register(tasks)
    await _commit(connection, store)

    def chosen(**filters: object) -> list[str]:
        return [task.ref.task_id for task in stored_tasks(store, **filters)]  # type: ignore[arg-type]

    assert chosen(source="swe-bench") == ["s__1"]
    assert chosen(repo="pypi/b") == ["b__1"]
    assert chosen(ids=["a__*", "s__1"]) == ["a__1", "a__2", "s__1"]
    assert chosen(limit=2) == ["a__1", "a__2"]
    with pytest.raises(TaskError, match=r"no task matches 'c__\*'"):
        chosen(ids=["a__1", "c__*"])
    with pytest.raises(TaskError, match="a__1 is not proven yet: `orchard tasks validate a__1` proves it"):
        chosen(ids=["a__1"], only_valid=True)
    assert chosen(only_valid=True) == []


async def test_a_verdict_reached_again_is_the_newest(
    registry: TaskRegistry, connection: Connection, store: str
) -> None:
    task = _task("m")
    missing = TaskRejected(task_id="m", task_hash=task_hash(task), reason="image_missing")
    await registry.register([task])
    for event in (_valid(task), missing, msgspec.structs.replace(_valid(task), seconds=2.5)):
        await registry.record(Validation(original=task, task=task, event=event))
    await _commit(connection, store)
    assert [each.state for each in stored_tasks(store)] == ["valid"]


async def test_tasks_below_a_minimum_label_are_counted_with_those_that_have_none(
    registry: TaskRegistry, connection: Connection, store: str
) -> None:
    labels = {"a": Protected.VALUE, "b": Protected.INSIDE, "c": Protected.FORGEABLE, "d": None}
    for name, label in labels.items():
        task = _task(name)
        verdict = msgspec.structs.replace(_valid(task), protected=label, protected_why=f"why {name}")
        await registry.register([task])
        await registry.record(Validation(original=task, task=task, event=verdict))
    await _commit(connection, store)
    stored = stored_tasks(store)
    assert {task.ref.task_id: task.protected for task in stored} == labels
    assert stored[0].protected_why == "why a"

    def taken(minimum: Protected | None) -> tuple[str, dict[str, int]]:
        counts = Counter[str]()
        kept = protected_tasks(stored, minimum, counts)
        return "".join(task.ref.task_id for task in kept), dict(+counts)

    assert taken(None) == ("abcd", {})
    assert taken(Protected.FORGEABLE) == ("abcd", {WITHOUT_LABEL: 1})
    assert taken(Protected.INSIDE) == ("abd", {WITHOUT_LABEL: 1, BELOW: 1})
    assert taken(Protected.ECHO) == ("a", {WITHOUT_LABEL: 1, BELOW: 3})
