"""What a proxy answers in the service's place is not the service's word: it is asked again."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest

from orchard.injector.agent.protocol import REASON_HEADER, REQUEST_ID_HEADER
from orchard.injector.client import AsyncSandbox, AsyncSandboxClient
from orchard.injector.errors import SandboxError, SandboxNotFound, SandboxRequestInvalid, SandboxUnavailable
from tests.injector.proxy import BAD_GATEWAY, PAGE, Proxy, proxied

if TYPE_CHECKING:
    from tests.injector.conftest import Service

FOREIGN = [
    BAD_GATEWAY,
    (504, "upstream request timeout", "text/plain"),
    (500, "", "text/plain"),
    (404, "404 page not found\n", "text/plain"),
    (401, PAGE, "text/html"),
    (410, "gone", "text/plain"),
    (408, PAGE, "text/html"),
    (404, '{"detail":"Not Found"}', "application/json"),
    (200, PAGE, "text/html"),
    (200, "{}", "application/json"),
    (200, b"\xff\xfe", "text/html"),
]
"""Status, body and media type."""
SERVER = "python3 -u -m http.server 8123 --bind 127.0.0.1"


@pytest.fixture
async def proxy(service: "Service") -> AsyncIterator[tuple[Proxy, str]]:
    async with proxied(service.url) as made:
        yield made


@pytest.fixture
async def behind(proxy: tuple[Proxy, str], sandbox: AsyncSandbox) -> AsyncIterator[AsyncSandbox]:
    """The sandbox of a client behind the proxy."""
    async with AsyncSandboxClient(proxy[1], auto_cleanup=False) as client:
        yield await client.get_sandbox(sandbox.sandbox_id)


@pytest.mark.parametrize("answer", FOREIGN, ids=str)
async def test_a_command_is_asked_for_again_and_runs_once(
    proxy: tuple[Proxy, str], behind: AsyncSandbox, answer: tuple[int, str | bytes, str]
) -> None:
    proxy[0].instead(answer, answer)
    assert (await behind.exec("echo x >> count; cat count")).stdout == "x\n"
    assert proxy[0].asked[-3:] == [f"POST /sandboxes/{behind.sandbox_id}/exec"] * 3


async def test_what_is_never_the_services_is_unavailable_in_the_end(
    proxy: tuple[Proxy, str], sandbox: AsyncSandbox
) -> None:
    async with AsyncSandboxClient(proxy[1], auto_cleanup=False, retry_seconds=0) as client:
        behind = await client.get_sandbox(sandbox.sandbox_id)
        for answer in FOREIGN:
            proxy[0].instead(answer)
            with pytest.raises(SandboxUnavailable, match=f"answered {answer[0]}") as caught:
                await behind.status()
            assert caught.value.reason == "foreign_answer"


async def test_a_page_is_no_file_and_no_output(
    proxy: tuple[Proxy, str], behind: AsyncSandbox, tmp_path: Path
) -> None:
    await behind.upload_content("content", "/workspace/f")
    proxy[0].instead((200, PAGE, "text/html"), BAD_GATEWAY)
    assert await behind.download_content("/workspace/f") == b"content"
    proxy[0].instead((200, PAGE, "text/html"), BAD_GATEWAY)
    await behind.download_directory("/workspace", tmp_path)
    assert (tmp_path / "f").read_bytes() == b"content"
    job = await behind.start("echo out")
    proxy[0].instead((200, PAGE, "text/html"), BAD_GATEWAY)
    said = [piece.data async for piece in behind.follow(job) if hasattr(piece, "data")]
    assert b"".join(said) == b"out\n"


async def test_what_the_service_says_itself_is_not_asked_again(
    proxy: tuple[Proxy, str], behind: AsyncSandbox
) -> None:
    asked = len(proxy[0].asked)
    with pytest.raises(SandboxRequestInvalid) as caught:
        await behind.exec("")
    assert caught.value.reason == "request_invalid"
    fault = (500, '{"detail":"internal error"}', "application/json")
    proxy[0].instead(fault, **{REASON_HEADER: "sandbox_error"})
    proxy[0].instead(fault, **{REQUEST_ID_HEADER: "1"})  # as the version before says it
    for _ in range(2):
        with pytest.raises(SandboxError, match="internal error") as fault_caught:
            await behind.exec("true")
        assert not isinstance(fault_caught.value, SandboxUnavailable)
    assert len(proxy[0].asked) == asked + 3


async def test_every_error_of_a_service_has_a_reason(shared: "Service") -> None:
    async with aiohttp.ClientSession(shared.url) as session:
        for method, path, headers, status in (
            ("GET", "/sandboxes", {}, 401),
            ("GET", "/sandboxes", {"X-API-Key": "wrong"}, 403),
            ("GET", "/nowhere", {"X-API-Key": "key-of-one"}, 404),
            ("PATCH", "/sandboxes", {"X-API-Key": "key-of-one"}, 405),
            ("POST", "/sandboxes", {"X-API-Key": "key-of-one"}, 422),
            ("GET", "/sandboxes", {"X-API-Key": "key-of-one", "Host": "page.example"}, 421),
        ):
            async with session.request(method, path, headers=headers) as reply:
                assert (reply.status, REASON_HEADER in reply.headers) == (status, True), path


async def beats(proxy: Proxy, sandbox: AsyncSandbox, number: int) -> "asyncio.Task[None]":
    """Start a heartbeat and wait for so many of its requests; fails if it ends before."""
    sandbox.start_heartbeat(0.001)
    task = sandbox._heartbeat
    assert task is not None
    path = f"POST /sandboxes/{sandbox.sandbox_id}/heartbeat"
    await proxy.until(lambda: proxy.asked.count(path) >= number, task)
    return task


@pytest.mark.parametrize("answer", FOREIGN, ids=str)
async def test_a_proxy_ends_no_heartbeat(
    proxy: tuple[Proxy, str], sandbox: AsyncSandbox, answer: tuple[int, str | bytes, str]
) -> None:
    async with AsyncSandboxClient(proxy[1], auto_cleanup=False, retry_seconds=0) as client:
        behind = await client.get_sandbox(sandbox.sandbox_id)
        proxy[0].instead(answer)
        await beats(proxy[0], behind, 3)
        await behind.stop_heartbeat()


async def test_a_fault_of_the_service_ends_no_heartbeat_and_the_sandboxs_end_does(
    proxy: tuple[Proxy, str], sandbox: AsyncSandbox, behind: AsyncSandbox
) -> None:
    for status in (500, 401, 422):
        proxy[0].instead((status, '{"detail":"no"}', "application/json"), **{REASON_HEADER: "sandbox_error"})
    heartbeat = await beats(proxy[0], behind, 5)
    await sandbox.delete()
    await asyncio.wait_for(heartbeat, 30)


@pytest.mark.parametrize("marked", [False, True], ids=["of a proxy", "of the service"])
async def test_a_tunnel_outlives_errors_while_it_is_dialled_again(
    proxy: tuple[Proxy, str], behind: AsyncSandbox, marked: bool
) -> None:
    await behind.exec(["sh", "-c", f"{SERVER} > log 2>&1 & until grep -q Serving log; do :; done"])
    async with behind.forward(8123) as tunnel:
        headers = {REASON_HEADER: "sandbox_error"} if marked else {}
        proxy[0].instead((500, '{"detail":"no"}', "application/json"), **headers)
        if not marked:
            proxy[0].instead(BAD_GATEWAY, (404, PAGE, "text/html"))
        await proxy[0].lines[0].close()
        await proxy[0].until(lambda: len(proxy[0].lines) == 2, asyncio.ensure_future(tunnel.wait()))
        async with aiohttp.ClientSession() as session, session.get(tunnel.url) as reply:
            assert (reply.status, tunnel.breaks, proxy[0].answers) == (200, 1, [])


async def test_a_sandbox_that_the_service_does_not_know_is_not_found(
    proxy: tuple[Proxy, str], behind: AsyncSandbox, sandbox: AsyncSandbox
) -> None:
    await sandbox.delete()
    asked = len(proxy[0].asked)
    with pytest.raises(SandboxNotFound):
        await behind.exec("true")
    assert len(proxy[0].asked) == asked + 1
