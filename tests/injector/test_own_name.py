"""What programs expect of the machine that they run on: a name that resolves, devices with a size."""

from pathlib import Path

import pytest

from orchard.injector.agent.local import names
from orchard.injector.agent.local.building import system_v
from orchard.injector.client import AsyncSandbox, AsyncSandboxClient

RESOLVE = ["python3", "-c", "import socket; print(socket.gethostbyname(socket.gethostname()))"]


async def test_its_own_name_resolves_also_in_copies_and_with_rules(client: AsyncSandboxClient) -> None:
    sandbox = await client.create_sandbox("host")
    assert (await sandbox.exec(RESOLVE)).stdout == "127.0.0.1\n"
    assert (await sandbox.take_snapshot("untouched")).size == 0
    await sandbox.exec("echo 127.0.0.2 database >> /etc/hosts; sed -i s/0.0.2/0.0.3/ /etc/hosts")
    (fork,) = await sandbox.fork()
    ran = await fork.exec([*RESOLVE[:2], f"{RESOLVE[2]}; print(socket.gethostbyname('database'))"])
    assert ran.stdout == "127.0.0.1\n127.0.0.3\n"
    rules = await client.create_sandbox("host", egress=["192.0.2.1:80"])
    assert (await rules.exec(RESOLVE)).stdout == "127.0.0.1\n"
    await sandbox.exec("rm /etc/hosts")
    (fork,) = await sandbox.fork()
    assert (await fork.exec("ls /etc/hosts")).exit_code != 0


def test_the_images_own_lines_stay(tmp_path: Path) -> None:
    for name, hosts in (("upper", None), ("middle", b"10.0.0.1 db"), ("lower", b"10.0.0.2 db\n")):
        (tmp_path / name / "etc").mkdir(parents=True, mode=0o755)
        if hosts is not None:
            (tmp_path / name / "etc/hosts").write_bytes(hosts)
    layers = [tmp_path / name for name in ("upper", "middle", "lower")]
    made = names.with_own_name(layers, tmp_path / "own", "abc")
    assert made == [tmp_path / "own", *layers]
    assert (tmp_path / "own/etc/hosts").read_text() == "10.0.0.1 db\n127.0.0.1 sandbox-abc\n"


@pytest.mark.parametrize("kind", ["no etc", "a link", "etc is a link", "a directory", "large"])
def test_an_image_that_has_something_else_there_keeps_it(tmp_path: Path, kind: str) -> None:
    layer = tmp_path / "layer"
    layer.mkdir()
    if kind == "etc is a link":
        (layer / "etc").symlink_to("/usr/etc")
    elif kind != "no etc":
        (layer / "etc").mkdir()
    if kind == "a link":
        (layer / "etc/hosts").symlink_to("/run/hosts")
    elif kind == "a directory":
        (layer / "etc/hosts").mkdir()
    elif kind == "large":
        (layer / "etc/hosts").write_bytes(bytes(names.MOST + 1))
    assert names.with_own_name([layer], tmp_path / "own", "abc") == [layer]


async def test_what_outlives_processes_is_half_of_the_memory_at_most(client: AsyncSandboxClient) -> None:
    """Files in /dev and shared memory: a sandbox full of them could run nothing any more."""
    sandbox = await client.create_sandbox("host", memory="128Mi")
    for place in ("/dev/full-up", "/dev/shm/full-up"):
        full = await sandbox.exec(f"head -c 1G /dev/zero > {place}; stat -c %s {place}; rm {place}")
        assert "No space left" in full.stderr and full.stdout == f"{64 * 2**20}\n"
    for name, value in system_v(128 * 2**20).items():
        assert (await sandbox.exec(f"cat /proc/sys/kernel/{name}")).stdout.split() == value.split()
    assert (await sandbox.exec("stat -c %a /dev/shm")).stdout == "1777\n"


FILL = """
import ctypes, os
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
while (segment := libc.shmget(0, 1 << 20, 0o1600)) >= 0:
    ctypes.memset(libc.shmat(segment, None, 0), 1, 1 << 20)
while libc.semget(0, 1000, 0o1600) >= 0: pass
while (queue := libc.msgget(0, 0o1600)) >= 0:
    while libc.msgsnd(queue, ctypes.byref(ctypes.c_long(1)), 0, 0o4000) == 0: pass
with open("/dev/shm/full-up", "wb", buffering=0) as file:
    while file.write(bytes(1 << 20)): pass
"""


async def test_with_all_of_it_full_commands_go_on(client: AsyncSandboxClient) -> None:
    sandbox = await client.create_sandbox("host", memory="64Mi")
    filled = await sandbox.exec(["python3", "-c", FILL])
    assert (filled.oom_killed, "No space left" in filled.stderr) == (False, True)
    assert (await sandbox.exec(["python3", "-c", "print('fine')"])).stdout == "fine\n"


async def test_directories_of_any_depth_are_removed(sandbox: AsyncSandbox) -> None:
    make = (
        "import os\nos.chdir('/workspace')\n"
        "for _ in range(1500): os.mkdir('d'); open('f', 'w').close(); os.symlink('/etc', 'l'); os.chdir('d')"
    )
    await sandbox.exec(["python3", "-c", f"{make}\nos.chdir('/workspace'); os.mkdir('d/other')"])
    await sandbox.remove("/workspace/d")
    assert [entry.name for entry in await sandbox.list_files("/workspace")] == ["f", "l"]
    assert (await sandbox.exec("test -e /etc/passwd")).exit_code == 0
