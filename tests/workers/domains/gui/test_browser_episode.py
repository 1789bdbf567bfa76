"""Rollouts in a browser: real queue, real sandboxes, real Chromium, a scripted model; pictures in the log."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from aiohttp import web

from orchard.injector.tunnels import AsyncTunnel
from orchard.schemas.campaigns import Budget, Timeouts
from orchard.schemas.events import RolloutAborted, RolloutFinished, payload
from orchard.schemas.gui import GuiSubmission
from orchard.schemas.outcomes import AbortCause, ExitStatus
from orchard.streams.server import EmbeddedServer
from orchard.workers.attempts import retries
from orchard.workers.domains.gui.browser import prompts
from orchard.workers.domains.gui.browser import world as browser_world
from orchard.workers.domains.gui.browser.launching import SITE_PORT
from tests.attempts_world import QUICK_RETRIES, World, world
from tests.gui_cases import NOTE
from tests.gui_world import ORIGIN, PAGES, STEPS, Call, Clicker, HandMade, browser_processes, gui_task
from tests.sandbox_service import LocalService

PLAN: dict[str, Any] = {"harnesses": ("browser",), "timeouts": Timeouts(), "max_tries": 1}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalService]:
    made = LocalService(tmp_path_factory.mktemp("gui") / "state")
    yield made
    made.stop()


@pytest.fixture
async def place(
    nats_server: EmbeddedServer, service: LocalService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    monkeypatch.setattr(retries, "ROLLOUTS", QUICK_RETRIES)
    monkeypatch.setattr(browser_world, "open_site", lambda _: HandMade())
    async with (
        world(nats_server.url, service.url, tmp_path / "store", ()) as made,
        Clicker().served() as model,
    ):
        made.model = model
        yield made


async def _outcome(place: World, task: Any = None, **changes: Any) -> RolloutFinished | RolloutAborted:
    (rollout,) = await place.submit(task or gui_task(), **{**PLAN, **changes})
    async with place.working():
        data = payload((await place.outcomes(rollout))[rollout])
    assert isinstance(data, RolloutFinished | RolloutAborted)
    return data


@pytest.mark.long
async def test_first_and_last_turn_have_the_structure_of_the_paper(place: World) -> None:
    """Appendix D, part by part, on what an episode left in the log."""
    data = await _outcome(place)
    assert isinstance(data, RolloutFinished), data
    assert (data.exit_status, data.reward, data.turns) == (ExitStatus.FINISHED, 1.0, 3)
    outcome = msgspec.json.decode(data.submission, type=GuiSubmission)
    assert outcome.records == {"seen": ["/", "/said?word=tea"]}
    assert [len(step.results) for step in outcome.steps] == [2, 1, 1]
    assert outcome.answer == "I said tea."
    system, user, *_, last_call, _ = await place.rows(
        "select role, content, reasoning, tool_calls, images from messages order by sequence"
    )
    assert system[0] == "system" and system[1] == prompts.SYSTEM
    place_of_picture = user[4][0]
    shown = user[1][: place_of_picture["at"]] + place_of_picture["caption"] + "PICTURE"
    shown += user[1][place_of_picture["at"] :]
    assert user[0] == "user" and shown.split("\n") == [
        "<user_request>",
        "Say the word tea.",
        "</user_request>",
        "<observation>",
        "screen size: 1280 x 1000",
        "Current tab: 0",
        "Available tabs:",
        "- Tab 0 (active): http://hand.test/ - Front",
        "screenshot:",
        "PICTURE",
        "</observation>",
    ]
    rows = await place.rows(
        "select role, content, images from messages where role = 'tool' order by sequence"
    )
    click, write, enter, done = rows
    note = "Note: no visible navigation or new tab detected."
    on = '<input> type=text "Word"'
    assert click[1:] == (f"Succeed: `click` on {on} at (154, 215) executed. {note}", None)
    assert write[1].partition("\n")[0] == f'Succeed: `write` typed "tea" into {on}.'
    ((picture,),) = (enter[2],)
    at = picture["at"]
    shown = enter[1][:at] + picture["caption"] + "PICTURE" + enter[1][at:]
    assert shown.split("\n") == [
        "Succeed: `press_keys` Enter executed. Page navigated to http://hand.test/said?word=tea.",
        "<observation>",
        "screen size: 1280 x 1000",
        "Current tab: 0",
        "Available tabs:",
        "- Tab 0 (active): http://hand.test/said?word=tea - None",
        "screenshot:",
        "PICTURE",
        "</observation>",
    ]
    assert (picture["media_type"], picture["width"], picture["height"]) == ("image/jpeg", 1280, 1000)
    assert done[1:] == ("Succeed: `done` executed.", None)
    assert last_call[2] == "Step 3."
    assert [(call["name"], call["arguments"]) for call in last_call[3]] == [
        ("done", '{"response":"I said tea."}')
    ]
    # Only the last picture of the path was in the last prompt, and the tree has them all.
    calls = await place.rows("select images_shown from llm_calls order by sequence")
    stored = await place.rows("select images from messages where images is not null order by sequence")
    assert [found for (found,) in calls] == [[row[0]["sha256"]] for (row,) in stored]
    assert [image.blob.sha256 for image in outcome.screenshots] == [row[0]["sha256"] for (row,) in stored]
    assert all(place.blobs.get(image.blob)[:2] == b"\xff\xd8" for image in outcome.screenshots)
    prompt = place.model.prompts[-1]["messages"]  # type: ignore[attr-defined]
    pictures = [part for each in prompt if isinstance(each["content"], list) for part in each["content"]]
    assert sum(part["type"] == "image_url" for part in pictures) == 1
    (tools,) = {msgspec.json.encode(each["tools"]) for each in place.model.prompts}  # type: ignore[attr-defined]
    assert len(msgspec.json.decode(tools)) == 13


@pytest.mark.slow
async def test_ends_of_an_episode_are_told_apart(place: World) -> None:
    """One worker with spare browsers: each end has its status, and only outcomes of the agent a reward."""
    assert isinstance(place.model, Clicker)
    model = place.model
    click = ("click", {"point_2d": [120, 215]})
    answer = ("done", {"response": "x"})
    thought = "<think>\nI see a field.\n</think>\n\n"
    written = [
        f'{thought}<tool_call>\n{{"name": "click", "arguments": {{"point_2d": [120, 215]}}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "write", "arguments": {"message": "tea"}}\n</tool_call>',
        f'{thought}<tool_call>{{"name": "press_keys", "arguments": {{"keys": ["Enter"]}}}}</tool_call>',
        f'{thought}<tool_call>{{"name": "done", "arguments": {{"response": "I said tea."}}}}</tool_call>',
    ]
    plays: dict[str, Sequence[Sequence[Call] | str]] = {
        "written": written,
        "silent": ["I would click.", [("click", "{")], '<tool_call>{"name": 1}</tool_call>'],
        "unparsed-once": ["Let me think.", *STEPS],
        "no-end": [[click]],
        "after-done": [[click, answer, ("write", {"message": "tea"}), click]],
        "wall": [[click]],
    }
    ends: dict[str, tuple[Any, ...]] = {}
    lines: dict[str, list[tuple[str, ...]]] = {}
    async with place.working(spare_browsers=1) as own:
        for name, steps in plays.items():
            model.steps = steps
            task = gui_task(path="/wall" if name == "wall" else "/")
            changes = {**PLAN, "name": name, "budget": Budget(steps=4)}
            (rollout,) = await place.submit(task, **changes)
            data = payload((await place.outcomes(rollout))[rollout])
            if isinstance(data, RolloutAborted):
                ends[name] = (data.cause.value, data.failures)
                continue
            assert isinstance(data, RolloutFinished)
            outcome = msgspec.json.decode(data.submission, type=GuiSubmission)
            ends[name] = (data.exit_status.value, data.reward, outcome.parsed, data.turns)
            lines[name] = [step.results for step in outcome.steps]
        assert own.taken > 0
    assert ends == {
        "written": ("finished", 1.0, True, 3),
        "silent": ("format_failure", -1.0, False, 3),
        "unparsed-once": ("finished", 0.0, False, 4),
        "no-end": ("step_limit", 0.0, True, 4),
        "after-done": ("finished", 0.0, True, 1),
        "wall": ("blocked", 1),
    }
    on = '<input> type=text "Word"'
    assert lines["written"][0] == (
        f"Succeed: `click` on {on} at (154, 215) executed. {NOTE.strip()}",
        f'Succeed: `write` typed "tea" into {on}.',
    )
    assert lines["silent"] == [(), (), ()]
    assert lines["after-done"][0][1:] == (
        "Succeed: `done` executed.",
        "Failed: `write` was not executed: `done` has ended the task.",
        "Failed: `click` was not executed: `done` has ended the task.",
    )
    rewards = await place.rows("select count(*) from rewards_all")
    assert rewards == [(5,)], "what is blocked has none"
    said = await place.rows(
        "select content from messages_all where role = 'user' and content like '<tool_response>%'"
    )
    assert len(said) == 3 and all(text.endswith("\n</tool_response>") for (text,) in said)


@pytest.mark.slow
async def test_a_browser_that_is_killed_costs_an_attempt_and_a_page_that_crashes_does_not(
    place: World, service: LocalService
) -> None:
    model = place.model
    assert isinstance(model, Clicker)
    click = ("click", {"point_2d": [120, 215]})
    model.steps = [[click], [click], [("goto_url", {"url": f"{ORIGIN}/"})], *STEPS]
    killed: list[int] = []

    async def kill_pages(_: int) -> None:
        for process in browser_processes(service, "renderer"):
            process.kill()

    async def kill_once(_: int) -> None:
        if not killed:
            (browser,) = browser_processes(service)
            killed.append(browser.pid)
            browser.kill()

    model.hooks = {2: kill_pages, 4: kill_once}
    (rollout,) = await place.submit(gui_task(), **{**PLAN, "max_tries": 2})
    async with place.working():
        data = payload((await place.outcomes(rollout))[rollout])
    assert isinstance(data, RolloutFinished), data
    assert killed and data.reward == 1.0
    assert await place.rows("select kind, cause from attempts_all where kind = 'released'") == [
        ("released", "sandbox_died")
    ]
    outcome = msgspec.json.decode(data.submission, type=GuiSubmission)
    assert [step.results[0] for step in outcome.steps[1:3]] == [
        "Failed: `click`: the page crashed; open an address or go to another tab.",
        f"Succeed: `goto_url` {ORIGIN}/ executed.{NOTE}",
    ]
    assert browser_processes(service) == []


@pytest.mark.long
@pytest.mark.parametrize("when", ["while a page loads", "before a page loads"])
async def test_a_page_that_did_not_load_because_the_sites_line_broke_is_seen_by_nobody(
    place: World, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The model saw a network error; another attempt is made, where the line holds."""
    breaks = iter([True])

    def site_line() -> AsyncTunnel:
        return next(each for each in place.sandboxes._transport.tunnels if each.port == SITE_PORT)

    async def lose_line() -> None:
        if next(breaks, False):
            line = site_line()
            assert line._line is not None
            if when == "before a page loads":
                line._dial = held(line._dial)
            await line._line.close()

    opened = asyncio.Event()

    def held(dial: Callable[[str], Awaitable[Any]]) -> Callable[[str], Awaitable[Any]]:
        async def later(query: str) -> Any:
            await opened.wait()
            return await dial(query)

        return later

    async def said(_: web.Request) -> web.Response:
        if when == "while a page loads":
            await lose_line()
        return web.Response(text="<title>Said</title>", content_type="text/html")

    async def before(_: int) -> None:
        if when == "before a page loads":
            await lose_line()

    async def after(_: int) -> None:
        opened.set()

    monkeypatch.setattr(browser_world, "open_site", lambda _: HandMade({**PAGES, "/said": said}))
    place.model.hooks = {2: before, 3: after}
    data = await _outcome(place, max_tries=2)
    assert [each.cause for each in await place.released()] == [AbortCause.SANDBOX_UNAVAILABLE]
    assert isinstance(data, RolloutFinished), data
    assert (data.exit_status, data.reward) == (ExitStatus.FINISHED, 1.0)
