"""A campaign's page below its arms, the list of all tasks, and what pages say before the first campaign."""

import re
from collections.abc import AsyncIterator
from html import unescape
from pathlib import Path

import aiohttp
import duckdb
import pytest
import pytest_asyncio

from orchard.actions.rollout_index import RolloutIndex
from orchard.page.one_campaign import OF_A_CAUSE, ROLLOUTS, details
from orchard.page.report import write_report
from orchard.page.tasks import listed
from orchard.storage.reader import open_tables, position
from tests.orchard.page.conftest import served, stored
from tests.orchard.page.gallery import imported, mixed, submitted
from tests.orchard.page.look import AXE, NARROW, VIOLATIONS, WIDE, chromium, tab
from tests.orchard.page.test_sentences import told
from tests.orchard.test_abort_reasons import KEY
from tests.trajectory_log import Author


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return await stored(tmp_path_factory.mktemp("mixed"), mixed())


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def tables(store: Path) -> AsyncIterator[duckdb.DuckDBPyConnection]:
    with open_tables(str(store)) as connection:
        index = RolloutIndex(connection)
        index.follow(position(str(store)))
        yield connection
    index.close()


async def test_the_worst_rollouts_come_first_and_no_cause_takes_all_rows(
    tables: duckdb.DuckDBPyConnection,
) -> None:
    found = details(tables, "mixed").rollouts
    assert [row["cause"] or row["outcome"] for row in found] == [
        *["llm_refused"] * OF_A_CAUSE,
        *["sandbox_died"] * OF_A_CAUSE,
        *["unresolved"] * 3,
        *["cancelled"] * 2,
        "resolved",
    ]
    assert len(found) == ROLLOUTS and details(tables, "nothing") == (
        [],
        listed(tables, "nothing", "", "name", 0),
    )


async def test_every_task_is_listed_with_what_its_rollouts_cost_and_took(
    tables: duckdb.DuckDBPyConnection,
) -> None:
    found = listed(tables, None, "", "hardest", 0)
    rates = {row["task_id"]: row["pass_rate"] for row in found.rows}
    expected = tables.sql(
        "select task_id, count(*) filter (resolved) / nullif(count(resolved), 0) from rollouts group by 1"
    ).fetchall()
    assert rates == {**dict(expected), "waits": None, "untried": None}
    assert [row["task_id"] for row in found.rows][-3:] == ["t1", "waits", "untried"]
    assert (found.tasks, found.untried) == (len(rates), 1)
    last = found.rows[-1]
    assert (last["rollouts"], last["ended"], last["resolved"], last["state"]) == (0, 0, 0, "imported")
    (first,) = (row for row in found.rows if row["task_id"] == "task-0")
    assert first["seconds"] == 1.0 and first["cost_usd"] is None, (
        "no call was recorded: nobody knows its cost"
    )
    mine = {row["task_id"] for row in listed(tables, "mixed", "", "name", 0).rows}
    assert mine == rates.keys() - {"elsewhere", "untried"}
    pages = [listed(tables, None, "", "name", skip, 5) for skip in (0, 5, 10)]
    assert [row["task_id"] for page in pages for row in page.rows] == sorted(rates)[:15]
    assert [page.more for page in pages] == [True, True, True]


@pytest.mark.long
async def test_a_campaigns_page_leads_on(store: Path) -> None:
    async with served(store) as url, aiohttp.ClientSession(url) as http:
        page = await told(http, "/campaigns/mixed")
        assert f"llm_refused5{KEY}" in page and "correct the key, the address or the model" in page
        assert "orchard resume mixed" in page
        async with http.get("/campaigns/mixed") as reply:
            below = (await reply.text()).partition("<h2>Aborted</h2>")[2]
        for path in set(re.findall(r'href="(/[^"]*)"', below)):
            async with http.get(path.replace("&amp;", "&")) as reply:
                assert reply.status == 200, path
        page = await told(http, "/tasks")
        assert "16 tasks, 1 without a rollout" in page
        assert "no rollout" in page and "none ended yet" in page and "not proven" in page


@pytest.mark.long
async def test_a_report_has_it_too(store: Path, tmp_path: Path) -> None:
    write_report(str(store), "mixed", tmp_path / "out")
    front = unescape((tmp_path / "out" / "index.html").read_text())
    assert KEY in front and 'href="rollouts/' in front and 'href="tasks.html"' in front


@pytest.mark.slow
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["1280", "360"])
async def test_keys_reach_all_of_it_and_axe_finds_nothing(store: Path, size: dict[str, int]) -> None:
    async with chromium() as browser, served(store) as url, tab(browser, url, size) as watched:
        for path in ("/campaigns/mixed", "/tasks"):
            await watched.page.goto(url + path)
            await watched.page.evaluate(AXE.read_text())
            assert await watched.page.evaluate(VIOLATIONS) == []
            await watched.look(path)
            await watched.tab_through(path)
        await watched.page.goto(f"{url}/campaigns/mixed")
        await watched.page.get_by_role("link", name="llm_refused", exact=True).click()
        await watched.page.wait_for_url("**cause=llm_refused")
        assert await watched.page.locator("tbody [data-item]").count() == 5
    assert watched.wrong == []


@pytest.mark.long
async def test_before_the_first_campaign_each_list_says_what_is_made(tmp_path: Path) -> None:
    author = Author("import")
    made = await stored(tmp_path, [author.event(imported(task), "", None) for task in ("t", "u")])
    async with served(made) as url, aiohttp.ClientSession(url) as http:
        for path in ("/", "/rollouts", "/tasks", "/status"):
            page = await told(http, path)
            assert "No campaign yet." in page and "2 tasks are made, 0 proven." in page, path
        assert "2 tasks, 2 without a rollout" in await told(http, "/tasks")
    await stored(tmp_path, [submitted(author, 1)])
    async with served(made) as url, aiohttp.ClientSession(url) as http:
        for path in ("/", "/rollouts", "/tasks", "/status"):
            assert "No campaign yet." not in await told(http, path), path


async def test_an_empty_store_says_so(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    async with served(tmp_path / "store") as url, aiohttp.ClientSession(url) as http:
        for path in ("/", "/rollouts", "/tasks", "/status"):
            assert "No task is made yet." in await told(http, path), path
