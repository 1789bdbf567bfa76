"""What the published service gets wrong about commands, and this one must not."""

import asyncio
import hashlib
import time

import pytest

from orchard.injector.client import AsyncSandbox, AsyncSandboxClient
from orchard.injector.errors import SandboxConflict


async def test_a_background_child_lives_on_and_may_go_on_printing(sandbox: AsyncSandbox) -> None:
    """Its pipe stays open: a server that logs to its stdout is not killed for it."""
    await sandbox.exec(
        "mkfifo go; (read line < go; yes | head -c 300000; echo survived > result; cat result > go) &"
    )
    job = await sandbox.exec("echo now > go; read line < go; echo $line", timeout_seconds=60)
    assert job.stdout == "survived\n"


async def test_the_default_working_directory_is_there(sandbox: AsyncSandbox) -> None:
    assert (await sandbox.exec("pwd")).stdout == "/workspace\n"


async def test_a_program_that_does_not_exist_is_named(sandbox: AsyncSandbox) -> None:
    job = await sandbox.exec(["no-such-program"])
    assert (job.exit_code, job.status) == (127, "failed")
    assert "no-such-program" in (job.error or "")


async def test_string_commands_are_run_by_bash(sandbox: AsyncSandbox) -> None:
    assert (await sandbox.exec("[[ a == a ]] && echo ${BASH_VERSION:+bash}")).stdout == "bash\n"


async def test_a_login_shell_reads_the_profile(sandbox: AsyncSandbox) -> None:
    await sandbox.upload_content("export FROM_PROFILE=yes\n", "/root/.bash_profile")
    assert (await sandbox.exec("echo $FROM_PROFILE", login_shell=True)).stdout == "yes\n"
    assert (await sandbox.exec("echo $FROM_PROFILE")).stdout == "\n"


async def test_environment_reaches_the_command_and_ours_does_not(
    sandbox: AsyncSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "leaked")
    job = await sandbox.exec(["env"], env={"GREETING": "hello world"})
    names = {line.split("=")[0] for line in job.stdout.splitlines()}
    assert "GREETING=hello world" in job.stdout
    assert names == {"PATH", "HOME", "GREETING"}


async def test_stdin_is_data(sandbox: AsyncSandbox) -> None:
    text = "$(touch /pwned) `touch /pwned` ; ü\n" * 10_000
    job = await sandbox.exec(["sha256sum"], stdin=text)
    assert job.stdout.split()[0] == hashlib.sha256(text.encode()).hexdigest()


async def test_without_stdin_a_command_reads_the_end(sandbox: AsyncSandbox) -> None:
    job = await sandbox.exec("cat; echo end", timeout_seconds=60)
    assert (job.stdout, job.timed_out) == ("end\n", False)


async def test_merged_output_keeps_the_order(sandbox: AsyncSandbox) -> None:
    job = await sandbox.exec("for i in 1 2 3; do echo out$i; echo err$i >&2; done", merge_output=True)
    assert job.stdout.split() == ["out1", "err1", "out2", "err2", "out3", "err3"]
    assert job.stderr == ""


@pytest.mark.long
async def test_output_of_old_jobs_makes_room_for_new_ones(sandbox: AsyncSandbox) -> None:
    limit = 40_000_000
    first = await sandbox.exec("yes | head -c 40000000", output_limit=limit)
    second = await sandbox.exec("yes | head -c 40000000", output_limit=limit)
    with pytest.raises(SandboxConflict) as forgotten:
        await sandbox.get_job(first.job_id)
    assert forgotten.value.reason == "output_forgotten"
    assert (await sandbox.get_job(second.job_id)).stdout == second.stdout


async def test_a_job_can_be_cancelled(sandbox: AsyncSandbox) -> None:
    job_id = await sandbox.start("echo begun; sleep 1005", timeout_seconds=2000)
    await sandbox.cancel_job(job_id)
    job = await sandbox.wait_job(job_id)
    assert (job.status, job.error, job.timed_out) == ("failed", "cancelled", False)


async def test_a_command_killed_by_its_own_signal_tells_the_signal(sandbox: AsyncSandbox) -> None:
    job = await sandbox.exec("kill -TERM $$")
    assert (job.exit_code, job.error) == (-15, None)
    job = await sandbox.exec("kill -KILL $$")
    assert (job.exit_code, job.error, job.oom_killed) == (-9, None, False)


async def test_times_are_epoch_seconds_in_order(sandbox: AsyncSandbox) -> None:
    before = time.time()
    job = await sandbox.exec("true")
    assert job.started_at is not None and job.completed_at is not None
    assert before <= job.created_at <= job.started_at <= job.completed_at <= time.time()


async def test_a_large_command_line_is_refused_with_a_reason(sandbox: AsyncSandbox) -> None:
    job = await sandbox.exec(["true", "x" * 3_000_000])
    assert job.exit_code == 127
    assert "Argument list too long" in (job.error or "")


async def test_commands_of_many_sandboxes_run_at_the_same_time(client: AsyncSandboxClient) -> None:
    """One waits for another: neither would end if they ran one after the other."""
    sandboxes = await asyncio.gather(*(client.create_sandbox("host") for _ in range(8)))
    waiting = [
        asyncio.create_task(one.exec("mkfifo gate; read line < gate; echo $line")) for one in sandboxes
    ]
    await asyncio.gather(
        *(one.exec("until [ -p gate ]; do sleep 0.01; done; echo go > gate") for one in sandboxes)
    )
    assert [job.stdout for job in await asyncio.gather(*waiting)] == ["go\n"] * 8
