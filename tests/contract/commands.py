"""Points 1 to 7 of the contract: commands, their output, files and patches."""

import asyncio

import aiohttp
import pytest

from orchard.injector.client import AsyncSandbox, AsyncSandboxClient
from orchard.injector.errors import SandboxConflict, SandboxUnavailable
from orchard.schemas.sandboxes import OUTPUT_LIMIT
from tests.contract.balancer import Balancer
from tests.contract.fixtures import LIMIT, processes

PATCH = "--- a/greeting\n+++ b/greeting\n@@ -1 +1 @@\n-hello\n+hello, world\n"


async def test_point_1_a_timeout_kills_the_commands_process_group_and_nothing_else(
    sandbox: AsyncSandbox,
) -> None:
    """Naive: `timeout` around a command whose children live on, or a timeout that restarts the container."""
    other = await sandbox.start("sleep 1000", timeout_seconds=2000)
    timed = await sandbox.exec("echo before; sleep 1001 & sleep 1002; echo after", timeout_seconds=2)
    left = await processes(sandbox)
    assert (timed.exit_code, timed.timed_out, timed.error) == (124, True, "timeout")
    assert timed.stdout == "before\n"
    assert "sleep 1000" in left
    assert "sleep 1001" not in left and "sleep 1002" not in left
    assert (await sandbox.get_job(other)).status == "running"


async def test_point_1_also_a_command_that_is_deaf_to_signals(sandbox: AsyncSandbox) -> None:
    """Naive: a timeout that asks by SIGTERM, and waits."""
    async with asyncio.timeout(LIMIT):
        timed = await sandbox.exec("trap '' TERM INT HUP; while :; do sleep 1003; done", timeout_seconds=0.5)
    assert (timed.exit_code, timed.timed_out) == (124, True)
    assert "sleep 1003" not in await processes(sandbox)


async def test_point_2_a_background_child_that_keeps_stdout_open_does_not_hold_the_call(
    sandbox: AsyncSandbox,
) -> None:
    """Naive: `communicate()`, which reads until every holder of the pipe has closed it."""
    async with asyncio.timeout(LIMIT):
        job = await sandbox.exec("(while sleep 1004; do :; done) & echo done", timeout_seconds=600)
    assert (job.exit_code, job.stdout) == (0, "done\n")
    assert "sleep 1004" in await processes(sandbox)


async def test_point_2_nor_is_output_lost_that_was_there_before_the_shell_exited(
    sandbox: AsyncSandbox,
) -> None:
    """Naive: one that stops reading as soon as the shell has exited."""
    jobs = await asyncio.gather(
        *(sandbox.exec("sleep 1005 & head -c 200000 /dev/zero | tr '\\0' x") for _ in range(4))
    )
    assert [(job.stdout_bytes, len(job.stdout)) for job in jobs] == [(200_000, 200_000)] * 4


async def test_point_3_a_lost_answer_does_not_run_a_command_twice(
    balancer: Balancer, sandbox: AsyncSandbox
) -> None:
    """Naive: a client or proxy that repeats a POST, or one that gives up instead."""
    balancer.lose(answers=2)
    job = await sandbox.exec("echo ran >> count; echo $PPID")
    assert balancer.lost == [("POST", f"/sandboxes/{sandbox.sandbox_id}/exec")] * 2
    assert job.succeeded
    assert (await sandbox.exec("cat count")).stdout == "ran\n"


async def test_point_3_a_lost_answer_does_not_create_a_sandbox_twice(
    balancer: Balancer, client: AsyncSandboxClient, sandbox: AsyncSandbox
) -> None:
    """Naive: an orchestrator that makes an id for every POST."""
    label = {"of": sandbox.sandbox_id}
    balancer.lose(answers=2)
    made = await client.create_sandbox(sandbox.image, cpu="1", memory="256Mi", labels=label, wait_ready=False)
    assert balancer.lost == [("POST", "/sandboxes")] * 2
    assert [info.sandbox_id for info in await client.list_sandboxes(label)] == [made.sandbox_id]


async def test_point_3_retries_that_cross_on_the_wire_run_the_command_once(sandbox: AsyncSandbox) -> None:
    """Naive: a table of keys in each orchestrator, or one that is written when the command has ended."""
    tries = [sandbox.exec("echo ran >> count; sleep 0.2", idempotency_key="crossing") for _ in range(10)]
    jobs = await asyncio.gather(*tries)
    assert len({job.job_id for job in jobs}) == 1
    assert (await sandbox.exec("cat count")).stdout == "ran\n"


async def test_point_3_a_key_used_for_another_command_is_a_conflict(sandbox: AsyncSandbox) -> None:
    """Naive: one that returns the first command's result for the second."""
    await sandbox.exec("true", idempotency_key="taken")
    with pytest.raises(SandboxConflict):
        await sandbox.exec("false", idempotency_key="taken")


async def test_point_3_a_retried_patch_is_applied_once(sandbox: AsyncSandbox) -> None:
    """Naive: one whose second try fails, because the first one worked."""
    await sandbox.upload_content("hello\n", "/workspace/greeting")
    first = await sandbox.apply_patch(PATCH, idempotency_key="patch-1")
    again = await sandbox.apply_patch(PATCH, idempotency_key="patch-1")
    assert first.success and again == first


async def test_point_4_a_service_that_cannot_be_reached_is_not_a_command_that_timed_out(
    sandbox: AsyncSandbox, unused_tcp_port: int
) -> None:
    """Naive: a client that turns every exception of its HTTP library into exit code 124."""
    url = f"http://127.0.0.1:{unused_tcp_port}"
    async with AsyncSandboxClient(url, auto_cleanup=False, retry_seconds=0.0) as client:
        with pytest.raises(SandboxUnavailable):
            await client._own(sandbox.info).exec("true")


async def test_point_4_a_commands_own_124_is_not_a_timeout(sandbox: AsyncSandbox) -> None:
    """Naive: one that only has the exit code of `timeout` to tell."""
    job = await sandbox.exec("exit 124")
    assert (job.exit_code, job.timed_out, job.error) == (124, False, None)


async def test_point_5_without_wait_the_answer_comes_at_once(
    http: aiohttp.ClientSession, sandbox: AsyncSandbox
) -> None:
    """Naive: one that ignores `wait`, or answers when the command has begun to print."""
    await sandbox.exec("mkfifo gate")
    body = {"command": "read line < gate; echo $line"}
    async with asyncio.timeout(LIMIT):
        reply = await http.post(f"/sandboxes/{sandbox.sandbox_id}/exec", json=body)
    queued = await reply.json()
    assert (reply.status, set(queued), queued["status"]) == (200, {"job_id", "status"}, "queued")
    running = await sandbox.wait_job(queued["job_id"], timeout=0.0)
    assert (running.status, running.is_complete) == ("running", False)
    await sandbox.exec("echo open > gate")
    job = await sandbox.wait_job(queued["job_id"])
    assert (job.succeeded, job.stdout) == (True, "open\n")


async def test_point_5_a_missing_working_directory_is_an_error(sandbox: AsyncSandbox) -> None:
    """Naive: one that falls back to `/`."""
    job = await sandbox.exec("pwd", cwd="/no/such/place")
    assert (job.status, job.exit_code, job.stdout) == ("failed", 127, "")
    assert "/no/such/place" in (job.error or "")


async def test_point_5_argument_lists_keep_their_quoting(sandbox: AsyncSandbox) -> None:
    """Naive: `" ".join(command)` for a shell."""
    arguments = ["a b", "$HOME", "'", '"', "*", "", "new\nline", "\\", "-c", "ü"]
    job = await sandbox.exec(["python3", "-c", "import sys; print(ascii(sys.argv[1:]))", *arguments])
    assert job.stdout == f"{arguments!a}\n"


async def test_point_6_output_is_bounded_with_a_marker_and_the_true_size(sandbox: AsyncSandbox) -> None:
    """Naive: output kept whole in memory, or cut at its end, where the error is."""
    job = await sandbox.exec("echo first; yes | head -c 50000000; echo last", output_limit=10_000)
    assert len(job.stdout) < 10_200
    assert job.stdout.startswith("first\n") and job.stdout.endswith("last\n")
    assert job.stdout_bytes == 50_000_000 + len("first\nlast\n")
    assert f"left out of {job.stdout_bytes}" in job.stdout


async def test_point_6_unless_asked_otherwise_ten_mebibytes_of_each(sandbox: AsyncSandbox) -> None:
    """Naive: a limit for both together, or none."""
    size = OUTPUT_LIMIT + 1000
    job = await sandbox.exec(f"head -c {size} /dev/zero | tr '\\0' x; yes | head -c {size} >&2")
    assert (job.stdout_bytes, job.stderr_bytes) == (size, size)
    assert OUTPUT_LIMIT < len(job.stdout) < size and OUTPUT_LIMIT < len(job.stderr) < size


async def test_point_6_bytes_that_are_not_text_survive_in_files_and_do_not_break_output(
    sandbox: AsyncSandbox,
) -> None:
    """Naive: `decode()` somewhere on the way."""
    every = bytes(range(256)) * 5000
    await sandbox.upload_content(every, "/workspace/deep/er/every.bin")
    await sandbox.exec("cp deep/er/every.bin copy.bin")
    assert await sandbox.download_content("/workspace/copy.bin") == every
    job = await sandbox.exec(r"printf 'a\377\376b'")
    assert (job.stdout, job.stdout_bytes) == ("a\ufffd\ufffdb", 4)


async def test_point_7_a_patch_is_never_part_of_a_shell_line(sandbox: AsyncSandbox) -> None:
    """Naive: a here document, ended by a line of the patch itself; quoting, undone by its text."""
    text = "'; touch /tmp/pwned; $(touch /tmp/pwned) `touch /tmp/pwned` \"\\ EOF\n"
    patch = f"--- /dev/null\n+++ b/odd name\n@@ -0,0 +1,2 @@\n+{text}+EOF\n"
    result = await sandbox.apply_patch(patch)
    assert result.success, result.stderr
    assert await sandbox.download_content("/workspace/odd name") == f"{text}EOF\n".encode()
    assert (await sandbox.exec("test -e /tmp/pwned")).exit_code == 1


async def test_point_7_a_patch_of_many_megabytes_anywhere_in_the_sandbox(sandbox: AsyncSandbox) -> None:
    """Naive: a patch on the command line, which the kernel bounds; or one that works in /workspace only."""
    await sandbox.exec("mkdir -p /var/tmp/elsewhere")
    lines = 300_000
    patch = f"--- /dev/null\n+++ b/sub/large\n@@ -0,0 +1,{lines} @@\n" + "+0123456789abcdef\n" * lines
    result = await sandbox.apply_patch(patch, timeout=120, cwd="/var/tmp/elsewhere")
    assert result.success, result.stderr
    assert (await sandbox.exec("wc -l < /var/tmp/elsewhere/sub/large")).stdout == f"{lines}\n"
