"""Points 8 to 12 of the contract: ids, failures, death, replacement, who is who."""

import asyncio
import re

import aiohttp
import pytest

from orchard.injector.client import AsyncSandbox, AsyncSandboxClient
from orchard.injector.errors import SandboxConflict, SandboxError, SandboxFailed, SandboxNotFound
from tests.contract.deployment import Deployment
from tests.contract.fixtures import LIMIT, create


async def test_point_8_ids_are_dns_labels(http: aiohttp.ClientSession, service: Deployment) -> None:
    """Naive: an id that becomes part of a path or a selector as it is."""
    for wrong in ("Upper", "under_score", "-dash", "dash-", "a" * 56, "../x", "ü", "a\n"):
        reply = await http.post("/sandboxes", json={"image": service.image, "sandbox_id": wrong})
        assert (reply.status, (await reply.json())["detail"][0]["loc"]) == (422, ["body", "sandbox_id"])


async def test_point_8_a_duplicate_id_is_a_conflict_unless_the_key_matches(
    client: AsyncSandboxClient, service: Deployment
) -> None:
    """Naive: create or replace; or a conflict also for the retry of the create that worked."""
    first = await create(client, service.image, sandbox_id="mine", idempotency_key="key-1")
    again = await create(client, service.image, sandbox_id="mine", idempotency_key="key-1")
    for other in ({"idempotency_key": "key-2"}, {}):
        with pytest.raises(SandboxConflict):
            await create(client, service.image, sandbox_id="mine", **other)
    assert again.info == first.info
    assert (await first.exec("true")).succeeded


async def test_point_8_of_creates_that_race_one_wins(
    http: aiohttp.ClientSession, service: Deployment
) -> None:
    """Naive: a look into a table of this orchestrator, then a create."""
    body = {"image": service.image, "sandbox_id": "wanted", "cpu": "1", "memory": "256Mi"}
    replies = await asyncio.gather(
        *(http.post("/sandboxes", json=body, headers={"Idempotency-Key": f"{n}"}) for n in range(6))
    )
    assert sorted(reply.status for reply in replies) == [200, 409, 409, 409, 409, 409]
    assert (await http.delete("/sandboxes/wanted")).status == 200


async def test_point_8_of_creates_that_race_with_one_key_all_get_the_one(
    http: aiohttp.ClientSession, service: Deployment
) -> None:
    """Naive: a table of keys in each orchestrator."""
    body = {"image": service.image, "cpu": "1", "memory": "256Mi"}
    replies = await asyncio.gather(
        *(http.post("/sandboxes", json=body, headers={"Idempotency-Key": "race"}) for _ in range(6))
    )
    assert {reply.status for reply in replies} == {200}
    (made,) = {(await reply.json())["sandbox_id"] for reply in replies}
    assert (await http.delete(f"/sandboxes/{made}")).status == 200


async def test_point_9_an_image_that_is_missing_ends_the_wait_early_with_the_reason(
    client: AsyncSandboxClient, service: Deployment
) -> None:
    """Naive: one that waits until the Pod is ready, for the hour it was given."""
    async with asyncio.timeout(2 * LIMIT):
        with pytest.raises(SandboxFailed) as failed:
            await client.create_sandbox(service.missing_image, timeout=3600)
    assert failed.value.reason == "image_missing"
    assert service.missing_image in failed.value.detail


async def test_point_10_a_sandbox_that_died_answers_as_failed_on_every_route(
    client: AsyncSandboxClient, service: Deployment
) -> None:
    """Naive: one that starts the container again, empty; or says 404, 500 or nothing."""
    sandbox = await create(client, service.image)
    await sandbox.exec("mkfifo begun")
    waiting = asyncio.create_task(sandbox.exec("echo > begun; sleep 1010", timeout_seconds=2000))
    await sandbox.exec("read line < begun")
    await service.kill_sandbox(sandbox.sandbox_id)
    async with asyncio.timeout(LIMIT):
        assert await _failure(waiting), "who waits is told"
        job = asyncio.create_task(sandbox.exec("echo a second life"))
        assert await _failure(job)
        for _ in range(2):
            for call in (
                sandbox.exec("echo a second life"),
                sandbox.upload_content(b"x", "/workspace/x"),
                sandbox.download_content("/workspace/x"),
                sandbox.list_files("/workspace"),
                sandbox.apply_patch("x"),
                sandbox.heartbeat(),
                sandbox.exec("true", pty=True),
            ):
                with pytest.raises(SandboxFailed) as failed:
                    await call
                assert failed.value.reason
    info = await sandbox.status()
    assert (info.status, info.ready, info.created_at) == ("failed", False, sandbox.info.created_at)
    assert info.status_message and info.reason
    await sandbox.delete()
    with pytest.raises(SandboxNotFound):
        await sandbox.status()


async def _failure(waiting: "asyncio.Task[object]") -> str:
    """Why a command has no result: as a failed job, or as an error, if its last words were lost."""
    try:
        job = await waiting
    except SandboxFailed as error:
        return error.reason
    return str(getattr(job, "error", "") or "")


async def test_point_11_replaced_orchestrators_lose_no_sandbox_and_no_running_job(
    client: AsyncSandboxClient, service: Deployment
) -> None:
    """Naive: a job table in memory, or a command that ends with the connection that asked for it."""
    sandbox = await create(client, service.image)
    await sandbox.exec("mkfifo begun gate")
    line = "echo ran >> count; echo > begun; read line < gate; echo $line"
    asked = asyncio.create_task(sandbox.exec(line))
    await sandbox.exec("read line < begun")
    queued = await sandbox.start("echo before; exit 3")
    for index in range(len(service.urls)):
        await service.replace_replica(index)
    await sandbox.exec("echo open > gate")
    job = await asked
    assert (job.stdout, job.exit_code) == ("open\n", 0)
    assert (await sandbox.exec("cat count")).stdout == "ran\n"
    kept = await sandbox.wait_job(queued)
    assert (kept.stdout, kept.exit_code) == ("before\n", 3)
    assert sandbox.sandbox_id in {info.sandbox_id for info in await client.list_sandboxes()}


async def test_point_12_no_environment_that_a_command_can_read_holds_a_secret(sandbox: AsyncSandbox) -> None:
    """Naive: the agent's key in an environment variable of its container."""
    read = await sandbox.exec("cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'; env")
    names = {line.partition("=")[0] for line in read.stdout.splitlines()}
    assert "PATH" in names
    assert [name for name in names if re.search(r"KEY|SECRET|TOKEN|PASSW|CREDENTIAL", name, re.I)] == []


IMPOSTOR = """
import http.server, os, socket, socketserver, time
class Forger(http.server.BaseHTTPRequestHandler):
    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = (b'{"job_id":"x.1","sandbox_id":"x","command":"x","status":"succeeded","stdout":"forged",'
                b'"exit_code":0,"completed_at":1.0,"introduced":true}')
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_GET = do_POST = do_PUT = do_DELETE = answer
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    def server_bind(self):
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        super().server_bind()
while True:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) != os.getpid():
            try:
                os.kill(int(pid), 9)
            except OSError:
                pass
    try:
        server = Server(("0.0.0.0", 8700), Forger)
        break
    except OSError:
        time.sleep(0.02)
server.serve_forever()
"""
"""What a task would leave behind: it kills all that it may, and answers for the agent from then on."""


async def test_point_12_who_kills_the_agent_and_takes_its_place_is_not_believed(
    client: AsyncSandboxClient, service: Deployment
) -> None:
    """Naive: an agent known by its address only, or by a key that its neighbours can read."""
    sandbox = await create(client, service.image)
    await sandbox.upload_content(IMPOSTOR, "/tmp/impostor.py")
    for _ in range(2):
        try:
            async with asyncio.timeout(LIMIT):
                await sandbox.exec("setsid python3 /tmp/impostor.py & sleep 1011", timeout_seconds=20)
                job = await sandbox.exec("echo genuine", timeout_seconds=10)
        except SandboxError as error:
            assert isinstance(error, SandboxFailed) and error.reason
        else:
            assert (job.stdout, job.sandbox_id) == ("genuine\n", sandbox.sandbox_id)


LISTEN = """
import socket
server = socket.create_server(("0.0.0.0", 8123))
open("/tmp/listening", "w").close()
while True:
    server.accept()[0].sendall(b"reached")
"""
CALL = """
import socket, sys
for address in sys.argv[1:]:
    try:
        print(address, socket.create_connection((address, 8123), 2).recv(100))
    except OSError:
        pass
"""
ADDRESSES = """
import re
print(*set(re.findall(r"-- ([0-9.]+)\\n +/32 host", open("/proc/net/fib_trie").read())))
"""


async def test_point_12_sandboxes_cannot_reach_each_other(
    client: AsyncSandboxClient, service: Deployment
) -> None:
    """Naive: one network for all, with only the way out closed."""
    one, two = await asyncio.gather(create(client, service.image), create(client, service.image))
    await one.start(["python3", "-c", LISTEN], timeout_seconds=600)
    await one.exec("until [ -e /tmp/listening ]; do sleep 0.02; done")
    addresses = [*(await one.exec(["python3", "-c", ADDRESSES])).stdout.split(), "127.0.0.1"]
    own = await one.exec(["python3", "-c", CALL, *addresses])
    assert "reached" in own.stdout
    if service.isolates_networks:
        other = await two.exec(["python3", "-c", CALL, *addresses], timeout_seconds=60)
        assert other.stdout == ""
