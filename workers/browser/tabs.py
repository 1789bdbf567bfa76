"""The tabs of one browser: which is active, what each is busy with, and when it has come to rest."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from orchard.schemas.outcomes import AbortCause
from orchard.workers.browser import page_scripts
from orchard.workers.failures import InfrastructureError

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, CDPSession, Dialog, Page, Request

IDLE_SECONDS = 5.0
"""That an action may keep the network busy."""
CALM_SECONDS = 1.0
"""That the page may go on changing after that."""
QUIET = 0.06
"""Seconds without a change that are rest."""
ANSWER_SECONDS = 5.0
"""For a page to answer a question about itself: one that takes longer hangs."""
MOST_TABS = 20
"""Open at once; those that pages open beyond are closed."""
ATTACHING_SECONDS = 10.0
"""For all tabs that pages open at once, however many they are."""
_MOST_SAID = 200

CRASHED = "the page crashed; open an address or go to another tab"

T = TypeVar("T")


class Unresponsive(Exception):
    """A page that does not answer: its script does not end, or it crashed. An observation."""


class Tab:
    """One page, and what it is busy with."""

    def __init__(self, page: "Page", session: "CDPSession", changed: asyncio.Event) -> None:
        self.page = page
        self.session = session
        self.crashed = False
        self.title = ""
        """As it was last read."""
        self._requests: set[Request] = set()
        self._navigating: set[str] = set()
        """Frames that asked for another page."""
        self.opening = 0
        """Windows that it asked for and that are not there yet."""
        self._changed = changed

    @property
    def busy(self) -> bool:
        """Whether anything is under way that its page waits for."""
        return not self.crashed and bool(self._requests or self._navigating or self.opening > 0)

    async def watch(self) -> None:
        """Follow what the page does."""
        session, page = self.session, self.page
        session.on("Page.frameRequestedNavigation", lambda event: self._began(event))
        for event in ("frameNavigated", "frameStoppedLoading", "navigatedWithinDocument", "frameDetached"):
            session.on(f"Page.{event}", lambda event: self._ended(event))
        session.on("Page.windowOpen", lambda _: self._opened())
        page.on("request", lambda request: self._note(self._requests.add, request))
        page.on("requestfinished", lambda request: self._note(self._requests.discard, request))
        page.on("requestfailed", lambda request: self._note(self._requests.discard, request))
        page.on("crash", lambda _: self._crash())
        page.on("filechooser", lambda _: None)  # who listens keeps it from opening
        await session.send("Page.enable")

    def arrived(self) -> None:
        """A window that it asked for is there."""
        self.opening -= 1
        self._changed.set()

    def begin(self) -> None:
        """Forget what never ended before an action: a stream, a window that was blocked."""
        self._requests.clear()
        self._navigating.clear()
        self.opening = 0

    def _opened(self) -> None:
        self.opening += 1

    def _began(self, event: dict[str, Any]) -> None:
        if event.get("disposition") == "currentTab":
            self._navigating.add(event["frameId"])

    def _ended(self, event: dict[str, Any]) -> None:
        self._navigating.discard(event.get("frameId") or event.get("frame", {}).get("id", ""))
        self._changed.set()

    def _note(self, change: Callable[["Request"], None], request: "Request") -> None:
        if request.resource_type not in ("websocket", "eventsource", "media", "ping"):
            change(request)
            self._changed.set()

    def _crash(self) -> None:
        self.crashed = True
        self._changed.set()


class Tabs:
    """All tabs of a context. Pages that open become active; dialogs are accepted."""

    def __init__(self, context: "BrowserContext") -> None:
        self.context = context
        self.open: list[Tab] = []
        self._at = 0
        self.dialogs: list[tuple[str, str]] = []
        """Kind and text of those that were accepted since the last look."""
        self.silent = 0
        """Tabs that were closed since then, because their page does not answer."""
        self._changed = asyncio.Event()
        self._attaching: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Whether the browser is gone."""
        return self._ended.is_set()

    @property
    def active(self) -> Tab:
        """The one that the agent sees. There always is one."""
        return self.open[self._at]

    @property
    def index(self) -> int:
        """The active tab's, from 0."""
        return self._at

    async def start(self) -> None:
        """Open the first tab."""
        browser = self.context.browser
        assert browser is not None, "contexts are made in browsers"
        browser.on("disconnected", lambda _: self._end())
        self.context.on("page", self._arrived)
        self.context.on("dialog", self._accept)
        await self.context.add_init_script(f"({page_scripts.PICKERS})()")
        await self.add()

    async def add(self) -> None:
        """Open an empty tab, which becomes active."""
        await self.context.new_page()
        await self.attached()

    async def switch(self, index: int) -> None:
        """Make the tab of that index active."""
        self._at = index
        await self.asked(self.active.page.bring_to_front())

    async def interrupt(self) -> None:
        """Stop the script that keeps the active page from answering, if one does."""
        from playwright.async_api import Error

        with contextlib.suppress(Error, TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                await self.active.session.send("Runtime.terminateExecution")

    async def renew(self) -> None:
        """Put an empty tab in the place of the active one: a page that crashed opens nothing any more."""
        old, index = self.active, self._at
        await self.add()
        self.open.insert(index, self.open.pop())
        self._at = index
        await self.asked(old.page.close())

    async def close(self) -> None:
        """Close the active tab; the nearest one that is left becomes active."""
        await self.asked(self.active.page.close())
        await self.attached()
        await self.switch(self._at)

    async def asked(self, answer: Awaitable[T], seconds: float = ANSWER_SECONDS) -> T:
        """What a page answers. Raises Unresponsive where it does not, and InfrastructureError where the
        browser is gone."""
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
        """Raise InfrastructureError if `error` came of the browser's end."""
        if "has been closed" in str(error) or "Connection closed" in str(error):
            with contextlib.suppress(TimeoutError):  # what ended it may be told after what it ended
                await asyncio.wait_for(self._ended.wait(), 1.0 if self.open else ANSWER_SECONDS)
        if self.ended or "Connection closed" in str(error):
            raise InfrastructureError(AbortCause.SANDBOX_DIED, f"the browser ended: {error}") from error

    async def rest(self) -> None:
        """Until the active tab has come to rest: its network at most IDLE_SECONDS, its looks CALM_SECONDS
        more."""
        deadline = time.monotonic() + IDLE_SECONDS
        while True:
            tab = self.active
            await self._evaluated(tab, page_scripts.FRAMES, None, 2.0)
            await self._idle(deadline)
            if tab is not self.active:
                continue
            calm = [QUIET * 1000, CALM_SECONDS * 1000]
            await self._evaluated(tab, page_scripts.CALM, calm, CALM_SECONDS + 1.0)
            if time.monotonic() >= deadline or not (self.active.busy or self._attaching):
                return

    async def _idle(self, deadline: float) -> None:
        while True:
            self._changed.clear()
            if self.ended or not (self.active.busy or self._attaching):
                return
            try:
                async with asyncio.timeout_at(
                    asyncio.get_running_loop().time() + deadline - time.monotonic()
                ):
                    await self._changed.wait()
            except TimeoutError:
                return

    async def _evaluated(self, tab: Tab, script: str, argument: object, seconds: float) -> None:
        """Let a page run something, where it can: one that leaves, or hangs, need not."""
        from playwright.async_api import Error

        try:
            await self.asked(tab.page.evaluate(script, argument), seconds)
        except (Unresponsive, Error):
            await asyncio.sleep(0)  # it left for another page: what that does is waited for

    def _arrived(self, page: "Page") -> None:
        task = asyncio.get_running_loop().create_task(self._attach(page))
        self._attaching.add(task)
        task.add_done_callback(self._attaching.discard)
        task.add_done_callback(lambda _: self._changed.set())

    async def attached(self) -> None:
        """Until all tabs that were opened are followed. A page that opens more without end is not waited
        for."""
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
            self._attaching.add(opening)
            opening.add_done_callback(self._attaching.discard)

    async def _reopen(self) -> None:
        """The only tab closed itself."""
        from playwright.async_api import Error

        with contextlib.suppress(Error):
            await self.context.new_page()

    async def _accept(self, dialog: "Dialog") -> None:
        from playwright.async_api import Error

        if len(self.dialogs) < 10 and dialog.type != "beforeunload":
            self.dialogs.append((dialog.type, dialog.message[:_MOST_SAID]))
        with contextlib.suppress(Error):  # its page is gone
            await dialog.accept(dialog.default_value)

    def _end(self) -> None:
        self._ended.set()
        self._changed.set()
