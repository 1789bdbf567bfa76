"""Sentences of the page that say why rollouts failed, what to do, and what a figure is worth."""

import re
from html import unescape
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from orchard.actions.session import Session
from orchard.configuration.config import Config
from orchard.page import campaigns
from orchard.page.campaigns import CampaignWatch
from orchard.page.compare import ComparedArm, arm_names
from orchard.page.tables import Tables
from tests.orchard.page.conftest import served, stored
from tests.orchard.page.gallery import FIRST, compared, submitted
from tests.orchard.test_abort_reasons import KEY, aborted
from tests.trajectory_log import Author

EARLY = ComparedArm("early", FIRST.harness, FIRST.model)


async def told(http: aiohttp.ClientSession, path: str) -> str:
    """The words of a page."""
    async with http.get(path) as reply:
        assert reply.status == 200, path
        html = unescape(re.sub(r"<[^>]+>", "", await reply.text()))
    return re.sub(r"\s+", " ", html)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    author = Author("broken")
    details = [f"{KEY} (request req-{number}-9f3c)" for number in range(3)] + ["another"]
    failed = [event for number, said in enumerate(details) for event in aborted(author, number, said)]
    early = Author("early")
    begun = [each for n in (0, 2) for each in early.rollout(0, ["ls"], resolved=True, task=f"task-{n}")]
    events = [*compared(), submitted(author, 9), *failed, submitted(early, 12), *begun]
    return await stored(tmp_path_factory.mktemp("sentences"), events)


async def test_a_campaign_and_failures_say_why_rollouts_were_aborted_and_what_to_do(store: Path) -> None:
    async with served(store) as url, aiohttp.ClientSession(url) as http:
        for path, count in (
            ("/campaigns/broken", "llm_refused4"),
            ("/failures", "llm_refused: "),
        ):
            html = await told(http, path)
            assert html.count(f"{count}{KEY} (request") == 1, path
            assert html.count("correct the key, the address or the model") == 1, path
            assert "orchard resume broken" in html, path


async def test_an_error_without_text_is_named_in_the_log(
    store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def silent(_: object) -> object:
        raise TimeoutError

    monkeypatch.setattr(campaigns, "CampaignBook", silent)
    tables = Tables(str(store))
    watch = CampaignWatch(Session(Config(store=str(store))), tables)
    monkeypatch.setattr(watch, "_connection", object())
    try:
        assert (await watch.newest()).pipeline is None
    finally:
        await tables.close()
    assert "the queues cannot be read just now: TimeoutError" in caplog.text


async def test_compare_prefers_finished_arms_and_says_what_a_difference_is_worth(store: Path) -> None:
    async with served(store) as url, aiohttp.ClientSession(url) as http:
        page = await told(http, "/compare")
        assert "second − first, 95 % interval over 12 tasks" in page
        assert "Not enough" not in page and "done" not in page
        async with http.get("/compare") as reply:
            assert re.findall(r"<label>([^<]*)<select", await reply.text()) == ["baseline", "compared arm"]
        page = await told(http, FIRST.against(EARLY))
        assert re.search(r"early is \w+: 2 of 12 done", page)
        assert page.index("Not enough tasks in common to tell: 2") < page.index(
            "early − first, 95 % interval"
        )
        assert "same in both" in page and "solved by neither" in page
        assert "Tasksfirstearly" in page
        assert "Only one arm yet" in await told(http, "/compare?campaign=early")


def test_arms_are_named_by_what_differs() -> None:
    assert arm_names(FIRST, EARLY) == ("first", "early")
    assert arm_names(FIRST, FIRST._replace(model="n")) == ("m", "n")
    assert arm_names(FIRST, FIRST) == ("first", "first")


async def test_a_rate_has_its_interval_and_is_quiet_until_the_campaign_has_finished(store: Path) -> None:
    async with served(store) as url, aiohttp.ClientSession(url) as http:
        assert "95 % interval[" in (await told(http, "/campaigns/first")).replace("interval [", "interval[")
        async with http.get("/") as reply:
            assert (await reply.text()).count('<span class="quiet" title="not finished">') == 1


async def test_failures_count_rollouts_and_tasks(store: Path) -> None:
    async with served(store) as url, aiohttp.ClientSession(url) as http:
        page = await told(http, "/failures")
    assert "4 rollouts, 1 task" in page and "Ended: submitted" in page
