"""Orchard-GUI: browser agents. What a task says of its browser, and what a rollout hands in.

A task of the domain has `Task.world` of kind `browser`, with a GuiWorld as settings. What a rollout hands in
is a GuiOutcome, as JSON text: graders and judges read that, and `reward` says what their verdict is worth.
"""

from typing import Annotated, Any

import msgspec

from orchard.schemas.messages import Image
from orchard.schemas.sites import SiteSpec

DOMAIN = "gui"
"""Name of the domain."""
WORLD = HARNESS = "browser"
"""Name of the domain's kind of world and of its harness."""

Window = Annotated[int, msgspec.Meta(ge=1, le=3)]
Quality = Annotated[int, msgspec.Meta(ge=1, le=100)]
Quiet = Annotated[float, msgspec.Meta(ge=0.0, le=3.0)]
Pixels = Annotated[int, msgspec.Meta(ge=64, le=8192)]


class BrowserSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The browser of a task, as the model sees it."""

    width: Pixels = 1280
    """Pixels of the screen. Points that the model names are 0 to 1000 of it, whatever it is."""
    height: Pixels = 1000
    last_k: Window = 1
    """Screenshots that stay in the prompt, the newest."""
    quality: Quality = 70
    """Of the screenshots, which are JPEG."""
    quiet: Quiet | msgspec.UnsetType = msgspec.UNSET
    """Seconds without a sign of life (a request, a navigation, a change) that are rest after input. Unset:
    1, and 0.06 on generated sites, whose pages have no timers. A task without it is hashed as before."""


class GuiWorld(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a task begins, and what the browser reaches. The request is the task's statement."""

    start_url: str
    """Where the browser is when the agent begins: http or https."""
    site: SiteSpec | None = None
    """A generated site, which the worker serves; None: the live web."""
    block_network: bool = True
    """Whether the sandbox has no network. The site of a task is reached all the same."""
    browser: BrowserSettings = BrowserSettings()


class GuiStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One answer of the model, and what came of it."""

    thought: str = ""
    """Its reasoning and text."""
    calls: tuple[tuple[str, str], ...] = ()
    """Tool and arguments, as the model wrote them."""
    results: tuple[str, ...] = ()
    """The result line of each call. Empty: the answer had no call that could be read."""
    screenshot: Image | None = None
    """The screen after it; None where nothing was looked at, as after `done`."""


class GuiOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is graded: the submission of a rollout of this domain."""

    start_url: str
    url: str
    """Of the active tab at the end."""
    title: str
    ended: str
    """ExitStatus: `finished` for `done`, `format_failure`, or the budget that ran out."""
    answer: str | None = None
    """What `done` said; None without it."""
    parsed: bool = True
    """Whether every answer of the model had a call that could be read."""
    records: dict[str, Any] | None = None
    """What the site knows happened; None without a site."""
    first: Image | None = None
    """The screen at the beginning."""
    steps: tuple[GuiStep, ...] = ()
    injections: int = 0
    """Texts of pages (titles, labels, dialogs) that the model was shown and that hold marks of its prompt."""

    @property
    def screenshots(self) -> list[Image]:
        """All screens that the model saw, oldest first."""
        shown = [self.first, *(step.screenshot for step in self.steps)]
        return [image for image in shown if image is not None]


def reward(outcome: GuiOutcome, success: bool) -> float:
    """What a verdict is worth (docs/gui.md): +1 for a success in which every turn was parsed, -1 for a
    format failure, else 0."""
    if outcome.ended == "format_failure":
        return -1.0
    return 1.0 if success and outcome.parsed else 0.0
