"""The payload as the first process of something like a container: a root of busybox, made by bubblewrap."""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from orchard.injector.agent.signing import Seal, sandbox_key
from orchard.injector.agent_connection import INTRODUCTION, AgentConnection
from orchard.injector.payload import launch
from orchard.schemas.sandboxes import Job, JobQueued

DEADLINE = 30.0
PLACE = "/orchard"
ID = "s1"
KEY = sandbox_key(b"a secret of the orchestrators only", ID, "0d4f")

# fmt: off
CONTAINER_CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "NET_BIND_SERVICE",
    "NET_RAW", "SYS_CHROOT", "MKNOD", "AUDIT_WRITE", "SETFCAP",
)
# fmt: on
"""What containerd leaves to root in a container."""
_BECOME = (
    "import os, resource, sys; uid, processes = int(sys.argv[1]), int(sys.argv[2])\n"
    "if processes: resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))\n"
    "os.setgroups([]); os.setgid(uid); os.setuid(uid); os.execv(sys.argv[3], sys.argv[3:])"
)
USERS = ("root", "root of a user namespace", "1000")


def python(code: str, *arguments: str) -> list[str]:
    """A command that runs this code by the payload's interpreter."""
    return [*launch.command(PLACE)[:-1], "-c", code, *arguments]


def become(uid: int, processes: int = 0) -> list[str]:
    """The beginning of a command run by that user, who may have so many processes on the whole machine.

    0: as many as we.
    """
    return python(_BECOME, str(uid), str(processes))


def busybox_root(place: Path) -> Path:
    """A directory with nothing but busybox, open to everybody."""
    busybox = shutil.which("busybox")
    assert busybox is not None, "install a static busybox (Debian: `apt-get install busybox-static`)"
    for name in ("bin", "tmp", "proc", "dev", "sys", PLACE[1:]):
        (place / name).mkdir(parents=True)
        (place / name).chmod(0o1777 if name == "tmp" else 0o755)
    place.chmod(0o777)
    shutil.copy(busybox, place / "bin/busybox")
    names = subprocess.run([busybox, "--list"], check=True, capture_output=True, text=True).stdout.split()
    for name in set(names) - {"busybox"}:
        (place / "bin" / name).symlink_to("busybox")
    return place


class PodAgent:
    """A payload that serves, and the line to it."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int, pid: int) -> None:
        self.process = process
        self.port = port
        self.pid = pid
        """Of the container's first process, as this machine sees it."""
        self.connection = self.connect(Seal(KEY))

    def connect(self, seal: Seal | None, port: int | None = None) -> AgentConnection:
        return AgentConnection(
            aiohttp.TCPConnector(limit=0), f"http://127.0.0.1:{port or self.port}", seal=seal
        )

    async def introduced(self) -> bool:
        """Whether it says that it was given a key."""
        line = self.connect(None)
        try:
            return bool((await line.call(dict[str, Any], "GET", "/health"))["introduced"])
        finally:
            await line.close()

    async def run(self, command: str | list[str], *, key: str | None = None, **fields: Any) -> Job:
        """Execute and wait, in `/` unless told otherwise."""
        body = msgspec.json.encode({"command": command, "cwd": "/", "wait": True, **fields})
        path = f"/sandboxes/{ID}/exec"
        return await self.connection.call(Job, "POST", path, body=body, key=key or os.urandom(8).hex())

    async def begin(self, command: str | list[str], **fields: Any) -> str:
        """Start; returns the job's id."""
        body = msgspec.json.encode({"command": command, "cwd": "/", **fields})
        path = f"/sandboxes/{ID}/exec"
        return (await self.connection.call(JobQueued, "POST", path, body=body)).job_id

    async def read(self, path: str) -> bytes:
        async with self.connection.stream(f"/sandboxes/{ID}/files", {"path": path}) as pieces:
            return b"".join([piece async for piece in pieces])

    async def write(self, path: str, content: Any) -> None:
        params = {"path": path}
        await self.connection.call(dict, "PUT", f"/sandboxes/{ID}/files", params=params, body=content)

    def spawner(self) -> int:
        """Its process id on this machine: the only child of the agent."""
        return int(Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()[0])

    def gone(self) -> None:
        """Wait until the container is."""
        self.process.wait(DEADLINE)


async def proof(line: AgentConnection) -> None:
    """Raises SandboxFailed unless the agent has the key."""
    await line.call(dict[str, Any], "GET", INTRODUCTION)


@contextlib.contextmanager
def container(
    payload: Path, command: Sequence[str], *options: str, user: str = "root", **popen: Any
) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """A container whose first process is `command`, and that one's process id here."""
    told, tell = os.pipe()
    line = ["bwrap", "--unshare-pid", "--unshare-ipc", "--as-pid-1", "--die-with-parent", "--clearenv"]
    line += ["--info-fd", str(tell), *options]
    line += ["--ro-bind", str(payload), PLACE, "--proc", "/proc", "--dev", "/dev", "--cap-drop", "ALL"]
    if user == "root":
        line += [word for name in CONTAINER_CAPABILITIES for word in ("--cap-add", f"CAP_{name}")]
    elif user == "root of a user namespace":
        line += ["--unshare-user", "--uid", "0", "--gid", "0"]
    else:
        line += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    for name, value in launch.ENVIRONMENT.items():
        line += ["--setenv", name, value]
    process = subprocess.Popen([*line, *command], stdout=subprocess.PIPE, pass_fds=[tell], **popen)
    os.close(tell)
    with os.fdopen(told) as information:
        pid = json.load(information)["child-pid"]
    try:
        yield process, pid
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # having become another user, it does not die with its parent
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def port_told(process: "subprocess.Popen[bytes]") -> int:
    """The line in which an agent says where it serves."""
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], DEADLINE)[0], "the agent says where it serves"
    return int(process.stdout.readline())


@contextlib.asynccontextmanager
async def pod_agent(
    payload: Path,
    root: Path | None,
    *options: str,
    user: str = "root",
    start: Sequence[str] = (),
    introduced: bool = True,
    grace: float = 0,
    **popen: Any,
) -> AsyncIterator[PodAgent]:
    """An agent in a root, introduced; it must end by SIGTERM, and well, unless it has ended."""
    if user.isdigit():
        start = [*become(int(user)), *start]
    base = [] if root is None else ["--bind", str(root), "/"]
    own = ("--grace", str(grace)) if grace else ()
    serve = launch.command(PLACE, "--serve", "--port", "0", "--sandbox", ID, *own)
    with container(payload, [*start, *serve], *base, *options, user=user, **popen) as (process, pid):
        agent = PodAgent(process, port_told(process), pid)
        try:
            if introduced:
                await agent.connection.introduce()
            yield agent
            if process.poll() is None:
                os.kill(pid, signal.SIGTERM)
                assert process.wait(DEADLINE) == 0
        finally:
            await agent.connection.close()


async def eventually(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Ask until it holds; each question is a command in the sandbox, which takes its time."""
    for _ in range(1000):
        if await condition():
            return
    raise AssertionError(f"never: {what}")
