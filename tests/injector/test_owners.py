"""Several keys at one service: each sees and changes its own, an admin's key all."""

import asyncio
import hashlib
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web

from orchard.injector.client import AsyncSandboxClient
from orchard.injector.errors import SandboxConflict, SandboxFailed, SandboxNotFound, SandboxRequestInvalid
from orchard.injector.local.backend import LocalBackend
from orchard.injector.operations import OPERATIONS
from orchard.injector.orchestrator import deadlines
from orchard.injector.orchestrator.app import Orchestrator
from orchard.injector.orchestrator.keys import Keys
from tests.injector.conftest import ADMIN, ONE, TWO

if TYPE_CHECKING:
    from tests.injector.conftest import Service


@pytest.mark.long
async def test_every_route_of_anothers_sandbox_says_that_it_is_not_there(
    shared: "Service", one: AsyncSandboxClient
) -> None:
    sandbox = await one.create_sandbox("host")
    job = await sandbox.start("echo mine")
    paths = [route for route in OPERATIONS if "{" in route.path]
    assert len(paths) > 15
    async with aiohttp.ClientSession(shared.url, headers={"X-API-Key": TWO}) as http:
        for route in paths:
            path = route.path.replace("{id}", sandbox.sandbox_id).replace("{job}", job)
            body: dict[str, Any] = {"image": "x", "command": "true", "patch": ""}
            more = {"json": body} if route.request else {}
            async with http.request(route.method, path, params={"path": "/etc/hosts"}, **more) as reply:
                assert reply.status == 404, (route.method, path)
                assert (await reply.json())["detail"] == f"there is no sandbox {sandbox.sandbox_id}"
        async with http.get("/resources") as reply:
            assert (await reply.json())["sandbox_pods"] == []
    assert (await sandbox.wait_job(job)).stdout == "mine\n"


async def test_lists_and_the_admin(
    one: AsyncSandboxClient, two: AsyncSandboxClient, admin: AsyncSandboxClient
) -> None:
    his, hers = await one.create_sandbox("host"), await two.create_sandbox("host")
    (fork,) = await his.fork()
    theirs = await admin.create_sandbox("host")

    async def seen(client: AsyncSandboxClient) -> set[str]:
        return {info.sandbox_id for info in await client.list_sandboxes()}

    assert await seen(one) == {his.sandbox_id, fork.sandbox_id}
    assert await seen(two) == {hers.sandbox_id}
    every = {his.sandbox_id, hers.sandbox_id, fork.sandbox_id, theirs.sandbox_id}
    assert await seen(admin) >= every
    assert (await (await admin.get_sandbox(his.sandbox_id)).exec("echo seen")).stdout == "seen\n"
    with pytest.raises(SandboxNotFound):
        await one.get_sandbox(theirs.sandbox_id)


async def test_a_name_of_an_image_is_its_first_owners(
    one: AsyncSandboxClient, two: AsyncSandboxClient, admin: AsyncSandboxClient
) -> None:
    his, hers = await one.create_sandbox("host"), await two.create_sandbox("host")
    await his.exec("echo his > /workspace/whose")
    await his.snapshot("graded:1")
    with pytest.raises(SandboxConflict, match="belongs to another key"):
        await hers.snapshot("graded:1")
    with pytest.raises(SandboxFailed) as missing:
        await two.create_sandbox("graded:1")
    assert missing.value.reason == "image_missing"
    await his.snapshot("graded:1")
    for client in (one, admin):
        made = await client.create_sandbox("graded:1")
        assert (await made.exec("cat whose")).stdout == "his\n"


async def test_another_keys_idempotency_key_opens_nothing(
    one: AsyncSandboxClient, two: AsyncSandboxClient
) -> None:
    his = await one.create_sandbox("host", idempotency_key="the same")
    hers = await two.create_sandbox("host", idempotency_key="the same")
    assert his.sandbox_id != hers.sandbox_id
    assert (await one.create_sandbox("host", idempotency_key="the same")).sandbox_id == his.sandbox_id


async def test_a_key_cannot_label_itself_somebody_else(one: AsyncSandboxClient) -> None:
    with pytest.raises(SandboxRequestInvalid, match="labels"):
        await one.create_sandbox("host", labels={"orchard.key": "x"})


async def test_open_figures_show_nothing_made_from_a_key(shared: "Service", one: AsyncSandboxClient) -> None:
    await one.list_sandboxes()
    async with aiohttp.ClientSession(shared.url) as http, http.get("/metrics") as reply:
        figures = await reply.text()
    assert 'key="key-1"' in figures
    for key in (ONE, TWO, ADMIN):
        for digest in (hashlib.sha256, hashlib.sha1, hashlib.md5, hashlib.blake2b):
            assert digest(key.encode()).hexdigest()[:6] not in figures


async def test_a_key_in_the_query_counts_for_terminals_alone(shared: "Service") -> None:
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade"}
    async with aiohttp.ClientSession(shared.url) as http:
        for method, path in (("GET", "/sandboxes"), ("POST", "/sandboxes"), ("GET", "/resources")):
            for more in ({}, {"Sec-WebSocket-Protocol": f"api_key.{ADMIN}"}):
                asked = http.request(method, path, params={"api_key": ADMIN}, headers={**upgrade, **more})
                async with asked as reply:
                    assert reply.status == 401, (method, path)


@pytest.mark.parametrize(
    "name", ["%2e%2e", "%2E.", ".", "%2e", "..%2fcapabilities", "%2fhealth", "a%2f..%2f..", "%00"]
)
async def test_a_name_that_is_part_of_a_path_reaches_nothing(shared: "Service", name: str) -> None:
    """As it is on the wire: clients would tidy it up."""
    for method, below in (("GET", ""), ("DELETE", ""), ("POST", "/heartbeat"), ("GET", "/files/list?path=/")):
        reader, writer = await asyncio.open_connection("127.0.0.1", shared.port)
        line = f"{method} /sandboxes/{name}{below} HTTP/1.1\r\nHost: localhost\r\n"
        writer.write(f"{line}X-API-Key: {ADMIN}\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        assert answer.split(b" ", 2)[1] in (b"400", b"404", b"405"), answer


async def test_no_path_of_the_agent_has_parts_that_lead_elsewhere(shared: "Service") -> None:
    backend = LocalBackend(shared.state, start_agent=False)
    await backend.open()
    for name in ("..", ".", "../capabilities"):
        with pytest.raises((SandboxRequestInvalid, SandboxNotFound)):
            await backend.get(name)
    await backend.close()


async def test_half_open_requests_do_not_live_on(shared: "Service") -> None:
    """300 that never send their headers whole, and bodies that stand still: all are closed by the service."""
    app = Orchestrator(LocalBackend(shared.state, start_agent=False), Keys([]), body_grace=0.2).application()
    service = deadlines.runner(app, 1.0)
    await service.setup()
    await web.TCPSite(service, "127.0.0.1", 0).start()
    port = service.addresses[0][1]
    head = b"POST /sandboxes HTTP/1.1\r\nHost: localhost\r\n"
    body = b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    raw = b"PUT /sandboxes/x/archive?path=/f HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx"
    lines = []
    for number in range(300):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write((b"", head, head + body, raw)[number % 4])
        lines.append((reader, writer))
    # On a busy machine one may be closed before its headers are read: by a reset, as bytes are left unread.
    told = await asyncio.gather(*(reader.read() for reader, _ in lines), return_exceptions=True)
    answers = [b"" if isinstance(each, ConnectionResetError) else each for each in told]
    assert set(answers[0::4]) == set(answers[1::4]) == {b""}
    assert {answer[:12] for answer in answers[2::4]} - {b""} == {b"HTTP/1.1 408"}
    assert {answer[:10] for answer in answers[3::4]} - {b""} == {b"HTTP/1.1 4"}
    for _, writer in lines:
        writer.close()
    await service.cleanup()
