"""Harnesses that are programs, with a tiny one: layer, tunnel, gateway, runner, grade, in real sandboxes."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import pytest_asyncio
from aiohttp import web

from orchard.injector.client import AsyncSandboxClient
from orchard.schemas.campaigns import Budget, Timeouts
from orchard.schemas.events import RolloutAborted, RolloutFinished, payload
from orchard.schemas.outcomes import AbortCause, ExitStatus, RolloutStatus
from orchard.streams.server import EmbeddedServer
from orchard.workers import harnesses
from orchard.workers.attempts import retries
from orchard.workers.episode.machine import CommandOutcome
from orchard.workers.episode.sandboxes import SandboxMachine
from orchard.workers.harnesses.programs.layers import Layer
from orchard.workers.harnesses.programs.record import Program, directory
from orchard.workers.harnesses.programs.runner import ProgramHarness
from tests.attempts_world import QUICK_RETRIES, SECONDS, World, world
from tests.sandbox_service import LocalService
from tests.tiny_tasks import tiny_service, tiny_task
from tests.workers.conftest import MovedTime
from tests.workers.harnesses.tiny_program import ACP_PROGRAM, PROGRAM, install_tiny

FILES = directory("tiny")
FIX = "sed -i 's/left - right/left + right/' arithmetic/mod_1.py"


class Installed(NamedTuple):
    service: LocalService
    layer: Layer


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def installed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Installed]:
    place = tmp_path_factory.mktemp("tiny")
    async with tiny_service(place / "state") as service, AsyncSandboxClient(service.url) as client:
        yield Installed(service, await install_tiny(client, place))


@pytest.fixture
async def place(
    nats_server: EmbeddedServer, installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    monkeypatch.setattr(retries, "ROLLOUTS", QUICK_RETRIES)
    for name in ("tiny", "absent"):
        _known(monkeypatch, _changed(name=name))
    _known(monkeypatch, ACP_PROGRAM)
    async with world(nats_server.url, installed.service.url, tmp_path / "store", (FIX,)) as made:
        yield made


async def _outcome(place: World, **changes: Any) -> RolloutFinished | RolloutAborted:
    endpoint = changes.pop("endpoint", {})
    (rollout,) = await place.submit(tiny_task(1), **{"harnesses": ("tiny",), "max_tries": 1, **changes})
    async with place.working(**endpoint):
        data = payload((await place.outcomes(rollout))[rollout])
    assert isinstance(data, RolloutFinished | RolloutAborted)
    assert await place.sandboxes.list_sandboxes() == []
    return data


@pytest.mark.long
async def test_a_program_solves_a_task_and_the_log_names_its_layer(
    place: World, installed: Installed
) -> None:
    data = await _outcome(place)
    assert isinstance(data, RolloutFinished), data
    assert (data.exit_status, data.reward, data.resolved, data.turns) == (ExitStatus.FINISHED, 1.0, True, 2)
    assert "+    total = left + right" in data.submission
    assert (data.harness_version, data.harness_digest) == ("1.0", installed.layer.digest)
    rows = await place.rows("select role, content from messages order by sequence")
    assert [role for role, _ in rows] == ["user", "assistant", "tool", "assistant"]
    assert "difference of its arguments" in rows[0][1] and "/testbed" in rows[0][1]


@pytest.mark.long
async def test_an_agent_of_the_agent_client_protocol_solves_a_task(place: World) -> None:
    data = await _outcome(place, harnesses=("tiny-acp",))
    assert isinstance(data, RolloutFinished), data
    assert (data.exit_status, data.reward, data.turns) == (ExitStatus.FINISHED, 1.0, 2)
    (prompt,) = await place.rows("select content from messages where role = 'user'")
    assert "difference of its arguments" in prompt[0]


@pytest.mark.long
async def test_programs_of_several_rollouts_are_recorded_as_their_own(place: World) -> None:
    rollouts = await place.submit(tiny_task(1), samples=3, harnesses=("tiny",))
    async with place.working(slots=3):
        outcomes = await place.outcomes(*rollouts)
    leaves = []
    for rollout in rollouts:
        data = payload(outcomes[rollout])
        assert isinstance(data, RolloutFinished), data
        assert (data.exit_status, data.turns, data.reward) == (ExitStatus.FINISHED, 2, 1.0)
        leaves.append((rollout, 2, "main", data.leaf))
    calls = await place.rows("select rollout_id, turn, call_kind, node from llm_calls order by sequence")
    assert sorted(call for call in calls if call[1] == 2) == sorted(leaves)
    first = sorted(call[:3] for call in calls if call[1] == 1)
    assert first == sorted((each, 1, "main") for each in rollouts)
    roles = await place.rows("select role, count(*) from messages group by role order by role")
    assert roles == [("assistant", 6), ("tool", 3), ("user", 3)]


@pytest.mark.long
async def test_a_program_reaches_its_gateway_and_nothing_else_and_changes_no_layer_but_its_own(
    place: World,
) -> None:
    place.model.commands = (
        "cat /proc/net/dev | tail -n +3 | cut -d: -f1; "
        "python3 -c \"import socket; socket.create_connection(('192.0.2.1', 80), 5)\" 2>&1 | tail -1",
        f"echo broken > {FILES}/bin/tiny; cat {FILES}/bin/tiny",
    )
    data = await _outcome(place)
    assert isinstance(data, RolloutFinished), data
    rows = await place.rows("select content from messages where role = 'tool' order by sequence")
    assert [text for (text,) in rows] == ["    lo\nOSError: [Errno 101] Network is unreachable\n", "broken\n"]
    place.model.commands = (FIX,)
    again = await _outcome(place, name="again")
    assert isinstance(again, RolloutFinished) and again.reward == 1.0


@pytest.mark.long
async def test_a_program_that_is_killed_by_its_model_is_graded(place: World) -> None:
    place.model.commands = ("kill -9 $PPID",)
    data = await _outcome(place)
    assert isinstance(data, RolloutFinished), data
    assert (data.exit_status, data.status) == (ExitStatus.PROGRAM_FAILED, RolloutStatus.TRUNCATED)
    assert (data.reward, data.turns) == (-1.0, 1)


@pytest.mark.long
async def test_a_program_that_takes_too_long_is_stopped_and_graded(place: World) -> None:
    place.model.commands = (FIX, "sleep 600")
    data = await _outcome(place, budget=Budget(steps=5, wall_seconds=10.0))
    assert isinstance(data, RolloutFinished), data
    assert (data.exit_status, data.reward, data.turns) == (ExitStatus.TIME_LIMIT, 1.0, 2)


@pytest.mark.long
async def test_what_an_endpoint_refuses_takes_no_time_of_a_program(
    place: World, moved_time: MovedTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, limits = SandboxMachine.run, []

    async def seen(machine: SandboxMachine, command: str, **options: Any) -> CommandOutcome:
        if f"{FILES}/bin/tiny" in command:
            limits.append(options["timeout"])
        return await run(machine, command, **options)

    def refuse() -> web.Response:
        moved_time.move(60.0)
        if place.model.refused == 2:
            place.model.refuses = None
        return web.json_response({"error": {"message": "busy"}}, status=429, headers={"Retry-After": "0"})

    monkeypatch.setattr(SandboxMachine, "run", seen)
    place.model.refuses = refuse
    data = await _outcome(place, budget=Budget(steps=5, wall_seconds=50.0))
    assert isinstance(data, RolloutFinished), data
    assert (data.exit_status, data.reward, data.turns) == (ExitStatus.FINISHED, 1.0, 2)
    assert data.seconds_waiting is not None and data.seconds_waiting >= 120.0
    (limit,) = limits
    assert limit > 50.0, "the command may take longer than the program's own time"


@pytest.mark.long
async def test_a_program_that_waited_for_its_model_for_the_whole_rollout_is_no_outcome(place: World) -> None:
    """Another rollout has the endpoint's only place, so it has used nothing of its own time."""
    held, released = asyncio.Event(), asyncio.Event()

    async def hold(_: int) -> None:
        held.set()
        await released.wait()

    place.model.hooks[1] = hold
    short = Timeouts(command=1.0, creation=5.0, shutdown=1.0, grading=5.0, rollout=20.0)
    async with place.working(slots=2, concurrency=1):
        (first,) = await place.submit(tiny_task(1), name="first", harnesses=("tiny",), max_tries=1)
        await asyncio.wait_for(held.wait(), SECONDS)
        (second,) = await place.submit(
            tiny_task(1), name="second", harnesses=("tiny",), max_tries=1, timeouts=short
        )
        data = payload((await place.outcomes(second))[second])
        released.set()
        await place.outcomes(first)
    assert isinstance(data, RolloutAborted), data
    assert (data.cause, data.llm_calls) == (AbortCause.ROLLOUT_TIMEOUT, 0)
    assert "waited so long for its model" in data.detail


@pytest.mark.long
async def test_a_program_that_ends_well_because_its_line_broke_under_a_call_has_not_ended_well(
    place: World, installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made in another attempt, where the line holds."""
    gives_up = "$layer/bin/tiny $home/settings.json; exit 0"
    _known(monkeypatch, _changed(command=("sh", "-c", gives_up)))

    async def lose_line(_: int) -> None:
        del place.model.hooks[2]
        await asyncio.to_thread(installed.service.replace_orchestrator)
        await asyncio.Event().wait()

    place.model.hooks[2] = lose_line
    data = await _outcome(place, max_tries=2)
    assert [each.cause for each in await place.released()] == [AbortCause.SANDBOX_UNAVAILABLE]
    assert isinstance(data, RolloutFinished), data
    assert (data.exit_status, data.reward) == (ExitStatus.FINISHED, 1.0)


@pytest.mark.long
@pytest.mark.parametrize(("harness", "turn"), [("tiny", 2), ("orchard-bash", 1)])
async def test_a_wall_clock_that_ends_while_the_model_owes_an_answer_is_an_ending_of_its_own(
    place: World, harness: str, turn: int
) -> None:
    """Of programs and of loops in the worker; graded as it stands."""

    async def never(_: int) -> None:
        await asyncio.Event().wait()

    place.model.hooks[turn] = never
    data = await _outcome(place, harnesses=(harness,), budget=Budget(steps=5, wall_seconds=6.0))
    assert isinstance(data, RolloutFinished), data
    assert (data.exit_status, data.status) == (ExitStatus.UNANSWERED, RolloutStatus.TRUNCATED)
    assert (data.reward, data.turns) == (1.0 if turn == 2 else -1.0, turn - 1)
    assert data.seconds_waiting is not None and data.seconds_waiting > 0


@pytest.mark.long
async def test_a_budget_that_runs_out_is_said_whatever_the_program_makes_of_it(place: World) -> None:
    data = await _outcome(place, budget=Budget(steps=1))
    assert isinstance(data, RolloutFinished), data
    assert (data.exit_status, data.reward, data.turns) == (ExitStatus.STEP_LIMIT, 1.0, 1)


@pytest.mark.long
async def test_an_endpoint_that_rests_is_no_reward_and_the_program_is_not_waited_for(place: World) -> None:
    wait = {"Retry-After": "3600"}
    place.model.refuses = lambda: web.json_response({"error": {"message": "no"}}, status=429, headers=wait)
    await place.submit(tiny_task(1), harnesses=("tiny",))
    async with place.working(), asyncio.timeout(SECONDS):
        while not (released := await place.released()):
            await asyncio.sleep(0.05)
        while await place.sandboxes.list_sandboxes():
            await asyncio.sleep(0.05)
    assert [(one.reason, one.cause) for one in released] == [("resting", AbortCause.LLM_UNAVAILABLE)]
    assert await place.rows("select * from rewards") == []


async def test_a_program_that_does_not_start_aborts_with_what_it_said(
    place: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    _known(monkeypatch, _changed(command=("sh", "-c", "echo no such library >&2; exit 3")))
    data = await _outcome(place)
    assert isinstance(data, RolloutAborted), data
    assert (data.cause, data.detail) == (
        AbortCause.HARNESS_FAILED,
        "tiny got no answer of its model and ended with status 3: no such library",
    )


async def test_a_program_that_is_not_installed_is_named_with_the_command(place: World) -> None:
    data = await _outcome(place, harnesses=("absent",), max_tries=3)
    assert isinstance(data, RolloutAborted), data
    assert data.cause is AbortCause.HARNESS_MISSING
    assert data.detail.endswith("run `orchard harness install absent`")
    assert data.failures == 1


def _changed(**changes: Any) -> Program:
    return msgspec.structs.replace(PROGRAM, **changes)


def _known(monkeypatch: pytest.MonkeyPatch, program: Program) -> None:
    """Let it be a harness of that name while the test runs."""
    harnesses._built_in.cache_clear()
    monkeypatch.setitem(harnesses._HARNESSES, program.name, lambda: ProgramHarness(program))
