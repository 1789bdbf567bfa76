"""The tabs of one browser: which is active, what each page is busy with, and when it is at rest."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from orchard.schemas.outcomes import AbortCause
from orchard.workers.domains.gui.browser import page_scripts
from orchard.workers.domains.gui.browser.resting import (
    PROMPT_SECONDS,
    UNDER_WAY_SECONDS,
    Next,
    Polls,
    Signs,
    next_step,
    was_slow,
)
from orchard.workers.failures import InfrastructureError

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, CDPSession, Dialog, Frame, Page, Request

ANSWER_SECONDS = 5.0
"""Timeout for a page to answer a question about itself; a slower one hangs."""
MOST_TABS = 20
"""Maximum open tabs; tabs that pages open beyond it are closed."""
ATTACHING_SECONDS = 10.0
"""Timeout for all tabs that pages open at once."""
MOST_FRAMES = 20
"""Maximum frames of a page that are watched for changes."""
_MOST_SAID = 200
_UNREACHED = ("net::ERR_CONNECTION_", "net::ERR_EMPTY_RESPONSE", "net::ERR_SOCKET_NOT_CONNECTED")

CRASHED = "the page crashed; open an address or go to another tab"

T = TypeVar("T")


class Unresponsive(Exception):
    """The page does not answer: its script does not end, or it crashed. The model is told."""


class Tab:
    def __init__(self, page: "Page", session: "CDPSession", changed: asyncio.Event) -> None:
        self.page = page
        self.session = session
        self.crashed = False
        self.title = ""
        self._requests: dict[Request, float] = {}
        self._read: set[Request] = set()
        """Requests whose response has begun; they end only if the page reads all of it."""
        self._navigating: dict[str, float] = {}
        """Start times by frame of requested navigations."""
        self._refreshing: dict[str, float] = {}
        """Start times by frame of redirects that the page has scheduled."""
        self.opening = 0
        """Number of windows that it asked for and that have not opened."""
        self._opened_at = 0.0
        self._polls = Polls()
        self.changed = self.loaded = time.monotonic()
        """See Signs; times of the same clock."""
        self._changed = changed

    @property
    def under_way(self) -> tuple[float, ...]:
        """Start times of everything that the page waits for."""
        if self.crashed:
            return ()
        windows = [self._opened_at] * min(max(self.opening, 0), 1)
        pages = (*self._navigating.values(), *self._refreshing.values())
        return (*self._requests.values(), *pages, *windows)

    async def watch(self) -> None:
        session, page = self.session, self.page
        session.on("Page.frameRequestedNavigation", lambda event: self._began(event))
        session.on("Page.frameScheduledNavigation", lambda event: self._scheduled(event))
        session.on("Page.frameClearedScheduledNavigation", lambda event: self._left(event))
        for event in ("frameNavigated", "frameStoppedLoading", "navigatedWithinDocument", "frameDetached"):
            session.on(f"Page.{event}", lambda event: self._ended(event))
        session.on("Page.windowOpen", lambda _: self._opened())
        page.on("request", lambda request: self._asked(request))
        page.on("response", lambda response: self._headed(response.request))
        page.on("requestfinished", lambda request: self._answered(request))
        page.on("requestfailed", lambda request: self._answered(request))
        page.on("crash", lambda _: self._crash())
        page.on("filechooser", lambda _: None)  # who listens keeps it from opening
        await session.send("Page.enable")

    def arrived(self) -> None:
        """Notes that a window it asked for has opened."""
        self.opening -= 1
        self._changed.set()

    def begin(self) -> None:
        """Forgets what never ended before an action: streams, blocked windows."""
        self._requests.clear()
        self._read.clear()
        self._navigating.clear()
        self._refreshing.clear()
        self.opening = 0

    def wait(self) -> None:
        """Notes that an action was carried out; requests repeated from now on are polls."""
        self._polls = Polls()

    def touch(self) -> None:
        self.changed = time.monotonic()
        self._changed.set()

    def _opened(self) -> None:
        self.opening += 1
        self._opened_at = time.monotonic()
        self.touch()

    def _began(self, event: dict[str, Any]) -> None:
        if event.get("disposition") == "currentTab":
            self._navigating[event["frameId"]] = time.monotonic()
            self.touch()

    def _scheduled(self, event: dict[str, Any]) -> None:
        if event["delay"] < UNDER_WAY_SECONDS:
            self._refreshing[event["frameId"]] = time.monotonic()

    def _left(self, event: dict[str, Any]) -> None:
        if self._refreshing.pop(event["frameId"], None) is not None:
            self.touch()

    def _ended(self, event: dict[str, Any]) -> None:
        self._navigating.pop(event.get("frameId") or event.get("frame", {}).get("id", ""), None)
        self.touch()
        self.loaded = self.changed

    def _asked(self, request: "Request") -> None:
        kind, now = request.resource_type, time.monotonic()
        if kind in ("websocket", "eventsource", "media", "ping"):
            return
        if kind in ("fetch", "xhr") and request.method == "GET" and self._polls.hold(request.url, now):
            return
        self._requests[request] = now
        self.touch()

    def _headed(self, request: "Request") -> None:
        if request.resource_type == "fetch" and request in self._requests:
            self._answered(request)
            self._read.add(request)

    def _answered(self, request: "Request") -> None:
        began = self._requests.pop(request, None)
        if began is None and request not in self._read:
            return
        self._read.discard(request)
        self.touch()
        if began is not None and was_slow(self.changed - began):
            self.loaded = self.changed

    def _crash(self) -> None:
        self.crashed = True
        self._changed.set()


class Tabs:
    """All tabs of a context. A page that opens becomes active; dialogs are accepted."""

    def __init__(self, context: "BrowserContext") -> None:
        self.context = context
        self.open: list[Tab] = []
        self._at = 0
        self.dialogs: list[tuple[str, str]] = []
        """Kind and text of dialogs accepted since the last look."""
        self.silent = 0
        """Number of tabs closed since the last look because their page hung."""
        self.unreached: set[str] = set()
        """Hosts, with their ports, that a page did not reach: no connection, or one that was lost."""
        self._changed = asyncio.Event()
        self._attaching: dict[asyncio.Task[None], float] = {}
        """Start times by task of attaching to pages that opened."""
        self._ended = asyncio.Event()

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    @property
    def active(self) -> Tab:
        """The tab that the agent sees; there always is one."""
        return self.open[self._at]

    @property
    def index(self) -> int:
        return self._at

    async def start(self) -> None:
        """Opens the first tab. Raises InfrastructureError."""
        browser = self.context.browser
        assert browser is not None, "contexts are made in browsers"
        browser.on("disconnected", lambda _: self._end())
        self.context.on("page", self._arrived)
        self.context.on("dialog", self._accept)
        self.context.on("requestfailed", self._failed)
        await self.context.add_init_script(f"({page_scripts.PICKERS})()")
        await self.add()
        if not self.open:
            raise InfrastructureError(AbortCause.SANDBOX_DIED, "the browser opened no tab in time")

    async def add(self) -> None:
        """Opens an empty tab, which becomes active."""
        await self.context.new_page()
        await self.attached()

    async def switch(self, index: int) -> None:
        self._at = index
        await self.asked(self.active.page.bring_to_front())

    async def interrupt(self) -> None:
        """Stops the script that keeps the active page from answering, if any."""
        from playwright.async_api import Error

        if not self.open:
            return
        with contextlib.suppress(Error, TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                await self.active.session.send("Runtime.terminateExecution")

    async def renew(self) -> None:
        """Replaces the active tab by an empty one: a crashed page cannot open anything."""
        old, index = self.active, self._at
        await self.add()
        self.open.insert(index, self.open.pop())
        self._at = index
        await self.asked(old.page.close())

    async def close(self) -> None:
        """Closes the active tab; the nearest remaining one becomes active."""
        await self.asked(self.active.page.close())
        await self.attached()
        await self.switch(self._at)

    async def asked(self, answer: Awaitable[T], seconds: float = ANSWER_SECONDS) -> T:
        """Awaits a page's answer. Raises Unresponsive if it does not come, InfrastructureError if the browser
        is gone."""
        from playwright.async_api import Error

        try:
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError as error:
            raise Unresponsive("the page does not respond") from error
        except Error as error:
            await self.insist_alive(error)
            if "crashed" in error.message:
                raise Unresponsive(CRASHED) from error
            raise

    async def insist_alive(self, error: Exception) -> None:
        """Raises InfrastructureError if `error` was caused by the browser's end."""
        if "has been closed" in str(error) or "Connection closed" in str(error):
            with contextlib.suppress(TimeoutError):  # what ended it may be told after what it ended
                await asyncio.wait_for(self._ended.wait(), 1.0 if self.open else ANSWER_SECONDS)
        if self.ended or "Connection closed" in str(error):
            raise InfrastructureError(AbortCause.SANDBOX_DIED, f"the browser ended: {error}") from error

    async def rest(self, quiet: float) -> bool:
        """Waits until the active tab had no event for `quiet` seconds. Returns False if it never comes to
        rest."""
        began = time.monotonic()
        self.active.wait()
        await self._evaluated(self.active.page.main_frame, page_scripts.FRAMES, None, 2.0)
        while not self.ended and not self.active.crashed:
            tab, now = self.active, time.monotonic()
            self._changed.clear()
            signs = Signs(
                began=began,
                changed=max(began, tab.changed),
                loaded=tab.loaded,
                under_way=(*tab.under_way, *self._attaching.values()),
            )
            step, seconds = next_step(signs, quiet, now)
            if step is Next.WATCH:
                await self._watch(tab, signs.changed + quiet - now, quiet, seconds)
            elif step is Next.LISTEN:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), seconds)
                await self._evaluated(self.active.page.main_frame, page_scripts.FRAMES, None, 2.0)
            else:
                return step is Next.REST
        return True

    async def _watch(self, tab: Tab, first: float, quiet: float, longest: float) -> None:
        """Waits until no frame of a page changed for `first` seconds, or for `quiet` after a change. Endless
        changes count as an event."""
        seconds = [first * 1000, quiet * 1000, longest * 1000]
        main, *others = tab.page.frames[:MOST_FRAMES]
        calm, *parts = await asyncio.gather(
            *(self._evaluated(each, page_scripts.CALM, seconds, longest + 1.0) for each in (main, *others))
        )
        if calm is not True or False in parts:
            tab.touch()
        if calm is None:
            await asyncio.sleep(PROMPT_SECONDS)  # it leaves for another page, or cannot be asked

    async def _evaluated(self, frame: "Frame", script: str, argument: object, seconds: float) -> object:
        """Evaluates a script in a frame; None if it cannot be: the frame navigates away or hangs."""
        from playwright.async_api import Error

        try:
            return await self.asked(frame.evaluate(script, argument), seconds)
        except (Unresponsive, Error):
            await asyncio.sleep(0)  # it left for another page: what that does is waited for
            return None

    def _arrived(self, page: "Page") -> None:
        task = asyncio.get_running_loop().create_task(self._attach(page))
        self._attaching[task] = time.monotonic()
        task.add_done_callback(self._attaching.pop)
        task.add_done_callback(lambda _: self._changed.set())

    async def attached(self) -> None:
        """Waits until all opened tabs are attached, at most ATTACHING_SECONDS: a page may open tabs without
        end."""
        deadline = time.monotonic() + ATTACHING_SECONDS
        while self._attaching and (left := deadline - time.monotonic()) > 0:
            await asyncio.wait(self._attaching, timeout=left)

    async def _attach(self, page: "Page") -> None:
        from playwright.async_api import Error

        opener = next((tab for tab in self.open if tab.opening > 0), None)
        if opener is not None:
            opener.arrived()
        try:
            if len(self.open) >= MOST_TABS:
                await page.close()
                return
            async with asyncio.timeout(ANSWER_SECONDS):
                tab = Tab(page, await self.context.new_cdp_session(page), self._changed)
                await tab.watch()
        except TimeoutError:
            # Its script does not end. Its opener is in the same process, and so does not answer either.
            self.silent += 1
            await self.interrupt()
            with contextlib.suppress(Error, TimeoutError):
                async with asyncio.timeout(ANSWER_SECONDS):
                    await page.close()
            return
        except Error:
            return  # it was closed at once
        if page.is_closed():
            return
        page.on("close", lambda _: self._closed(tab))
        self.open.append(tab)
        self._at = len(self.open) - 1

    def _closed(self, tab: Tab) -> None:
        index = self.open.index(tab)
        self.open.remove(tab)
        if index < self._at or self._at >= len(self.open):
            self._at = max(0, self._at - 1)
        self._changed.set()
        if not self.open and not self.ended:
            opening = asyncio.get_running_loop().create_task(self._reopen())
            self._attaching[opening] = time.monotonic()
            opening.add_done_callback(self._attaching.pop)

    async def _reopen(self) -> None:
        from playwright.async_api import Error

        with contextlib.suppress(Error):
            await self.context.new_page()

    async def _accept(self, dialog: "Dialog") -> None:
        from playwright.async_api import Error

        if len(self.dialogs) < 10 and dialog.type != "beforeunload":
            self.dialogs.append((dialog.type, dialog.message[:_MOST_SAID]))
        with contextlib.suppress(Error):  # its page is gone
            await dialog.accept(dialog.default_value)

    def _failed(self, request: "Request") -> None:
        if (request.failure or "").startswith(_UNREACHED):
            self.unreached.add(urlsplit(request.url).netloc)

    def _end(self) -> None:
        self._ended.set()
        self._changed.set()
