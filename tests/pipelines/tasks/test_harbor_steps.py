"""A Harbor task of several steps: they run in order in one sandbox, and each is graded where it ends."""

from functools import partial
from pathlib import Path

import pytest

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.tasks.directories import directory_task, read_directory
from orchard.pipelines.tasks.errors import TaskError
from orchard.pipelines.tasks.proving import ProofContext, ValidationSettings
from orchard.pipelines.tasks.validate import Validator
from orchard.schemas.events import TaskValidated
from orchard.schemas.outcomes import Reward
from orchard.schemas.tasks import StageChecks, Task, TaskStage, checks_of
from orchard.storage.blobs import BlobStore
from orchard.workers.episode.preparation import Course
from orchard.workers.failures import InfrastructureError
from orchard.workers.graders.stages import combined, through_stages

REWARD = "/logs/verifier/reward"
TWO = """
[environment]
workdir = "/tmp"
network_mode = "no-network"
[[steps]]
name = "first"
[[steps]]
name = "second"
"""
LEFT = ("/tests/*", "/logs/verifier", "/tmp/tests-*", "/tmp/orchard-check-*")
"""What a check in the agent's sandbox leaves until the next step."""
FILES = {
    "steps/first/instruction.md": "Make one.\n",
    "steps/first/tests/test.sh": f"[ -e one ] && echo 1 > {REWARD}.txt || echo 0 > {REWARD}.txt\n",
    "steps/first/solution/solve.sh": "touch one\n",
    "steps/second/instruction.md": "Make two of it.\n",
    "steps/second/tests/test.sh": f"[ -e one ] && [ -e two ] && n=1 || n=0; echo $n > {REWARD}.txt\n",
    "steps/second/solution/solve.sh": "mv -n given two\n",
    "steps/second/workdir/given": "x",
}


def _task(path: Path, toml: str = TWO, **files: str) -> Task:
    for name, text in (FILES | {"task.toml": toml} | files).items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return directory_task(read_directory(path), "host")


async def _graded(client: AsyncSandboxClient, task: Task, path: Path, solution: str | None = None) -> Reward:
    context = ProofContext(client, BlobStore(str(path / "store")), ValidationSettings(runs=1))
    return await context.grade(task, task.gold_patch if solution is None else solution)


@pytest.mark.long
async def test_steps_are_proven_together_in_the_safest_sandbox(
    sandboxes: AsyncSandboxClient, tmp_path: Path
) -> None:
    task = _task(tmp_path / "it")
    assert "Make one." in task.statement and "Make two of it." in task.statement
    validator = Validator(sandboxes, BlobStore(str(tmp_path / "store")), ValidationSettings(runs=1))
    validation = await validator.validate(task)
    assert isinstance(validation.event, TaskValidated), validation.event
    assert [check.check_in for check in checks_of(validation.task.grading)] == ["fresh", "fresh"]
    reward = await _graded(sandboxes, validation.task, tmp_path)
    assert (reward.resolved, reward.score) == (True, 1.0), reward.detail
    assert reward.parts == {"first/reward": 1.0, "second/reward": 1.0, "reward": 1.0}


@pytest.mark.long
async def test_a_step_below_its_least_reward_is_the_last_one(
    sandboxes: AsyncSandboxClient, tmp_path: Path
) -> None:
    toml = TWO.replace('name = "first"', 'name = "first"\nmin_reward = {style = 0.5}')
    test = f'echo \'{{"reward": 1, "style": %s}}\' > {REWARD}.json\n'
    for style, began, score in (("0.25", 1, 1.0), ("0.75", 2, 0.5)):
        files = {"steps/first/tests/test.sh": test % style, "steps/second/solution/solve.sh": "true\n"}
        task = _task(tmp_path / style, toml, **files)
        reward = await _graded(sandboxes, task, tmp_path)
        assert (reward.score, len(reward.detail.split("; "))) == (score, 2), reward.detail
        assert ("second/reward" in reward.parts) == (began == 2)
        assert ("no stage after first: style is 0.25, below 0.5" in reward.detail) == (began == 1)


@pytest.mark.long
async def test_the_last_step_that_began_may_be_the_reward(
    sandboxes: AsyncSandboxClient, tmp_path: Path
) -> None:
    task = _task(tmp_path / "it", 'multi_step_reward_strategy = "final"\n' + TWO)
    reward = await _graded(sandboxes, task, tmp_path)
    assert reward.resolved
    undone = {"steps/second/solution/solve.sh": "true\n"}
    task = _task(tmp_path / "undone", 'multi_step_reward_strategy = "final"\n' + TWO, **undone)
    reward = await _graded(sandboxes, task, tmp_path)
    assert (reward.score, reward.parts["first/reward"]) == (0.0, 1.0)


@pytest.mark.long
async def test_what_runs_goes_on_and_tests_are_not_left_behind(
    sandboxes: AsyncSandboxClient, tmp_path: Path
) -> None:
    """The check of the first step, in the agent's sandbox, sees a process that the second step still has."""
    answers = "kill -0 $(cat pid)"
    files = {
        "steps/first/solution/solve.sh": "sleep 600 & echo $! > pid\n",
        "steps/first/tests/test.sh": f"{answers} && echo 1 > {REWARD}.txt || echo 0 > {REWARD}.txt\n",
        "steps/second/solution/solve.sh": f"ls -d {' '.join(LEFT)} > seen 2>/dev/null; true\n",
        "steps/second/tests/test.sh": f"{answers} && [ ! -s seen ] && n=1 || n=0; echo $n > {REWARD}.txt\n",
    }
    reward = await _graded(sandboxes, _task(tmp_path / "it", **files), tmp_path)
    assert reward.resolved, reward.detail


@pytest.mark.long
async def test_commands_run_when_the_agent_is_done(sandboxes: AsyncSandboxClient, tmp_path: Path) -> None:
    """They see processes that the check, in a sandbox without them, does not; a failure changes nothing."""
    lives = "test -s pid && test -e /proc/$(cat pid)"
    toml = f"""{TWO}
[verifier]
environment_mode = "separate"
collect = [
    {{command = "exit 7"}},
    {{command = "{lives} && id -un > /logs/artifacts/made", user = "nobody"}},
    {{command = "sleep 60", timeout_sec = 1}},
]
"""
    test = f"[ $(cat /logs/artifacts/made) = nobody ] && n=1 || n=0; echo $n > {REWARD}.txt\n"
    files = {
        "steps/first/solution/solve.sh": "sleep 600 & echo $! > pid\n",
        "steps/first/tests/test.sh": test,
        "steps/second/tests/test.sh": test,
    }
    task = _task(tmp_path / "it", toml, **files)
    reward = await _graded(sandboxes, task, tmp_path)
    assert reward.resolved, reward.detail
    nothing = await _graded(sandboxes, task, tmp_path, "")
    assert (nothing.resolved, nothing.score) == (False, 0.0)


@pytest.mark.long
async def test_a_step_runs_as_its_user_with_its_variables_and_limits(
    sandboxes: AsyncSandboxClient, tmp_path: Path
) -> None:
    toml = f"""{TWO.replace('name = "first"', 'name = "first"' + chr(10) + "agent.timeout_sec = 60")}
agent.user = "nobody"
agent.timeout_sec = 30.5
verifier.env = {{ WORD = "step" }}
healthcheck = {{ command = "id -un > checked", interval_sec = 0.1 }}
[verifier.env]
WORD = "task"
OTHER = "both"
"""
    second = '[ "$WORD$OTHER" = stepboth ] && [ $(stat -c %U two) = nobody ] && [ $(cat checked) = nobody ]'
    files = {
        "steps/first/tests/test.sh": f'[ "$WORD" = task ] && echo 1 > {REWARD}.txt\n',
        "steps/second/workdir/setup.sh": "[ $(id -un) = nobody ] && chmod 777 . && id -un > set-up; true\n",
        "steps/second/solution/solve.sh": "touch two\n",
        "steps/second/tests/test.sh": f"{second} && n=1 || n=0; echo $n > {REWARD}.txt\n",
    }
    task = _task(tmp_path / "it", toml, **files)
    assert isinstance(task.grading, StageChecks)
    assert [stage.agent_seconds for stage in task.grading.stages] == [60.0, 30.5]
    assert task.asks and task.asks.agent_seconds == 90.5
    reward = await _graded(sandboxes, task, tmp_path)
    assert reward.resolved, reward.detail


@pytest.mark.long
@pytest.mark.parametrize("network", ["no-network", "public"])
@pytest.mark.parametrize("again", [False, True])
async def test_an_agent_that_spoils_the_set_up_of_a_step_gets_no_second_try(
    sandboxes: AsyncSandboxClient, tmp_path: Path, network: str, again: bool
) -> None:
    """In a task with a network the set-up is tried again, once it has worked without the agent."""
    setup = "[ ! -e spoiled ] || { rm spoiled; false; }\n" if again else "[ ! -e spoiled ]\n"
    toml = TWO.replace("no-network", network)
    task = _task(tmp_path / "it", toml, **{"steps/second/workdir/setup.sh": setup})
    assert isinstance(task.grading, StageChecks)
    context = ProofContext(sandboxes, BlobStore(str(tmp_path / "store")), ValidationSettings(runs=1))

    async def spoil(alone: Task, _: TaskStage) -> None:
        await machine.run("touch one spoiled", timeout=30, cwd=alone.workdir)

    async def grade(alone: Task, _: Course, __: bool) -> Reward:
        return await context.grade(alone, "touch one two")

    async with context.fresh(task) as machine:
        fresh = partial(context.fresh, task)
        rewards = await through_stages(task, task.grading, machine, spoil, grade, pristine=fresh, timeout=60)
    if again and network == "public":
        assert [reward.cause for reward in rewards] == [None, None]
        return
    reward = combined(task.grading, rewards, context.blobs)
    assert (reward.resolved, reward.cause, reward.score) == (False, "check_prevented", 0.5)
    assert "set-up of it, stage second, exited with 1" in reward.detail
    broken = _task(tmp_path / "broken", **{"steps/second/workdir/setup.sh": "false\n"})
    with pytest.raises(InfrastructureError, match="stage second, exited with 1"):
        await _graded(sandboxes, broken, tmp_path)


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        (TWO.replace("second", "FIRST"), "two steps have one name"),
        (TWO.replace("second", "a/b"), "a step is named 'a/b'"),
        (TWO + "agent.network_mode = 'public'\nverifier.network_mode = 'public'\n", "different networks"),
        (
            TWO + "verifier.collect = [{command = 'x', service = 'db'}]\n",
            "of the service 'db', and docker-compose.yaml has none",
        ),
        (TWO + "[[steps]]\nname = 'third'\n", "third"),
    ],
)
def test_what_steps_cannot_have_is_said(tmp_path: Path, toml: str, said: str) -> None:
    with pytest.raises(TaskError, match=said):
        _task(tmp_path / "it", toml)
