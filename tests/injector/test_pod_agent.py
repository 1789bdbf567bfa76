"""The agent inside a container, as a real process: the points of the contract that are its own."""

import asyncio
import base64
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchard.injector.agent.local.cgroups import Cgroups
from orchard.injector.agent.pod.variables import VARIABLES, packed
from orchard.injector.agent_connection import AgentUnreachable
from orchard.injector.errors import (
    SandboxConflict,
    SandboxFileMissing,
    SandboxRequestInvalid,
    SandboxUnavailable,
)
from orchard.injector.payload import launch
from orchard.schemas.sandboxes import Health, Job, JobStatus, PatchResult, SandboxInfo
from tests.injector.in_pod import (
    DEADLINE,
    ID,
    USERS,
    PodAgent,
    become,
    container,
    eventually,
    pod_agent,
    port_told,
    python,
)

pytestmark = pytest.mark.needs_root("makes containers of its own")

BOMB = """
import os, signal, time
while True:
    try:
        child = os.fork()
    except OSError:
        time.sleep(0.01)  # and go on: whatever ends makes room for one more
        continue
    if child == 0:
        signal.pause()
"""


@pytest.fixture
async def agent(payload: Path, busybox: Path) -> AsyncIterator[PodAgent]:
    async with pod_agent(payload, busybox) as agent:
        yield agent


class TestCommands:
    @pytest.mark.long
    @pytest.mark.parametrize("user", USERS)
    async def test_they_run_as_the_container_is(self, payload: Path, busybox: Path, user: str) -> None:
        options = ["--setenv", "OF_THE_IMAGE", "x=y", "--chdir", "/tmp"]
        async with pod_agent(payload, busybox, *options, user=user) as agent:
            job = await agent.run(["sh", "-c", "id -u; pwd; umask"], cwd=".")
            variables = (await agent.run(["env"], env={"OF_THE_COMMAND": "1"})).stdout.splitlines()

        assert job.stdout.split() == ["1000" if user == "1000" else "0", "/tmp", "0022"]
        path = next(variable for variable in variables if variable.startswith("PATH="))
        assert sorted(variables) == sorted(["OF_THE_IMAGE=x=y", "OF_THE_COMMAND=1", path, "PWD=/tmp"])

    @pytest.mark.long
    async def test_variables_of_the_sandbox_are_its_commands_and_not_the_agents(
        self, payload: Path, busybox: Path
    ) -> None:
        own = {"LD_PRELOAD": "/no/such.so", "PATH": "/bin", "KUBERNETES_X": "$(PATH)"}
        async with pod_agent(payload, busybox, "--setenv", VARIABLES, packed(own)) as agent:
            variables = (await agent.run(["env"])).stdout.splitlines()
        assert {*variables} == {*(f"{name}={value}" for name, value in own.items()), "PWD=/"}

    async def test_changes_of_files_are_told(self, agent: PodAgent) -> None:
        async with (
            agent.connection.stream(f"/sandboxes/{ID}/files/watch", {"path": "/tmp"}) as pieces,
            asyncio.timeout(DEADLINE),
        ):
            told = await anext(pieces)
            assert told.startswith(b"event: watching\n")
            await agent.run("mkdir /tmp/made")
            while b"/tmp/made" not in told:
                told += await anext(pieces)
        await agent.run("rm -r /tmp/made")

    async def test_a_timeout_kills_its_group_and_nothing_else(self, agent: PodAgent) -> None:
        other = await agent.begin("sleep 1000")
        job = await agent.run("sleep 1001 & echo so far; sleep 1002", timeout_seconds=2)

        assert (job.exit_code, job.timed_out, job.error, job.stdout) == (124, True, "timeout", "so far\n")
        left = (await agent.run(["ps", "-o", "args"])).stdout
        assert "sleep 1000" in left
        assert "sleep 1001" not in left
        assert "sleep 1002" not in left
        assert (await agent.connection.call(Job, "GET", f"/jobs/{other}")).status is JobStatus.RUNNING

    async def test_a_child_in_the_background_does_not_hold_the_call(self, agent: PodAgent) -> None:
        job = await agent.run("sleep 1000 & echo $!")
        assert job.exit_code == 0
        assert (await agent.run(["kill", "-0", job.stdout.strip()])).exit_code == 0

    async def test_a_command_runs_once_for_its_key(self, agent: PodAgent) -> None:
        command = "echo run >> /tmp/runs; sleep 0.2"
        jobs = await asyncio.gather(*(agent.run(command, key="k") for _ in range(5)))
        again = await agent.run(command, key="k")

        assert {job.job_id for job in (*jobs, again)} == {jobs[0].job_id}
        assert jobs[0].job_id.startswith(f"{ID}.")
        assert await agent.read("/tmp/runs") == b"run\n"
        with pytest.raises(SandboxConflict):
            await agent.run("something else", key="k")

    async def test_its_own_124_is_no_timeout(self, agent: PodAgent) -> None:
        job = await agent.run("exit 124")
        assert (job.exit_code, job.timed_out, job.error) == (124, False, None)

    async def test_a_missing_directory_is_an_error(self, agent: PodAgent) -> None:
        job = await agent.run("pwd", cwd="/nowhere")
        assert (job.status, job.exit_code, job.stdout) == (JobStatus.FAILED, 127, "")
        assert "/nowhere cannot be entered" in (job.error or "")

    async def test_commands_begin_in_the_workspace(self, agent: PodAgent) -> None:
        assert (await agent.run("pwd", cwd="/workspace")).stdout == "/workspace\n"

    async def test_words_stay_words(self, agent: PodAgent) -> None:
        words = ["a b", "$HOME", "*", "'", "\n", ""]
        assert (await agent.run(["printf", "[%s]", *words])).stdout == "".join(f"[{word}]" for word in words)

    async def test_without_waiting(self, agent: PodAgent) -> None:
        job_id = await agent.begin("cat /proc/self/stat > /tmp/there; sleep 1000")
        await eventually_there(agent, "/tmp/there")
        cancelled = await agent.connection.call(Job, "DELETE", f"/jobs/{job_id}")
        assert cancelled.job_id == job_id
        ended = await agent.connection.call(Job, "GET", f"/jobs/{job_id}/wait", params={"timeout": "30"})
        assert (ended.status, ended.error) == (JobStatus.FAILED, "cancelled")

    @pytest.mark.long
    async def test_a_flood_is_cut_in_the_middle(self, agent: PodAgent) -> None:
        line = "echo begin; yes | head -c 50000000; echo end"
        job = await agent.run(line, output_limit=2000)
        assert job.stdout.startswith("begin\n")
        assert job.stdout.endswith("end\n")
        assert job.stdout_bytes == 50_000_010
        assert f"bytes left out of {job.stdout_bytes}" in job.stdout
        assert len(job.stdout) < 2200

    async def test_input_is_data(self, agent: PodAgent) -> None:
        assert (await agent.run(["cat"], stdin="$(id) ä")).stdout == "$(id) ä"
        assert (await agent.run(["cat"])).stdout == ""

    async def test_orphans_are_taken_in(self, agent: PodAgent) -> None:
        """Ended ones that nobody waits for would use up the processes that a Pod may have."""
        await agent.run("(sleep 1000 &); for i in $(seq 50); do (sleep 0.01 &) ; done")

        async def none_left() -> bool:
            states = (await agent.run(["ps", "-o", "stat,args"])).stdout
            return "Z" not in states and "sleep 0.01" not in states

        await eventually(none_left, "all orphans gone")
        parents = (await agent.run("for i in $(pidof sleep); do cut -d ' ' -f 4 /proc/$i/stat; done")).stdout
        assert parents.split() == (await agent.run("cat /proc/1/task/1/children")).stdout.split()

    async def test_orphans_of_others_are_taken_in_too(self, agent: PodAgent) -> None:
        """`kubectl exec` starts processes beside those of the agent."""
        enter = ["nsenter", "--target", str(agent.pid), "--pid", "--mount", "--root", "--wd"]
        process = await asyncio.create_subprocess_exec(*enter, "/bin/sh", "-c", "(sleep 0.01 &)")
        assert await process.wait() == 0
        await eventually(lambda: without(agent, "sleep"), "the orphan gone")

    async def test_all_processes_used_up(self, payload: Path, busybox: Path) -> None:
        """As the limit of a Pod does, but for the whole machine's processes of a user that has no others."""
        start = become(100_000 + os.getpid(), processes=40)
        async with pod_agent(payload, busybox, user="nobody", start=start) as agent:
            bomb = await agent.begin(python(BOMB))

            async def full() -> bool:
                return "no more processes" in ((await agent.run(["true"])).error or "")

            await eventually(full, "no process can be started")
            await agent.write("/tmp/file", b"works")
            assert await agent.read("/tmp/file") == b"works"
            await agent.connection.call(Job, "DELETE", f"/jobs/{bomb}")

            async def works() -> bool:
                return (await agent.run(["true"])).exit_code == 0

            await eventually(works, "commands run again")
            await agent.begin(python(BOMB))
            await eventually(full, "the agent ends in order then, too")

    async def test_killed_for_memory(self, payload: Path, busybox: Path, tmp_path: Path) -> None:
        """In a control group of its own, which it sees as a container does."""
        groups = Cgroups(tmp_path)
        assert groups.enforced["memory"], groups.note
        group = groups.make(ID, memory=96 << 20, pids=1000, cores=2)
        version2 = groups.layout.unified("memory")
        directory = groups.layout.parents["memory"] / groups._name / ID
        seen = "/sys/fs/cgroup" if version2 else "/sys/fs/cgroup/memory"

        def join() -> None:
            for entrance in group.entrances:
                Path(entrance).write_text("0")

        try:
            async with pod_agent(
                payload, busybox, "--ro-bind", str(directory), seen, preexec_fn=join
            ) as agent:
                job = await agent.run("tail -c 1000000000 /dev/zero")
                assert (job.oom_killed, job.error, job.exit_code) == (True, "out of memory", -9)
                assert (await agent.run("echo alive")).stdout == "alive\n"
                killed = await agent.run("kill -9 $$")
                assert (killed.oom_killed, killed.exit_code, killed.error) == (False, -9, None)
        finally:
            groups.close()


class TestFiles:
    async def test_any_bytes_of_any_size(self, agent: PodAgent) -> None:
        content = os.urandom(3_500_000)

        async def pieces() -> AsyncIterator[bytes]:
            for start in range(0, len(content), 300_000):
                yield content[start : start + 300_000]

        await agent.write("/tmp/ä b/large", pieces())
        await agent.write("/tmp/small", b"\xff\xfe\0")
        await agent.write("/tmp/empty", b"")
        await agent.write("/tmp/at once", content)

        assert await agent.read("/tmp/at once") == content
        assert await agent.read("/tmp/ä b/large") == content
        assert await agent.read("/tmp/small") == b"\xff\xfe\0"
        assert await agent.read("/tmp/empty") == b""
        with pytest.raises(SandboxFileMissing):
            await agent.read("/tmp/missing")

    async def test_the_agents_own_memory_is_no_file(self, agent: PodAgent) -> None:
        """The agent may read what the task may not, so a link must not make it."""
        await agent.run("ln -s /proc/1/environ /tmp/link; ln -s /proc/1/root/tmp /tmp/way")
        for path in ("/tmp/link", "/proc/1/mem", "/proc/self/environ", "/tmp/way/x"):
            with pytest.raises(SandboxRequestInvalid):
                await agent.read(path)

    async def test_a_patch(self, agent: PodAgent) -> None:
        await agent.write("/workspace/a", b"one\n" * 20_000)
        changed = "".join("-one\n+$(two)\n" for _ in range(20_000))
        patch = f"--- a/a\n+++ b/a\n@@ -1,20000 +1,20000 @@\n{changed}"
        body = json.dumps({"patch": patch, "cwd": "/workspace"}).encode()
        done = await agent.connection.call(PatchResult, "POST", f"/sandboxes/{ID}/apply_patch", body=body)
        assert done.success, done
        assert await agent.read("/workspace/a") == b"$(two)\n" * 20_000


class TestTerminals:
    @pytest.mark.long
    @pytest.mark.parametrize("user", USERS)
    async def test_nothing_is_lost_and_nothing_stays(self, payload: Path, busybox: Path, user: str) -> None:
        async with pod_agent(payload, busybox, user=user) as agent:
            line = await agent.connection.line(f"/sandboxes/{ID}/exec/pty")
            command = "read word; sleep 1000 & yes $word | head -n 20000; echo last"
            await line.send_json({"type": "init", "cmd": command, "cwd": "/"})
            assert (await line.receive_json(timeout=DEADLINE))["type"] == "ready"
            await line.send_json({"type": "stdin", "data": "YWJj\n".strip()})
            await line.send_json({"type": "stdin", "data": "Cg=="})
            frames = [json.loads(message.data) async for message in line]
            output = b"".join(decoded(frame) for frame in frames if frame["type"] == "stdout")
            assert frames[-1] == {"type": "exit", "code": 0}
            assert output.count(b"abc\r\n") == 20_001
            assert output.endswith(b"last\r\n")
            await eventually(lambda: without(agent, "sleep 1000"), "the session's processes gone")

    async def test_a_client_that_vanishes_takes_its_command_along(self, agent: PodAgent) -> None:
        line = await agent.connection.line(f"/sandboxes/{ID}/exec/pty")
        await line.send_json({"type": "init", "cmd": "sleep 1000", "cwd": "/"})
        assert (await line.receive_json(timeout=DEADLINE))["type"] == "ready"
        await line.close()
        await eventually(lambda: without(agent, "sleep 1000"), "the command gone")


class TestImages:
    async def test_a_read_only_root(self, payload: Path, busybox: Path) -> None:
        async with pod_agent(payload, busybox, "--remount-ro", "/", user="1000") as agent:
            assert (await agent.run("echo works")).stdout == "works\n"
            info = await agent.connection.call(SandboxInfo, "GET", f"/sandboxes/{ID}")
            assert info.ready
            assert "/workspace: Read-only file system: commands need a `cwd`" in info.status_message
            with pytest.raises(SandboxRequestInvalid):
                await agent.write("/file", b"")

    async def test_an_empty_root(self, payload: Path) -> None:
        async with pod_agent(payload, None) as agent:
            job = await agent.run("true")
            assert "could not execute a shell" in (job.error or "")
            assert (await agent.run(python("print('own')"))).stdout == "own\n"
            await agent.write("/workspace/file", b"content")
            assert await agent.read("/workspace/file") == b"content"


class TestProcess:
    async def test_it_is_the_first_and_cannot_be_killed_from_inside(self, agent: PodAgent) -> None:
        for name in ("KILL", "STOP", "SEGV", "ABRT", "QUIT"):
            await agent.run(f"kill -{name} 1")
        assert (await agent.run("cat /proc/1/comm")).stdout == "ld.so\n"

    async def test_with_its_spawner_it_ends_and_says_so_by_its_status(self, agent: PodAgent) -> None:
        """Whoever kills all that it sees has killed its sandbox."""
        with pytest.raises(SandboxUnavailable):
            await agent.run("kill -9 -1")
        agent.gone()
        assert agent.process.returncode == 1
        with pytest.raises(AgentUnreachable):
            await agent.run("true")

    async def test_a_stopped_spawner_goes_on(self, agent: PodAgent) -> None:
        """Whoever stops all that it sees holds up nobody's next command, nor the end of its own."""
        stopping = await agent.begin("kill -STOP -1")
        status = Path(f"/proc/{agent.spawner()}/status")
        async with asyncio.timeout(DEADLINE):
            while "State:\tT" not in status.read_text():
                await asyncio.sleep(0.01)

        assert (await agent.run("echo works")).stdout == "works\n"
        params = {"timeout": str(DEADLINE)}
        ended = await agent.connection.call(Job, "GET", f"/jobs/{stopping}/wait", params=params)
        assert ended.exit_code == 0

    async def test_health_is_open(self, payload: Path, busybox: Path) -> None:
        async with pod_agent(payload, busybox, introduced=False) as agent:
            probe = agent.connect(None)
            assert await probe.call(dict, "GET", "/health") == {"status": "healthy", "introduced": False}
            await agent.connection.introduce()
            assert await probe.call(dict, "GET", "/health") == {"status": "healthy", "introduced": True}
            assert await agent.connection.call(Health, "GET", "/health")
            await probe.close()

    async def test_the_kernel_prefers_commands_when_memory_runs_out(self, agent: PodAgent) -> None:
        own = int(Path(f"/proc/{agent.pid}/oom_score_adj").read_text())
        commands = int((await agent.run("cat /proc/self/oom_score_adj")).stdout)
        assert commands == min(own + 500, 1000)

    async def test_both_kinds_of_addresses(self, payload: Path, busybox: Path) -> None:
        line = launch.command("/orchard", "--serve", "--host", "::", "--port", "0", "--sandbox", ID)
        with container(payload, line, "--bind", str(busybox), "/") as (process, pid):
            agent = PodAgent(process, port_told(process), pid)
            await agent.connection.introduce()
            assert (await agent.run("echo works")).stdout == "works\n"
            await agent.connection.close()


def decoded(frame: dict[str, str]) -> bytes:
    return base64.b64decode(frame["data"])


async def without(agent: PodAgent, command: str) -> bool:
    return command not in (await agent.run(["ps", "-o", "args"])).stdout


async def eventually_there(agent: PodAgent, path: str) -> None:
    async def there() -> bool:
        return (await agent.run(["test", "-s", path])).exit_code == 0

    await eventually(there, f"{path} written")


class TestGrace:
    """What a kubelet's SIGTERM leaves time for."""

    async def test_what_runs_may_end_and_its_results_be_read(self, payload: Path, busybox: Path) -> None:
        async with pod_agent(payload, busybox, grace=10 * DEADLINE) as agent:
            running = asyncio.create_task(agent.run("touch /tmp/begun; sleep 3; echo done | tee /tmp/result"))
            await eventually(lambda: _exists(agent, "/tmp/begun"), "begun")
            os.kill(agent.pid, signal.SIGTERM)
            assert (await running).stdout == "done\n"
            assert await agent.read("/tmp/result") == b"done\n"
            assert agent.process.wait(DEADLINE) == 0, "nobody asks any more: it does not use up its grace"

    async def test_what_runs_longer_is_cut_off(self, payload: Path, busybox: Path) -> None:
        async with pod_agent(payload, busybox, grace=0.5) as agent:
            running = asyncio.create_task(agent.run("touch /tmp/begun; sleep 1000"))
            await eventually(lambda: _exists(agent, "/tmp/begun"), "begun")
            os.kill(agent.pid, signal.SIGTERM)
            assert await asyncio.to_thread(agent.process.wait, DEADLINE) == 0
            with pytest.raises(SandboxUnavailable):
                await running


async def _exists(agent: PodAgent, path: str) -> bool:
    return (await agent.run(["test", "-e", path])).exit_code == 0
