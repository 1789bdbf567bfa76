"""No way out through what is beside a task: the first process, processes on their way in, the kernel's files.

Each test is an attack that got somewhere before; what root inside is refused, one by one, is in
test_isolation.py.
"""

import asyncio
import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchard.injector.agent.entering import KEPT_CAPABILITIES
from orchard.injector.client import AsyncSandbox, AsyncSandboxClient

if TYPE_CHECKING:
    from tests.injector.conftest import Service

HERE = Path(__file__).parent
EPERM = 1


async def run_inside(sandbox: AsyncSandbox, program: str, *arguments: str) -> dict[str, object]:
    """What a program of these tests prints there, as JSON."""
    job = await sandbox.exec(["python3", "-c", (HERE / program).read_text(), *arguments])
    assert job.succeeded, job.stderr
    found: dict[str, object] = json.loads(job.stdout)
    return found


async def test_nobody_looks_into_the_first_process(sandbox: AsyncSandbox) -> None:
    found = await run_inside(sandbox, "intruder.py", "1", "self-test")
    assert found["1"] == []
    assert {"memory", "trace", "copy memory"} <= set(found["self-test"])  # type: ignore[call-overload]


async def test_nobody_makes_the_first_process_do_anything(sandbox: AsyncSandbox) -> None:
    """It was an unlimited process with every system call, in which a task could live as long as it wanted."""
    assert await run_inside(sandbox, "puppeteer.py", "1") == {"refused": EPERM}


@pytest.mark.needs_root("control groups")
async def test_the_first_process_has_the_limits_and_the_filter_of_commands(
    service: "Service", sandbox: AsyncSandbox
) -> None:
    status = (await sandbox.exec("cat /proc/1/status; cat /proc/1/oom_score_adj")).stdout
    own = Path(f"/proc/{service.agent_pid}/oom_score_adj").read_text().strip()
    assert "Seccomp:\t2" in status and status.split()[-1] in ("-1000", own)  # as the machine lets it
    inside = {(group / "cgroup.procs").read_text() for group in groups(service, sandbox)}
    assert len(inside) == 1 and len(inside.pop().split()) == 1  # nothing runs but the first process


@pytest.mark.needs_root("a limit of memory")
async def test_a_task_cannot_have_the_first_process_killed_for_memory(client: AsyncSandboxClient) -> None:
    """It raised its score: the sandbox died, which is nobody's reward, in place of the task's command."""
    async with await client.create_sandbox("host", memory="64Mi") as sandbox:
        raised = "for f in /proc/1/oom_score_adj /proc/1/task/1/oom_score_adj /proc/1/oom_adj; do"
        job = await sandbox.exec(f"{raised} echo 15 > $f && echo raised; done; cat /proc/1/oom_score_adj")
        assert job.stdout in ("0\n", "-1000\n") and "Read-only" in job.stderr
        eater = await sandbox.exec(["python3", "-c", "x = b'x' * 300_000_000"])
        assert eater.oom_killed
        assert (await sandbox.exec("echo lives")).stdout == "lives\n"


async def test_a_process_on_its_way_in_shows_nothing_of_the_machine(
    service: "Service", sandbox: AsyncSandbox
) -> None:
    """Stopped the moment it appears, it had the machine's mounts and network and the agent's command line."""
    await sandbox.upload_content((HERE / "ambusher.py").read_text(), "/workspace/ambusher.py")
    ambush = "python3 ambusher.py caught > log 2>&1 & until [ -e ready ]; do sleep 0.01; done"
    assert (await sandbox.exec(ambush)).succeeded
    own = (await sandbox.exec("cat /proc/self/mountinfo")).stdout
    for _ in range(80):
        await sandbox.exec(["true"])
    await sandbox.exec("touch stop; until [ -s caught ]; do sleep 0.01; done")
    caught = json.loads(await sandbox.download_content("/workspace/caught"))
    assert len(caught) > 5
    for one in caught:
        status = dict(line.split(":\t", 1) for line in one["status"].splitlines() if ":\t" in line)
        assert one.get("mountinfo", own) in (own, "")
        assert one.get("net/unix", "").count("\n") <= 1 and one.get("net/tcp", "").count("\n") <= 1
        assert str(service.state) not in one.get("cmdline", "") and "agent" not in one.get("cmdline", "")
        if set(one) & {"environ", "maps", "root", "exe", "ns/net"}:  # one may look into it: it is a command
            assert int(status["CapPrm"], 16) == sum(1 << number for number in KEPT_CAPABILITIES)
            assert status["Seccomp"] == "2"


@pytest.mark.needs_root("control groups")
async def test_groups_that_a_task_made_go_with_the_sandbox(
    service: "Service", client: AsyncSandboxClient
) -> None:
    """As a task with more rights than it should have would make them: the sandbox could never be deleted."""
    sandbox = await client.create_sandbox("host")
    sleeper = await asyncio.create_subprocess_exec("sleep", "1063")
    for group in groups(service, sandbox):
        below = group / "below" / "deeper"
        below.mkdir(parents=True)
        (below / "cgroup.procs").write_text(str(sleeper.pid))
    where = groups(service, sandbox)
    await sandbox.delete()
    assert where and not any(group.exists() for group in where)
    assert await sleeper.wait() == -signal.SIGKILL


def groups(service: "Service", sandbox: AsyncSandbox) -> list[Path]:
    return [group for group in service.cgroups() if group.name == sandbox.sandbox_id]


@pytest.mark.needs_root("control groups")
async def test_all_sandboxes_together_leave_process_ids_to_the_machine(
    service: "Service", sandbox: AsyncSandbox
) -> None:
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    limits = [group.parent / "pids.max" for group in groups(service, sandbox)]
    values = [int(limit.read_text()) for limit in limits if limit.exists()]
    assert values and all(0 < value <= most * 3 // 4 for value in values)


async def test_a_core_file_is_never_handed_to_the_machine(sandbox: AsyncSandbox) -> None:
    """With a limit of 0 the kernel still starts the program of core_pattern, as root of the machine."""
    code = (
        "import resource as r; c = r.RLIMIT_CORE; before = r.getrlimit(c)\n"
        "for new in ((0, 1), (0, 0), (r.RLIM_INFINITY,) * 2): r.setrlimit(c, new); r.prlimit(0, c, new)\n"
        "print(before, r.getrlimit(c))"
    )
    job = await sandbox.exec(["python3", "-c", code])
    assert job.stdout == "(1, 1) (1, 1)\n", job.stderr
    assert "(1, 1)" in (await sandbox.exec("ulimit -c 0; python3 -c '" + code + "'")).stdout


async def test_terminals_of_one_sandbox_do_not_use_up_the_machines(sandbox: AsyncSandbox) -> None:
    code = (
        "import os; opened = []\n"
        "try:\n  while True: opened.append(os.openpty())\nexcept OSError: print(len(opened))"
    )
    assert int((await sandbox.exec(["python3", "-c", code])).stdout) == 256


async def test_of_the_kernels_files_none_can_be_written_and_the_machines_cannot_be_read(
    sandbox: AsyncSandbox,
) -> None:
    code = (
        "import os\nfor top, below, names in os.walk('/proc'):\n"
        "  below[:] = [d for d in below if not d.isdigit() and not os.path.islink(os.path.join(top, d))]\n"
        "  for name in names:\n"
        "    path = os.path.join(top, name)\n"
        "    if os.path.islink(path) or not os.stat(path).st_mode & 0o222: continue\n"
        "    try: os.close(os.open(path, os.O_WRONLY))\n"
        "    except OSError: print(path, 'is read-only')\n"
        "    else: print(path, os.path.samefile(path, '/dev/null'))"
    )
    found = (await sandbox.exec(["python3", "-c", code])).stdout.splitlines()
    assert "/proc/sys/kernel/core_pattern is read-only" in found
    assert [line for line in found if line.endswith(" False")] == []
    hidden = ("slabinfo", "vmallocinfo", "pagetypeinfo", "kmsg", "kallsyms", "keys", "timer_list", "kcore")
    for name in hidden:
        shown = await sandbox.exec(f"cat /proc/{name}")
        assert shown.stdout == "", name


TAKE_ALL = """
import ctypes, errno, os, signal
libc, rt = ctypes.CDLL(None, use_errno=True), ctypes.CDLL("librt.so.1", use_errno=True)
signal.pthread_sigmask(signal.SIG_BLOCK, [40])
while libc.sigqueue(os.getpid(), 40, None) == 0: pass
class Attributes(ctypes.Structure): _fields_ = [(name, ctypes.c_long) for name in "abcdefgh"]
at, queue = 0, 0
while queue >= 0:
    queue = rt.mq_open(b"/q%d" % at, os.O_CREAT | os.O_RDWR, 0o600, ctypes.byref(Attributes(0, 1, 8192)))
    at += 1
context, number = ctypes.c_ulong(), {"x86_64": 206, "aarch64": 0}[os.uname().machine]
while libc.syscall(number, 1024, ctypes.byref(context)) == 0: context.value = 0
with open("taking", "w") as file: file.write(errno.errorcode[ctypes.get_errno()])
os.rename("taking", "taken")
signal.pause()
"""
ALL_THE_SAME = """
import ctypes, os
libc, rt = ctypes.CDLL(None), ctypes.CDLL("librt.so.1")
class Attributes(ctypes.Structure): _fields_ = [(name, ctypes.c_long) for name in "abcdefgh"]
print(libc.timer_create(1, None, ctypes.byref(ctypes.c_void_p())))
name = b"/orchard-%d" % os.getpid()
print(rt.mq_open(name, os.O_CREAT | os.O_RDWR, 0o600, ctypes.byref(Attributes(0, 1, 8192))) >= 0)
rt.mq_unlink(name)
"""


@pytest.mark.needs_root("an account that sandboxes share with the machine")
async def test_what_the_kernel_counts_for_an_account_is_left_to_the_machine(sandbox: AsyncSandbox) -> None:
    """Queued signals, message queues, asynchronous I/O: one sandbox took all that the machine's root had."""
    await sandbox.exec(["python3", "-c", TAKE_ALL], wait=False)
    taken = await sandbox.exec("until [ -e taken ]; do sleep 0.01; done; cat taken")
    assert taken.stdout == "ENOSYS"  # of asynchronous I/O: libraries do without
    machine = await asyncio.create_subprocess_exec(
        "python3", "-c", ALL_THE_SAME, stdout=asyncio.subprocess.PIPE
    )
    assert (await machine.communicate())[0] == b"0\nTrue\n"
