"""Measured values in real sandboxes: replay, continuations, grading, and what is in the log afterwards."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from click import Command
from typer import Context

from orchard.actions.measuring import MeasureRequest, measure_rollout
from orchard.actions.session import Session
from orchard.cli.measuring import _steps, report
from orchard.configuration.config import Config, ConfigError
from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.values.continuations import MeasuredPoint, continuation
from orchard.pipelines.values.measure import Measurement, PointRefused, measure
from orchard.pipelines.values.recorded import BEFORE, Recorded, UnknownRollout
from orchard.schemas.campaigns import Budget
from orchard.schemas.llm_calls import ModelKind
from orchard.schemas.messages import Role
from orchard.storage.writing.writer import Writer, WriterSettings
from orchard.streams import names
from orchard.streams.reading import bounds
from orchard.streams.settings import NatsSettings
from orchard.terminal.console import reporting
from orchard.workers.episode.sandboxes import SandboxSettings
from orchard.workers.llm.settings import EndpointSettings
from orchard.workers.oracle.server import OracleServer
from tests.pipelines.values.measured_world import GONE, SUBMIT, TASK, Policy, World, without_forks
from tests.sandbox_service import LocalService
from tests.tiny_tasks import tiny_service
from tests.trajectory_log import Author

EDIT = "sed -i 's/left - right/left + right/' arithmetic/mod_1.py"
DIFF = f"git diff > patch.txt; {SUBMIT} && cat patch.txt"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalService]:
    async with tiny_service(tmp_path_factory.mktemp("measure") / "state") as service:
        yield service


@pytest.fixture
async def world(pipeline: Any, service: LocalService) -> AsyncIterator[World]:
    policy = Policy()
    async with (
        AsyncSandboxClient(service.url) as client,
        OracleServer(lambda: [TASK]) as oracle,
        policy.served(),
    ):
        yield World(pipeline, client, policy, oracle.url)
        assert await client.list_sandboxes() == []


async def measured(world: World, point: MeasuredPoint, **urls: str) -> Measurement:
    async with world.dependencies(**urls) as dependencies, asyncio.timeout(120):
        told: list[Any] = []
        found = await measure(point, dependencies, slots=2, told=lambda *outcome: told.append(outcome))
        assert len(told) == (0 if found.known else point.samples)
        return found


def commands(recorded: Recorded) -> list[str]:
    """Of each step, joined."""
    return [
        "\n".join(msgspec.json.decode(call.arguments)["command"] for call in node.tool_calls)
        for node in recorded.path
        if node.role is Role.ASSISTANT
    ]


@pytest.mark.long
async def test_the_state_is_the_one_after_the_result_of_the_step(world: World) -> None:
    """A policy that edits wrongly resolves nothing, unless the right edit has been made for it already."""
    recorded = await world.record("oracle/resolves")
    edit = next(step for step, text in enumerate(commands(recorded)) if "left + right" in text)
    before = await measured(world, world.point(recorded, edit - 1, "oracle/wrong_edit"))
    after = await measured(world, world.point(recorded, edit, "oracle/wrong_edit", 2))
    assert (before.value.value, before.value.samples, before.value.step) == (0.0, 1, edit - 1)
    assert (after.value.value, after.value.samples, after.value.resolved) == (1.0, 2, 2)
    assert before.value.high < 1.0 and after.value.low > 0.0
    teacher = await measured(world, world.point(recorded, BEFORE, "oracle/resolves"))
    assert (teacher.value.value, teacher.value.replayed, teacher.value.diverged) == (1.0, 0, ())
    assert teacher.value.model_kind is ModelKind.ORACLE
    assert (
        after.value.replayed == sum(len(text.splitlines()) > 0 for text in commands(recorded)[: edit + 1]) + 1
    )

    # Each continuation is a whole rollout and a branch of the one it goes on from.
    first, second = after.value.continuations
    branch = await world.read(first)
    history = recorded.until(edit)
    assert branch.path[: len(history)] == history
    assert branch.path[len(history)].role is Role.ASSISTANT
    assert (
        await world.rows(
            "select campaign, status, resolved, turns, llm_calls from rollouts "
            f"where rollout_id in ('{first}', '{second}')"
        )
        == [("measured", "completed", True, branch.steps, branch.steps - edit - 1)] * 2
    )
    assert await world.rows("select holds from conservation where campaign = 'measured'") == [(True,)]
    assert await world.rows(
        "select campaign, rollout_id, step, value, samples, model_kind from measurements order by step"
    ) == [
        ("demo", recorded.request.rollout_id, BEFORE, 1.0, 1, "oracle"),
        ("demo", recorded.request.rollout_id, edit - 1, 0.0, 1, "oracle"),
        ("demo", recorded.request.rollout_id, edit, 1.0, 2, "oracle"),
    ]


@pytest.mark.long
async def test_measuring_again_publishes_nothing_and_more_samples_add(world: World) -> None:
    recorded = await world.play("pwd", EDIT, DIFF)
    point = world.point(recorded, 1, "script")
    once = await measured(world, point)
    assert once.value.value == 1.0 and not once.known
    last = (await bounds(world.pipeline.connection, names.EVENTS)).last
    again = await measured(world, point)
    assert again.known and again.value == once.value
    assert (await bounds(world.pipeline.connection, names.EVENTS)).last == last
    more = await measured(world, world.point(recorded, 1, "script", 2))
    assert more.value.samples == 2 and not more.known
    assert more.value.continuations[0] == once.value.continuations[0]
    assert await world.rows("select count(*) from attempts where campaign = 'measured'") == [(2,)]


@pytest.mark.long
@pytest.mark.parametrize("command", ["date +%s%N", "echo $RANDOM$RANDOM$RANDOM"])
async def test_a_world_that_is_not_the_recorded_one_is_refused_unless_allowed(
    world: World, command: str
) -> None:
    recorded = await world.play("pwd", command, EDIT)
    fine = await measured(world, world.point(recorded, 0, "oracle/wrong_edit"))
    assert fine.value.diverged == ()
    with pytest.raises(PointRefused, match=r"step 1:.*in step 1 .*--allow-divergence"):
        await measured(world, world.point(recorded, 1, "script"))
    assert await world.rows("select step from measurements") == [(0,)]
    allowed = await measured(world, world.point(recorded, 1, "script", allow_divergence=True))
    assert allowed.value.diverged == (1,) and allowed.value.allow_divergence
    assert [one.step for one in allowed.divergences] == [1]


@pytest.mark.long
async def test_durations_alone_are_told_and_not_refused(world: World) -> None:
    recorded = await world.play("echo ran in 0.$RANDOM$RANDOM s; touch new; ls -la .")
    found = await measured(world, world.point(recorded, 0, "script"))
    assert found.value.diverged == (0,)
    assert found.divergences[0].timing


@pytest.mark.long
async def test_processes_that_ran_on_run_in_every_continuation(world: World) -> None:
    count = "grep -lx sleep /proc/[0-9]*/comm | wc -l"
    recorded = await world.play("setsid sleep 300 >/dev/null 2>&1 & echo on", count)
    found = await measured(world, world.point(recorded, 0, "script", 2))
    for name in found.value.continuations:
        branch = await world.read(name)
        (result,) = [node for node in branch.path if node.role is Role.TOOL and node.turn == 2]
        assert "\n1\n" in result.content


@pytest.mark.long
async def test_where_sandboxes_cannot_be_copied_every_continuation_replays(
    world: World, service: LocalService
) -> None:
    recorded = await world.play("pwd", EDIT, DIFF)
    async with without_forks(service.url) as url, AsyncSandboxClient(url) as client:
        world.sandboxes, direct = client, world.sandboxes
        found = await measured(world, world.point(recorded, 1, "script", 2))
        world.sandboxes = direct
    assert (found.value.value, found.value.samples, found.value.replayed) == (1.0, 2, 2)


@pytest.mark.long
async def test_what_infrastructure_ends_is_in_no_value_and_runs_again(world: World) -> None:
    recorded = await world.play(EDIT, DIFF)
    point = world.point(recorded, 0, "script", 2, endpoint="mine")
    with pytest.raises(PointRefused, match=r"every continuation \(2 x llm_unavailable\)"):
        await measured(world, point, mine=GONE)
    assert await world.rows("select count(*) from measurements") == [(0,)]

    async with world.dependencies(mine=world.policy.url) as dependencies:  # one of the two has an outcome now

        def fresh(factory: Any, task: Any, memory: str) -> Any:
            return factory.open(task.image, purpose="rollout", cpu=task.cpu, memory=memory, timeout=60)

        await continuation(point, 0, dependencies, fresh)
    half = await measured(world, point, mine=GONE)
    assert (half.value.samples, half.value.aborted) == (1, 1)
    whole = await measured(
        world, world.point(recorded, 0, "script", 3, endpoint="mine"), mine=world.policy.url
    )
    assert (whole.value.samples, whole.value.aborted) == (3, 0)
    assert await world.rows("select count(*) from rollouts where status = 'aborted'") == [(0,)]


@pytest.mark.long
async def test_what_nobody_answers_is_in_no_value_and_runs_again(world: World) -> None:
    """Both continuations are asked again; the server owes one an answer for ever."""
    recorded = await world.play(EDIT, DIFF)
    budget = Budget(steps=12, wall_seconds=8.0)
    request = msgspec.structs.replace(recorded.request, budget=budget, max_tries=2)
    recorded = replace(recorded, request=request)
    world.policy.silent = 3
    found = await measured(world, world.point(recorded, 0, "script", 2))
    assert (found.value.value, found.value.samples, found.value.aborted) == (1.0, 1, 1)
    world.policy.silent = 2
    with pytest.raises(PointRefused, match=r"every continuation \(1 x unanswered\)"):
        await measured(world, world.point(recorded, 0, "script/other"))
    whole = await measured(world, world.point(recorded, 0, "script", 3))
    assert (whole.value.value, whole.value.samples, whole.value.aborted) == (1.0, 3, 0)


@pytest.mark.long
async def test_the_budget_counts_on(world: World) -> None:
    """Three steps are all there are: after the second there is one more, after the third none."""
    recorded = await world.play(EDIT, "pwd", "pwd", "pwd", budget=Budget(steps=3))
    asked = world.policy.requests
    found = await measured(world, world.point(recorded, 1, "script"))
    assert world.policy.requests == asked + 1
    assert found.value.value == 1.0  # graded on the state left behind
    found = await measured(world, world.point(recorded, 2, "script"))
    assert world.policy.requests == asked + 1
    assert found.value.value == 1.0


@pytest.mark.slow
async def test_the_command_measures_and_the_report_compares(
    world: World, service: LocalService, nats_server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = await world.play("cat arithmetic/mod_1.py", EDIT, DIFF)
    rollout = recorded.request.rollout_id
    outcome = await world.pipeline.publisher.outcome(rollout)
    said = Author().annotated([outcome.event], {0: 0.4, 1: 0.9, 2: 0.9}, 3, "judge", base=0.3)
    await world.pipeline.publisher.event(said)
    config = Config(
        store=world.pipeline.store,
        nats=NatsSettings(url=nats_server.url),
        sandbox=SandboxSettings(url=service.url),
        endpoints={
            "oracle": EndpointSettings(base_url=world.oracle_url),
            "script": EndpointSettings(base_url=world.policy.url),
        },
    )
    session, stop = Session(config), asyncio.Event()
    writer = Writer(config.store, world.pipeline.connection, WriterSettings(commit_seconds=0.1))
    async with asyncio.timeout(120):
        writing = asyncio.create_task(writer.run(stop))
        wanted = MeasureRequest(rollout[:8], [-1, 0, 1, 2], samples=2)
        with reporting() as reporter:
            assert len(await measure_rollout(session, wanted, reporter)) == 3
        assert "step 2 submitted the work" in capsys.readouterr().out
        other = replace(wanted, model="oracle/wrong_edit", steps=[0])
        assert [(one.value.resolved, one.value.samples) for one in await measure_rollout(session, other)] == [
            (0, 2)
        ]
        assert [one.known for one in await measure_rollout(session, wanted)] == [True] * 3
        stop.set()
        await writing
    command = Context(Command("report"), obj=session)
    report(command, "judge", tmp_path / "plots")
    told = capsys.readouterr().out
    assert "4 steps" not in told and "3 steps are too few" in told
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == [
        "calibration-judge-oracle-wrong_edit.png",
        "calibration-judge-script.png",
    ]
    with pytest.raises(ConfigError, match="by 'nobody'"):
        report(command, "nobody", tmp_path)
    assert _steps("7,3,-1,3") == [-1, 3, 7]
    with pytest.raises(ConfigError, match="--at 3;4"):
        _steps("3;4")


@pytest.mark.long
async def test_steps_without_a_future_are_refused(world: World) -> None:
    recorded = await world.play("pwd")
    for step, words in ((1, "submitted the work"), (2, "steps 0 to 1"), (-2, "no step -2")):
        with pytest.raises(PointRefused, match=words):
            await measured(world, world.point(recorded, step, "script"))
    with pytest.raises(UnknownRollout, match="no rollout with an outcome starts with 'zz'"):
        await world.read("zz")


@pytest.mark.long
@pytest.mark.parametrize("harness", ["claw-react", "opencode", "browser"])
async def test_what_only_its_attempt_can_execute_is_refused(world: World, harness: str) -> None:
    """Its services, its program, its browser are gone."""
    recorded = await world.play("pwd", "ls")
    other = replace(recorded, request=msgspec.structs.replace(recorded.request, harness=harness))
    with pytest.raises(PointRefused, match=f"'{harness}' cannot be executed without its attempt"):
        await measured(world, world.point(other, 0, "script"))


@pytest.mark.long
async def test_stopped_it_leaves_no_sandbox_and_goes_on(world: World) -> None:
    recorded = await world.play("pwd", EDIT, DIFF)
    point = world.point(recorded, 0, "script", 2)
    world.policy.answering.clear()
    world.policy.asked.clear()
    running = asyncio.create_task(measured(world, point))
    async with asyncio.timeout(60):
        await world.policy.asked.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert await world.sandboxes.list_sandboxes() == []
    world.policy.answering.set()
    found = await measured(world, point)
    assert (found.value.value, found.value.samples, found.value.aborted) == (1.0, 2, 0)
