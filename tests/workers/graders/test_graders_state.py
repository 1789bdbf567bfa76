"""Grading in place: checks that come after the agent; one without a verdict is tried without the agent."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchard.schemas.outcomes import AbortCause, Reward
from orchard.schemas.tasks import Asked, StateCheck, Task, WorldUse
from orchard.storage.blobs import BlobStore
from orchard.workers.episode.machine import CommandOutcome
from orchard.workers.failures import InfrastructureError, LimitExceeded
from orchard.workers.graders import grade
from orchard.workers.graders.endings import Controls
from tests.workers.conftest import SubprocessMachine

BROKEN = "[ ! -e SPOILT ] || "
"""Begins a check that goes wrong where the agent has spoilt something."""
SOLVED = "[ -e SOLVED ] || "
REWARD = "SPOILT.txt"


@dataclass
class Desk:
    """Where an agent has been: `spoilt` is what it broke, `solved` what the known solution makes."""

    machine: SubprocessMachine
    task: Task
    blobs: BlobStore
    directory: Path
    controls: Controls = field(default_factory=Controls)
    opened: int = 0
    """Sandboxes for controls."""

    @property
    def spoilt(self) -> Path:
        return self.directory / "spoilt"

    @property
    def solved(self) -> Path:
        return self.directory / "solved"

    def named(self, text: str) -> str:
        return text.replace("SPOILT", str(self.spoilt)).replace("SOLVED", str(self.solved))

    @asynccontextmanager
    async def pristine(self) -> AsyncIterator[SubprocessMachine]:
        self.opened += 1
        self.spoilt.unlink(missing_ok=True)
        self.solved.unlink(missing_ok=True)
        yield self.machine

    async def judged(
        self,
        command: str,
        *,
        timeout: float = 30.0,
        files: dict[str, str] | None = None,
        rewards: tuple[str, ...] = (),
        solution: str = "",
        **changes: Any,
    ) -> Reward:
        check = StateCheck(
            files=files or {},
            command=self.named(command),
            timeout_seconds=timeout,
            rewards=tuple(map(self.named, rewards)) or msgspec.UNSET,
        )
        return await grade(
            msgspec.structs.replace(self.task, grading=check, gold_patch=self.named(solution), **changes),
            "",
            self.machine,
            timeout=60.0,
            blobs=self.blobs,
            pristine=self.pristine,
            controls=self.controls,
        )


@pytest.fixture
def desk(machine: SubprocessMachine, task: Task, blobs: BlobStore, tmp_path: Path) -> Desk:
    return Desk(machine, task, blobs, tmp_path)


async def aborted(grading: Awaitable[Reward]) -> tuple[AbortCause, str]:
    with pytest.raises(InfrastructureError) as raised:
        await grading
    return raised.value.cause, raised.value.detail


async def test_exit_code_zero_is_solved(desk: Desk) -> None:
    reward = await desk.judged("echo fine")
    assert (reward.value, reward.resolved, reward.cause) == (1.0, True, None)
    assert reward.log is not None
    assert desk.blobs.get(reward.log) == b"fine\n"


async def test_any_other_exit_code_of_a_program_is_not_and_costs_no_control(desk: Desk) -> None:
    reward = await desk.judged("exit 3")
    assert (reward.value, reward.detail, reward.cause) == (-1.0, "the check exited with 3", None)
    assert desk.opened == 0


async def test_files_replace_what_the_agent_wrote(desk: Desk, tmp_path: Path) -> None:
    target = tmp_path / "check.sh"
    target.write_text("exit 0\n")
    assert not (await desk.judged(f"sh {target}", files={str(target): "exit 1\n"})).resolved


async def test_the_check_has_a_clean_environment(desk: Desk) -> None:
    reward = await desk.judged("env | sort | cut -d= -f1 | tr '\\n' ' '")
    assert reward.log is not None
    assert set(desk.blobs.get(reward.log).decode().split()) <= {
        *("HOME", "LC_ALL", "PATH", "PWD", "SHLVL", "_", "OLDPWD")
    }


async def test_the_first_file_of_rewards_that_is_there_is_the_verdict(desk: Desk, tmp_path: Path) -> None:
    paths = (f"{tmp_path}/reward.json", f"{tmp_path}/reward.txt")
    told = await desk.judged(f"echo 1 > {paths[1]}", rewards=paths)
    assert (told.value, told.parts) == (1.0, {"reward": 1.0})
    told = await desk.judged(f'echo \'{{"reward": 0.5, "style": 1}}\' > {paths[0]}', rewards=paths)
    assert (told.value, told.cause, told.parts) == (-1.0, None, {"reward": 0.5, "style": 1.0})


ODD = {
    "no-interpreter": (BROKEN + "exec /nowhere/python check.py; exit 1", {}),
    "hangs": (BROKEN + "sleep 60; exit 1", {"timeout": 1.0}),
    "killed": (BROKEN + "kill -9 $$; exit 1", {}),
    "no-reward": (BROKEN + f"exit 0; echo 0 > {REWARD}", {"rewards": (REWARD,)}),
    "empty-reward": (BROKEN + f"{{ : > {REWARD}; exit 0; }}; echo 0 > {REWARD}", {"rewards": (REWARD,)}),
    "nonsense": (BROKEN + f"{{ echo good > {REWARD}; exit 0; }}; echo 0 > {REWARD}", {"rewards": (REWARD,)}),
}
"""Checks that reach no verdict where the agent has spoilt something, and elsewhere that of a failure."""


@pytest.mark.parametrize("solution", ["", "touch SOLVED"])
@pytest.mark.parametrize(("command", "changes"), ODD.values(), ids=ODD)
async def test_a_check_that_the_agent_prevented_is_a_failure_with_a_cause(
    desk: Desk, command: str, changes: dict[str, Any], solution: str
) -> None:
    desk.spoilt.touch()
    reward = await desk.judged(command, solution=solution, **changes)
    assert (reward.value, reward.resolved, reward.cause) == (-1.0, False, "check_prevented")
    assert ("after the known solution" if solution else "no solution is known") in reward.detail
    assert desk.opened == 1


@pytest.mark.parametrize("solution", ["", "touch SOLVED"])
@pytest.mark.parametrize(
    ("command", "changes", "cause"),
    [
        ("exec /nowhere/python check.py", {}, AbortCause.TASK_BROKEN),
        ("exit 126", {}, AbortCause.TASK_BROKEN),
        ("exit 0", {"rewards": ("/nowhere/reward.txt",)}, AbortCause.TASK_BROKEN),
        ("sleep 60", {"timeout": 0.5}, AbortCause.GRADER_FAILED),
        ("kill -9 $$", {}, AbortCause.GRADER_FAILED),
    ],
)
async def test_a_check_that_does_not_work_without_the_agent_is_no_reward(
    desk: Desk, command: str, changes: dict[str, Any], cause: AbortCause, solution: str
) -> None:
    found, detail = await aborted(desk.judged(command, solution=solution, **changes))
    assert found is cause
    assert desk.task.task_id in detail


async def test_of_a_task_that_asks_for_a_network_a_hiccup_of_it_may_be_all(desk: Desk) -> None:
    asks = Asked(network=True)
    for _ in range(2):
        cause, _ = await aborted(desk.judged("exit 127", asks=asks))
        assert cause is AbortCause.GRADER_FAILED
    assert desk.opened == 2, "what one control showed holds for that moment"


async def test_another_symptom_in_the_control_blames_nobody(desk: Desk) -> None:
    desk.spoilt.touch()
    cause, detail = await aborted(desk.judged(BROKEN + "kill -9 $$; exit 127"))
    assert cause is AbortCause.GRADER_FAILED
    assert "killed by signal 9" in detail
    assert "(127)" in detail


async def test_without_a_solution_that_works_an_untouched_sandbox_would_blame_the_task(desk: Desk) -> None:
    """A check that runs what the agent is to write: only a solution shows that it can end well."""
    runs = SOLVED + "exit 127"
    reward = await desk.judged(runs, solution="touch SOLVED")
    assert (reward.value, reward.cause) == (-1.0, "check_prevented")
    desk.solved.unlink()
    assert (await aborted(desk.judged(runs)))[0] is AbortCause.TASK_BROKEN


async def test_each_task_costs_one_control(desk: Desk) -> None:
    for _ in range(3):
        desk.spoilt.touch()
        assert (await desk.judged(BROKEN + "exit 127; exit 1")).cause == "check_prevented"
    for _ in range(3):
        assert (await aborted(desk.judged("exit 127")))[0] is AbortCause.TASK_BROKEN
    assert desk.opened == 2
    for _ in range(2):
        await aborted(desk.judged("sleep 60", timeout=0.2))
    assert desk.opened == 4, "a busy machine is busy for a while only"


async def test_a_place_that_cannot_be_written_is_the_agents_doing(desk: Desk, tmp_path: Path) -> None:
    """The agent was there before: an abort would buy it another attempt."""
    (tmp_path / "check.sh").mkdir()

    @asynccontextmanager
    async def elsewhere() -> AsyncIterator[SubprocessMachine]:
        (tmp_path / "check.sh").rmdir()
        yield desk.machine

    desk.pristine = elsewhere  # type: ignore[method-assign]
    reward = await desk.judged("exit 0", files={str(tmp_path / "check.sh"): "exit 1\n"})
    assert (reward.value, reward.cause) == (-1.0, "check_prevented")


@pytest.mark.parametrize("cause", [AbortCause.SANDBOX_OUT_OF_MEMORY, AbortCause.SANDBOX_DIED])
async def test_a_limit_under_the_check_is_the_agents_unless_the_control_meets_it_too(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, cause: AbortCause
) -> None:
    run: Callable[..., Awaitable[CommandOutcome]] = desk.machine.run

    async def limited(command: str, **given: Any) -> CommandOutcome:
        if desk.spoilt.exists():
            raise LimitExceeded(cause, "over its limit")
        return await run(command, **given)

    monkeypatch.setattr(desk.machine, "run", limited)
    desk.spoilt.touch()
    assert (await desk.judged("exit 1")).cause == "check_prevented"
    monkeypatch.setattr(desk, "pristine", lambda: _kept(desk))
    desk.spoilt.touch()
    found, _ = await aborted(desk.judged("exit 2"))
    memory = cause is AbortCause.SANDBOX_OUT_OF_MEMORY
    assert found is (AbortCause.SANDBOX_OUT_OF_MEMORY if memory else AbortCause.TASK_BROKEN)


@asynccontextmanager
async def _kept(desk: Desk) -> AsyncIterator[SubprocessMachine]:
    yield desk.machine


async def test_a_check_in_a_world_has_no_control(desk: Desk) -> None:
    cause, detail = await aborted(desk.judged("exit 127", world=WorldUse(kind="desk")))
    assert cause is AbortCause.GRADER_FAILED
    assert "lack its world" in detail
    assert desk.opened == 0
