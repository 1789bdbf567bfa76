"""A small site made by hand, tasks on it, and a model that follows a script of calls."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import psutil
from aiohttp import web

from orchard.schemas.gui import BrowserSettings, GuiWorld, SiteSpec
from orchard.schemas.tasks import PluginGrading, Task, WorldUse
from orchard.workers.domains.gui.sites.engine import open_site
from tests.attempts_world import Script
from tests.sandbox_service import LocalService

HOST = "hand.test"
ORIGIN = f"http://{HOST}"
FRONT = """<!doctype html><title>Front</title><body style="margin:0">
<a id=next href="/next" style="position:absolute;left:100px;top:100px">Go to the next page</a>
<form action="/said" method="get" style="position:absolute;left:100px;top:200px">
<input name=word placeholder="A word" aria-label="Word" style="width:200px;height:30px">
<button style="height:30px">Say it</button></form>"""
WALL = """<!doctype html><title>Just a moment...</title><h1>Verify you are human</h1>
<div id=cf-challenge style="width:300px;height:80px">I am not a robot</div>"""
PAGES = {"/wall": WALL, "/": FRONT, "/next": "<!doctype html><title>Next</title><p>Here it is."}
SITE = SiteSpec(name="tiny", seed=1, layout="hand", theme="hand")
Page = str | Callable[[web.Request], Any]
Call = tuple[str, dict[str, Any] | str]


class HandMade:
    """A site with the interface of the generated ones: pages by path, and a record of what was asked for."""

    def __init__(self, pages: dict[str, Page] | None = None) -> None:
        self.pages = PAGES if pages is None else pages
        self.host = HOST
        self.port = 0
        self.seen: list[str] = []
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.path != "/favicon.ico":
            self.seen.append(request.path_qs)
        page = self.pages.get(request.path)
        if callable(page):
            answer = page(request)
            return await answer if asyncio.iscoroutine(answer) else answer
        if page is None:
            return web.Response(status=404, text="<title>None</title>nothing", content_type="text/html")
        return web.Response(text=page, content_type="text/html", headers={"Cache-Control": "no-store"})

    def records(self) -> dict[str, Any]:
        """What was asked for."""
        return {"seen": list(self.seen)}

    async def __aenter__(self) -> "HandMade":
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()


TINY = SiteSpec(name="tiny", seed=1, layout="scatter", theme="light")


def gui_task(number: int = 1, path: str = "/", *, site: bool = False) -> Task:
    """A task on the site, graded by `tests.gui_grader:Seen`: the site was asked for /said?word=tea. With
    `site` it is on a generated one, which worker processes know, too."""
    world = GuiWorld(start_url=f"{ORIGIN}{path}", site=SITE, browser=BrowserSettings(quiet=0.06))
    if site:
        world = GuiWorld(start_url=f"http://{open_site(TINY).host}/", site=TINY)
    return Task(
        task_id=f"hand-{number}",
        source="gui-tests",
        repo=HOST,
        image="host",
        workdir="/",
        statement="Say the word tea.",
        cpu="2",
        memory="4Gi",
        grading=PluginGrading(grader="tests.gui_grader:Seen"),
        world=WorldUse(kind="browser", settings=msgspec.to_builtins(world)),
    )


STEPS: tuple[Sequence[Call], ...] = (
    [("click", {"point_2d": [120, 215]}), ("write", {"message": "tea"})],
    [("press_keys", {"keys": ["Enter"]})],
    [("done", {"response": "I said tea."})],
)
"""What solves the task."""


@dataclass
class Clicker(Script):
    """An endpoint whose model makes the calls of the next of `steps`; a text among them it says as it is."""

    commands: Sequence[str] = ()
    steps: Sequence[Sequence[Call] | str] = STEPS
    prompts: list[dict[str, Any]] = field(default_factory=list)
    """Requests, in order."""

    async def chat(self, request: web.Request) -> web.Response:
        """One completion."""
        raw = await request.read()
        body = msgspec.json.decode(raw)
        self.prompts.append(body)
        turn = 1 + sum(message["role"] == "assistant" for message in body["messages"])
        self.asked[body.get("seed", 0), turn] += 1
        if (hook := self.hooks.get(turn)) is not None:
            await hook(body.get("seed", 0))
        step = self.steps[min(turn, len(self.steps)) - 1]
        message: dict[str, Any] = {"role": "assistant", "content": step}
        if not isinstance(step, str):
            message = {
                "role": "assistant",
                "content": "",
                "reasoning_content": f"Step {turn}.",
                "tool_calls": [
                    {
                        "id": f"c{turn}.{number}",
                        "type": "function",
                        "function": {"name": name, "arguments": text_of(arguments)},
                    }
                    for number, (name, arguments) in enumerate(step)
                ],
            }
        return web.json_response(
            {
                "id": "x",
                "object": "chat.completion",
                "model": "script",
                "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
                "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
            }
        )


def text_of(arguments: dict[str, Any] | str) -> str:
    """Arguments as a model writes them."""
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()


def browser_processes(service: LocalService, kind: str = "") -> list[psutil.Process]:
    """Chromium's processes in the sandboxes of a service: the browsers, or their helpers of a kind."""
    found = []
    for process in psutil.Process(service.agent_pid).children(recursive=True):
        with suppress(psutil.Error):
            line = " ".join(process.cmdline())  # the words of some helpers are one
            wanted = f"--type={kind}" in line if kind else "--type=" not in line and "--headless=new" in line
            if "chromium" in line and wanted:
                found.append(process)
    return found
