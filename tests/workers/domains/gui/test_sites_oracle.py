"""The oracle of sites over its real wire: it sees the page of the attempt that asks, and nothing of
others."""

import asyncio
import json
from typing import Any

import aiohttp
import msgspec
import pytest
import uvloop

from orchard.schemas.gui import SiteSpec
from orchard.workers.domains.gui.sites.engine import OpenSite, open_site
from orchard.workers.domains.gui.sites.goals import goal_of
from orchard.workers.domains.gui.sites.oracle import play
from orchard.workers.domains.gui.sites.solving import Element, View, click, done, fill, has, pick, scene, turn
from orchard.workers.domains.gui.sites.tiny import SIDE, SIZE, TinySite
from orchard.workers.domains.gui.sites.window import look, window
from orchard.workers.oracle.server import OracleServer

TINY = SiteSpec(name="tiny", seed=2, layout="scatter", theme="light")


def _survey(site: OpenSite) -> dict[str, Any]:
    """What the expression finds on the tiny page, by the places of its shapes."""
    content = site._content
    assert isinstance(content, TinySite)
    at = len(content.clicked)
    shown = content.screens[at] if at < len(content.screens) and not content.wrong else []
    elements = [
        {"key": " ".join(what), "x": left + SIZE / 2, "y": top + SIZE / 2, "seen": True}
        for what, (left, top) in shown
    ]
    page = f"screen:{at + 1}" if shown else "over"
    return {"page": page, "width": SIDE, "height": SIDE, "elements": elements}


async def _asked(oracle: OracleServer, seed: int, text: str, **fields: Any) -> tuple[int, dict[str, Any]]:
    body = {
        "model": "oracle/0",
        "seed": seed,
        "messages": [{"role": "user", "content": [{"type": "text", "text": text}]}],
        "tools": [{"type": "function", "function": {"name": name}} for name in ("click", "goto_url", "done")],
        **fields,
    }
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{oracle.url}/chat/completions", json=body) as answer,
    ):
        return answer.status, await answer.json()


async def test_each_attempt_is_played_on_what_its_own_page_shows() -> None:
    statement = goal_of(TINY, "tiny.two").statement
    async with OracleServer(lambda: ()) as oracle, open_site(TINY) as first, open_site(TINY) as second:

        async def one(_: str) -> dict[str, Any]:
            return _survey(first)

        async def two(_: str) -> dict[str, Any]:
            return _survey(second)

        async with window(71, first, one), window(72, second, two):
            first._content.post("/", {"place": str(_place(first))})
            (_, ahead), (_, behind) = await asyncio.gather(
                *(_asked(oracle, seed, f"<user_request>\n{statement}\n</user_request>") for seed in (71, 72))
            )
            for answer, site in ((ahead, first), (behind, second)):
                [called] = answer["choices"][0]["message"]["tool_calls"]
                assert called["function"]["name"] == "click"
                arguments = json.loads(called["function"]["arguments"])
                x, y = (each / 1000 * SIDE for each in arguments["point_2d"])
                content = site._content
                assert isinstance(content, TinySite)
                left, top = content.screens[len(content.clicked)][_place(site)][1]
                assert left < x < left + SIZE and top < y < top + SIZE
                assert answer["system_fingerprint"] == "orchard-oracle/sites"
            status, answer = await _asked(oracle, 72, "Buy milk.")
            assert (status, "has no task" in answer["error"]["message"]) == (400, True)
        status, answer = await _asked(oracle, 71, statement)
        assert (status, "sees no page" in answer["error"]["message"]) == (400, True)


def _place(site: OpenSite) -> int:
    content = site._content
    assert isinstance(content, TinySite)
    at = len(content.clicked)
    return [what for what, _ in content.screens[at]].index(content.targets[at])


def test_the_window_opens_under_the_loop_that_workers_and_the_oracle_have() -> None:
    async def seen() -> str:
        async def shown(_: str) -> dict[str, Any]:
            return _survey(site)

        async with open_site(TINY) as site, window(74, site, shown), window(74, site, shown):
            return (await look(74)).page

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(seen()) == "screen:1"


async def test_a_page_that_is_gone_is_told_to_the_oracle_and_harms_no_attempt() -> None:
    async def gone(_: str) -> Any:
        raise RuntimeError("the page was closed")

    async with open_site(TINY) as site, window(73, site, gone):
        for _ in range(2):
            with pytest.raises(LookupError):
                await look(73)
    with pytest.raises(LookupError):
        await look(73)


def test_mistakes_repeat_and_come_at_the_rate_that_is_asked() -> None:
    goal = goal_of(TINY, "tiny.two")
    colour, shape = "blue", "star"
    keys = [" ".join(each) for each in ((colour, shape), *TinySite(TINY).targets)]
    elements = tuple(Element(key=key, x=10 + 60 * at, y=99, seen=True) for at, key in enumerate(keys))
    view = View(page="screen:1", width=SIDE, height=SIDE, elements=elements)

    def said(mistakes: float) -> list[bytes]:
        return [
            msgspec.json.encode(play(TINY, goal, view, seed=seed, number=0, mistakes=mistakes))
            for seed in range(400)
        ]

    right = said(0.0)
    assert len(set(right)) == 1
    assert said(0.3) == said(0.3)
    share = sum(each != right[0] for each in said(0.3)) / 400
    assert 0.2 < share < 0.4


def test_a_site_that_is_down_is_asked_again_and_then_given_up() -> None:
    goal = goal_of(TINY, "tiny.two")
    down = View(page="down", width=SIDE, height=SIDE)
    said = [play(TINY, goal, down, seed=1, number=number, mistakes=0.0) for number in range(4)]
    assert [each.calls[0].name for each in said] == ["goto_url", "goto_url", "goto_url", "done"]


def test_a_turn_does_what_is_left_on_the_page_and_scrolls_to_what_is_not_seen() -> None:
    def element(key: str, **given: Any) -> Element:
        return Element(**{"key": key, "x": 500.0, "y": 100.0, "seen": True, **given})

    def at(page: str, *elements: Element) -> View:
        return View(page=page, width=1000, height=1000, elements=elements)

    scenes = (
        scene("form", fill("name", "Ann"), pick("gift"), click("more", unless=has("extra")), click("send")),
        scene("end", done("Ready.")),
    )
    below = element("send", y=1000.0, seen=False, away=400.0)
    more = element("more")
    assert turn(scenes, at("form", element("name"), element("gift"), more, below), "http://a/") == [
        ("click", {"point_2d": [500, 100]}),
        ("write", {"message": "Ann"}),
        ("click", {"point_2d": [500, 100]}),
        ("click", {"point_2d": [500, 100]}),
    ]
    filled = (element("name", value="Ann"), element("gift", on=True), element("extra"))
    assert turn(scenes, at("form", *filled, below), "http://a/") == [
        ("scroll", {"direction": "down", "amount": 0.4})
    ]
    inside = element("send", seen=False, away=-120.0, inside=(200.0, 300.0))
    assert turn(scenes, at("form", *filled, inside), "http://a/") == [
        ("scroll", {"direction": "up", "amount": 0.12, "point_2d": [200, 300]})
    ]
    assert turn(
        scenes, at("form", *filled, element("send"), element("consent-accept", x=1.0)), "http://a/"
    ) == [("click", {"point_2d": [1, 100]})]
    assert turn(scenes, at("elsewhere"), "http://a/") == [("goto_url", {"url": "http://a/"})]
    assert turn(scenes, at("end"), "http://a/") == [("done", {"response": "Ready."})]


def test_a_tiny_policy_is_told_what_is_clicked_and_where_it_is_in_few_tokens() -> None:
    """Points are whole hundreds, in the thought a digit each, and inside of every shape of every layout."""
    for seed in range(40):
        site = msgspec.structs.replace(TINY, seed=6 * seed, layout=("scatter", "grid", "ring")[seed % 3])
        shown = TinySite(site).screens[0]
        elements = tuple(
            Element(key=" ".join(what), x=left + SIZE / 2, y=top + SIZE / 2, seen=True)
            for what, (left, top) in shown
        )
        view = View(page="screen:1", width=SIDE, height=SIDE, elements=elements)
        said = play(site, goal_of(site, "tiny.one"), view, seed=1, number=0, mistakes=0.0)
        thought = said.text.removeprefix("<think>").removesuffix("</think>")
        key, x, y = thought.rsplit(" ", 2)
        target = TinySite(site).targets[0]
        assert key == " ".join(target)
        left, top = dict(shown)[target]
        assert 0 < int(x) / 10 * SIDE - left < SIZE and 0 < int(y) / 10 * SIDE - top < SIZE
        point = json.loads(said.calls[0].arguments)["point_2d"]
        assert point == [100 * int(x), 100 * int(y)]
        over = View(page="over", width=SIDE, height=SIDE)
        assert (
            "Nothing is left."
            in play(site, goal_of(site, "tiny.one"), over, seed=1, number=1, mistakes=0.0).text
        )


def test_it_sees_from_the_loop_that_processes_run_on() -> None:
    """`orchard oracle` and `orchard worker` run on uvloop, which knows abstract names only in part."""

    async def seen() -> View:
        async with open_site(TINY) as site:

            async def page(_: str) -> dict[str, Any]:
                return _survey(site)

            async with window(74, site, page):
                return await look(74)

    assert uvloop.run(seen()).page == "screen:1"
