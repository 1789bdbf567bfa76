"""Tasks run as the agent's own user beside it: they cannot learn its key, nor speak in its place."""

import asyncio
import contextlib
import json
import re
import resource
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import pytest

from orchard.injector.agent.signing import (
    BODY_HEADER,
    NONCE_HEADER,
    SEAL_HEADER,
    TIME_HEADER,
    Seal,
    sandbox_key,
)
from orchard.injector.agent_connection import AGENT_REPLACED, AgentUnreachable
from orchard.injector.errors import (
    SandboxFailed,
    SandboxFileMissing,
    SandboxRequestInvalid,
    SandboxUnavailable,
)
from orchard.injector.payload import launch
from orchard.schemas.sandboxes import Job
from tests.injector import intruder
from tests.injector.in_pod import (
    DEADLINE,
    ID,
    KEY,
    PLACE,
    USERS,
    PodAgent,
    container,
    pod_agent,
    port_told,
    proof,
    python,
)

pytestmark = pytest.mark.needs_root("makes containers of its own")

INTRUDER = Path(intruder.__file__).read_text()
T = TypeVar("T")
OTHER_KEY = sandbox_key(b"another secret", ID, "0d4f")
PATH = f"/sandboxes/{ID}/exec"
COMMAND = json.dumps({"command": "echo run >> /tmp/runs", "cwd": "/", "wait": True}).encode()

AT_GO = "until [ -e /tmp/go ]; do sleep 0.01; done;"
"""Begins a command that must not kill the agent before it has said that the command was started."""

FORGER = """
import http.server, json, os, signal, sys
class Forger(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        asked = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        job = {"job_id": "forged", "sandbox_id": "s1", "command": "", "status": "succeeded", "exit_code": 0}
        body = json.dumps(job).encode()
        self.send_response(200)
        for name in ("X-Seal-Time", "X-Seal-Nonce", "X-Seal-Body", "X-Seal"):
            if name in self.headers:
                self.send_header(name, self.headers[name])
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_POST = do_GET
    def log_message(self, *arguments):
        "Nobody reads it any more."
while not os.path.exists("/tmp/go"):
    pass
os.kill(int(sys.argv[2]), signal.SIGKILL)
while True:
    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Forger)
    except OSError:
        continue
    server.serve_forever()
"""


@pytest.fixture
async def agent(payload: Path, busybox: Path) -> AsyncIterator[PodAgent]:
    async with pod_agent(payload, busybox) as agent:
        yield agent


@contextlib.asynccontextmanager
async def replaceable(payload: Path, busybox: Path, **popen: Any) -> AsyncIterator[PodAgent]:
    """An agent that is not its container's first process: one that can be killed from inside."""
    line = launch.command(PLACE, "--serve", "--port", "0", "--sandbox", ID)
    first = ["/bin/sh", "-c", f"{' '.join(line)} & while :; do sleep 1000 & wait; done"]
    with container(payload, first, "--bind", str(busybox), "/", **popen) as (process, pid):
        agent = PodAgent(process, port_told(process), pid)
        await agent.connection.introduce()
        try:
            yield agent
        finally:
            await agent.connection.close()


@contextlib.contextmanager
def replaced(error: type[SandboxFailed] = SandboxFailed) -> Iterator[None]:
    with pytest.raises(error) as caught:
        yield
    assert caught.value.reason == AGENT_REPLACED


class TestTheKey:
    @pytest.mark.long
    @pytest.mark.parametrize("user", USERS)
    async def test_a_task_cannot_look_into_the_agent_or_its_spawner(
        self, payload: Path, busybox: Path, user: str
    ) -> None:
        """Every way in works on a process of the task's own, so it is `start.protect` that closes it."""
        async with pod_agent(payload, busybox, user=user) as agent:
            spawner = (await agent.run("cat /proc/1/task/1/children")).stdout.split()[0]
            job = await agent.run(python(INTRUDER, "self-test", "1", spawner))
            assert job.stderr == ""
            everything = list(intruder.ATTEMPTS)
            assert json.loads(job.stdout) == {"self-test": everything, "1": [], spawner: []}

    async def test_it_is_in_the_agents_memory_and_nowhere_else(self, agent: PodAgent) -> None:
        """Seen from outside, by who may look everywhere."""
        await agent.begin("sleep 1000")
        await agent.run("true")  # what came before it has been started
        spawner = agent.spawner()
        command = int(Path(f"/proc/{spawner}/task/{spawner}/children").read_text().split()[0])

        assert holds(agent.pid, KEY)
        for pid in (spawner, command):
            assert not holds(pid, KEY)
            assert not holds(pid, KEY.hex().encode())
        for name in ("environ", "cmdline"):
            said = Path(f"/proc/{agent.pid}/{name}").read_bytes()
            assert KEY not in said
            assert KEY.hex().encode() not in said

    async def test_no_core_file_has_it(self, payload: Path, busybox: Path) -> None:
        """In a container that would let processes leave them, in the directory that they are in."""
        async with replaceable(payload, busybox, preexec_fn=leave_cores) as agent:
            line = agent.connect(None)
            await agent.begin(f"{AT_GO} kill -SEGV 2")
            (busybox / "tmp/go").touch()
            await gone(line.call, dict, "GET", "/health")
            await line.close()
        assert [path.name for path in busybox.iterdir() if path.is_file()] == []

    async def test_no_file_can_become_it(self, agent: PodAgent) -> None:
        """The payload, which a replaced agent would be started from, is not the task's to write."""
        job = await agent.run(f"echo x >> {PLACE}/agent/__main__.py")
        assert job.exit_code != 0
        with pytest.raises(SandboxRequestInvalid, match="Read-only"):
            await agent.write(f"{PLACE}/agent/__main__.py", b"")


class TestRequests:
    async def test_nothing_works_before_the_introduction(self, payload: Path, busybox: Path) -> None:
        async with pod_agent(payload, busybox, introduced=False) as agent:
            with replaced():
                await proof(agent.connection)
            assert not await agent.introduced()
            for connection in (agent.connect(None), agent.connection):
                with pytest.raises((SandboxRequestInvalid, SandboxFailed)):
                    await connection.call(Job, "POST", PATH, body=COMMAND)
                await connection.close()
            agent.connection = agent.connect(Seal(KEY))
            await agent.connection.introduce()
            await proof(agent.connection)
            assert (await agent.run("cat /tmp/runs")).exit_code == 1

    async def test_the_same_key_again_is_fine_and_another_is_refused(self, agent: PodAgent) -> None:
        await agent.connection.introduce()
        other = agent.connect(Seal(OTHER_KEY))
        with replaced():
            await other.introduce()
        with replaced():
            await other.call(Job, "POST", PATH, body=COMMAND)
        with replaced():
            await proof(other)
        await other.close()
        assert (await agent.run("cat /tmp/runs")).exit_code == 1

    async def test_of_two_introductions_the_first_that_is_whole_counts(
        self, payload: Path, busybox: Path
    ) -> None:
        async with pod_agent(payload, busybox, introduced=False) as agent:
            body = json.dumps({"key": OTHER_KEY.hex(), "time": time.time()}).encode()
            headers = Seal(OTHER_KEY).request("POST", "/introduction", body=body).headers
            lines = [f"{name}: {value}" for name, value in headers.items()]
            head = ["POST /introduction HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *lines, "", ""]
            reader, writer = await asyncio.open_connection("127.0.0.1", agent.port)
            writer.write("\r\n".join(head).encode() + body[:10])
            await writer.drain()
            await agent.connection.introduce()

            writer.write(body[10:])
            assert b" 409 " in await asyncio.wait_for(reader.readline(), DEADLINE)
            writer.close()
            await proof(agent.connection)

    @pytest.mark.long
    @pytest.mark.parametrize(
        "path", ["/sandboxes", f"/sandboxes/{ID}", "/capabilities", "/introduction", "/jobs/x", "/nothing"]
    )
    async def test_without_a_seal_only_health(self, agent: PodAgent, path: str) -> None:
        job = await agent.run(f"wget -O- http://127.0.0.1:{agent.port}{path}")
        assert "403 Forbidden" in job.stderr
        assert job.stdout == ""
        health = await agent.run(f"wget -qO- http://127.0.0.1:{agent.port}/health")
        assert json.loads(health.stdout) == {"status": "healthy", "introduced": True}

    async def test_a_request_sent_twice_is_done_once(self, agent: PodAgent) -> None:
        """Without an idempotency key, so that nothing else stops it."""
        headers = Seal(KEY).request("POST", PATH, body=COMMAND).headers
        statuses = [await post(agent, PATH, COMMAND, headers) for _ in range(2)]
        assert statuses == [200, 403]
        assert await agent.read("/tmp/runs") == b"run\n"

    @pytest.mark.long
    @pytest.mark.parametrize("change", [TIME_HEADER, NONCE_HEADER, BODY_HEADER, SEAL_HEADER, "path", "body"])
    async def test_a_changed_request_is_refused(self, agent: PodAgent, change: str) -> None:
        headers = Seal(KEY).request("POST", PATH, body=COMMAND).headers
        path, body = PATH, COMMAND
        if change == "path":
            path += "?x"
        elif change == "body":
            body = COMMAND.replace(b"runs", b"ruin")
        else:
            headers[change] = headers[change][:-1] + ("0" if headers[change][-1] != "0" else "1")
        assert await post(agent, path, body, headers) == 403
        assert (await agent.run("ls /tmp")).stdout == ""

    async def test_another_idempotency_key_is_a_changed_request(self, agent: PodAgent) -> None:
        headers = Seal(KEY).request("POST", PATH, body=COMMAND, idempotency_key="k").headers
        assert await post(agent, PATH, COMMAND, {**headers, "Idempotency-Key": "l"}) == 403

    async def test_a_changed_upload_is_refused(self, agent: PodAgent) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"first"
            yield b"second"

        async with tampered(agent, lambda data: data.replace(b"second", b"Second"), answers=False) as port:
            line = agent.connect(Seal(KEY), port)
            with pytest.raises(SandboxRequestInvalid, match="changed on the way"):
                await line.call(
                    dict, "PUT", f"/sandboxes/{ID}/files", params={"path": "/tmp/x"}, body=pieces()
                )
            await line.close()
        with pytest.raises(SandboxFileMissing):  # nor the first piece, which was as sent
            await agent.read("/tmp/x")

    async def test_the_clock_is_the_introducers(self, payload: Path, busybox: Path) -> None:
        """Whatever time the node believes it is; and another replica's may differ from it by a little."""
        ahead = Seal(KEY, lambda: time.time() + 5000)
        async with pod_agent(payload, busybox, introduced=False) as agent:
            line = agent.connect(ahead)
            await line.introduce()
            await proof(line)
            with pytest.raises(SandboxRequestInvalid, match="clock") as caught:
                await proof(agent.connection)
            assert caught.value.reason == "seal_refused"
            await line.close()


class TestAnswers:
    async def test_what_took_the_agents_place_is_noticed(self, payload: Path, busybox: Path) -> None:
        async with replaceable(payload, busybox) as agent:
            await agent.begin(python(FORGER, str(agent.port), "2"))
            (busybox / "tmp/go").touch()
            naive = agent.connect(None)
            forged = await answered(naive.call, Job, "GET", PATH, wanted=lambda job: job.exit_code == 0)
            assert forged.job_id == "forged", "who does not look is deceived"
            await agent.connection.close()
            agent.connection = agent.connect(Seal(KEY))
            with replaced():
                await agent.run("true")
            with replaced():
                await proof(agent.connection)
            with replaced():
                async with agent.connection.stream(f"/sandboxes/{ID}/files", {"path": "/x"}):
                    pass
            with replaced():
                await agent.connection.line(f"/sandboxes/{ID}/exec/pty")
            await naive.close()

    async def test_a_second_agent_is_not_the_first(self, payload: Path, busybox: Path) -> None:
        """The task has the payload and can start it, but has no key to give it."""
        async with replaceable(payload, busybox) as agent:
            line = launch.command(PLACE, "--serve", "--port", str(agent.port), "--sandbox", ID)
            again = f"{AT_GO} kill -9 2; until {' '.join(line)} > /dev/null 2>&1; do :; done"
            await agent.begin(again)
            (busybox / "tmp/go").touch()
            await answered(agent.introduced, wanted=lambda given: not given)
            await agent.connection.close()
            agent.connection = agent.connect(Seal(KEY))
            with replaced():
                await agent.run("true")

    async def test_a_killed_agent_cannot_be_reached(self, payload: Path, busybox: Path) -> None:
        async with replaceable(payload, busybox) as agent:
            await agent.begin(f"{AT_GO} kill -9 2")
            (busybox / "tmp/go").touch()
            await gone(agent.run, "true")
            with pytest.raises(AgentUnreachable):
                await proof(agent.connection)

    async def test_its_port_is_not_shared_while_it_lives(self, agent: PodAgent) -> None:
        code = """
import socket, sys
for address in ("0.0.0.0", "127.0.0.1"):
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        other = socket.socket()
        other.setsockopt(socket.SOL_SOCKET, option, 1)
        try:
            other.bind((address, int(sys.argv[1])))
            other.listen()
            print("taken")
        except OSError as error:
            print(error.strerror)
"""
        job = await agent.run(python(code, str(agent.port)))
        assert set(job.stdout.splitlines()) == {"Address already in use"}

    @pytest.mark.parametrize("size", [100, 3_000_000], ids=["whole", "stream"])
    async def test_a_changed_file_is_noticed(self, agent: PodAgent, size: int) -> None:
        content = bytes(size) + b"the truth" + bytes(size)
        await agent.write("/tmp/file", content)
        async with tampered(agent, lambda data: data.replace(b"truth", b"false")) as port:
            line = agent.connect(Seal(KEY), port)
            with replaced():
                async with line.stream(f"/sandboxes/{ID}/files", {"path": "/tmp/file"}) as pieces:
                    async for piece in pieces:
                        assert b"false" not in piece
            await line.close()
        assert await agent.read("/tmp/file") == content

    async def test_a_changed_result_is_noticed(self, agent: PodAgent) -> None:
        async with tampered(agent, lambda data: data.replace(b'"exit_code":1', b'"exit_code":0')) as port:
            line = agent.connect(Seal(KEY), port)
            body = json.dumps({"command": "exit 1", "cwd": "/", "wait": True}).encode()
            with replaced():
                await line.call(Job, "POST", PATH, body=body)
            await line.close()

    async def test_a_changed_refusal_is_noticed(self, agent: PodAgent) -> None:
        async with tampered(agent, lambda data: data.replace(b"file_missing", b"died_of_memo")) as port:
            line = agent.connect(Seal(KEY), port)
            with replaced():
                async with line.stream(f"/sandboxes/{ID}/files", {"path": "/nowhere"}):
                    pass
            await line.close()

    async def test_a_terminal_begins_with_a_sealed_handshake(self, agent: PodAgent) -> None:
        def spoiled(data: bytes) -> bytes:
            return re.sub(rb"X-Seal: ..", b"X-Seal: zz", data)

        async with tampered(agent, spoiled) as port:
            line = agent.connect(Seal(KEY), port)
            with replaced():
                await line.line(f"/sandboxes/{ID}/exec/pty")
            await line.close()
        async with tampered(agent, lambda data: data) as port:
            line = agent.connect(Seal(KEY), port)
            terminal = await line.line(f"/sandboxes/{ID}/exec/pty")
            await terminal.close()
            await line.close()


@contextlib.asynccontextmanager
async def tampered(
    agent: PodAgent, change: Callable[[bytes], bytes], *, answers: bool = True
) -> AsyncIterator[int]:
    """The port of somebody on the way who changes what comes from the agent, or what goes to it."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, changing: bool) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(change(data) if changing else data)
                await writer.drain()
        writer.close()

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection("127.0.0.1", agent.port)
        await asyncio.gather(carry(reader, ours, not answers), carry(theirs, writer, answers))

    server = await asyncio.start_server(meet, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def holds(pid: int, secret: bytes) -> bool:
    """Whether it occurs anywhere in the writable memory of a process."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:  # noqa: PTH123
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, rights = line.split()[:2]
            if not rights.startswith("rw"):
                continue
            start, end = (int(part, 16) for part in span.split("-"))
            memory.seek(start)
            if secret in memory.read(end - start):
                return True
    return False


async def post(agent: PodAgent, path: str, body: bytes, headers: dict[str, str]) -> int:
    url = f"http://127.0.0.1:{agent.port}{path}"
    async with aiohttp.ClientSession() as session, session.post(url, data=body, headers=headers) as reply:
        return reply.status


async def answered(call: Callable[..., Awaitable[T]], *arguments: Any, wanted: Callable[[T], bool]) -> T:
    """Call until somebody answers, and as `wanted`: until another has the dead agent's port."""
    deadline = time.monotonic() + DEADLINE
    while True:
        assert time.monotonic() < deadline
        with contextlib.suppress(SandboxUnavailable, SandboxRequestInvalid):
            answer = await call(*arguments)
            if wanted(answer):
                return answer


async def gone(call: Callable[..., Awaitable[object]], *arguments: Any, **options: Any) -> None:
    """Call until nobody is there."""
    deadline = time.monotonic() + DEADLINE
    while True:
        assert time.monotonic() < deadline
        try:
            await call(*arguments, **options)
        except AgentUnreachable:
            return
        except (SandboxUnavailable, SandboxRequestInvalid):
            continue


def leave_cores() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (most, most))
