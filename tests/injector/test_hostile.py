"""Hostile probes: an attacker with root in one sandbox, a victim in another, and the machine around both.

Every probe ends with the same questions: does the service answer, is the victim as it was, and is nothing
left of the attacker once it is deleted? What root inside is refused one by one is in test_isolation.py.
"""

import asyncio
import base64
import contextlib
import io
import os
import tarfile
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest

from orchard.injector.agent.local.cgroups import Cgroups, cgroup_name
from orchard.injector.client import AsyncSandbox, AsyncSandboxClient
from orchard.injector.errors import SandboxError, SandboxRequestInvalid
from tests.injector.direct import Direct

if TYPE_CHECKING:
    from tests.injector.conftest import Service

Eventually = Callable[[Callable[[], bool], str], None]


class Arena:
    """The two sandboxes; `mark` is a word that only the victim, or only the machine, has."""

    def __init__(
        self, service: "Service", client: AsyncSandboxClient, attacker: AsyncSandbox, victim: AsyncSandbox
    ) -> None:
        self.service = service
        self.client = client
        self.attacker = attacker
        self.victim = victim
        self.mark = uuid.uuid4().hex

    async def attack(self, command: str | list[str], timeout: float = 60.0) -> str:
        """What the attacker's command prints."""
        job = await self.attacker.exec(command, timeout_seconds=timeout)
        return job.stdout + job.stderr


@pytest.fixture
async def arena(
    service: "Service", client: AsyncSandboxClient, eventually: Eventually
) -> AsyncIterator[Arena]:
    victim = await client.create_sandbox("host", cpu="1", memory="256Mi")
    attacker = await client.create_sandbox("host", cpu="1", memory="256Mi")
    made = Arena(service, client, attacker, victim)
    prepare = (
        f"echo {made.mark} > /workspace/secret; echo {made.mark} > /dev/shm/{made.mark};"
        f"exec -a {made.mark} sleep 1061 & echo $! > pid"
    )
    assert (await victim.exec(["bash", "-c", prepare])).succeeded
    yield made
    still = await victim.exec(["bash", "-c", "cat secret; kill -0 $(cat pid) && echo alive"])
    assert still.stdout == f"{made.mark}\nalive\n"
    assert (await client.health())["status"] == "healthy"
    attacker_id = attacker.sandbox_id
    await attacker.delete()
    await victim.delete()
    eventually(lambda: not members(attacker_id), "the attacker's processes are gone")
    assert not (service.state / "sandboxes" / attacker_id).exists()
    groups = Cgroups(service.state.resolve()).layout.parents.values()
    name = cgroup_name(service.state.resolve())
    assert not [parent for parent in groups if (parent / name / attacker_id).exists()]


def members(sandbox_id: str) -> set[int]:
    """Processes of this machine that belong to a sandbox, by their control group or host name."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if sandbox_id in (path / "cgroup").read_text():
                found.add(int(path.name))
    return found


# -- other sandboxes -----------------------------------------------------------------------------------------


async def test_files_of_others_are_nowhere(arena: Arena) -> None:
    search = (
        f"find / -name '*{arena.mark}*' -not -path '/proc/*' 2>/dev/null; ls /proc/*/root/workspace/secret;"
        f"grep -rs {arena.mark} /workspace /tmp /dev/shm /run /var /root"
    )
    assert arena.mark not in (await arena.attack(search)).replace(f"*{arena.mark}*", "")


async def test_processes_of_others_are_not_seen_and_not_signalled(arena: Arena) -> None:
    seen = await arena.attack(["bash", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; kill -9 -1"])
    assert arena.mark not in seen
    everybody = "import os\nfor pid in range(2, 40000):\n  try: os.kill(pid, 9)\n  except OSError: pass"
    await arena.attack(["python3", "-c", everybody])
    assert await arena.attack("echo alive") == "alive\n"


async def test_a_stopped_world_is_only_its_own(arena: Arena) -> None:
    """SIGSTOP to everybody, itself included; the command's time limit still ends it."""
    job = await arena.attacker.exec("kill -STOP -1; kill -STOP $$", timeout_seconds=1)
    assert (job.exit_code, job.timed_out) == (124, True)
    assert await arena.attack("echo alive") == "alive\n"


async def test_abstract_sockets_are_their_own(arena: Arena) -> None:
    listen = (
        f"import socket, time\ns = socket.socket(socket.AF_UNIX)\ns.bind('\\x00{arena.mark}')\ns.listen()\n"
        "print(1, flush=True)\ntime.sleep(1000)"
    )
    await arena.victim.upload_content(listen, "/workspace/listen.py")
    await arena.victim.exec("python3 listen.py > up & until [ -s up ]; do sleep 0.01; done")
    connect = f"import socket; socket.socket(socket.AF_UNIX).connect('\\x00{arena.mark}')"
    assert "ConnectionRefusedError" in await arena.attack(["python3", "-c", connect])
    assert arena.mark not in await arena.attack("cat /proc/net/unix")
    assert arena.mark in (await arena.victim.exec("cat /proc/net/unix")).stdout


async def test_shared_memory_semaphores_and_queues_are_their_own(arena: Arena) -> None:
    """System V by number and POSIX by name."""
    make = (
        "import ctypes; c = ctypes.CDLL(None)\n"
        "print(c.shmget(4711, 4096, 0o1666), c.semget(4711, 1, 0o1666), c.msgget(4711, 0o1666))"
    )
    assert "-1" not in (await arena.victim.exec(["python3", "-c", make])).stdout
    look = make.replace("0o1666", "0")
    assert await arena.attack(["python3", "-c", look]) == "-1 -1 -1\n"
    assert "-1" not in (await arena.victim.exec(["python3", "-c", look])).stdout
    assert await arena.attack("ls /dev/shm /dev/mqueue 2>/dev/null") in ("", "/dev/shm:\n")


# -- paths that lead out -------------------------------------------------------------------------------------

LINKS = "ln -s /proc/1/root proc; ln -s / root; ln -s ../../../../../../.. up; ln -s /proc/self/cwd cwd"
PATHS = (
    "{}",
    "/../../..{}",
    "/workspace/up/up{}",
    "/workspace/root{}",
    "/workspace/proc{}",
    "/workspace/cwd/../..{}",
    "/proc/1/root{}",
    "/proc/self/root{}",
    "/proc/1/cwd{}",
    "/proc/self/fd/../root{}",
    "/dev/fd/../root{}",
)
"""Ways to a file of the machine."""


@pytest.fixture
def outside() -> Iterator[Path]:
    """A directory of the machine, with a secret, that no sandbox may reach."""
    place = Path("/var/tmp") / f"orchard-{uuid.uuid4().hex}"
    place.mkdir()
    (place / "secret").write_text("of the machine")
    yield place
    assert sorted(path.name for path in place.iterdir()) == ["secret"]
    assert (place / "secret").read_text() == "of the machine"
    (place / "secret").unlink()
    place.rmdir()


@pytest.mark.parametrize("path", PATHS)
async def test_no_route_leads_out(arena: Arena, outside: Path, path: str) -> None:
    """Reading, listing, writing, packing, unpacking, patching: refused, or inside."""
    box = arena.attacker
    await arena.attack(LINKS)
    file, directory = path.format(outside / "secret"), path.format(outside)
    with pytest.raises(SandboxError):
        await box.download_content(file)
    with pytest.raises(SandboxError):
        await box.list_files(directory)
    backend = Direct(arena.service.state, start_agent=False)
    await backend.open()
    with pytest.raises(SandboxError):
        async with backend.read("archive", box.sandbox_id, directory) as pieces:
            [piece async for piece in pieces]
    with contextlib.suppress(SandboxError):
        await box.upload_content("planted", path.format(outside / "planted"))
    with contextlib.suppress(SandboxError):
        await backend.write("archive", box.sandbox_id, directory, tarball("planted"))
    await backend.close()
    relative = path.format(outside / "planted").lstrip("/")
    patch = f"--- /dev/null\n+++ b/{relative}\n@@ -0,0 +1 @@\n+planted\n"
    await box.apply_patch(patch, cwd="/")


def tarball(name: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(name))
    return buffer.getvalue()


async def test_a_directory_that_becomes_a_link_while_files_arrive(arena: Arena, outside: Path) -> None:
    """Whichever it is at each step of a path, it is inside."""
    swap = (
        f"mkdir -p a{outside} real; echo mine > real/secret; i=0; while [ $i -lt 3000 ]; do "
        f"ln -sfn {outside} link; mv -T link d 2>/dev/null; rm -rf d; mkdir d; cp real/secret d; rm -rf d;"
        "i=$((i+1)); done"
    )
    running = await arena.attacker.exec(swap, wait=False, timeout_seconds=60)
    backend = Direct(arena.service.state, start_agent=False)
    await backend.open()
    box = arena.attacker
    read: set[bytes] = set()
    for _ in range(60):
        for work in (
            box.upload_content("planted", "/workspace/d/planted"),
            backend.write("archive", box.sandbox_id, "/workspace/d", tarball("planted")),
            backend.write("archive", box.sandbox_id, "/workspace", tarball("d/planted")),
        ):
            with contextlib.suppress(SandboxError):
                await work
        with contextlib.suppress(SandboxError):
            read.add(await box.download_content("/workspace/d/secret"))
    await backend.close()
    await box.cancel_job(running.job_id)
    assert b"of the machine" not in read


async def test_root_cannot_change_root_and_climb_out(arena: Arena, outside: Path) -> None:
    """The way out of a plain chroot. A sandbox may chroot, but its root is that of a mount namespace."""
    climb = (
        "import os\nos.mkdir('x'); fd = os.open('.', os.O_RDONLY); os.chroot('x'); os.fchdir(fd)\n"
        "for _ in range(50): os.chdir('..')\n"
        f"os.chroot('.'); print(os.path.exists('{outside}'), os.listdir('/'))"
    )
    said = await arena.attack(["python3", "-c", climb])
    assert said.startswith("False") and "workspace" in said


# -- the service itself --------------------------------------------------------------------------------------


async def test_keys_and_the_environment_of_ours_are_not_inside(
    tmp_path: Path, start_service: "type[Service]"
) -> None:
    key = f"key-{uuid.uuid4().hex}"
    running = start_service(tmp_path / "state", env={"SANDBOX_API_KEY": key, "CLOUD_SECRET": key})
    try:
        async with running.client(api_key=key) as client:
            sandbox = await client.create_sandbox("host")
            search = (
                "env; cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n';"
                f"cat /proc/cmdline /proc/net/unix; grep -rsF {key[:8]} /etc /run /var /tmp /root /workspace"
            )
            job = await sandbox.exec(search)
            assert key not in job.stdout and "CLOUD_SECRET" not in job.stdout
            assert str(running.state) not in job.stdout and "agent.sock" not in job.stdout
            agents = Path(f"/proc/{running.agent_pid}/environ").read_bytes()
            assert key.encode() not in agents and b"CLOUD_SECRET" not in agents
    finally:
        running.stop()


async def test_neither_agent_nor_orchestrator_can_be_reached_or_replaced(arena: Arena) -> None:
    """Whatever listens inside is asked by nobody; what listens outside is out of reach."""
    state = arena.service.state
    forge = (
        f'mkdir -p {state}; python3 -c "import socket; s = socket.socket(socket.AF_UNIX);'
        f"s.bind('{state}/agent.sock'[:100]); s.listen()\" & sleep 0.1;"
        f"python3 -c \"import socket; socket.create_connection(('127.0.0.1', {arena.service.port}), 2)\""
    )
    assert "ConnectionRefusedError" in await arena.attack(forge)
    assert (await arena.client.get_sandbox(arena.victim.sandbox_id)).sandbox_id == arena.victim.sandbox_id


# -- taking everything ---------------------------------------------------------------------------------------


async def test_a_fork_bomb_ends_with_its_sandbox(arena: Arena, eventually: Eventually) -> None:
    body = {"image": "host", "pids": 100, "cpu": "1", "sandbox_id": f"bomb-{arena.mark[:8]}"}
    async with aiohttp.ClientSession(arena.service.url) as http:
        await http.post("/sandboxes", json=body)
        await http.get(f"/sandboxes/{body['sandbox_id']}/wait")
    bomb = await arena.client.get_sandbox(str(body["sandbox_id"]))
    job = await bomb.exec("bomb() { bomb | bomb & }; bomb; sleep 1", timeout_seconds=2)
    assert job.is_complete
    assert (await arena.victim.exec("echo fine")).stdout == "fine\n"
    refused = await bomb.exec("true", timeout_seconds=5)
    assert refused.is_complete
    await bomb.delete()
    eventually(lambda: not members(bomb.sandbox_id), "the bomb's processes are gone")


@pytest.mark.long
@pytest.mark.parametrize(
    "bomb",
    [
        "x = []\nwhile True: x.append(bytes(1 << 20))",
        "import os\nwhile True: os.fork(); x = b'x' * (30 << 20)",
        "f = open('/dev/shm/x', 'wb')\nwhile True: f.write(bytes(1 << 20))",
        "import mmap\nx = []\nwhile True: x.append(mmap.mmap(-1, 1 << 20)); x[-1].write(bytes(1 << 20))",
    ],
    ids=["heap", "many processes", "files in memory", "shared memory"],
)
async def test_a_memory_bomb_hits_itself_only(arena: Arena, bomb: str) -> None:
    job = await arena.attacker.exec(["python3", "-c", bomb], timeout_seconds=30)
    assert job.exit_code != 0
    assert (await arena.victim.exec("head -c 100000000 /dev/zero | tail -c 1 | wc -c")).stdout == "1\n"


async def test_an_output_flood_does_not_fill_the_agent_or_hold_up_others(arena: Arena) -> None:
    def resident() -> int:
        status = Path(f"/proc/{arena.service.agent_pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    await arena.attack("true")
    before = resident()
    flood = "for i in 1 2 3; do (yes | head -c 100000000; yes | head -c 50000000 >&2) & done; wait"
    jobs = [arena.attacker.exec(flood, output_limit=1 << 20, timeout_seconds=60) for _ in range(2)]
    working = asyncio.gather(*jobs)
    assert (await arena.victim.exec("echo fine")).stdout == "fine\n"
    for job in await working:
        assert job.is_complete and len(job.stdout) < 1 << 21
    assert resident() - before < 64 << 20


async def test_children_that_hold_pipes_hide_and_will_not_die(arena: Arena, eventually: Eventually) -> None:
    """Double forks, new sessions, stopped, deaf: the call ends, and with the sandbox so do they."""
    code = (
        "import os, signal, time\n"
        "for number in (1, 2, 3, 13, 15): signal.signal(number, signal.SIG_IGN)\n"
        "for stop in (0, 1):\n"
        "  if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "      if stop: os.kill(os.getpid(), signal.SIGSTOP)\n      time.sleep(1062)\n    os._exit(0)\n"
        "print('ended', flush=True)"
    )
    job = await arena.attacker.exec(["python3", "-c", code], timeout_seconds=20)
    assert (job.stdout, job.exit_code) == ("ended\n", 0)
    stopped = await arena.attacker.exec("trap '' TERM INT HUP; kill -STOP $$", timeout_seconds=0.5)
    assert stopped.timed_out
    await arena.attacker.delete()
    eventually(lambda: not members(arena.attacker.sandbox_id), "they are gone")


@pytest.mark.parametrize("depth", [3000])
async def test_directories_without_end_can_be_removed(arena: Arena, depth: int) -> None:
    dig = f"import os\nfor _ in range({depth}): os.mkdir('d' * 50); os.chdir('d' * 50)"
    assert await arena.attack(["python3", "-c", dig]) == ""
    with pytest.raises(SandboxError):
        await arena.attacker.snapshot("deep:1")
    backend = Direct(arena.service.state, start_agent=False)
    await backend.open()
    with pytest.raises(SandboxRequestInvalid, match="more than 200 levels"):
        async with backend.read("archive", arena.attacker.sandbox_id, "/workspace") as pieces:
            [piece async for piece in pieces]
    await backend.close()


async def test_a_file_that_grows_while_it_is_read_ends(arena: Arena) -> None:
    await arena.attack(
        "head -c 3000000 /dev/zero > f; (while :; do head -c 1000000 /dev/zero >> f; done) & sleep 0.1"
    )
    content = await asyncio.wait_for(arena.attacker.download_content("/workspace/f"), 60)
    assert len(content) >= 3_000_000
    await arena.attack("kill -9 -1")


async def test_names_that_are_no_text_pass_through(arena: Arena) -> None:
    name = base64.b64encode(os.urandom(3)).decode().strip("=").replace("/", "_")
    await arena.attack(["bash", "-c", f"touch -- $'new\\nline' $'\\xff{name}' '-rf' '$(id)'"])
    listed = [entry.name for entry in await arena.attacker.list_files("/workspace")]
    assert {"new\nline", "-rf", "$(id)", f"\udcff{name}"} <= set(listed)
