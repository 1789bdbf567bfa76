"""The services as programs reach them: HTTP and MCP, on loopback."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import aiohttp
import pytest

from orchard.workers.domains.claw import servers
from orchard.workers.domains.claw.engine import CallResult, Services
from orchard.workers.domains.claw.servers import Face, served
from tests.claw_world import LETTER, desk


class Logged:
    """A world whose entries go to a list."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.faces: list[Face] = []

    async def served(self, tool: str, arguments: Any, face: Face) -> tuple[CallResult, float]:
        answered = self.services.call(tool, arguments)
        await asyncio.sleep(0)
        self.faces.append(face)
        return answered, 0.0


class Reached(NamedTuple):
    world: Logged
    client: aiohttp.ClientSession
    root: str

    async def rpc(self, method: str, params: Any = None, key: int | None = 1) -> Any:
        message = {"jsonrpc": "2.0", "method": method, **({"params": params} if params is not None else {})}
        return await self.post({**message, **({"id": key} if key is not None else {})})

    async def post(self, message: Any) -> Any:
        async with self.client.post(f"{self.root}/mcp", json=message) as response:
            return await response.json() if response.status != 202 else None


@pytest.fixture
async def face() -> AsyncIterator[Reached]:
    world = Logged(Services(desk(), 0))
    async with served(world) as (port, path), aiohttp.ClientSession() as client:
        assert path.endswith("/mcp")
        yield Reached(world, client, f"http://127.0.0.1:{port}{path.removesuffix('/mcp')}")


async def test_a_client_of_mcp_is_greeted_lists_tools_and_calls_one(face: Reached) -> None:
    hello = (await face.rpc("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}}))["result"]
    assert (hello["protocolVersion"], "tools" in hello["capabilities"]) == ("2025-06-18", True)
    assert await face.rpc("notifications/initialized", key=None) is None
    tools = (await face.rpc("tools/list"))["result"]["tools"]
    assert [tool["name"] for tool in tools] == list(face.world.services.offers)
    called = await face.rpc("tools/call", {"name": LETTER[0], "arguments": LETTER[1]})
    assert called["result"]["isError"] is False
    assert '"folder":"sent"' in called["result"]["content"][0]["text"]
    assert [entry.status for entry in face.world.services.audit] == [200]
    assert face.world.faces == ["mcp"]


async def test_what_a_client_gets_wrong_is_told_and_a_strange_tool_is_in_the_log(face: Reached) -> None:
    assert (await face.rpc("resources/list"))["error"]["code"] == -32601
    assert (await face.post({"id": 1}))["error"]["code"] == -32600
    assert (await face.rpc("tools/call", {"name": 7}))["error"]["code"] == -32602
    assert (await face.rpc("tools/call", {"name": "mail_shred"}))["result"]["isError"] is True
    assert (await face.rpc("tools/call", {"name": LETTER[0], "arguments": [1]}))["result"]["isError"] is True
    assert [entry.status for entry in face.world.services.audit] == [404, 400]
    async with face.client.post(f"{face.root}/mcp", data=b"{") as response:
        assert (await response.json())["error"]["code"] == -32700
    async with face.client.get(f"{face.root}/mcp") as response:
        assert response.status == 405


async def test_http_has_the_same_tools(face: Reached) -> None:
    async with face.client.get(f"{face.root}/tools") as response:
        assert len((await response.json())["tools"]) == len(face.world.services.offers)
    async with face.client.post(f"{face.root}/tools/{LETTER[0]}", json=LETTER[1]) as response:
        assert (response.status, (await response.json())["folder"]) == (200, "sent")
    async with face.client.post(f"{face.root}/tools/{LETTER[0]}", data=b"{") as response:
        assert response.status == 400
    assert face.world.faces == ["http", "http"]


async def test_an_agent_cannot_fill_the_memory_of_its_worker(
    face: Reached, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "MOST_BYTES", 20_000)
    long = {"name": "mail_list_messages", "arguments": {"query": "x" * 8_000}}
    assert "result" in await face.rpc("tools/call", long)
    assert "result" in await face.rpc("tools/call", long)
    assert "more than" in (await face.rpc("tools/call", long))["error"]["message"]
    async with face.client.post(f"{face.root}/tools/mail_list_messages", json={}) as response:
        assert response.status == 429
    assert len(face.world.services.audit) == 2, "what is refused is not in the log"


async def test_calls_at_once_are_counted_one_by_one(face: Reached, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "MOST_CALLS", 20)
    calls = [face.rpc("tools/call", {"name": "mail_list_messages"}) for _ in range(60)]
    answers = await asyncio.gather(*calls)
    assert sum("result" in answer for answer in answers) == len(face.world.services.audit) == 20


async def test_a_batch_is_answered_whole_or_refused_whole(face: Reached) -> None:
    call = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "mail_list_messages"}}
    for size, status in ((0, 400), (servers.CALLS_AT_ONCE, 200), (servers.CALLS_AT_ONCE + 1, 400)):
        batch = [{**call, "id": number} for number in range(size)]
        async with face.client.post(f"{face.root}/mcp", json=batch) as response:
            answer = await response.json()
            assert response.status == status
        if status == 200:
            assert [each["id"] for each in answer] == [*range(size)]
        else:
            assert "batch" in answer["error"]["message"]
    assert len(face.world.services.audit) == servers.CALLS_AT_ONCE


async def test_an_injected_rate_limit_says_when_to_try_again() -> None:
    world = Logged(Services(desk(error_rate=1.0), 3))
    statuses = {}
    async with served(world) as (port, path), aiohttp.ClientSession() as client:
        url = f"http://127.0.0.1:{port}{path.removesuffix('mcp')}tools/mail_list_messages"
        for _ in range(20):
            async with client.post(url, json={}) as response:
                statuses[response.status] = (response.headers.get("Retry-After"), await response.text())
    retry, text = statuses[429]
    assert retry in ("1", "2", "3") and "retry after" in text
    assert statuses[500] == (None, '{"error":"internal server error"}')


async def test_without_the_secret_there_is_nothing_and_with_it_no_log_and_no_reset(face: Reached) -> None:
    port = face.root.rsplit(":", 1)[1].split("/")[0]
    guesses = [
        f"http://127.0.0.1:{port}/{path}" for path in ("", "mcp", f"{'0' * 32}/mcp", f"{'0' * 32}/tools")
    ]
    hidden = [
        f"{face.root}/{path}" for path in ("audit", "state", "reset", "../audit", "mail/audit", "tools/..")
    ]
    for url in [*guesses, *hidden]:
        for method in ("GET", "POST", "DELETE"):
            async with face.client.request(method, url, json={}) as response:
                assert response.status == 404, url
                assert "msg_401" not in await response.text()
