"""Sandboxes with a network: outbound only, through a namespace of their own.

The agent runs in a network namespace made here, whose only neighbour is a second one with servers: nothing
outside this machine is ever addressed.
"""

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchard.injector.agent.egress import Rule
from orchard.injector.agent.errors import RequestInvalid
from orchard.injector.agent.local.egress import MOST
from orchard.injector.agent.local.network import prohibition
from orchard.injector.errors import SandboxFailed
from orchard.schemas.sandboxes import CreateSandbox, ExecRequest, ForkSandbox, Job, JobQueued, SandboxInfo
from tests.injector.direct import Direct

pytestmark = pytest.mark.needs_root("network namespaces")

if TYPE_CHECKING:
    from tests.injector.conftest import Service

Eventually = Callable[[Callable[[], bool], str], None]

MACHINE, NEIGHBOUR = "203.0.113.1", "203.0.113.2"
FAR, PRIVATE, METADATA = "198.51.100.7", "192.168.77.7", "169.254.169.254"
MIRROR = "192.168.78.8"
"""Private, and allowed by the administrator."""

SERVERS = f"""
import asyncio, socket, struct, sys

async def echo(reader, writer):
    writer.write(await reader.read() + b" to its end")
    writer.close()

async def serve(reader, writer):
    writer.write(f"hello to {{writer.get_extra_info('peername')[0]}}".encode())
    writer.close()

class Names(asyncio.DatagramProtocol):
    def connection_made(self, transport): self.transport = transport
    def datagram_received(self, data, address):
        end = data.index(b"\\0", 12) + 5
        head = data[:2] + struct.pack("!HHHHH", 0x8180, 1, 1, 0, 0)
        places = {{b"private": "{PRIVATE}", b"mirror": "{MIRROR}", b"machine": "{MACHINE}",
                  b"loopback": "127.0.0.1"}}
        place = socket.inet_aton(places.get(data[13:13 + data[12]], "{FAR}"))
        answer = b"\\xc0\\x0c" + struct.pack("!HHIH", 1, 1, 60, 4) + place
        self.transport.sendto(head + data[12:end] + answer, address)

async def main():
    for port, server in ((8080, serve), (8081, serve), (8082, echo)):
        await asyncio.start_server(server, "0.0.0.0", port, limit=1 << 30)
    if sys.argv[1] == "names":
        await asyncio.get_running_loop().create_datagram_endpoint(Names, ("{NEIGHBOUR}", 53))
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


class Net:
    """A machine with an agent, and its neighbour."""

    def __init__(self, place: Path) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self.state = place / "state"
        self.machine, self.neighbour = self._namespace(), self._namespace()
        (place / "resolv.conf").write_text(f"nameserver {NEIGHBOUR}\n")
        self._ip(None, f"link add b0 netns {self.machine} type veth peer name b1 netns {self.neighbour}")
        for pid, device, addresses in (
            (self.machine, "b0", [f"{MACHINE}/24"]),
            (
                self.neighbour,
                "b1",
                [f"{NEIGHBOUR}/24", f"{FAR}/32", f"{PRIVATE}/32", f"{MIRROR}/32", f"{METADATA}/32"],
            ),
        ):
            for address in addresses:
                self._ip(pid, f"address add {address} dev {device}")
            self._ip(pid, f"link set {device} up")
            self._ip(pid, "link set lo up")
        self._ip(self.machine, f"route add default via {NEIGHBOUR}")
        for pid, serves in ((self.neighbour, "names"), (self.machine, "no names")):
            enter = ["nsenter", f"--net=/proc/{pid}/ns/net"]
            server = self._start([*enter, sys.executable, "-c", SERVERS, serves])
            assert server.stdout is not None and server.stdout.readline() == b"ready\n"
        reader, writer = os.pipe()
        agent = [
            sys.executable,
            "-m",
            "orchard.injector.agent",
            "--state",
            str(self.state),
            "--ready-fd",
            str(writer),
            *("--egress-private", f"192.0.2.0/24, {MIRROR}/32"),
        ]
        script = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
        self.agent = self._start(
            [
                *("nsenter", f"--net=/proc/{self.machine}/ns/net", "unshare", "--mount"),
                *("sh", "-c", script, str(place / "resolv.conf"), *agent),
            ],
            pass_fds=(writer,),
        )
        os.close(writer)
        assert os.read(reader, 1) == b"1"
        os.close(reader)

    def _namespace(self) -> int:
        process = self._start(["unshare", "--net", "sh", "-c", "echo ready; exec sleep 1031"])
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        return process.pid

    def _start(self, line: list[str], pass_fds: tuple[int, ...] = ()) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(line, stdout=subprocess.PIPE, pass_fds=pass_fds)
        self._processes.append(process)
        return process

    def _ip(self, pid: int | None, arguments: str) -> None:
        enter = [] if pid is None else ["nsenter", f"--net=/proc/{pid}/ns/net"]
        subprocess.run([*enter, "ip", *arguments.split()], check=True)

    def reaches(self, pid: int, address: str, port: int) -> bool:
        """Whether a connection from this namespace is accepted."""
        code = f"import socket; socket.create_connection(({address!r}, {port}), 2)"
        line = ["nsenter", f"--net=/proc/{pid}/ns/net", sys.executable, "-c", code]
        return subprocess.run(line, capture_output=True, check=False).returncode == 0

    def close(self) -> None:
        self.agent.terminate()
        self.agent.wait()
        for process in reversed(self._processes):
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    made = Net(tmp_path_factory.mktemp("net"))
    yield made
    made.close()


@pytest.fixture
async def backend(net: Net) -> AsyncIterator[Direct]:
    made = Direct(net.state, start_agent=False)
    await made.open()
    yield made
    for sandbox in await made.list({}):
        await made.delete(sandbox.sandbox_id)
    await made.close()


async def create(backend: Direct, **fields: object) -> str:
    made = await backend.create(CreateSandbox(image="host", **fields), None)  # type: ignore[arg-type]
    ready: SandboxInfo = await backend.wait(made.sandbox_id, 60)
    assert ready.ready, ready
    return ready.sandbox_id


async def python(backend: Direct, sandbox_id: str, code: str) -> str:
    request = ExecRequest(command=["python3", "-c", "import socket\n" + code], wait=True)
    job = await backend.exec(sandbox_id, request)
    assert isinstance(job, Job)
    return job.stdout + (job.stderr.splitlines() or [""])[-1]


def connecting(address: str, port: int = 8080) -> str:
    return f"print(socket.create_connection(({address!r}, {port}), 2).recv(99).decode())"


def translators(agent: int) -> set[int]:
    """The processes of slirp4netns below this agent's, which are children of its spawner."""
    found = set()
    for child in Path(f"/proc/{agent}/task/{agent}/children").read_text().split():
        for pid in Path(f"/proc/{child}/task/{child}/children").read_text().split():
            with suppress(FileNotFoundError, ProcessLookupError):  # of a command that is over
                if Path(f"/proc/{pid}/comm").read_text() == "slirp4netns\n":
                    found.add(int(pid))
    return found


async def test_it_reaches_what_the_machine_reaches_by_name_and_by_address(backend: Direct) -> None:
    sandbox = await create(backend, block_network=False)
    assert await python(backend, sandbox, connecting(FAR)) == f"hello to {MACHINE}\n"
    assert await python(backend, sandbox, connecting("task.example")) == f"hello to {MACHINE}\n"


async def test_blocked_stays_blocked(backend: Direct) -> None:
    sandbox = await create(backend)
    assert "Network is unreachable" in await python(backend, sandbox, connecting(FAR))


@pytest.mark.long
@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.0.2.2", "10.0.2.1", "10.0.2.4", MACHINE, PRIVATE, METADATA, "0.0.0.0"],
)
async def test_the_machine_its_services_and_private_ranges_are_out_of_reach(
    backend: Direct, net: Net, address: str
) -> None:
    assert net.reaches(net.machine, MACHINE, 8080) and net.reaches(net.machine, PRIVATE, 8080)
    sandbox = await create(backend, block_network=False)
    said = await python(backend, sandbox, connecting(address))
    assert "hello" not in said and "Error" in said


async def test_root_inside_cannot_change_what_is_refused(backend: Direct) -> None:
    sandbox = await create(backend, block_network=False)
    code = "s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)\n"
    code += f"s.send({prohibition('192.168.0.0/16', 1)!r}.replace(b'\\x18\\0', b'\\x19\\0', 1))\n"
    code += "import struct; print(struct.unpack_from('=IHHIIi', s.recv(4096))[5])"
    assert await python(backend, sandbox, code) == "-1\n"


async def test_nobody_gets_in(backend: Direct, net: Net) -> None:
    one, two = await create(backend, block_network=False), await create(backend, block_network=False)
    code = "import socket; s = socket.create_server(('', 7000)); print(1, flush=True); [*iter(s.accept, 0)]"
    serve = f'python3 -c "{code}" > out & until [ -s out ]; do sleep 0.01; done'
    request = ExecRequest(command=serve, wait=True)
    await backend.exec(one, request)
    assert "Error" not in await python(backend, one, "socket.create_connection(('10.0.2.100', 7000), 2)")
    for address in (MACHINE, "127.0.0.1", "10.0.2.100"):
        assert not net.reaches(net.machine, address, 7000)
        assert not net.reaches(net.neighbour, address, 7000)
        assert "Error" in await python(backend, two, f"socket.create_connection(({address!r}, 7000), 2)")


async def test_the_translator_is_confined_and_goes_with_its_sandbox(backend: Direct, net: Net) -> None:
    sandbox = await create(backend, block_network=False)
    (pid,) = translators(net.agent.pid)
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    assert int(status["CapEff"], 16) in (0, 1 << 10)  # net_bind_service
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert {path.name for path in Path(f"/proc/{pid}/root").iterdir()} <= {"etc", "run"}
    assert sandbox in Path(f"/proc/{pid}/cgroup").read_text()
    await backend.delete(sandbox)
    assert translators(net.agent.pid) == set()


async def test_a_sandbox_whose_network_is_lost_has_failed(backend: Direct, net: Net) -> None:
    sandbox = await create(backend, block_network=False)
    running = await backend.exec(sandbox, ExecRequest(command="sleep 1032"))
    assert isinstance(running, JobQueued)
    for pid in translators(net.agent.pid):
        os.kill(pid, signal.SIGKILL)
    job = await backend.wait_job(running.job_id, 30)
    assert (job.status, job.error) == ("failed", "the sandbox died")
    info = await backend.get(sandbox)
    assert (info.status, info.reason) == ("failed", "network_lost")


@pytest.mark.long
async def test_a_killed_agent_leaves_no_translator(own_service: "Service", eventually: Eventually) -> None:
    async with own_service.client(auto_cleanup=False) as client:
        await client.create_sandbox("host", block_network=False)
        (made,) = translators(own_service.agent_pid)
        own_service.kill_agent()
        eventually(lambda: not Path(f"/proc/{made}").exists(), "the translator is gone")


@pytest.mark.long
async def test_a_machine_without_the_program_says_what_to_install(
    tmp_path: Path, start_service: "type[Service]"
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "cp").symlink_to(str(shutil.which("cp")))
    running = start_service(tmp_path / "state", env={"PATH": str(programs)})
    try:
        async with running.client() as client:
            with pytest.raises(SandboxFailed, match="apt-get install slirp4netns") as failed:
                await client.create_sandbox("host", block_network=False)
            assert failed.value.reason == "network_unavailable"
            assert (await (await client.create_sandbox("host")).exec("true")).succeeded
    finally:
        running.stop()


async def test_a_rule_lets_one_port_of_one_host_through_and_nothing_else(backend: Direct) -> None:
    sandbox = await create(backend, egress=["task.example:8080", f"{FAR}:8081", "mirror.example:8080"])
    for host, port in (("task.example", 8080), ("Task.Example", 8080), (FAR, 8081), ("mirror.example", 8080)):
        assert await python(backend, sandbox, connecting(host, port)) == f"hello to {MACHINE}\n"
    for host, port in (
        ("task.example", 8081),
        (FAR, 8080),
        (NEIGHBOUR, 8080),
        (MACHINE, 8080),
        (MIRROR, 8080),
        ("other.example", 8080),
        ("x.task.example", 8080),
        ("127.0.0.1", 8080),
        ("0.0.0.0", 8080),
        ("::1", 8080),
    ):
        said = await python(backend, sandbox, connecting(host, port))
        assert "hello" not in said and ("Error" in said or "error" in said), (host, port, said)


async def test_no_question_about_a_name_leaves_a_sandbox_with_rules(backend: Direct) -> None:
    """Naive: a name server for it that passes on what it does not know, `secret.of.mine.evil.example`."""
    sandbox = await create(backend, egress=["task.example:8080"])
    ask = f"s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(({NEIGHBOUR!r}, 53))"
    assert "Network is unreachable" in await python(backend, sandbox, ask)
    assert "gaierror" in await python(backend, sandbox, "socket.getaddrinfo('secret.evil.example', 80)")
    assert await python(backend, sandbox, "print(open('/etc/hosts', 'a'))") == (
        "OSError: [Errno 30] Read-only file system: '/etc/hosts'"
    )


@pytest.mark.parametrize("name", ["private", "machine", "loopback"])
async def test_a_name_that_comes_to_stand_for_something_private_leads_nowhere(
    backend: Direct, name: str
) -> None:
    """Naive: the name is checked when the sandbox is made, and its owner changes what it stands for."""
    sandbox = await create(backend, egress=[f"{name}.example:8080"])
    said = await python(backend, sandbox, connecting(f"{name}.example"))
    assert "hello" not in said and "ConnectionResetError" in said


async def test_both_directions_come_to_their_own_end(backend: Direct) -> None:
    sandbox = await create(backend, egress=["task.example:8082"])
    code = """
s = socket.create_connection(("task.example", 8082))
s.sendall(b"x" * 3_000_000)
s.shutdown(socket.SHUT_WR)
got = b"".join(iter(lambda: s.recv(65536), b""))
print(len(got), got[-11:])
"""
    assert await python(backend, sandbox, code) == "3000011 b' to its end'\n"


@pytest.mark.parametrize("literal", [PRIVATE, MACHINE, METADATA, "127.0.0.1", "198.51.100.0/24"])
async def test_an_address_that_cannot_be_allowed_is_refused_with_the_reason(
    backend: Direct, literal: str
) -> None:
    made = await backend.create(CreateSandbox(image="host", egress=[f"{literal}:8080"]), None)
    info = await backend.wait(made.sandbox_id, 60)
    assert (info.status, info.reason) == ("failed", "egress_refused")
    assert literal in info.status_message


async def test_rules_hold_for_copies_and_leave_nothing_behind(
    backend: Direct, net: Net, eventually: Eventually
) -> None:
    def sockets() -> int:
        held = 0
        for path in Path(f"/proc/{net.agent.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                held += str(path.readlink()).startswith("socket:")
        return held

    plain = await create(backend)
    before = sockets()
    sandbox = await create(backend, egress=["task.example:8080", f"{FAR}:8080"])
    (fork,) = await backend.fork(sandbox, ForkSandbox(count=1))
    assert await python(backend, fork.sandbox_id, connecting("task.example")) == f"hello to {MACHINE}\n"
    assert "gaierror" in await python(backend, plain, connecting("task.example"))
    await backend.snapshot(sandbox, "network/kept:1")
    assert sockets() >= before + 4
    for one in (sandbox, fork.sandbox_id):
        await backend.delete(one)
    eventually(lambda: sockets() <= before, "all sockets are closed")
    assert not (net.state / "sandboxes" / sandbox).exists()
    kept = await backend.create(CreateSandbox(image="network/kept:1"), None)
    assert (await backend.wait(kept.sandbox_id, 60)).ready
    assert "task.example" not in await python(backend, kept.sandbox_id, "print(open('/etc/hosts').read())")


async def test_a_crowd_at_a_rule_gets_no_more_than_its_places(
    backend: Direct, net: Net, eventually: Eventually
) -> None:
    places = min(MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[1] // 32)

    def connected() -> int:
        lines = Path(f"/proc/{net.machine}/net/tcp").read_text().splitlines()[1:]
        return sum(line.split()[2].endswith(f":{8082:04X}") and line.split()[3] == "01" for line in lines)

    sandbox = await create(backend, egress=["task.example:8082"])
    code = f"""
lines = [socket.create_connection(("task.example", 8082)) for _ in range({places} + 20)]
open("connected", "w").close()
open("go").read()
lines.pop(0).close()
for line in lines:
    line.shutdown(socket.SHUT_WR)
    assert line.recv(99) == b" to its end"
"""
    crowd = ExecRequest(command=["python3", "-c", "import os, socket\nos.mkfifo('go')" + code], wait=False)
    started = await backend.exec(sandbox, crowd)
    assert isinstance(started, JobQueued)
    eventually(lambda: connected() == places, "as many as there are places")
    await backend.exec(sandbox, ExecRequest(command="until [ -e connected ]; do sleep 0.01; done", wait=True))
    other = await create(backend, egress=["task.example:8080"])
    assert await python(backend, other, connecting("task.example")) == f"hello to {MACHINE}\n"
    assert connected() == places
    await backend.exec(sandbox, ExecRequest(command="echo > go", wait=True))
    job = await backend.wait_job(started.job_id, 60)
    assert job.exit_code == 0, job.stderr


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        ("task.example", "is no rule"),
        ("task.example:0", "is no rule"),
        ("task.example:65536", "is no rule"),
        (":80", "is no rule"),
        ("*.example:80", "name each host"),
        ("1.2.3:80", "is no rule"),
        ("1.2.3.4.5:80", "is no rule"),
        ("10.0.0.1/8:80", "is no rule"),
        ("0x7f.1:80", "is no rule"),
        ("[::1]:80", "is no rule"),
        ("localhost:80", "is no rule"),
        ("a b:80", "is no rule"),
        ("a\n127.0.0.1 b:80", "is no rule"),
        ("-a.example:80", "is no rule"),
    ],
)
def test_what_is_no_rule_is_refused(rule: str, complaint: str) -> None:
    with pytest.raises(RequestInvalid, match=complaint):
        Rule.of(rule)
