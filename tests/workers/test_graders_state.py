"""Grading in place: checks that come after the agent and decide by their exit code."""

from contextlib import nullcontext

import msgspec
import pytest

from orchard.schemas.tasks import StateCheck
from orchard.workers.graders import grade


@pytest.fixture
def checked(machine, task, blobs):
    async def run(command, timeout=30.0, files=None):
        check = StateCheck(files=files or {}, command=command, timeout_seconds=timeout)
        return await grade(
            msgspec.structs.replace(task, grading=check),
            "",
            machine,
            timeout=60.0,
            blobs=blobs,
            pristine=lambda: nullcontext(machine),
        )

    return run


async def test_exit_code_zero_is_solved(checked, blobs):
    reward = await checked("echo fine")
    assert (reward.value, reward.resolved) == (1.0, True)
    assert blobs.get(reward.log) == b"fine\n"


async def test_any_other_exit_code_is_not(checked):
    reward = await checked("exit 3")
    assert (reward.value, reward.detail) == (-1.0, "the check exited with 3")


async def test_files_replace_what_the_agent_wrote(checked, tmp_path):
    target = tmp_path / "check.sh"
    target.write_text("exit 0\n")
    assert not (await checked(f"sh {target}", files={str(target): "exit 1\n"})).resolved


async def test_a_check_that_never_ends_is_not_solved(checked):
    reward = await checked("sleep 60", timeout=0.5)
    assert (reward.value, reward.detail) == (-1.0, "the check did not end within 0.5 s")


async def test_the_check_has_a_clean_environment(checked, blobs):
    reward = await checked("env | sort | cut -d= -f1 | tr '\\n' ' '")
    assert set(blobs.get(reward.log).decode().split()) <= {
        "HOME",
        "LC_ALL",
        "PATH",
        "PWD",
        "SHLVL",
        "_",
        "OLDPWD",
    }


async def test_a_place_that_cannot_be_written_is_not_solved(checked, tmp_path):
    """The agent was there before: an abort would buy it another attempt."""
    (tmp_path / "check.sh").mkdir()
    reward = await checked("exit 0", files={str(tmp_path / "check.sh"): "exit 1\n"})
    assert (reward.value, reward.resolved) == (-1.0, False)
