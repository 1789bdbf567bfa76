"""Users of the page: by their keys, and by the header of a sign-in proxy that nobody else can send."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from orchard.actions.session import Session
from orchard.configuration.access import AccessSettings, People
from orchard.configuration.config import Config
from orchard.page.access import Access
from orchard.page.server import PageSite
from tests.orchard.page.conftest import TOKEN

KEY = "the-key-of-ana"
HEADER = "X-Auth-Request-User"


@asynccontextmanager
async def served(tmp_path: Path, *proxies: str) -> AsyncIterator[aiohttp.ClientSession]:
    """The page of an empty store with two users: ana has a key, rea may only read."""
    path, digest = tmp_path / "people.toml", hashlib.sha256(KEY.encode()).hexdigest()
    path.write_text(
        f'[[people]]\nuser = "ana"\nrole = "operate"\nkey_sha256 = "{digest}"\n[[people]]\nuser = "rea"\n'
    )
    settings = AccessSettings(people=str(path), user_header=HEADER if proxies else "", proxies=proxies)
    people = People(str(path), [])
    store = tmp_path / "store"
    store.mkdir()
    access = Access(TOKEN, loopback=True, private=False, hosts=(), settings=settings, people=people)
    site = PageSite(Session(Config(store=str(store), access=settings)), access)
    runner = web.AppRunner(site.application(), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with aiohttp.ClientSession(
            f"http://127.0.0.1:{runner.addresses[0][1]}", cookie_jar=aiohttp.CookieJar(unsafe=True)
        ) as http:
            yield http
    finally:
        await runner.cleanup()


async def pause(http: aiohttp.ClientSession, **headers: str) -> tuple[int, str]:
    """Tries to pause a campaign, where nothing runs."""
    origin = {"Origin": str(http._base_url).rstrip("/")}
    async with http.post("/do/pause", data={"of": "first"}, headers=origin | headers) as reply:
        return reply.status, await reply.text()


async def test_a_key_signs_in_and_the_page_is_closed_without_one(tmp_path: Path) -> None:
    async with served(tmp_path) as http:
        for path, status in (("/", 403), ("/?token=other", 403), (f"/?token={KEY}", 200), ("/", 200)):
            async with http.get(path) as reply:
                assert reply.status == status, path
        status, said = await pause(http)
        assert status == 503 and "nothing runs on store" in said, "it was tried"


async def test_the_header_of_a_trusted_proxy_names_the_user(tmp_path: Path) -> None:
    async with served(tmp_path, "127.0.0.0/8") as http:
        async with http.get("/", headers={HEADER: "rea"}) as reply:
            assert reply.status == 200 and 'href="/do/' not in await reply.text()
        assert await pause(http, **{HEADER: "rea"}) == (
            403,
            "rea has the role `read`: ask an operator for another\n",
        )
        assert (await pause(http, **{HEADER: "ana"}))[0] == 503
        async with http.get("/", headers={HEADER: "nobody"}) as reply:
            assert reply.status == 403, "the proxy's users must be listed"
        async with http.get("/", headers=[(HEADER, "ana"), (HEADER, "rea")]) as reply:
            assert reply.status == 403, "a proxy that appends its header to a client's is not believed"


@pytest.mark.parametrize("proxies", [(), ("10.0.0.0/8",)], ids=["no-proxy", "elsewhere"])
async def test_a_client_cannot_forge_the_header(tmp_path: Path, proxies: tuple[str, ...]) -> None:
    async with served(tmp_path, *proxies) as http:
        async with http.get("/", headers={HEADER: "ana"}) as reply:
            assert reply.status == 403
        assert (await pause(http, **{HEADER: "ana"}))[0] == 403


def test_a_header_without_a_trusted_proxy_is_refused_at_the_start() -> None:
    with pytest.raises(ValueError, match="from where it is believed"):
        AccessSettings(user_header=HEADER, people="people.toml")
