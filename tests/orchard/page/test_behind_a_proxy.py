"""The page behind a reverse proxy under a path of its own: links, files, streams, redirects and forms."""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from orchard.actions.session import Session
from orchard.configuration.config import Config, ConfigError, UpSettings, load
from orchard.page.access import Access
from orchard.page.server import PageSite
from orchard.processes.ports import listening
from orchard.processes.up import Supervisor
from orchard.schemas.addresses import check_base_path
from orchard.storage.blobs import BlobStore
from orchard.storage.reader import open_tables
from tests.orchard.page.conftest import TOKEN, served, stored
from tests.orchard.page.gallery import gallery
from tests.orchard.page.look import WIDE, addresses, chromium, tab
from tests.trajectory_log import Author

BASE = "/teams/orchard"


@asynccontextmanager
async def proxied(target: str, *, strips: bool) -> AsyncIterator[str]:
    """Address of a proxy that serves `target` below BASE, and a sign that it is asked for nothing else."""

    async def forward(request: web.Request) -> web.StreamResponse:
        path = request.raw_path.removeprefix(BASE) if strips else request.raw_path
        headers = {name: value for name, value in request.headers.items() if name != "Accept-Encoding"}
        headers |= {"X-Forwarded-Prefix": BASE} if strips else {}
        body = await request.read()
        async with (
            aiohttp.ClientSession() as http,
            http.request(
                request.method, target + path, data=body, headers=headers, allow_redirects=False
            ) as reply,
        ):
            answer = web.StreamResponse(status=reply.status)
            for name, value in reply.headers.items():
                if name not in ("Transfer-Encoding", "Content-Length", "Connection"):
                    answer.headers.add(name, value)
            await answer.prepare(request)
            with suppress(ConnectionError):  # the browser has left
                async for part in reply.content.iter_any():
                    await answer.write(part)
            return answer

    app = web.Application()
    app.router.add_route("*", BASE + "{rest:/.*}", forward)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.long
@pytest.mark.parametrize("strips", [True, False], ids=["header", "base-path"])
async def test_every_address_leads_through_the_proxy(tmp_path: Path, *, strips: bool) -> None:
    store = await stored(tmp_path, gallery(BlobStore(tmp_path / "store")))
    with open_tables(str(store)) as tables:
        paths = [path for path in addresses(tables).values() if path != "/nothing"]
    async with (
        served(store, base="" if strips else BASE) as target,
        proxied(target, strips=strips) as url,
        aiohttp.ClientSession(url) as http,
        chromium() as browser,
        tab(browser, url + BASE, WIDE) as watched,
    ):
        async with http.get(f"{BASE}/rollouts?turns=2&token={TOKEN}", allow_redirects=False) as reply:
            assert reply.headers["Location"] == f"{BASE}/rollouts?turns=2"
            assert f"Path={BASE}/;" in reply.headers["Set-Cookie"]
        page = watched.page
        await page.goto(f"{url}{BASE}/?token={TOKEN}")
        for path in paths:
            async with http.get(BASE + path) as reply:
                led = re.findall(r' (?:href|src|action)="([^"]*)"', await reply.text())
            assert reply.status == 200 and led, path
            said = "https://pages.example/"  # a link in a task's own words
            assert [each for each in led if not each.startswith((f"{BASE}/", "#", said))] == [], path
        await page.goto(f"{url}{BASE}/rollouts")
        await page.locator("#pulse").wait_for(state="visible")
        told = await page.locator("#counted").inner_text()
        await stored(tmp_path, Author("live").rollout(0, ["ls"], resolved=True))
        await page.wait_for_function(
            "before => document.querySelector('#counted').innerText !== before", arg=told
        )
        await page.goto(f"{url}{BASE}/do/pause?of=first")
        await page.get_by_role("button", name="Pause").click()
        assert "nothing runs on store" in await page.locator("main").inner_text()
        assert page.url == f"{url}{BASE}/do/pause"
    assert [each for each in watched.wrong if "503" not in each] == []


async def test_a_header_that_is_no_path_moves_nothing(tmp_path: Path) -> None:
    store = await stored(tmp_path, Author("a").rollout(0, ["ls"], resolved=True))
    async with served(store) as url, aiohttp.ClientSession(url) as http:
        for told in ("//pages.example", 'x"y', "/a b", "https://pages.example"):
            async with http.get("/", headers={"X-Forwarded-Prefix": told}) as reply:
                html = await reply.text()
                assert 'href="/rollouts"' in html and "pages.example" not in html
    with pytest.raises(ValueError, match="write one such as /orchard"):
        PageSite(
            Session(Config(store=str(store))), Access(TOKEN, loopback=True, private=False, hosts=()), base="x"
        )
    assert check_base_path("/orchard/") == "/orchard"


@pytest.mark.long
async def test_the_page_of_up_takes_its_path_and_hosts_from_the_configuration(tmp_path: Path) -> None:
    store = await stored(tmp_path, Author("a").rollout(0, ["ls"], resolved=True))
    up = UpSettings(
        workers=0, oracle=False, page_port=0, page_base_path=BASE + "/", page_hosts=("pages.example",)
    )
    supervisor = Supervisor(Config(store=str(store), up=up), announce=print)
    with listening(0) as supervisor._page:
        supervisor._ports = {"sandbox": 0}
        (child,) = [child for child in supervisor._plan() if child.name == "page"]
        process = await asyncio.create_subprocess_exec(
            *child.command,
            pass_fds=child.descriptors,
            env={**os.environ, "ORCHARD_STORE": str(store)},
            stdout=asyncio.subprocess.DEVNULL,
        )
        address = supervisor.page_url
        assert address is not None and address.endswith(f"{BASE}/")
        try:
            async with (
                aiohttp.ClientSession() as http,
                http.get(address, headers={"Host": "pages.example"}) as reply,
            ):
                assert f'href="{BASE}/rollouts"' in await reply.text()
        finally:
            process.terminate()
            await process.wait()


def test_a_base_path_that_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "orchard.toml"
    file.write_text('[up]\npage_base_path = "orchard"\n')
    with pytest.raises(ConfigError, match="'orchard' is none: write one such as /orchard"):
        load(file=file)
