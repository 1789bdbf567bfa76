"""The world `browser`: Chromium in the agent's sandbox, the task's site, and the 13 tools."""

import hashlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec

from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import Budget
from orchard.schemas.gui import GuiStep, GuiSubmission, GuiWorld, SiteSpec
from orchard.schemas.messages import Image, ToolCall
from orchard.schemas.outcomes import AbortCause, ExitStatus
from orchard.schemas.tasks import Task
from orchard.workers.domains.gui.browser import tools
from orchard.workers.domains.gui.browser.actions import ActionExecutor
from orchard.workers.domains.gui.browser.calls import written_calls, written_results
from orchard.workers.domains.gui.browser.launching import SITE_PORT
from orchard.workers.domains.gui.browser.observing import BrowserObservation, Observer
from orchard.workers.domains.gui.browser.pool import browsers
from orchard.workers.domains.gui.browser.resting import PROMPT_SECONDS, QUIET_SECONDS
from orchard.workers.domains.gui.browser.tabs import Tabs, Unresponsive
from orchard.workers.domains.gui.sites.engine import OpenSite, open_site
from orchard.workers.domains.gui.sites.window import window
from orchard.workers.episode.machine import CommandOutcome
from orchard.workers.episode.pictures import Picture
from orchard.workers.episode.worlds import WorldContext
from orchard.workers.failures import InfrastructureError

WORLDS = {"browser": "BrowserWorld"}

START_SECONDS = 60.0
MOST_WALLS = 2
"""Number of looks in a row at a bot wall that ends the rollout."""


class BrowserWorld:
    name = "browser"
    settings = GuiWorld

    def blocks_network(self, settings: GuiWorld) -> bool:
        return settings.block_network

    @asynccontextmanager
    async def open(self, settings: GuiWorld, opening: WorldContext) -> "AsyncIterator[BrowserAttempt]":
        async with AsyncExitStack() as stack:
            site = line = None
            if settings.site is not None:
                site = await stack.enter_async_context(_site(settings.site, opening.task))
                line = await stack.enter_async_context(opening.machine.reverse(site.port, SITE_PORT))
            own = await opening.shared.of(browsers)
            tabs = await stack.enter_async_context(own.opened(opening.machine, settings))
            attempt = BrowserAttempt(settings, tabs, site, own.refill)
            if site is not None:
                await stack.enter_async_context(window(opening.seed, site, attempt.evaluate))
            await attempt.begin()
            yield attempt
            if site is not None and line is not None and line.breaks and site.host in tabs.unreached:
                raise InfrastructureError(
                    AbortCause.SANDBOX_UNAVAILABLE,
                    f"the line to the task's site broke, and a page of {site.host} did not load",
                )


def _site(site: SiteSpec, task: Task) -> OpenSite:
    try:
        return open_site(site)
    except KeyError as error:
        raise InfrastructureError(
            AbortCause.INVALID_REQUEST, f"the site of {task.task_id} has the unknown layout or theme {error}"
        ) from error


def quiet_of(world: GuiWorld, site: OpenSite | None) -> float:
    """Seconds without an event that count as rest after input. Pages of generated sites have no timers and
    make no later requests."""
    if world.browser.quiet is not msgspec.UNSET:
        return world.browser.quiet
    return PROMPT_SECONDS if isinstance(site, OpenSite) else QUIET_SECONDS


class BrowserAttempt:
    def __init__(
        self, world: GuiWorld, tabs: Tabs, site: OpenSite | None, seen: Callable[[], None] = lambda: None
    ) -> None:
        """Calls `seen` after each look."""
        self.tools = tools.TOOLS
        self.about = f"The browser's screen has {world.browser.width} x {world.browser.height} pixels."
        self.last_k = world.browser.last_k
        self.answer: str | None = None
        """The argument of the `done` call."""
        self._world = world
        self.tabs = tabs
        self._site = site
        self._seen = seen
        self._quiet = quiet_of(world, site)
        self._executor = ActionExecutor(tabs, world.browser, self._quiet)
        self._observer = Observer(tabs, world.browser)
        self._walls = 0
        self._injections = 0
        self._screens: list[Image | None] = []
        """The screenshot of each look, or None."""

    async def begin(self) -> None:
        """Opens the page at which the task begins. Raises InfrastructureError if it does not load, or if a
        site that is not ours answers that it cannot serve it."""
        from playwright.async_api import Error

        tab, url = self.tabs.active, self._world.start_url
        try:
            answer = await self.tabs.asked(
                tab.page.goto(url, wait_until="commit", timeout=START_SECONDS * 1000), START_SECONDS + 5
            )
            if self._site is None and answer and (answer.status >= 500 or answer.status == 429):
                raise InfrastructureError(AbortCause.SITE_UNAVAILABLE, f"{url} answered {answer.status}")
            await self.tabs.rest(self._quiet)
            await self.tabs.asked(tab.session.send("Page.resetNavigationHistory"))
        except (Error, Unresponsive) as error:
            raise InfrastructureError(AbortCause.SITE_UNAVAILABLE, f"{url}: {error}") from error

    def bounded(self, budget: Budget) -> Budget:
        return budget

    async def call(self, call: ToolCall) -> tuple[CommandOutcome, str]:
        """Returns the result line alone; `look` shows the screen."""
        started = time.monotonic()
        line = _one_line(await self._line(call))
        code = 0 if line.startswith("Succeed:") else 1
        seconds = time.monotonic() - started
        return CommandOutcome(output=line, returncode=code, seconds=seconds), line

    async def look(self) -> BrowserObservation:
        """Observes the screen. Raises InfrastructureError (BLOCKED) for the second bot wall in a row."""
        seen = await self._observer.look(self._executor.written)
        self._screens.append(_image(seen.picture))
        self._seen()
        self._injections += seen.injections
        self._walls = self._walls + 1 if seen.blocked else 0
        if self._walls >= MOST_WALLS:
            url = self.tabs.active.page.url
            raise InfrastructureError(
                AbortCause.BLOCKED, f"{url} asks whether its visitor is human: {seen.blocked}"
            )
        return seen

    async def evaluate(self, expression: str) -> Any:
        return await self.tabs.asked(self.tabs.active.page.evaluate(expression))

    def door(self) -> AbstractAsyncContextManager[tuple[int, str]]:
        """Raises InfrastructureError: a program in the sandbox would get no screenshots."""
        raise InfrastructureError(
            AbortCause.INVALID_REQUEST, "a browser has no MCP server: use the harness `browser`"
        )

    async def hand_in(self, ended: ExitStatus, messages: Sequence[Mapping[str, Any]]) -> str:
        tab = self.tabs.active
        steps = steps_of(messages, self._screens[1:])
        outcome = GuiSubmission(
            start_url=self._world.start_url,
            url=tab.page.url,
            title=tab.title,
            ended=ended.value,
            answer=self.answer,
            parsed=all(step.results for step in steps),
            records=self._site.records() if self._site is not None else None,
            first=self._screens[0] if self._screens else None,
            steps=steps,
            injections=self._injections + self._executor.injections,
        )
        return msgspec.json.encode(outcome).decode()

    async def _line(self, call: ToolCall) -> str:
        if self.answer is not None:
            return f"Failed: `{call.name[:100]}` was not executed: `done` has ended the task."
        try:
            action = tools.read_action(call.name, call.arguments)
        except tools.NotSupported as error:
            return str(error)
        except tools.BadArguments as error:
            return f"Failed: `{call.name}`: {error}"
        if isinstance(action, tools.Done):
            self.answer = action.response
            return "Succeed: `done` executed."
        return await self._executor.do(call.name, action)


def steps_of(messages: Sequence[Mapping[str, Any]], screens: Sequence[Image | None]) -> tuple[GuiStep, ...]:
    """Builds the steps from a path of chat messages. `screens` are the looks after each step whose calls were
    executed, in order; the last step may have none. Pure."""
    steps: list[GuiStep] = []
    for message in messages:
        content = str(message.get("content") or "")
        if message["role"] == "assistant":
            steps.append(
                GuiStep(thought=_joined(message.get("reasoning_content"), content), calls=_calls(message))
            )
        elif steps and message["role"] == "tool":
            line = content.partition("\n")[0]
            steps[-1] = msgspec.structs.replace(steps[-1], results=(*steps[-1].results, line))
        elif steps and (lines := written_results(content)):
            calls = tuple((call.name, call.arguments) for call in written_calls(steps[-1].thought))
            steps[-1] = msgspec.structs.replace(steps[-1], calls=calls, results=lines)
    looks = iter(screens)
    return tuple(
        msgspec.structs.replace(step, screenshot=next(looks, None)) if step.results else step
        for step in steps
    )


def _one_line(said: str) -> str:
    """Joins a result's lines, because pages and models write line breaks, and replaces lone surrogates."""
    return " ".join(said.encode(errors="replace").decode().splitlines())


def _joined(*texts: str | None) -> str:
    return "\n".join(filter(None, texts))


def _calls(message: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    return tuple((function["name"], function["arguments"]) for function in functions)


def _image(picture: Picture | None) -> Image | None:
    if picture is None:
        return None
    blob = BlobRef(sha256=hashlib.sha256(picture.data).hexdigest(), size=len(picture.data))
    return Image(blob=blob, media_type=picture.media_type, width=picture.width, height=picture.height)
