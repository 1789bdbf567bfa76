"""Promise 7: what a model does to its own machine is an observation or an outcome, never another try."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from orchard.schemas.events import RolloutFinished, payload
from orchard.schemas.tasks import CheckSandbox, StateCheck, SWETests, Task, TaskService
from orchard.streams.server import EmbeddedServer
from orchard.workers.attempts import retries
from tests.attempts_world import QUICK_RETRIES, SECONDS, World, world
from tests.sandbox_service import LocalService
from tests.tiny_tasks import tiny_service, tiny_task

REPAIR = "sed -i 's/left - right/left + right/' arithmetic/mod_1.py"
EAT = "python3 -c 'bytearray(2**30)'"
SITE = TaskService(
    names=("site",), image="host", argv=("python3", "-m", "http.server", "8000"), ports=(8000,)
)
ATTEMPTS = "select ending from attempts order by attempt"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalService]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORCHARD_SANDBOX_DISK", "100Mi")
        async with tiny_service(tmp_path_factory.mktemp("own-doing") / "state") as service:
            yield service


@pytest.fixture
async def place(
    nats_server: EmbeddedServer, service: LocalService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    monkeypatch.setattr(retries, "ROLLOUTS", QUICK_RETRIES)
    async with world(nats_server.url, service.url, tmp_path / "store", ()) as made:
        yield made


async def finished(place: World, rollout: str) -> RolloutFinished:
    data = payload((await place.outcomes(rollout))[rollout])
    assert isinstance(data, RolloutFinished), data
    return data


@pytest.mark.long
async def test_a_command_that_eats_all_memory_is_seen_by_the_model_and_buys_nothing(place: World) -> None:
    place.model.commands = (EAT, REPAIR)
    (rollout,) = await place.submit(tiny_task(1))
    async with place.working():
        outcome = await finished(place, rollout)
    assert (outcome.resolved, outcome.turns) == (True, 3)
    shown = await place.rows("select content from messages where role = 'tool' order by sequence limit 1")
    assert "<returncode>137</returncode>" in shown[0][0]
    assert await place.rows(ATTEMPTS) == [("completed",)]


@pytest.mark.long
@pytest.mark.parametrize("services", [msgspec.UNSET, (SITE,)], ids=["alone", "with a service"])
async def test_a_sandbox_that_is_ended_by_its_limit_is_an_outcome(place: World, services: Any) -> None:
    # Files are counted at once, or within a minute where others freed as much meanwhile.
    place.model.commands = ("head -c 300M /dev/zero > big; sleep 90",)
    (rollout,) = await place.submit(msgspec.structs.replace(tiny_task(1), services=services))
    async with place.working():
        outcome = await finished(place, rollout)
    assert (outcome.exit_status.value, outcome.status.value) == ("sandbox_lost", "truncated")
    assert (outcome.reward, outcome.resolved, outcome.turns) == (-1.0, False, 1)
    assert await place.rows(ATTEMPTS) == [("truncated",)]


async def test_a_command_under_which_two_sandboxes_end_is_an_outcome_and_is_not_asked_for_again(
    place: World,
) -> None:
    place.model.commands = ("ls", "sleep 17", REPAIR)
    (rollout,) = await place.submit(tiny_task(1))
    async with place.working(), asyncio.timeout(SECONDS):
        for _ in range(2):
            await first_process_ended(b"sleep\x0017\x00")
        outcome = await finished(place, rollout)
    assert (outcome.exit_status.value, outcome.reward) == ("sandbox_lost", -1.0)
    assert place.model.turns() == {1: 1, 2: 1}
    assert await place.rows(ATTEMPTS) == [("released",), ("truncated",)]


@pytest.mark.long
async def test_a_command_under_which_a_sandbox_ends_once_is_executed_again(place: World) -> None:
    place.model.commands = ("ls", "sleep 1.7", REPAIR)
    (rollout,) = await place.submit(tiny_task(1))
    async with place.working(), asyncio.timeout(SECONDS):
        await first_process_ended(b"sleep\x001.7\x00")
        outcome = await finished(place, rollout)
    assert (outcome.exit_status.value, outcome.resolved) == ("submitted", True)
    assert place.model.turns() == {1: 1, 2: 1, 3: 1, 4: 1}


@pytest.mark.long
@pytest.mark.parametrize(
    "code",
    ["bytearray(2**30)", "open('/var/tmp/big', 'wb').write(bytes(2**28)); import time; time.sleep(60)"],
)
async def test_submitted_code_that_takes_too_much_is_minus_one(place: World, code: str) -> None:
    place.model.commands = (f"echo {msgspec.json.encode(code).decode()} >> arithmetic/mod_1.py",)
    (rollout,) = await place.submit(tiny_task(1))
    async with place.working():
        outcome = await finished(place, rollout)
    assert (outcome.reward, outcome.exit_status.value) == (-1.0, "submitted")
    assert await place.rows(ATTEMPTS) == [("completed",)]


@pytest.mark.long
async def test_where_the_gold_patch_needs_more_memory_too_the_task_gets_it(place: World) -> None:
    task = tiny_task(1)
    assert isinstance(task.grading, SWETests)
    hungry = f"python3 -c 'bytearray(100 * 2**20)' && {task.grading.test_command}"
    grading = msgspec.structs.replace(task.grading, test_command=hungry)
    place.model.commands = (REPAIR,)
    (rollout,) = await place.submit(msgspec.structs.replace(task, memory="64Mi", grading=grading))
    async with place.working():
        outcome = await finished(place, rollout)
    assert outcome.resolved
    assert await place.rows("select ending, cause from attempts order by attempt") == [
        ("released", "sandbox_out_of_memory"),
        ("completed", None),
    ]


@pytest.mark.long
async def test_where_a_checks_own_sandbox_runs_out_of_memory_that_grows(place: World) -> None:
    """As much as the agent's does, which is smaller."""
    hungry = "python3 -c 'bytearray(200 * 2**20)' && [ -e /tmp/done ]"
    own = CheckSandbox(image="host", memory="128Mi", artifacts=("/tmp/done",))
    task = Task(
        task_id="hungry",
        source="x",
        repo="x",
        image="host",
        statement="?",
        memory="64Mi",
        grading=StateCheck(files={}, command=hungry, sandbox=own),
        workdir="/tmp",
        setup_commands=("git init -q .",),
    )
    place.model.commands = ("touch done",)
    (rollout,) = await place.submit(task, max_tries=2)
    async with place.working():
        outcome = await finished(place, rollout)
    assert outcome.resolved
    sizes = "select distinct attempt, json_extract_string(payload, '$.memory') as memory from events "
    rows = await place.rows(f"{sizes} where type = 'sandbox.created' order by attempt, memory desc")
    assert rows == [(1, "64Mi"), (1, "128Mi"), (2, "256Mi"), (2, "128Mi")]


async def first_process_ended(line: bytes) -> None:
    """Kill the first process of the sandbox in which a command of this line runs, as soon as it does; returns
    when the command is gone."""
    while not (found := [pid for pid in _pids() if _read(pid, "cmdline") == line]):
        await asyncio.sleep(0.02)
    space = _space(found[0])
    for pid in _pids():
        inner = [row.split() for row in _read(pid, "status").splitlines() if row.startswith(b"NSpid:")]
        if inner and inner[0][-1] == b"1" and len(inner[0]) > 2 and _space(pid) == space:
            os.kill(pid, signal.SIGKILL)
    while Path(f"/proc/{found[0]}").exists() and _read(found[0], "cmdline") == line:
        await asyncio.sleep(0.02)


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _space(pid: int) -> str:
    """The process's namespace of process ids; empty when it is gone."""
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
