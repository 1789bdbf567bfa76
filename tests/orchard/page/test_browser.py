"""The page in a real Chromium: nothing of what it shows runs, breaks the layout or leaves this machine."""

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from orchard.schemas.blobs import BlobRef
from orchard.storage.blobs import BlobStore
from orchard.storage.reader import open_tables
from tests.orchard.page import big
from tests.orchard.page.conftest import served, stored
from tests.orchard.page.gallery import gallery, submitted
from tests.orchard.page.hostile import hostile_events, overviews, payloads
from tests.orchard.page.look import NARROW, PICTURES, WIDE, chromium, looked_at, tab
from tests.orchard.page.test_page import talk_of
from tests.trajectory_log import Author

pytestmark = pytest.mark.slow


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def hostile_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("hostile")
    (place / "store").mkdir()
    log: BlobRef = BlobStore(str(place / "store")).put("\n".join(payloads()).encode())
    return await stored(place, hostile_events(log))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["1280", "360"])
async def test_two_hundred_hostile_texts_do_nothing(hostile_store: Path, size: dict[str, int]) -> None:
    with open_tables(str(hostile_store)) as tables:
        (whole,) = tables.execute("select rollout_id from rollouts where task_id = 'all'").fetchone() or ("",)
        one = [
            row[0] for row in tables.execute("select rollout_id from rollouts order by 1 limit 6").fetchall()
        ]
    async with (
        chromium() as browser,
        served(hostile_store) as url,
        tab(browser, url, size) as watched,
    ):
        paths = ["/", "/rollouts", "/rollouts?text=pwned", f"/rollouts/{whole}/events?after=0"]
        paths += [f"/rollouts/{whole}?turn={turn}" for turn in range(1, 201, 40)]
        for path in [*paths, *map("/rollouts/{}".format, one), *overviews(whole, one[:3])]:
            await watched.look(path)
    assert watched.wrong == []


async def test_the_keys_lead_everywhere(tmp_path: Path) -> None:
    author = Author("keys")
    events = [e for n in range(120) for e in author.rollout(n, ["ls"] * 3, resolved=n % 2 == 0, task=f"t{n}")]
    store = await stored(tmp_path, events)
    async with (
        chromium() as browser,
        served(store) as url,
        tab(browser, url, WIDE) as watched,
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


_OUTSIDE = """() => [...document.querySelectorAll("main :is(input, select, button, summary, label, .card)")]
    .filter(each => each.checkVisibility() && !each.closest(".table"))
    .filter(each => each.getBoundingClientRect().left < 0 || each.getBoundingClientRect().right > innerWidth)
    .map(each => each.outerHTML.slice(0, 120))"""


async def test_filters_fit_a_phone_and_come_after_a_touch(tmp_path: Path) -> None:
    """At 360 pixels the rows come first, and no part of an open filter is outside of the window."""
    author = Author("a-campaign-with-a-name-that-is-rather-long-for-a-phone")
    store = await stored(tmp_path, [submitted(author, 2), *author.rollout(0, ["ls"], resolved=True)])
    async with chromium() as browser, served(store) as url, tab(browser, url, NARROW) as watched:
        page = watched.page
        for name in ("Filter", "Views"):
            await page.goto(url)
            await page.locator("summary.button", has_text=name).click()
            assert await page.evaluate(_OUTSIDE) == [], name
        await page.goto(url)
        await page.locator("summary.button", has_text="Filter").click()
        await page.get_by_label("name", exact=True).fill("phone")
        await page.get_by_role("button", name="Show", exact=True).click()
        await page.wait_for_url("**/?name=phone")
        assert await page.evaluate(_OUTSIDE) == []
        await page.goto(f"{url}/rollouts")
        assert not await page.get_by_label("outcome").is_visible()
        await page.locator("summary", has_text="Filters").first.click()
        await page.get_by_text("More filters").click()
        assert await page.evaluate(_OUTSIDE) == []
        await page.get_by_label("outcome").select_option("resolved")
        await page.wait_for_url("**/rollouts?outcome=resolved")
        assert await page.locator("tbody [data-item]").count() == 1
        await page.keyboard.press("/")
        assert await page.get_by_label("text", exact=True).is_visible()
    assert watched.wrong == []


@pytest.mark.timeout(900)
async def test_no_page_of_a_small_store_is_wrong(tmp_path: Path) -> None:
    """At four widths, in both themes: axe finds nothing, and nothing is broader than the window."""
    events = [*gallery(BlobStore(tmp_path / "store")), *talk_of(Author("talk"), 6)]
    store = await stored(tmp_path, events)
    assert await looked_at(store, PICTURES / "gallery") == []


@pytest.mark.timeout(3600)
async def test_no_page_of_a_hundred_thousand_rollouts_is_wrong(tmp_path: Path) -> None:
    store = tmp_path / "store"
    await asyncio.to_thread(big.fill, store)
    assert await looked_at(store, PICTURES / "large") == []


@pytest.mark.timeout(3600)
async def test_no_page_of_the_quick_start_is_wrong(tmp_path: Path) -> None:
    store = tmp_path / "store"
    words = ("--store", str(store), "quickstart", "--tasks", "3", "--samples", "2", "--workers", "2")
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "orchard", *words)
    assert await process.wait() == 0
    assert await looked_at(store, PICTURES / "quick-start") == []


async def test_every_open_page_goes_on(tmp_path: Path) -> None:
    """Also one that somebody has unfolded; what somebody types into waits until they are done."""
    author = Author("live")
    first = author.rollout(0, ["ls"], resolved=False)
    talk = author.rollout(1, ["ls", "pwd"], resolved=True, user="line\n" * 40)
    name = talk[0].rollout_id or ""
    store = await stored(tmp_path, [*first, *talk[:6]])
    paths = {
        "/rollouts": "1 match",
        f"/rollouts/{name}": "open",
        "/tasks": "0 of 1",
        "/tasks/t1": "0 of 1",
        "/failures": "1 failed",
        "/runs": "No run yet",
        "/compare": "Compare",
    }
    async with chromium() as browser, served(store) as url, AsyncExitStack() as stack:
        tabs = {path: await stack.enter_async_context(tab(browser, url, WIDE)) for path in paths}
        for path, watched in tabs.items():
            await watched.page.goto(url + path)
            await watched.page.locator("#pulse").wait_for(state="visible")
            assert paths[path] in await watched.page.locator("main").inner_text()
        one, listed = tabs[f"/rollouts/{name}"].page, tabs["/tasks"].page
        await one.locator(".m-user summary").click()
        await listed.locator("main input[type=search]").fill("t")
        await stored(tmp_path, talk[6:])
        await tabs["/rollouts"].page.locator("#counted", has_text="2 match").wait_for()
        assert await tabs["/rollouts"].page.locator("tbody tr").count() == 2
        await one.locator(".head .p-resolved").wait_for()
        assert await one.locator("article.turn").count() == 3
        assert await one.locator(".m-user details").get_attribute("open") is not None
        assert await one.evaluate("() => document.activeElement.tagName") == "SUMMARY"
        for path in ("/tasks", "/tasks/t1"):
            await tabs[path].page.locator("main", has_text="1 of 2").wait_for()
        assert await listed.locator("main input[type=search]").input_value() == "t"
        assert [watched.wrong for watched in tabs.values() if watched.wrong] == []


async def test_an_open_page_shows_what_is_committed(tmp_path: Path) -> None:
    author = Author("live")
    store = await stored(tmp_path, author.rollout(0, ["ls"], resolved=True))
    async with (
        chromium() as browser,
        served(store) as url,
        tab(browser, url, WIDE) as watched,
    ):
        await watched.page.goto(f"{url}/rollouts")
        await watched.page.goto(url)
        await watched.page.locator("#pulse").wait_for(state="visible")
        before = await watched.page.locator("#counted").inner_text()
        await stored(tmp_path, author.rollout(1, ["ls"], resolved=False))
        await watched.page.wait_for_function(
            "before => document.querySelector('#counted').innerText !== before", arg=before
        )
    assert watched.wrong == []
