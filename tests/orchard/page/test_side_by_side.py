"""Two rollouts beside each other, and what a rollout's page says of its services and judges."""

import re
from pathlib import Path

import aiohttp
import pytest

from orchard.schemas import events as e
from tests.orchard.page.conftest import Serve, stored
from tests.orchard.page.gallery import assisted
from tests.orchard.page.test_numbers import cells, text_of
from tests.trajectory_log import Author

pytestmark = pytest.mark.long


def _pair(author: Author) -> tuple[list[e.Event], list[e.Event]]:
    """Of one task: they part in turn 3 of 25 and 40."""
    same = ["ls", "cat a"]
    first = author.rollout(0, [*same, *(f"left {n}" for n in range(23))], resolved=False)
    second = author.rollout(1, [*same, *(f"right {n}" for n in range(38))], resolved=True)
    return first, second


async def test_two_rollouts_turn_by_turn(tmp_path: Path, serve: Serve) -> None:
    left, right = _pair(Author())
    a, b = left[0].rollout_id or "", right[0].rollout_id or ""
    store = await stored(tmp_path, [*left, *right])
    async with serve(store) as url, aiohttp.ClientSession(url) as http:

        async def page(path: str) -> str:
            async with http.get(path) as reply:
                assert reply.status == 200, path
                return await reply.text()

        html = await page(f"/beside?a={a[:8]}&b={b}")
        assert "first difference: turn 3" in text_of(html)
        turns = re.findall(r'<article class="beside" id="turn-(\d+)"', html)
        assert list(map(int, turns)) == list(range(20))
        assert html.count("identical in both") == 3, "the first messages, and turns 1 and 2"
        assert "left 16" in html and "right 16" in html and "left 17" not in html
        html = await page(f"/beside?a={a}&b={b}&turn=27")
        assert "left 22" in html and "right 36" in html
        assert html.count("already ended") == 14, "turns 26 to 39 are of the right one alone"
        html = await page(f"/beside?a={a}&b={b}&turn=40")
        assert "right 37" in html and 'id="next"' not in html and f"/beside?a={a}&amp;b={b}" in html
        assert f"/beside?a={a}&amp;b={b}" in await page(f"/rollouts/{a}"), "the way there"
        async with http.get(f"/beside?a={a}") as reply:
            assert reply.status == 404


async def test_arms_lead_to_the_rollouts_that_show_the_difference(tmp_path: Path, serve: Serve) -> None:
    events = []
    for name, resolved in (("one", (False, True, False)), ("two", (True, True, False))):
        for sample, each in enumerate(resolved):
            events += Author(name).rollout(sample, ["ls"], resolved=each)
    store = await stored(tmp_path, events)
    async with serve(store) as url, aiohttp.ClientSession(url) as http:
        async with http.get("/compare") as reply:
            found = re.search(r'href="(/beside\?task=[^"]*)"', await reply.text())
        assert found is not None
        async with http.get(found[1].replace("&amp;", "&")) as reply:
            shown = text_of(await reply.text())
    assert reply.url.path == "/beside" and "task" not in reply.url.query
    assert [shown.count(f" {word} ") for word in ("unresolved", "resolved")] == [1, 1]


async def test_services_and_judges_of_a_rollout(tmp_path: Path, serve: Serve) -> None:
    made = assisted(Author())
    name = made[0].rollout_id or ""
    store = await stored(tmp_path, made)
    async with serve(store) as url, aiohttp.ClientSession(url) as http:
        async with http.get(f"/rollouts/{name}") as reply:
            html = await reply.text()
        async with http.get(f"/rollouts/{name}?as_of=1") as reply:
            assert "mail_send" not in await reply.text(), "it was not asked for yet"
    assert [row[:3] for row in cells(html, "Services")] == [
        ["1", "mail_send", "200"],
        ["2", "mail_send", "429 rate_limited"],
        ["3", "mail_send", "200"],
    ]
    assert "1,000 more characters" in html
    assert [row[1:4] for row in cells(html, "Judges")] == [
        ["passed", "+0.75", "polite"],
        ["no verdict", "–", "polite"],
    ]
