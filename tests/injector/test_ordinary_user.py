"""The local backend of an ordinary user: the same contract, in a user namespace, without some limits."""

import asyncio
import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from aiohttp import ClientWebSocketResponse

from orchard.injector.client import AsyncSandboxClient
from orchard.injector.errors import SandboxUnsupported
from orchard.injector.tunnels import AsyncTunnel
from orchard.schemas.sandboxes import (
    Acknowledgement,
    CreateSandbox,
    ExecRequest,
    ForkSandbox,
    ImageDeleted,
    ImageInfo,
    Job,
    PullImage,
)
from tests.injector.direct import Direct
from tests.injector.registry import Registry

pytestmark = pytest.mark.needs_root("makes accounts")

Eventually = Callable[[Callable[[], bool], str], None]

USER = 54321
HERE = Path(__file__).parent
ROOT = HERE.parents[1]


class Account:
    """An account without rights that can run our programs, wherever those lie; `ids` is its /etc/subuid."""

    def __init__(self, ids: str = "", user: int = USER) -> None:
        self.user = user
        self.ids = ids
        self.place = Path(tempfile.mkdtemp(prefix="orchard-account-"))
        self.place.chmod(0o755)
        self.state = self.place / "home" / "state"
        self.state.parent.mkdir()
        os.chown(self.state.parent, user, user)
        (self.place / "ids").write_text(ids)
        accounts = Path("/etc/passwd").read_text() + f"account:x:{user}:{user}::/:/bin/sh\n"
        (self.place / "passwd").write_text(accounts)  # newuidmap asks for a name
        for name in ("python", "code", "packages"):
            (self.place / name).mkdir()
        os.mknod(self.place / "tun", 0o020000, os.makedev(10, 200))
        (self.place / "tun").chmod(0o666)  # as distributions have it
        # Bound to where it may look, because they may lie in a directory of root's.
        self._prepare = "; ".join(
            f"mount --bind {source} {target}"
            for source, target in (
                (sys.base_prefix, self.place / "python"),
                (ROOT, self.place / "code"),
                (Path(pytest.__file__).parents[1], self.place / "packages"),
                (self.place / "ids", "/etc/subuid"),
                (self.place / "ids", "/etc/subgid"),
                (self.place / "passwd", "/etc/passwd"),
                (self.place / "tun", "/dev/net/tun"),
            )
        )

    def line(self, *arguments: str, within: str = "") -> list[str]:
        """A command line for this account; `within` is what root begins the last step with."""
        python = self.place / "python" / "bin" / f"python3.{sys.version_info.minor}"
        drop = [
            "setpriv",
            f"--reuid={self.user}",
            f"--regid={self.user}",
            "--clear-groups",
            "--inh-caps=-all",
        ]
        script = f'set -e; {self._prepare}; cd "$0"; exec {within} "$@"'
        return ["unshare", "--mount", "sh", "-c", script, str(self.place), *drop, str(python), *arguments]

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": str(self.state.parent),
            "PYTHONPATH": f"{self.place / 'code'}:{self.place / 'packages'}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "LD_LIBRARY_PATH": str(self.place / "python" / "lib"),
        }

    def start(self) -> "subprocess.Popen[bytes]":
        """An agent that serves."""
        reader, writer = os.pipe()
        agent = ["-m", "orchard.injector.agent", "--state", str(self.state), "--ready-fd", str(writer)]
        process = subprocess.Popen(self.line(*agent), pass_fds=(writer,), env=self.environment)
        os.close(writer)
        with os.fdopen(reader, "rb") as ready:
            assert ready.read(1) == b"1"
        return process

    def run(self, *arguments: str, within: str = "") -> "subprocess.CompletedProcess[str]":
        line = self.line(*arguments, within=within)
        return subprocess.run(line, capture_output=True, text=True, check=False, env=self.environment)

    def remove(self) -> None:
        shutil.rmtree(self.place)


@pytest.fixture(
    scope="module",
    params=["", pytest.param(f"{USER}:700000:65536\n", marks=pytest.mark.slow)],
    ids=["one id", "a range of ids"],
)
def account(request: pytest.FixtureRequest) -> Iterator[Account]:
    made = Account(request.param)
    yield made
    made.remove()


@pytest.fixture(scope="module")
def agent(account: Account) -> Iterator["subprocess.Popen[bytes]"]:
    process = account.start()
    yield process
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0


@pytest.fixture
async def backend(account: Account, agent: "subprocess.Popen[bytes]") -> AsyncIterator[Direct]:
    assert agent.poll() is None
    made = Direct(account.state, start_agent=False)
    await made.open()
    yield made
    for sandbox in await made.list({}):
        await made.delete(sandbox.sandbox_id)
    await made.close()


async def create(backend: Direct, **fields: object) -> str:
    request = CreateSandbox(**{"image": "host", **fields})  # type: ignore[arg-type]
    made = await backend.wait((await backend.create(request, None)).sandbox_id, 200)
    assert made.ready, made
    return made.sandbox_id


async def run(backend: Direct, sandbox_id: str, command: str | list[str], **fields: object) -> Job:
    request = ExecRequest(command=command, wait=True, **fields)  # type: ignore[arg-type]
    job = await backend.exec(sandbox_id, request)
    assert isinstance(job, Job)
    return job


@pytest.mark.long
async def test_it_is_root_inside_and_the_user_outside(
    backend: Direct, agent: "subprocess.Popen[bytes]"
) -> None:
    sandbox = await create(backend)
    await run(backend, sandbox, "sleep 1051 & echo $! > pid")
    job = await run(
        backend, sandbox, "id -u; cat /proc/*/comm; grep -E '^(CapBnd|NoNewPrivs|Seccomp:)' /proc/self/status"
    )
    assert job.stdout.startswith("0\n") and "python" not in job.stdout
    assert "NoNewPrivs:\t1\nSeccomp:\t2\n" in job.stdout
    bounding = int(job.stdout.split("CapBnd:\t")[1].split()[0], 16)
    assert not bounding >> 21 & 1
    status = Path(f"/proc/{agent.pid}/status").read_text()
    assert f"Uid:\t{USER}\t" in status


@pytest.mark.long
async def test_commands_files_and_timeouts(backend: Direct) -> None:
    sandbox = await create(backend)
    await backend.write("files", sandbox, "/workspace/data", b"\xff\x00data")
    async with backend.read("files", sandbox, "/workspace/data") as pieces:
        assert b"".join([piece async for piece in pieces]) == b"\xff\x00data"
    assert (await run(backend, sandbox, "cat > copy; wc -c < data", stdin="x")).stdout == "6\n"
    slow = await run(backend, sandbox, "echo begun; sleep 1052", timeout_seconds=2)
    assert (slow.exit_code, slow.timed_out, slow.stdout) == (124, True, "begun\n")
    held = await run(backend, sandbox, "sleep 1053 & echo done")
    assert (held.exit_code, held.stdout) == (0, "done\n")
    async with backend.read("archive", sandbox, "/workspace") as pieces:
        content = b"".join([piece async for piece in pieces])
    assert (await backend.write("archive", sandbox, "/workspace/again", content)).size == 7


async def test_tunnels_in_and_out(backend: Direct) -> None:
    sandbox = await create(backend)

    def dial(query: str) -> Awaitable[ClientWebSocketResponse]:
        return backend.agent(sandbox).line(f"/sandboxes/{{id}}/tunnel?{query}")

    forward = AsyncTunnel(dial, set(), "forward", 8000, ("127.0.0.1", 0), None)
    async with forward, AsyncTunnel(dial, set(), "reverse", 8000, ("127.0.0.1", 0), None):
        # In by the one and out by the other, to a port of here where nobody listens.
        with pytest.raises(ConnectionResetError):
            reader, _ = await asyncio.open_connection(forward.host, forward.port)
            await reader.read()
    async with await asyncio.start_server(_greet, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        async with AsyncTunnel(dial, set(), "reverse", 8000, ("127.0.0.1", port), None), forward:
            reader, writer = await asyncio.open_connection(forward.host, forward.port)
            assert await reader.read() == b"hello"
            writer.close()


async def _greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"hello")
    writer.close()


async def test_programs_can_be_installed(backend: Direct) -> None:
    sandbox = await create(backend)
    job = await run(
        backend,
        sandbox,
        "set -e; python3 -m venv --without-pip /tmp/v; /tmp/v/bin/python -c 'print(1)';"
        "mkdir -p /usr/local/lib/mine /opt/x /etc/mine; echo 'echo ran' > /usr/local/bin/mine;"
        "chmod +x /usr/local/bin/mine; mine; git init -q /tmp/r; rm /etc/hosts; echo y > /dev/null",
    )
    assert (job.exit_code, job.stdout, job.stderr) == (0, "1\nran\n", "")


EVERYWHERE = """
import os, random
random.seed(1)
directories = [
    directory for directory, _, _ in os.walk("/") if not directory.startswith(("/proc/", "/dev/pts", "/sys/"))
]
top = [directory for directory in directories if directory.count("/") < 3 and directory != "/proc"]
refused = []
for directory in {*top, *random.sample(directories, 300)}:
    try:
        made = os.path.join(directory, "made-here")
        os.mkdir(made)
        os.rename(made, made + "-2")
        os.rmdir(made + "-2")
        with open(made, "w") as file:
            file.write("x")
        os.link(made, made + "-2")
        os.remove(made)
        os.remove(made + "-2")
    except OSError as error:
        refused.append(f"{directory}: {error}")
print(len(top) > 30, refused[:5])
"""
"""Makes, renames, links and removes something in the directories of two levels and in some of all others."""

IN_PLACE = """
import os, random, stat, sys
files = []
for directory, below, names in os.walk("/usr"):
    paths = [os.path.join(directory, name) for name in names]
    files += [path for path in paths if stat.S_ISREG(os.lstat(path).st_mode)]
random.seed(1)
refused, tried = [], 0
for path in random.sample(files, 300):
    try:
        with open(path, "rb") as file:
            before = file.read()
        if len(before) > 1_000_000:
            continue
        assert os.stat(path).st_size == len(before), path
        with open(path, "ab") as file:
            file.write(b"more")
        with open(path, "rb") as file:
            assert file.read() == before + b"more", path
        os.chmod(path, 0o640)
        os.chown(path, *map(int, sys.argv[1:3]))
        os.utime(path, (1, 1))
        os.link(path, path + "-linked")
        os.rename(path, path + "-renamed")
        status = os.stat(path + "-linked")
        assert (status.st_mode & 0o777, status.st_uid, status.st_mtime) == (0o640, int(sys.argv[1]), 1), path
        tried += 1
    except OSError as error:
        refused.append(f"{path}: {error}")
print(tried > 200, refused[:5])
"""
"""Changes files of the machine in every way, and checks what they had."""


async def test_an_image_is_pulled_used_and_deleted(backend: Direct, account: Account) -> None:
    """Whatever owners its layers name: without a range of ids there is root alone."""
    content = Path(str(shutil.which("busybox"))).read_bytes()
    program, link = tarfile.TarInfo("bin/sh"), tarfile.TarInfo("bin/stat")
    program.size, program.mode, program.uid, program.gid = len(content), 0o755, 1000, 2000
    link.type, link.linkname = tarfile.SYMTYPE, "sh"
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.addfile(program, io.BytesIO(content))
        tar.addfile(link)
    with Registry().serving() as registry:
        registry.push("1", layer.getvalue(), config={"Env": ["GREETING=hello", "PATH=/bin"]})
        wanted = PullImage(reference=f"{registry.address}/tools/tiny:1")
        image = await backend.images().call(ImageInfo, "POST", "/images/pull", body=wanted)
    assert (image.layers, image.size) == (1, len(content))
    sandbox = await create(backend, image=image.name)
    told = await run(
        backend, sandbox, "echo $GREETING; stat -c %u:%g /bin/sh; echo x > /bin/made && echo made"
    )
    owner = "1000:2000" if account.ids else "0:0"
    assert told.stdout.splitlines() == ["hello", owner, "made"], told
    await backend.delete(sandbox)
    params = {"name": image.name}
    await backend.images().call(ImageDeleted, "DELETE", "/images", params=params)
    there = await backend.images().call(list[ImageInfo], "GET", "/images")
    assert image.name not in {one.name for one in there}


async def test_a_listed_name_leads_to_the_agent_and_pauses_are_refused_without_root(backend: Direct) -> None:
    sandbox = await create(backend, egress=["loop.example:9", "203.0.113.9:9"])
    assert (await run(backend, sandbox, "getent hosts loop.example")).stdout.split()[0] == "127.64.0.1"
    code = "import socket; print(socket.socket().connect_ex(('203.0.113.9', 9)))"
    told = await run(backend, sandbox, ["python3", "-c", code])
    assert int(told.stdout) in (0, errno.ECONNRESET)  # it listens, and finds nobody to connect to
    with pytest.raises(SandboxUnsupported, match="control groups"):
        await backend.agent(sandbox).call(Acknowledgement, "POST", "/sandboxes/{id}/pause")
    assert (await run(backend, sandbox, "echo on")).stdout == "on\n"


async def test_every_directory_can_be_written(backend: Direct) -> None:
    """Whoever owns it on the machine; there is no list of directories."""
    sandbox = await create(backend)
    await backend.write("files", sandbox, "/tmp/everywhere.py", EVERYWHERE.encode())
    assert (await run(backend, sandbox, ["python3", "/tmp/everywhere.py"])).stdout == "True []\n"


@pytest.mark.long
async def test_the_machines_files_can_be_changed_in_place(backend: Direct, account: Account) -> None:
    owner = "1000" if account.ids else "0"
    sandbox = await create(backend)
    await backend.write("files", sandbox, "/tmp/in_place.py", IN_PLACE.encode())
    job = await run(backend, sandbox, ["python3", "/tmp/in_place.py", owner, owner])
    assert (job.stdout, job.stderr) == ("True []\n", "")
    untouched = await create(backend)
    assert (await run(backend, untouched, "stat -c %u:%a /usr/bin/env")).stdout == "0:755\n"


MIRROR = """
import os, sys
from pathlib import Path
from orchard.injector.agent import kernel
from orchard.injector.agent.local import metadata, overlay, user_namespace
user_namespace.enter()
kernel.unshare(kernel.CLONE_NEWNS)
kernel.mount("", "/", None, kernel.MS_REC | kernel.MS_SLAVE)
machine, options, command = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
kernel.mount("tmpfs", "/mnt", "tmpfs", 0, options)
kernel.mount("tmpfs", "/srv", "tmpfs")
layer, upper, work, point = map(Path, ("/mnt/layer", "/srv/upper", "/srv/work", "/srv/point"))
for directory in (upper, work, point):
    directory.mkdir()
sys.argv = ["metadata", str(machine), str(layer)]
assert metadata.main() == 0
sys.stdout.flush()
layers, data = ([layer, machine], []) if options else ([layer], [machine])
overlay.mount(point, layers, data=data, upper=upper, work=work)
os.chdir(point)
os.execvp("sh", ["sh", "-c", "exec 2>&1; " + command])
"""
"""A command in an overlay as sandboxes have it at /usr, over another directory of root's."""


@pytest.fixture
def machine(account: Account) -> Iterator[Path]:
    """What a machine may have: owners, modes and names of all kinds."""
    root = account.place / "machine"
    (root / "closed").mkdir(parents=True)
    (root / "closed" / "inside").write_text("secret")
    (root / "sticky").mkdir()
    (root / "sticky" / "inside").write_text("inside")
    (root / "read-only").mkdir()
    (root / "read-only" / "a:b,c\\d\n").write_text("odd")
    for name in ("secret", "program", "empty", "shared"):
        (root / name).write_text(name if name != "empty" else "")
    (root / "link").symlink_to("program")
    os.link(root / "shared", root / "shared-2")
    os.mkfifo(root / "pipe")
    os.chown(root / "shared", 33, 33)
    modes = {"closed": 0o700, "sticky": 0o1777, "read-only": 0o555, "secret": 0o600, "program": 0o4755}
    for name, mode in modes.items():
        (root / name).chmod(mode)
    yield root
    shutil.rmtree(root)


def test_modes_and_contents_are_kept_and_what_the_user_may_not_read_is_missing(
    account: Account, machine: Path
) -> None:
    done = account.run(
        *("-c", MIRROR, str(machine), ""),
        "stat -c '%A %u %n' * read-only/*; stat -c %s program;"
        "cat program link empty shared-2 sticky/inside read-only/a*; ls closed;"
        " rm sticky/inside read-only/*; echo mine | tee closed/inside secret read-only/x pipe;"
        "chmod 600 link; mv shared shared-2; stat -c '%A %h' program shared-2",
    )
    assert done.stdout.splitlines() == [
        "files",
        "drwx------ 0 closed",
        "-rw-r--r-- 0 empty",
        "lrwxrwxrwx 0 link",
        "-rwsr-xr-x 0 program",
        "dr-xr-xr-x 0 read-only",
        "-rw-r--r-- 0 shared",
        "-rw-r--r-- 0 shared-2",
        "drwxrwxrwt 0 sticky",
        "-rw-r--r-- 0 read-only/a:b,c\\d",
        "",
        "7",
        "programprogramsharedinsideoddmine",
        "-rw------- 1",
        "-rw-r--r-- 1",
    ]


def test_without_memory_for_files_directories_can_be_written_at_least(
    account: Account, machine: Path
) -> None:
    """As without a kernel that knows such files: they are the machine's and can be replaced."""
    done = account.run(
        *("-c", MIRROR, str(machine), "nr_inodes=12"),
        "rm read-only/a* sticky/inside; echo mine | tee read-only/x closed/x; cat program;"
        "mv program old || rm program; cp shared program; cat program",
    )
    assert done.stdout.splitlines()[:2] == ["directories", "mine"] and done.stdout.endswith("shared")
    assert "Value too large" in done.stdout


async def test_forks_and_snapshots_have_what_was_changed_in_usr_too(backend: Direct) -> None:
    origin = await create(backend)
    await run(backend, origin, "echo 1 > a; echo 2 > /usr/local/bin/b; rm -r /usr/local/lib/python3*")
    (made,) = await backend.fork(origin, ForkSandbox())
    await backend.snapshot(made.sandbox_id, "copy:1")
    for sandbox in (made.sandbox_id, await create(backend, image="copy:1")):
        job = await run(backend, sandbox, "cat a /usr/local/bin/b; ls -d /usr/local/lib/python3*")
        assert (job.stdout, job.exit_code) == ("1\n2\n", 2)
        await run(backend, sandbox, "echo more >> /usr/local/bin/b")
    assert (await run(backend, origin, "cat /usr/local/bin/b")).stdout == "2\n"


async def test_sandboxes_do_not_see_each_other_the_network_or_the_users_files(
    backend: Direct, account: Account
) -> None:
    one, two = await create(backend), await create(backend)
    await run(backend, one, "echo secret > /tmp/s; sleep 1054 &")
    look = f"ls /tmp/s {account.state} {account.state.parent} 2>/dev/null; cat /proc/*/comm | grep sleep"
    assert (await run(backend, two, look)).stdout == ""
    reach = "import socket; socket.create_connection(('198.51.100.1', 80), 2)"
    assert "Network is unreachable" in (await run(backend, two, ["python3", "-c", reach])).stderr
    for refused in ("mount -t tmpfs none /mnt", "unshare --user true", "nsenter --target 1 --mount true"):
        assert (await run(backend, two, refused)).exit_code not in (0, None)


async def test_nobody_looks_into_the_first_process_or_makes_it_do_anything(backend: Direct) -> None:
    sandbox = await create(backend)
    intruder, puppeteer = ((HERE / name).read_text() for name in ("intruder.py", "puppeteer.py"))
    looked = await run(backend, sandbox, ["python3", "-c", intruder, "1", "self-test"])
    found = json.loads(looked.stdout)
    assert found["1"] == [] and "trace" in found["self-test"]
    done = await run(backend, sandbox, ["python3", "-c", puppeteer, "1"])
    assert json.loads(done.stdout) == {"refused": errno.EPERM}
    assert "Seccomp:\t2" in (await run(backend, sandbox, "cat /proc/1/status")).stdout


SEND = """
import os, socket, time
full, tell = os.pipe()
if os.fork() == 0:
    os.setsid()
    for descriptor in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    held, sent = [], 0
    try:
        while True:
            held.append(socket.socketpair())
            held[-1][0].setblocking(False)
            try:
                while True:
                    socket.send_fds(held[-1][0], [b"x"], [0] * 250)
                    sent += 250
            except BlockingIOError:
                pass
    except OSError as error:
        os.write(tell, f"{sent >= 250} {error.errno}".encode())
    time.sleep(1056)
print(os.read(full, 100).decode())
"""
"""Descriptors into sockets that nobody reads, as many as the account may have."""


async def test_descriptors_that_nobody_takes_are_not_all_that_the_account_has(backend: Direct) -> None:
    """The kernel counts them by account, and the agent, which is of the same, sends some for each command."""
    other, sandbox = await create(backend), await create(backend)
    full = await run(backend, sandbox, ["python3", "-c", SEND])
    assert full.stdout == f"True {errno.ETOOMANYREFS}\n"
    for one in (other, sandbox):
        assert (await run(backend, one, "echo fine")).stdout == "fine\n"
    assert (await run(backend, await create(backend), "echo fine")).stdout == "fine\n"


async def test_a_network_can_be_had(backend: Direct) -> None:
    sandbox = await create(backend, block_network=False)
    job = await run(backend, sandbox, "cat /etc/resolv.conf; cat /proc/net/dev | grep -c tap0")
    assert job.stdout == "nameserver 10.0.2.3\n1\n"


async def test_what_is_not_limited_is_said_and_what_can_be_is(backend: Direct) -> None:
    sandbox = await create(backend, memory="128Mi")
    note = (await backend.get(sandbox)).status_message
    assert "not limited on this machine: memory, process count, processor time" in note
    assert "each process may have as much memory as the sandbox" in note
    eater = await run(backend, sandbox, ["python3", "-c", "x = b'x' * 300_000_000"])
    assert "MemoryError" in eater.stderr
    limit = await run(backend, sandbox, "ulimit -u")
    assert limit.stdout == "4096\n"


@pytest.mark.long
async def test_other_owners_where_there_is_a_range_of_ids(backend: Direct, account: Account) -> None:
    sandbox = await create(backend)
    job = await run(backend, sandbox, "touch f; chown 1000:1000 f; stat -c %u f")
    assert job.stdout == ("1000\n" if account.ids else "0\n"), job


@pytest.mark.long
async def test_orchestrator_and_agent_of_one_account(eventually: Eventually) -> None:
    account = Account(user=USER + 2)
    port_file = account.state.parent / "port"
    state = ["--state", str(account.state)]
    line = account.line(
        "-m", "orchard.injector.orchestrator", "--open", *state, "--port", "0", "--port-file", str(port_file)
    )
    orchestrator = await asyncio.create_subprocess_exec(*line, env=account.environment)
    eventually(port_file.exists, "the orchestrator serves")
    async with AsyncSandboxClient(f"http://127.0.0.1:{port_file.read_text()}") as client:
        sandbox = await client.create_sandbox("host")
        await sandbox.upload_content("x = 6 * 7\nprint(x)\n", "/workspace/x.py")
        assert (await sandbox.exec("python3 x.py")).stdout == "42\n"
    orchestrator.terminate()
    assert await orchestrator.wait() == 0
    assert account.run("-m", "orchard.injector.agent", *state, "--stop").returncode == 0
    eventually(lambda: not processes_of(account.user), "all processes are gone")
    account.remove()


@pytest.mark.long
async def test_a_killed_agent_leaves_no_process_and_the_next_one_says_so(eventually: Eventually) -> None:
    account = Account(user=USER + 1)
    process = account.start()
    backend = Direct(account.state, start_agent=False)
    await backend.open()
    sandbox = await create(backend, block_network=False)
    await run(backend, sandbox, "setsid sleep 1055 & sleep 1055 &")
    doomed = processes_of(account.user)
    assert len(doomed) >= 5
    process.kill()
    process.wait()
    eventually(lambda: not doomed & processes_of(account.user), "all processes are gone")
    await backend.close()
    again = account.start()
    backend = Direct(account.state, start_agent=False)
    await backend.open()
    info = await backend.get(sandbox)
    assert (info.status, info.reason) == ("failed", "agent_died")
    left = {path.name for path in (account.state / "sandboxes" / sandbox).iterdir()}
    assert left == {"record.json"}
    await backend.close()
    again.terminate()
    assert again.wait() == 0
    assert str(account.state) not in Path("/proc/mounts").read_text()
    account.remove()


FORBID = """
import ctypes, os, sys
entered, enter = os.pipe()
mapped, map = os.pipe()
pid = os.fork()
if pid == 0:
    assert ctypes.CDLL(None).unshare(0x10000000) == 0
    os.write(enter, b"1")
    os.read(mapped, 1)
    with open("/proc/sys/user/max_user_namespaces", "w") as limit:
        limit.write("0")
    os.execvp(sys.argv[1], sys.argv[1:])
os.read(entered, 1)
for kind in ("uid", "gid"):
    with open(f"/proc/{pid}/{kind}_map", "w") as file:
        file.write("0 0 100000")
os.write(map, b"1")
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
"""Runs a command where no more user namespaces can be made."""


def processes_of(user: int) -> set[int]:
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if path.stat().st_uid == user:
                found.add(int(path.name))
        except FileNotFoundError:
            continue
    return found


@pytest.mark.long
def test_without_user_namespaces_the_remedy_is_named() -> None:
    """As on machines that keep them from ordinary users; nothing is run without isolation."""
    account = Account()
    (account.place / "forbid.py").write_text(FORBID)
    forbid = f"{sys.executable} {account.place}/forbid.py"
    done = account.run("-m", "orchard.injector.agent", "--state", str(account.state), within=forbid)
    script = "from orchard.injector.local.capabilities import capabilities; print(capabilities()[0])"
    told = account.run("-c", script, within=forbid)
    account.remove()
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    for text in (done.stderr, told.stdout):
        assert "sysctl -w user.max_user_namespaces" in text and "--sandbox http://" in text
    assert "able=False" in told.stdout
