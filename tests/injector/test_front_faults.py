"""A front before services that answer badly: one costs no other, and a key has one sandbox."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from orchard.injector.agent.protocol import KEY_HEADER, REASON_HEADER
from orchard.injector.client import AsyncSandboxClient
from orchard.injector.errors import SandboxError
from orchard.injector.front import upstreams
from orchard.injector.front.app import Front
from orchard.injector.front.upstreams import (
    SENT_KEPT,
    FrontSettings,
    Upstream,
    Upstreams,
    UpstreamSettings,
)
from tests.injector.proxy import BAD_GATEWAY, PAGE, Proxy, proxied

if TYPE_CHECKING:
    from tests.injector.conftest import Service

SMALL = {"cpu": "1", "memory": "64Mi"}
OVER_LIMIT = (429, '{"detail":"too many requests"}', "application/json")
PAGES = [
    (200, PAGE, "text/html"),
    (200, b"\xff\xfe", "text/html"),
    (200, "{}", "application/json"),
    BAD_GATEWAY,
]
"""What a load balancer may answer in a service's place."""


@pytest.fixture(scope="module")
def services(
    tmp_path_factory: pytest.TempPathFactory, start_service: "type[Service]"
) -> "Iterator[dict[str, Service]]":
    place = tmp_path_factory.mktemp("faults")
    running = {name: start_service(place / name / "state") for name in ("one", "two")}
    yield running
    for service in running.values():
        service.stop()


class Fleet:
    """A front, and each of two services behind a proxy."""

    def __init__(self, services: "dict[str, Service]", stack: AsyncExitStack) -> None:
        self._services = services
        self._stack = stack
        self._servers: dict[str, AsyncExitStack] = {}
        self._ports: dict[str, int] = {}
        self.proxies: dict[str, Proxy] = {}
        self.url = ""

    async def up(self, name: str) -> None:
        self._servers[name] = await self._stack.enter_async_context(AsyncExitStack())
        running = proxied(self._services[name].url, self._ports.get(name, 0))
        self.proxies[name], url = await self._servers[name].enter_async_context(running)
        self._ports[name] = int(url.rpartition(":")[2])

    async def down(self, name: str) -> None:
        await self._servers[name].aclose()

    async def start(self) -> None:
        urls = {name: UpstreamSettings(url=f"http://127.0.0.1:{port}") for name, port in self._ports.items()}
        front = TestServer(Front(FrontSettings(upstreams=urls), None).application())
        await self._stack.enter_async_context(front)
        self.url = str(front.make_url("")).rstrip("/")

    async def create(self, key: str) -> tuple[int, dict[str, Any]]:
        """Status and body of one request, without any retry."""
        request = {"image": "host", **SMALL}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/sandboxes", json=request, headers={KEY_HEADER: key}) as reply,
        ):
            return reply.status, await reply.json()

    async def sandboxes(self) -> set[str]:
        """Ids at both services."""
        found = set()
        for service in self._services.values():
            async with service.client() as client:
                found |= {info.sandbox_id for info in await client.list_sandboxes()}
        return found

    async def lose_an_answer(self, key: str) -> str:
        """Make a sandbox whose answer does not arrive; returns the name of its service."""
        for proxy in self.proxies.values():
            proxy.losing = 1
        before = await self.sandboxes()
        assert (await self.create(key))[0] == 503
        (made,) = await self.sandboxes() - before
        for proxy in self.proxies.values():
            proxy.losing = 0
        return made.partition("-")[0]


@pytest.fixture
async def fleet(services: "dict[str, Service]") -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        made = Fleet(services, stack)
        for name in services:
            await made.up(name)
        await made.start()
        yield made
    for service in services.values():
        async with service.client() as client:
            for info in await client.list_sandboxes():
                await (await client.get_sandbox(info.sandbox_id)).delete()


@pytest.mark.parametrize(
    "unclear", [*PAGES, OVER_LIMIT, (500, "", "text/plain"), (404, PAGE, "text/html")], ids=str
)
async def test_a_key_has_one_sandbox_though_its_service_does_not_say_so(
    fleet: Fleet, unclear: tuple[int, str | bytes, str]
) -> None:
    holder = await fleet.lose_an_answer("key")
    headers = {REASON_HEADER: "over_limit"} if unclear is OVER_LIMIT else {}
    fleet.proxies[holder].instead(unclear, of=f"GET /sandboxes/{holder}-", **headers)
    status, said = await fleet.create("key")
    assert status == (429 if unclear is OVER_LIMIT else 503), said
    status, said = await fleet.create("key")
    assert (status, await fleet.sandboxes()) == (200, {said["sandbox_id"]})
    assert said["sandbox_id"].startswith(f"{holder}-")


async def test_a_key_waits_for_a_service_that_is_down_and_may_have_it_and_others_do_not(fleet: Fleet) -> None:
    holder = await fleet.lose_an_answer("key")
    await fleet.down(holder)
    for _ in range(2):
        status, said = await fleet.create("key")
        assert status == 503 and holder in said["detail"], said
    status, other = await fleet.create("another key")
    assert status == 200 and not other["sandbox_id"].startswith(f"{holder}-")
    await fleet.up(holder)
    status, said = await fleet.create("key")
    assert (status, await fleet.sandboxes()) == (200, {said["sandbox_id"], other["sandbox_id"]})


async def test_a_clients_retries_make_one_sandbox(fleet: Fleet) -> None:
    for proxy in fleet.proxies.values():
        proxy.losing = 1
        proxy.instead(OVER_LIMIT, BAD_GATEWAY, of="GET /sandboxes/", **{REASON_HEADER: "over_limit"})
    async with AsyncSandboxClient(fleet.url) as client:
        made = await client.create_sandbox("host", **SMALL)
        assert await fleet.sandboxes() == {made.sandbox_id}


async def test_a_key_that_is_not_accepted_is_told_so(fleet: Fleet) -> None:
    refused = (403, '{"detail":"this key is not accepted"}', "application/json")
    for proxy in fleet.proxies.values():
        proxy.instead(refused, of="GET /sandboxes/", **{REASON_HEADER: "request_invalid"})
    assert (await fleet.create("key"))[0] == 403
    assert await fleet.sandboxes() == set()


def test_what_was_sent_is_known_for_an_hour_and_what_was_not_is_taken_back() -> None:
    upstream = Upstream("a", UpstreamSettings(url="http://x"))
    upstream.sends("a-1", 0)
    upstream.sends("a-1", 1)
    upstream.was_not_reached("a-1")
    assert upstream.may_have("a-1"), "the first may have been"
    upstream.was_not_reached("a-1")
    assert not upstream.may_have("a-1")
    upstream.sends("a-2", 2)
    upstream.sends("a-3", 2 + SENT_KEPT)
    assert upstream.may_have("a-2")
    upstream.sends("a-4", 3 + SENT_KEPT)
    assert (upstream.may_have("a-2"), upstream.may_have("a-3")) == (False, True)


@pytest.mark.parametrize("page", PAGES, ids=str)
async def test_lists_have_the_services_that_answer(fleet: Fleet, page: tuple[int, str | bytes, str]) -> None:
    status, made = await fleet.create("key")
    assert status == 200
    bad = next(name for name in fleet.proxies if not made["sandbox_id"].startswith(f"{name}-"))
    async with AsyncSandboxClient(fleet.url, retry_seconds=0) as client:
        fleet.proxies[bad].instead(page, of="GET /sandboxes")
        assert [info.sandbox_id for info in await client.list_sandboxes()] == [made["sandbox_id"]]
        fleet.proxies[bad].instead(page, of="GET /resources")
        assert len((await client.resources()).nodes) == 1
        fleet.proxies[bad].instead(page, of="GET /resources")
        fleet.proxies["one" if bad == "two" else "two"].instead(page, of="GET /resources")
        with pytest.raises(SandboxError) as caught:
            await client.resources()
        assert caught.value.reason == "upstream_down"


@pytest.mark.parametrize("page", PAGES, ids=str)
async def test_a_page_in_place_of_the_room_costs_one_look_at_one_service(
    services: "dict[str, Service]", monkeypatch: pytest.MonkeyPatch, page: tuple[int, str | bytes, str]
) -> None:
    monkeypatch.setattr(upstreams, "LOOK_SECONDS", 0.0)
    async with (
        proxied(services["one"].url) as (one, first),
        proxied(services["two"].url) as (two, second),
        aiohttp.ClientSession() as session,
    ):
        settings = {"one": UpstreamSettings(url=first), "two": UpstreamSettings(url=second)}
        looking = Upstreams(FrontSettings(upstreams=settings), session, None)
        one.instead(page)
        await looking.look()
        assert [each.name for each in looking.up] == ["two"]
        one.instead(page, page)
        following = asyncio.create_task(looking.follow())
        await two.until(lambda: not one.answers and len(two.asked) >= 6, following)
        following.cancel()
        await looking.look()
        assert [each.name for each in looking.up] == ["one", "two"]


async def test_a_front_starts_before_a_page(services: "dict[str, Service]") -> None:
    async def page(_: web.Request) -> web.Response:
        return web.Response(text=PAGE, content_type="text/html")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", page)
    async with TestServer(app) as maintained:
        urls = {"one": str(maintained.make_url("")).rstrip("/"), "two": services["two"].url}
        settings = FrontSettings(upstreams={name: UpstreamSettings(url=url) for name, url in urls.items()})
        async with (
            TestServer(Front(settings, None).application()) as front,
            AsyncSandboxClient(str(front.make_url("")), retry_seconds=0) as client,
        ):
            assert (await client.health())["detail"] == "without one"
            sandbox = await client.create_sandbox("host", **SMALL)
            assert sandbox.sandbox_id.startswith("two-")
