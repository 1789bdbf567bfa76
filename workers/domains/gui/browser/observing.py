"""Makes observations: screen size, tabs, a screenshot; and detects bot walls."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from orchard.schemas.gui import BrowserSettings
from orchard.workers.domains.gui.browser import page_scripts
from orchard.workers.domains.gui.browser.actions import shown_url
from orchard.workers.domains.gui.browser.marks import WALL_ADDRESSES, WALL_TITLES, WrittenText, holds_marks
from orchard.workers.domains.gui.browser.tabs import CRASHED, Tab, Tabs, Unresponsive
from orchard.workers.episode.pictures import NotAPicture, Picture, read_picture

TITLE = 50
SCREENSHOT_SECONDS = 10.0
CAPTION = "\nscreenshot:\n"
"""Text before the picture; it is omitted together with the picture."""
OPENED, CLOSED = "<observation>\n", "\n</observation>"
_SHORT = 2000
"""Maximum characters of a page that can be a bot wall by its phrases."""


@dataclass(frozen=True)
class BrowserObservation:
    text: str
    """Text with delimiters. The picture's position is before the closing one."""
    picture: Picture | None
    """None if neither this look nor an earlier one gave a picture."""
    blocked: str
    """The sign of a bot wall, or empty."""
    injections: int
    """Number of texts in it that contain marks of the prompt."""

    def placed(self, before: str = "") -> tuple[str, tuple[Picture, ...]]:
        """Appends the observation to `before`, and positions its pictures in the result."""
        text = before + self.text
        if self.picture is None:
            return text, ()
        at = len(text) - len(CLOSED)
        return text, (msgspec.structs.replace(self.picture, at=at, caption=CAPTION),)


def framed(width: int, height: int, current: int, lines: Sequence[str]) -> str:
    """Formats an observation: the screen's size, the active tab's number, lines of tabs and notes."""
    head = [f"screen size: {width} x {height}", f"Current tab: {current}", "Available tabs:"]
    return OPENED + "\n".join([*head, *lines]) + CLOSED


def tab_line(index: int, url: str, title: str, *, active: bool) -> str:
    named = f" - {title[:TITLE]}" if title else ""
    return f"- Tab {index}{' (active)' if active else ''}: {shown_url(url)}{named}"


class Observer:
    def __init__(self, tabs: Tabs, settings: BrowserSettings) -> None:
        self._tabs = tabs
        self._settings = settings
        self._last: Picture | None = None

    async def look(self, written: WrittenText) -> BrowserObservation:
        """Observes the active tab; `written` is what the agent wrote so far. Raises InfrastructureError if
        the browser is gone."""
        tabs = self._tabs
        await tabs.attached()
        dialogs, tabs.dialogs[:] = tabs.dialogs[:], []
        notes = [f"Dialog accepted: {kind} {_line(text)!r}" for kind, text in dialogs]
        notes += ["Note: a new tab did not respond and was closed."] * min(tabs.silent, 1)
        tabs.silent = 0
        try:
            self._last = await self._screenshot(tabs.active)
        except Unresponsive as error:
            notes.append(f"Note: {error}; the screenshot is older.")
        blocked = await self._wall(tabs.active, written)
        for tab in tabs.open:
            await self._read_title(tab)
        shown = [
            tab_line(index, tab.page.url, tab.title, active=tab is tabs.active)
            for index, tab in enumerate(tabs.open)
        ]
        said = [*(tab.title for tab in tabs.open), *(text for _, text in dialogs)]
        return BrowserObservation(
            text=framed(self._settings.width, self._settings.height, tabs.index, [*shown, *notes]),
            picture=self._last,
            blocked=blocked,
            injections=sum(holds_marks(text) for text in said),
        )

    async def _read_title(self, tab: Tab) -> None:
        from playwright.async_api import Error

        if tab.crashed:
            return
        seconds = 2.0 if tab is self._tabs.active else 1.0
        try:
            tab.title = _line(await self._tabs.asked(tab.page.title(), seconds))
        except (Unresponsive, Error):
            return  # as it was

    async def _screenshot(self, tab: Tab) -> Picture:
        from playwright.async_api import Error

        if tab.crashed:
            raise Unresponsive(CRASHED)
        asked = {"format": "jpeg", "quality": self._settings.quality}
        try:
            taken = await self._tabs.asked(
                tab.session.send("Page.captureScreenshot", asked), SCREENSHOT_SECONDS
            )
            return read_picture(base64.b64decode(taken["data"]))
        except (Error, NotAPicture) as error:
            raise Unresponsive("the page could not be drawn") from error

    async def _wall(self, tab: Tab, written: WrittenText) -> str:
        """Returns the sign of a bot wall. Text that the agent wrote is ignored, because otherwise it could
        end a failing task as blocked."""
        from playwright.async_api import Error

        address = tab.page.url.partition("?")[0].lower()
        walls = (each for each in WALL_ADDRESSES if each in address and not written.hold(each))
        if (found := next(walls, None)) is not None:
            return found
        try:
            seen = await self._tabs.asked(tab.page.evaluate(page_scripts.BLOCKED, _SHORT))
            title = (await self._tabs.asked(tab.page.title())).lower()
        except (Unresponsive, Error):
            return ""
        if isinstance(seen, str) and seen and not written.hold(seen):
            return seen[:100]
        return next((each for each in WALL_TITLES if title.startswith(each) and not written.hold(each)), "")


def _line(text: str) -> str:
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())
