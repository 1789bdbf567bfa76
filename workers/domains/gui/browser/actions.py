"""Carries out one action in a browser, and words the result line for the model."""

import asyncio
import time
from typing import TYPE_CHECKING, Any

from orchard.schemas.gui import BrowserSettings
from orchard.workers.domains.gui.browser import page_scripts
from orchard.workers.domains.gui.browser import tools as t
from orchard.workers.domains.gui.browser.focusing import focused
from orchard.workers.domains.gui.browser.inputs import OffScreen, Pixel, UnknownKey, key, pixel
from orchard.workers.domains.gui.browser.marks import WrittenText, holds_marks
from orchard.workers.domains.gui.browser.resting import PROMPT_SECONDS, quiet_after
from orchard.workers.domains.gui.browser.tabs import CRASHED, Tabs, Unresponsive

if TYPE_CHECKING:
    from playwright.async_api import Frame

NAVIGATION_SECONDS = 15.0
"""Timeout for the first bytes of a page that a tool opens."""
INPUT_SECONDS = 10.0
"""Timeout for a page to take what is typed, clicked or dragged."""
LONGEST_URL = 1000
"""Maximum characters of an address in a result."""
ACTION_SECONDS = 30.0
"""Timeout for a whole action: thousands of keys may each be slow."""
_TYPED = 200
"""Characters that are typed one by one; the rest is inserted at once, as if pasted."""
_SHOWN = 500
RESTLESS = "Note: the page has not come to rest: it is still loading or changing."
"""Ends the result line if the page was still busy after the longest wait."""


class Failed(Exception):
    """The action was not carried out; the text is one sentence with the reason."""


def shown_url(url: str) -> str:
    """Formats an address for the model: on one line, cut at LONGEST_URL."""
    line = "".join(each for each in url if each.isprintable())
    return line if len(line) <= LONGEST_URL else f"{line[:LONGEST_URL]}..."


class ActionExecutor:
    def __init__(self, tabs: Tabs, settings: BrowserSettings, quiet: float) -> None:
        self._tabs = tabs
        self._settings = settings
        self._quiet = quiet
        self._ends = 0.0
        self.written = WrittenText()
        """Text that the agent wrote into pages and addresses."""
        self.injections = 0

    async def do(self, name: str, action: t.Action) -> str:
        """Carries out an action, waits until the page rests, and returns the result line. Raises
        InfrastructureError if the browser is gone."""
        from playwright.async_api import Error

        tabs = self._tabs
        await tabs.attached()
        tab, url, count = tabs.active, tabs.active.page.url, len(tabs.open)
        tab.begin()
        self._ends = time.monotonic() + ACTION_SECONDS
        quiet = quiet_after(action, self._quiet)
        try:
            line = await self._carried_out(action)
        except (Failed, OffScreen, UnknownKey) as error:
            await tabs.rest(PROMPT_SECONDS)
            return f"Failed: `{name}`: {str(error).rstrip('.')}."
        except Unresponsive as error:
            await tabs.interrupt()
            await tabs.rest(quiet)
            return f"Failed: `{name}`: {str(error).rstrip('.')}."
        except Error as error:
            await tabs.insist_alive(error)
            await tabs.rest(quiet)
            return f"Failed: `{name}`: {_reason(error)}."
        rested = await tabs.rest(quiet)
        here, ends = tabs.active.page.url, []
        if len(tabs.open) > count:
            ends.append(f"New tab opened (tab {len(tabs.open) - 1}).")
        elif (tabs.active is tab or isinstance(action, t.GotoUrl)) and here != url:
            ends.append(f"Page navigated to {shown_url(here)}.")
        elif rested and not isinstance(action, t.Write):
            return succeeded_here(line)
        if not rested:
            ends.append(RESTLESS)
        return " ".join(["Succeed:", line, *ends])

    async def _carried_out(self, action: t.Action) -> str:
        match action:
            case t.Click():
                return await self._click(action)
            case t.Hover():
                at = self._pixel(action.point_2d)
                found = await self._element(at)
                await self._input(self._page.mouse.move(at.x, at.y))
                return f"`hover`{_on(found)} at {at} executed."
            case t.Drag():
                return await self._drag(action)
            case t.Write():
                return await self._write(action.message)
            case t.PressKeys():
                return await self._press(action)
            case t.Scroll():
                return await self._scroll(action)
            case t.GotoUrl():
                return await self._goto(action.url)
            case t.GoBack():
                return await self._back()
            case t.WaitSeconds():
                await asyncio.sleep(action.seconds)
                return f"`wait` for {action.seconds} seconds executed."
            case t.NewTab():
                await self._tabs.add()
                return "`new_tab` executed."
            case t.SwitchTab():
                return await self._switch(action.tab_index)
            case t.CloseTab():
                return await self._close()
            case t.Done():
                return "`done` executed."

    @property
    def _page(self) -> Any:
        if self._tabs.active.crashed:
            raise Unresponsive(CRASHED)
        return self._tabs.active.page

    def _pixel(self, point: list[float]) -> Pixel:
        return pixel(point, self._settings.width, self._settings.height)

    async def _input(self, given: Any) -> None:
        await self._tabs.asked(given, min(INPUT_SECONDS, max(self._ends - time.monotonic(), 0.0)))

    async def _click(self, action: t.Click) -> str:
        at = self._pixel(action.point_2d)
        found = await self._element(at)
        await self._input(self._page.mouse.click(at.x, at.y, click_count=action.clicks, button=action.button))
        return clicked(found, at)

    async def _drag(self, action: t.Drag) -> str:
        start, end = self._pixel(action.start_point_2d), self._pixel(action.end_point_2d)
        found = await self._element(start)
        mouse = self._page.mouse
        await self._input(mouse.move(start.x, start.y))
        await self._input(mouse.down())
        try:
            await self._input(mouse.move(end.x, end.y, steps=action.steps))
        finally:
            await self._input(mouse.up())
        return f"`drag`{_on(found)} from {start} to {end} executed."

    async def _write(self, message: str) -> str:
        self.written.add(message)
        keyboard = self._page.keyboard
        found = await focused(self._tabs)
        if found is None:
            raise Failed("no input field has the focus; click on one first.")
        if found.way in ("type", "keys"):
            if found.way == "type":
                await self._input(keyboard.press("Control+a"))
                await self._input(keyboard.press("Backspace"))
            rest = _TYPED if found.way == "type" else len(message)
            await self._input(keyboard.type(message[:rest]))
            if message[rest:]:
                await self._input(keyboard.insert_text(message[rest:]))
        else:
            if found.opened:
                await self._input(keyboard.press("Escape"))
            refused = await found.run(page_scripts.GIVE, message)
            if refused:
                options = ", ".join(str(each)[:40] for each in refused[:20])
                raise Failed(f"the list has no option {message[:100]!r}; it has: {options}.")
            if refused is not None:
                raise Failed(f"the field does not take {message[:100]!r}.")
        text = message if len(message) <= _SHOWN else f"{message[:_SHOWN]}..."
        return f'`write` typed "{text}" into {self._told(found.element)}.'

    async def _press(self, action: t.PressKeys) -> str:
        keys = [key(name) for name in action.keys]
        self.written.add("".join(each for each in keys if len(each) == 1))
        strokes = ["+".join(keys)] if action.is_hotkey else keys
        for _ in range(action.presses):
            for stroke in strokes:
                await self._input(self._page.keyboard.press(stroke))
        times = f" {action.presses} times" if action.presses > 1 else ""
        return f"`press_keys` {', '.join(strokes)}{times} executed."

    async def _scroll(self, action: t.Scroll) -> str:
        page = self._page
        height, width = self._settings.height, self._settings.width
        by = action.amount * height * (-1 if action.direction in ("up", "left") else 1)
        dx, dy = (by, 0.0) if action.direction in ("left", "right") else (0.0, by)
        where = ""
        if action.point_2d is not None:
            at = self._pixel(action.point_2d)
            where = f"{_on(await self._element(at))} at {at}"
            await self._input(page.mouse.move(at.x, at.y))
            await self._input(page.mouse.wheel(dx, dy))
        elif not await self._tabs.asked(page.evaluate(page_scripts.SCROLL, [dx, dy])):
            # Some pages are no longer than the screen, and scroll a part of themselves.
            await self._input(page.mouse.move(width / 2, height / 2))
            await self._input(page.mouse.wheel(dx, dy))
        return f"`scroll` {action.direction} by {action.amount:g}{where} executed."

    async def _goto(self, url: str) -> str:
        from playwright.async_api import Error, TimeoutError

        url = url.strip()
        self.written.add(url)
        scheme, colon, _ = url.partition(":")
        if "://" not in url and not (
            colon and scheme.lower() in ("about", "data", "javascript", "view-source", "blob")
        ):
            url = f"http://{url}"
        if not url.lower().startswith(("http://", "https://")) and url != "about:blank":
            raise Failed(f"{shown_url(url)[:200]} is not opened: only http and https addresses are.")
        if self._tabs.active.crashed:
            await self._tabs.renew()
        try:
            await self._tabs.active.page.goto(url, wait_until="commit", timeout=NAVIGATION_SECONDS * 1000)
        except TimeoutError as error:
            raise Failed(f"{shown_url(url)} did not answer in {NAVIGATION_SECONDS:g} seconds.") from error
        except Error as error:
            await self._tabs.insist_alive(error)
            if "Download is starting" in error.message:
                raise Failed(f"{shown_url(url)} is a file to download, which is not allowed here.") from error
            raise
        return f"`goto_url` {shown_url(url)} executed."

    async def _back(self) -> str:
        if self._tabs.active.crashed:
            raise Unresponsive(CRASHED)
        tab = self._tabs.active
        history = await self._tabs.asked(tab.session.send("Page.getNavigationHistory"))
        at = history["currentIndex"]
        if at == 0:
            raise Failed("there is no page before this one in this tab.")
        before = {"entryId": history["entries"][at - 1]["id"]}
        await self._tabs.asked(tab.session.send("Page.navigateToHistoryEntry", before))
        return "`go_back` executed."

    async def _switch(self, index: int) -> str:
        if index >= len(self._tabs.open):
            raise Failed(f"there is no tab {index}; tabs are 0 to {len(self._tabs.open) - 1}.")
        await self._tabs.switch(index)
        return f"`switch_tab` to tab {index} executed."

    async def _close(self) -> str:
        if len(self._tabs.open) == 1:
            raise Failed("it is the only tab.")
        closed = self._tabs.index
        await self._tabs.close()
        return f"`close_tab` of tab {closed} executed; tab {self._tabs.index} is active."

    async def _element(self, at: Pixel) -> str:
        """Describes the element at a point, also inside frames of other sites. Empty if there is none."""
        frame, point = self._page.main_frame, [at.x, at.y]
        for _ in range(5):
            found = await self._tabs.asked(frame.evaluate(page_scripts.AT_POINT, point))
            if not isinstance(found, dict):
                return ""
            inner = await self._frame_at(frame, point) if found.get("frame") else None
            if inner is None:
                return self._told(found.get("element"))
            frame, point = inner, found["frame"]
        return ""

    def _told(self, found: object) -> str:
        element = _element(found)
        self.injections += holds_marks(element)
        return element

    async def _frame_at(self, frame: "Frame", point: list[float]) -> "Frame | None":
        handle = await self._tabs.asked(
            frame.evaluate_handle("([x, y]) => document.elementFromPoint(x, y)", point)
        )
        element = handle.as_element()
        return await self._tabs.asked(element.content_frame()) if element else None


def _element(found: object) -> str:
    """Formats a page's description of an element: `<input> type=checkbox checked=false "Washable"`."""
    if not isinstance(found, list) or len(found) != 5 or not all(isinstance(each, str) for each in found):
        return ""
    tag, kind, role, checked, label = (_line(each)[:40] for each in found)
    words = [f"<{tag}>"]
    words += [
        f"{name}={value}" for name, value in (("type", kind), ("role", role), ("checked", checked)) if value
    ]
    return " ".join([*words, f'"{label}"'] if label else words)


def clicked(element: str, at: Pixel) -> str:
    """Words the result of a click; `element` is as `<tag> ...`, or empty."""
    return f"`click`{_on(element)} at {at} executed."


def succeeded_here(line: str) -> str:
    """Words the result of an action that led to no other address and opened no tab."""
    return f"Succeed: {line} Note: no visible navigation or new tab detected."


def _on(element: str) -> str:
    return f" on {element}" if element else ""


def _line(text: str) -> str:
    return "".join(each for each in text if each.isprintable())


def _reason(error: Exception) -> str:
    """Returns the browser's message without Playwright's prefix and call log."""
    first = str(error).splitlines()[0]
    return first.partition(": ")[2][:300].rstrip(".") or first[:300].rstrip(".")
