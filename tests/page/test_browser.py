"""The page in a real Chromium: nothing of what it shows runs, breaks the layout or leaves this machine."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, async_playwright

from orchard.schemas.blobs import BlobRef
from orchard.storage.blobs import BlobStore
from orchard.storage.reader import open_tables
from tests.gui_log import GuiAuthor
from tests.page.conftest import served, stored
from tests.page.hostile import hostile_events, payloads
from tests.page.test_page import talk_of
from tests.trajectory_log import Author

pytestmark = pytest.mark.slow
CHROMIUM = "/usr/bin/chromium"
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
AXE = Path(sys.prefix) / ".axe" / "package" / "axe.min.js"
"""`make test-all` fetches it from npm."""
SERIOUS = """async () => (await axe.run()).violations
    .filter(each => ["serious", "critical"].includes(each.impact))
    .map(each => [each.id, each.nodes[0].html])"""
ROOT = ["--no-sandbox"] if os.geteuid() == 0 else []


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=[*ROOT, "--disable-gpu"])
        yield browser
        await browser.close()


class Watched:
    """A tab, and what happens in it that should not."""

    def __init__(self, page: Page, url: str) -> None:
        self.page, self.url = page, url
        self.wrong: list[str] = []
        page.on("dialog", lambda dialog: self.wrong.append(f"dialog {dialog.message}"))
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.wrong.append(f"error {error}"))
        page.on("request", self._asked)

    def _said(self, message: Any) -> None:
        if message.type == "error":
            self.wrong.append(f"console: {message.text}")

    def _asked(self, request: Any) -> None:
        if not request.url.startswith(self.url):
            self.wrong.append(f"request {request.url[:100]}")

    async def look(self, path: str) -> None:
        """Open, unfold everything, and check what must hold on each page."""
        await self.page.goto(self.url + path)
        await self.page.evaluate("() => document.querySelectorAll('details').forEach(d => d.open = true)")
        if await self.page.evaluate("() => window.pwned !== undefined"):
            self.wrong.append(f"{path}: a text ran")
        wide = await self.page.evaluate(
            "() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        if wide[0] > wide[1]:
            self.wrong.append(f"{path}: {wide[0]} px wide in {wide[1]}")
        if not await self.page.locator("header.top nav").is_visible():
            self.wrong.append(f"{path}: the navigation is gone")


@asynccontextmanager
async def tab(context: BrowserContext, url: str) -> AsyncIterator[Watched]:
    page = await context.new_page()
    await page.add_init_script(
        "window.violations = [];"
        "addEventListener('securitypolicyviolation', e => window.violations.push(e.violatedDirective));"
    )
    yield Watched(page, url)
    await page.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def hostile_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("hostile")
    (place / "store").mkdir()
    log: BlobRef = BlobStore(str(place / "store")).put("\n".join(payloads()).encode())
    return await stored(place, hostile_events(log))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["1280", "390"])
async def test_two_hundred_hostile_texts_do_nothing(hostile_store: Path, size: dict[str, int]) -> None:
    with open_tables(str(hostile_store)) as tables:
        (whole,) = tables.execute("select rollout_id from rollouts where task_id = 'all'").fetchone() or ("",)
        one = [
            row[0] for row in tables.execute("select rollout_id from rollouts order by 1 limit 6").fetchall()
        ]
    async with (
        chromium() as browser,
        served(hostile_store) as url,
        tab(await browser.new_context(viewport=size), url) as watched,  # type: ignore[arg-type]
    ):
        paths = ["/", "/rollouts", "/rollouts?text=pwned", f"/rollouts/{whole}/events?after=0"]
        paths += [f"/rollouts/{whole}?turn={turn}" for turn in range(1, 201, 40)]
        for path in [*paths, *map("/rollouts/{}".format, one)]:
            await watched.look(path)
            assert await watched.page.evaluate("() => window.violations") == [], path
    assert watched.wrong == []


async def test_the_keys_lead_everywhere(tmp_path: Path) -> None:
    author = Author("keys")
    events = [e for n in range(120) for e in author.rollout(n, ["ls"] * 3, resolved=n % 2 == 0, task=f"t{n}")]
    store = await stored(tmp_path, events)
    async with (
        chromium() as browser,
        served(store) as url,
        tab(await browser.new_context(viewport=WIDE), url) as watched,  # type: ignore[arg-type]
    ):
        page = watched.page
        await page.goto(f"{url}/rollouts")
        first = await page.locator("tbody tr a").first.get_attribute("href")
        await page.keyboard.press("]")
        await page.wait_for_url("**after=**")
        await page.keyboard.press("[")
        await page.wait_for_url("**/rollouts")
        await page.keyboard.press("j")
        await page.keyboard.press("j")
        await page.keyboard.press("k")
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"**{first}")
        await page.keyboard.press("/")
        await page.keyboard.type("step 1")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**find=step+1")
        assert await page.locator(".found li").count() == 1
        await page.keyboard.press("Escape")
        await page.locator("h1").click()
        await page.keyboard.press("?")
        assert await page.locator("dialog").is_visible()
        await page.keyboard.press("Escape")
        before = await page.evaluate("() => getComputedStyle(document.body).color")
        await page.locator("#theme").click()
        assert await page.evaluate("() => getComputedStyle(document.body).color") != before
        await page.reload()
        assert await page.evaluate("() => getComputedStyle(document.body).color") != before
    assert watched.wrong == []


async def test_axe_finds_nothing_serious(tmp_path: Path) -> None:
    author = Author("axe")
    events = talk_of(author, 6)
    for name in ("one", "two"):
        for n in range(9):
            events += Author(name).rollout(
                n, ["ls"], resolved=n % 2 == 0, task=f"t{n}", tests={"a": "FAILED"}
            )
    seen = GuiAuthor(BlobStore(tmp_path / "store")).played("g1", 4)
    store = await stored(tmp_path, [*events, *seen])
    with open_tables(str(store)) as tables:
        (one,) = tables.execute("select rollout_id from rollouts where campaign = 'axe'").fetchone() or ("",)
    paths = ["/", "/rollouts", f"/rollouts/{one}", f"/rollouts/{one}/events", "/tasks", "/tasks/t1"]
    paths.append(f"/rollouts/{seen[0].rollout_id}")
    paths += ["/compare", "/failures", "/runs", "/status", "/do/pause?of=one", "/nothing"]
    found = []
    async with chromium() as browser, served(store) as url:
        for scheme in ("light", "dark"):
            page = await (await browser.new_context(viewport=WIDE, color_scheme=scheme)).new_page()  # type: ignore[arg-type]
            for path in paths:
                await page.goto(url + path)
                await page.evaluate(AXE.read_text())
                found += [(scheme, path, *each) for each in await page.evaluate(SERIOUS)]
    assert found == []


async def test_an_open_page_shows_what_is_committed(tmp_path: Path) -> None:
    author = Author("live")
    store = await stored(tmp_path, author.rollout(0, ["ls"], resolved=True))
    async with (
        chromium() as browser,
        served(store) as url,
        tab(await browser.new_context(viewport=WIDE), url) as watched,  # type: ignore[arg-type]
    ):
        await watched.page.goto(f"{url}/rollouts")
        await watched.page.goto(url)
        await watched.page.locator("#pulse").wait_for(state="visible")
        before = await watched.page.locator("#live .head .quiet").inner_text()
        await stored(tmp_path, author.rollout(1, ["ls"], resolved=False))
        await watched.page.wait_for_function(
            "before => document.querySelector('#live .head .quiet').innerText !== before", arg=before
        )
    assert watched.wrong == []
