"""Root inside a sandbox is nobody outside: hostile probes, and the limits."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest

from orchard.injector.client import AsyncSandbox, AsyncSandboxClient
from orchard.injector.errors import SandboxError

if TYPE_CHECKING:
    from tests.injector.conftest import Service


def call(arguments: str) -> str:
    """A system call by number; succeeds when the call does."""
    return f'python3 -c "import ctypes, sys; sys.exit(ctypes.CDLL(None).syscall({arguments}) < 0)"'


# Numbers of system calls, for what has no command line.
X86 = os.uname().machine == "x86_64"
FINIT_MODULE, REBOOT, KEYCTL = (313, 169, 250) if X86 else (273, 142, 219)
OPEN_BY_HANDLE, BPF = (304, 321) if X86 else (265, 280)

REFUSED = {
    "mount a tmpfs": "mount -t tmpfs none /mnt || mount -t tmpfs none /tmp",
    "remount the root": "mount -o remount,bind,suid,dev /",
    "remount /proc/sys": "mount -o remount,bind,rw /proc/sys",
    "unmount what hides things": "umount /proc/sys || umount /proc/keys",
    "a user namespace of its own": "unshare --user --map-root-user true",
    "a mount namespace of its own": "unshare --mount true",
    "enter the namespaces of another process": "nsenter --target 1 --mount true",
    "load a module": call(f"{FINIT_MODULE},0,b'',0"),
    "make a disk": "mknod /tmp/disk b 254 0 || mknod /tmp/disk b 8 0",
    "make a memory device": "mknod /tmp/mem c 1 1",
    "write a kernel setting": "echo 0 > /proc/sys/kernel/randomize_va_space",
    "write the core pattern": "echo '|/tmp/x' > /proc/sys/kernel/core_pattern",
    "trigger sysrq": "echo h > /proc/sysrq-trigger && test ! -c /proc/sysrq-trigger",
    "read kernel memory": "head -c 1 /proc/kcore | grep -q .",
    "see control groups": "ls /sys/fs/cgroup/*",
    "read the kernel log": "dmesg",
    "set the clock": "date --set 2030-01-01",
    "set the host name": "hostname evil",
    "change its own program": "echo x > /proc/1/exe",
    "reboot": call(f"{REBOOT},0xfee1dead,672274793,0"),
    "use a keyring": call(f"{KEYCTL},0,-3,0"),
    "open files by handle": call(f"{OPEN_BY_HANDLE},3,b'',0"),
    "use bpf": call(f"{BPF},0,b'',0"),
    "lower its own adjustment for the out-of-memory killer": "echo -1000 > /proc/self/oom_score_adj",
    "reach the network": "python3 -c 'import socket; socket.create_connection((\"1.1.1.1\", 53), 2)'",
}


@pytest.mark.parametrize("what", REFUSED)
async def test_root_inside_may_not(sandbox: AsyncSandbox, what: str) -> None:
    job = await sandbox.exec(REFUSED[what])
    assert job.exit_code not in (0, None), job


async def test_it_is_root_with_few_capabilities_and_no_way_to_more(sandbox: AsyncSandbox) -> None:
    job = await sandbox.exec("id -u; grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status")
    status = dict(line.split(":\t") for line in job.stdout.splitlines()[1:])
    sys_admin, sys_ptrace, mknod, net_admin, dac_read_search = 21, 19, 27, 12, 2
    assert job.stdout.startswith("0\n")
    assert status["CapEff"] == status["CapPrm"] == status["CapBnd"]
    for capability in (sys_admin, sys_ptrace, mknod, net_admin, dac_read_search):
        assert not int(status["CapBnd"], 16) >> capability & 1
    assert int(status["CapInh"], 16) == int(status["CapAmb"], 16) == 0
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


@pytest.mark.long
@pytest.mark.needs_root("several users in a sandbox")
async def test_ordinary_root_work_is_possible(sandbox: AsyncSandbox) -> None:
    job = await sandbox.exec(
        "set -e; touch f; chown 1000:1000 f; chmod u+s f; mkdir /usr/new;"
        "mv /usr/share/perl5 /usr/share/moved;"
        "python3 -c 'import os; os.setgid(1000); os.setuid(1000); print(os.getuid())';"
        "python3 -m venv /tmp/v;"
        '/tmp/v/bin/python -c \'import socket; socket.create_server(("127.0.0.1", 80)); print("listening")\';'
        "echo 'int main(){return 0;}' > x.c; gcc x.c -o x; ./x; echo y > /dev/null; ls /dev/pts;"
        "git init -q /tmp/r"
    )
    assert (job.exit_code, job.stderr) == (0, "")
    assert job.stdout.splitlines()[:2] == ["1000", "listening"]


async def test_no_process_of_the_host_is_visible(sandbox: AsyncSandbox) -> None:
    job = await sandbox.exec("cat /proc/[0-9]*/comm; hostname; cat /proc/1/environ")
    assert "python" not in job.stdout
    assert f"sandbox-{sandbox.sandbox_id}" in job.stdout


@pytest.mark.needs_root("mounts or writes at the machine's root")
async def test_nothing_of_the_machine_is_mounted_inside(sandbox: AsyncSandbox) -> None:
    job = await sandbox.exec("cut -d' ' -f2,4 /proc/mounts")
    mounts = dict(line.split() for line in job.stdout.splitlines())
    assert {path.split("/")[1] for path in mounts} == {"", "dev", "proc"}
    writable = {path for path, options in mounts.items() if options.startswith("rw,")}
    assert writable == {"/", "/proc", "/dev", "/dev/pts"}
    assert all("nosuid" in options for options in mounts.values())


async def test_devices_work_and_their_nodes_are_nobodys_to_change(sandbox: AsyncSandbox) -> None:
    before = [os.stat(f"/dev/{name}") for name in ("null", "tty")]  # noqa: PTH116
    changes = "chmod 600 /dev/null; chown 5 /dev/tty; chmod 777 /dev/null; touch -d 2001-01-01 /dev/null"
    job = await sandbox.exec(f"{changes}; echo x > /dev/null; head -c 3 /dev/zero | wc -c; ls /dev")
    assert job.stderr.count("Read-only file system") >= 3
    assert job.stdout.split()[0] == "3" and {"fd", "full", "pts", "shm", "urandom"} <= {*job.stdout.split()}
    after = [os.stat(f"/dev/{name}") for name in ("null", "tty")]  # noqa: PTH116
    for one, other in zip(before, after, strict=True):
        assert (one.st_mode, one.st_uid) == (other.st_mode, other.st_uid)


async def test_the_first_process_can_nothing(sandbox: AsyncSandbox) -> None:
    status = (await sandbox.exec("cat /proc/1/status")).stdout
    values = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(values[kind], 16) == 0
    assert values["NoNewPrivs"] == "1"


async def test_a_killed_first_process_is_not_possible_from_inside(sandbox: AsyncSandbox) -> None:
    job = await sandbox.exec("kill -9 1; sleep 0.1; echo still here")
    assert job.stdout == "still here\n"


async def test_descriptors_of_ours_do_not_come_along(sandbox: AsyncSandbox) -> None:
    job = await sandbox.exec(["python3", "-c", "import os; print(sorted(os.listdir('/proc/self/fd')))"])
    assert job.stdout == "['0', '1', '2', '3']\n"  # 3 is the directory being listed


async def test_of_the_host_only_programs_are_visible(sandbox: AsyncSandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    job = await sandbox.exec(
        "ls -A /; echo --; ls -A /root /home /var /run /tmp /etc/shadow /etc/ssh /etc/pip.conf /etc/gitconfig"
        f" {tmp_path} 2>/dev/null; echo --; cat /etc/passwd"
    )
    top, below, accounts = job.stdout.split("--\n")
    allowed = {"bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "opt", "etc"}
    ours = {"dev", "proc", "sys", "tmp", "var", "run", "root", "workspace"}
    empty = {"boot", "home", "media", "mnt", "srv"}
    assert set(top.split()) <= allowed | ours | empty
    assert set(below.split()) <= {"/root:", "/home:", "/var:", "/run:", "/tmp:", "tmp"}
    assert "root:x:0:0" in accounts


@pytest.mark.needs_root("mounts or writes at the machine's root")
async def test_a_directory_that_appears_on_the_host_later_does_not_appear_inside(
    sandbox: AsyncSandbox,
) -> None:
    await sandbox.exec("ls /")
    new = Path("/orchard-test-appears-later")
    new.mkdir()
    try:
        job = await sandbox.exec(["ls", "-d", str(new)])
    finally:
        new.rmdir()
    assert job.exit_code == 2


async def test_the_interpreter_is_ours_wherever_it_lives(sandbox: AsyncSandbox) -> None:
    job = await sandbox.exec(
        "python3 -c 'import sys, ssl, sqlite3, ctypes; print(sys.version)'; pip --version"
    )
    version, pip = job.stdout.splitlines()[0], job.stdout.splitlines()[-1]
    assert version == sys.version.splitlines()[0]
    assert pip.startswith("pip ")


@pytest.mark.needs_root("limits of memory and processes")
async def test_a_command_out_of_memory_is_told_apart_and_the_sandbox_lives(
    client: AsyncSandboxClient,
) -> None:
    async with await client.create_sandbox("host", memory="64Mi") as sandbox:
        eater = await sandbox.exec(["python3", "-c", "x = b'x' * 300_000_000"])
        modest = await sandbox.exec("echo fine")
    assert (eater.oom_killed, eater.error, eater.exit_code) == (True, "out of memory", -9)
    assert (modest.oom_killed, modest.stdout) == (False, "fine\n")


@pytest.mark.needs_root("limits of memory and processes")
async def test_an_oom_kill_deep_inside_a_command_is_seen(client: AsyncSandboxClient) -> None:
    async with await client.create_sandbox("host", memory="64Mi") as sandbox:
        job = await sandbox.exec("python3 -c 'x = b\"x\" * 300_000_000'; echo went on")
    assert (job.oom_killed, job.stdout, job.exit_code) == (True, "went on\n", 0)


@pytest.mark.needs_root("limits of memory and processes")
async def test_files_in_memory_count(client: AsyncSandboxClient) -> None:
    async with await client.create_sandbox("host", memory="64Mi") as sandbox:
        full = await sandbox.exec("head -c 200000000 /dev/zero > /dev/shm/x")
        assert "No space left" in full.stderr and not full.oom_killed
        assert (await sandbox.exec(["python3", "-c", "bytearray(40 * 2**20)"])).oom_killed


@pytest.mark.needs_root("limits of memory and processes")
async def test_a_fork_bomb_stays_inside(service: "Service", client: AsyncSandboxClient) -> None:
    body = {"image": "host", "pids": 50, "sandbox_id": "bomb"}
    async with aiohttp.ClientSession(service.url) as http:
        await http.post("/sandboxes", json=body)
        await http.get("/sandboxes/bomb/wait")
    sandbox = await client.get_sandbox("bomb")
    count = (
        "import os, time\nn = 0\ntry:\n  while True:\n    if os.fork() == 0: time.sleep(1000)\n    n += 1\n"
        "except BlockingIOError: print(n)"
    )
    job = await sandbox.exec(["timeout", "-s", "KILL", "30", "python3", "-c", count])
    await sandbox.delete()
    assert 0 < int(job.stdout) < 50


@pytest.mark.needs_root("a limit of processor time")
async def test_processor_time_is_limited(client: AsyncSandboxClient) -> None:
    """A tenth of a core: ten times as much wall time as processor time."""
    async with await client.create_sandbox("host", cpu="100m") as sandbox:
        code = (
            "import time\nstarted = time.monotonic()\n"
            "while time.process_time() < 0.1: pass\nprint(time.monotonic() - started)"
        )
        job = await sandbox.exec(["python3", "-c", code])
    assert float(job.stdout) > 0.5


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """With room for the interpreter's layer, which cannot be hard-linked here."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300m", "none", str(disk)], check=True)
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.long
@pytest.mark.needs_root("mounts or writes at the machine's root")
async def test_a_full_disk_fails_the_command_and_the_upload_not_the_service(
    small_disk: Path, start_service: "type[Service]"
) -> None:
    running = start_service(small_disk / "state")
    try:
        async with running.client() as client:
            sandbox = await client.create_sandbox("host")
            job = await sandbox.exec("head -c 400000000 /dev/zero > large")
            assert job.exit_code == 1 and "No space left" in job.stderr
            with pytest.raises(SandboxError, match="No space left") as error:
                await sandbox.upload_content(b"x" * 10_000_000, "/workspace/more")
            assert error.value.reason == "write_failed"
            assert (await sandbox.exec("rm large; echo fine")).stdout == "fine\n"
    finally:
        running.stop()


def test_the_agents_socket_is_for_its_owner_only(service: "Service") -> None:
    assert oct((service.state / "agent.sock").stat().st_mode)[-3:] == "600"
    assert oct(service.state.stat().st_mode)[-3:] == "700"


async def test_a_virtual_machines_line_to_its_host_is_closed(sandbox: AsyncSandbox) -> None:
    """AF_VSOCK is not parted by a network namespace."""
    job = await sandbox.exec(["python3", "-c", "import socket; socket.socket(40, socket.SOCK_STREAM)"])
    assert "Address family not supported" in job.stderr


async def test_what_the_machine_keeps_in_opt_is_not_shown(sandbox: AsyncSandbox) -> None:
    shown = await sandbox.exec("ls -A /opt 2>/dev/null")
    assert shown.stdout == ""
