"""Whose doing it is that a check reaches no verdict, end to end: in real sandboxes, on a real queue."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from orchard.schemas.events import Event, RolloutAborted, RolloutFinished, payload
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.tasks import Asked, StateCheck, Task
from orchard.streams.server import EmbeddedServer
from orchard.workers.attempts import retries
from orchard.workers.episode.settings import SandboxSettings
from tests.attempts_world import QUICK_RETRIES, World, world
from tests.sandbox_service import LocalService
from tests.tiny_tasks import tiny_service

COMMANDS = (
    "mkdir -p /work && rm -f /work/tool && printf 'sleep 100' > /work/answer; getent hosts packages.example",
)
"""What the agent does in each task: it loses a tool, and its answer never ends."""
DONE = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def task(
    name: str, command: str, *, solution: str = "", asks: Asked | None = None, seconds: float = 20.0
) -> Task:
    return Task(
        task_id=name,
        source="odd",
        repo="odd",
        image="host",
        workdir="/tmp",
        statement="Answer.",
        setup_commands=("mkdir -p /work && printf 'exit 1' > /work/tool && printf 'exit 1' > /work/answer",),
        gold_patch=solution,
        grading=StateCheck(files={}, command=command, timeout_seconds=seconds),
        **({} if asks is None else {"asks": asks}),
        memory="256Mi",
    )


TASKS = (
    task("prevented", "[ -e /work/tool ] || exec /work/tool"),
    task("hangs", "sh /work/answer", solution="printf 'exit 0' > /work/answer", seconds=2.0),
    task("broken", "exec /nowhere/python check.py"),
    task("online", "true", asks=Asked(hosts=("packages.example:443",))),
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalService]:
    async with tiny_service(tmp_path_factory.mktemp("odd") / "state") as service:
        yield service


@pytest.fixture
async def place(
    nats_server: EmbeddedServer, service: LocalService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    monkeypatch.setattr(retries, "ROLLOUTS", QUICK_RETRIES)
    async with world(nats_server.url, service.url, tmp_path / "store", COMMANDS) as made:
        yield made


def outcome(event: Event) -> RolloutFinished | RolloutAborted:
    data = payload(event)
    assert isinstance(data, RolloutFinished | RolloutAborted)
    return data


@pytest.mark.long
async def test_the_agent_answers_for_what_it_prevented_and_for_nothing_else(place: World) -> None:
    rollouts = await place.submit(*TASKS, harnesses=("orchard-task",))
    async with place.working(slots=2):
        found = {data.task_id: data for data in map(outcome, (await place.outcomes(*rollouts)).values())}
    query = "select r.task_id, w.cause from rewards w join rollouts r using (rollout_id)"
    rewards = dict(await place.rows(query))
    assert rewards == {"prevented": "check_prevented", "hangs": "check_prevented"}
    broken, online = found["broken"], found["online"]
    assert isinstance(broken, RolloutAborted)
    assert (broken.cause, broken.failures) == (AbortCause.TASK_BROKEN, 1), "it is not tried again"
    assert isinstance(online, RolloutAborted)
    assert online.cause is AbortCause.INVALID_REQUEST
    assert "task_network" in online.detail
    assert online.turns == 0, "nobody works without the network that the task asks for"


@pytest.mark.long
async def test_with_as_asked_the_agent_has_what_the_task_names_and_is_told(place: World) -> None:
    rollouts = await place.submit(TASKS[3], harnesses=("orchard-task",))
    async with place.working(sandbox=SandboxSettings(task_network="as_asked")):
        (event,) = (await place.outcomes(*rollouts)).values()
    assert isinstance(outcome(event), RolloutFinished)
    said = dict(await place.rows("select role, content from messages where turn <= 1 order by sequence desc"))
    assert "you can reach packages.example:443 over TCP, and nothing else" in said["user"]
    assert "packages.example" in said["tool"]
