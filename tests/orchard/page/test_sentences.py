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
from orchard.page.tables import Tables
from orchard.schemas import events as e
from tests.orchard.page.conftest import served, stored
from tests.orchard.page.gallery import NOTHING, compared
from tests.orchard.test_abort_reasons import KEY, aborted
from tests.trajectory_log import Author


def submitted(author: Author, size: int) -> e.Event:
    plan = e.CampaignSubmitted(
        spec=NOTHING, spec_hash="x", size=size, tasks=1, harnesses=("h",), models=("m",), samples=size
    )
    return author.event(plan, "", None)


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
    return await stored(tmp_path_factory.mktemp("sentences"), [*compared(), submitted(author, 9), *failed])


async def test_a_campaign_and_failures_say_why_rollouts_were_aborted_and_what_to_do(store: Path) -> None:
    async with served(store) as url, aiohttp.ClientSession(url) as http:
        for path, count in (
            ("/campaigns/broken", "4 aborted, llm_refused: "),
            ("/failures", "llm_refused: "),
        ):
            html = await told(http, path)
            assert html.count(f"{count}{KEY} (request") == 1, path
            assert html.count("correct the key, the address or the model") == 1, path
            assert "`orchard resume broken`" in html, path


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
