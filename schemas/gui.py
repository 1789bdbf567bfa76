"""Orchard-GUI: generated sites, the browser of a task, and the submission of a browser agent.

A task of the domain has `Task.world` of kind `browser`, with a GuiWorld as settings. Its submission is a
GuiSubmission, as JSON text: graders and judges read that, and `reward` maps their verdict to a reward.
"""

from typing import Annotated, Any, Literal

import msgspec

from orchard.schemas.messages import Image

NAME = "sites"
"""Name of the grader, and of the source of synthesized tasks."""

SiteName = Literal["shop", "calendar", "desk", "manual", "map", "ledger", "tiny"]
"""A shop, a calendar of rooms, a help desk, documentation, a route planner, a data table; and the family of
small worlds for tiny policies."""
Fault = Literal["captcha", "down", "slow", "consent"]
"""Faults: a page that asks whether you are human, a site that answers 503, one whose pages take seconds, and
one whose pages lie under a consent banner until it is answered."""
Records = dict[str, Any]
"""A site's own record of events, as plain JSON."""


class SiteSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The five values that a site is generated from."""

    name: SiteName
    seed: int
    """Seed of the content: names, prices, places, order."""
    layout: str
    """Arrangement of the page: a name of LAYOUTS (`gui.sites.appearance`), or of the tiny family's own."""
    theme: str
    """Sizes, colours and fonts: a name of THEMES."""
    fault: Fault | None = None
    """Fault that the site has."""


class ExpectedAnswer(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The exact answer to a task that asks for one."""

    value: str
    """Text of the answer. A number is written with digits."""
    others: tuple[str, ...] = ()
    """Wrong answers of the same kind: an answer that also names one of these is wrong."""


class SiteGrading(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Settings of the grader `sites`: how a task on a site is graded."""

    site: SiteSpec
    goal: str
    """Kind of the task, such as `shop.buy`."""
    records: Records
    """The site's records when the task is done and nothing else has happened. For a task that only asks: the
    records at the beginning."""
    answer: ExpectedAnswer | None = None
    """None: any answer will do."""


DOMAIN = "gui"
WORLD = HARNESS = "browser"

Window = Annotated[int, msgspec.Meta(ge=1, le=3)]
Quality = Annotated[int, msgspec.Meta(ge=1, le=100)]
Quiet = Annotated[float, msgspec.Meta(ge=0.0, le=3.0)]
Pixels = Annotated[int, msgspec.Meta(ge=64, le=8192)]


class BrowserSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a task's browser."""

    width: Pixels = 1280
    """Width of the screen in pixels. Points that the model names are 0 to 1000 of it, whatever it is."""
    height: Pixels = 1000
    last_k: Window = 1
    """Number of screenshots that stay in the prompt, the newest."""
    quality: Quality = 70
    """JPEG quality of the screenshots."""
    quiet: Quiet | msgspec.UnsetType = msgspec.UNSET
    """Seconds without a request, navigation or change after which a page counts as still. Unset: 1, or 0.06
    on generated sites, whose pages have no timers. A task without it is hashed as before."""


class GuiWorld(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The start of a task and what the browser reaches. The request is the task's statement."""

    start_url: str
    """URL of the first page: http or https."""
    site: SiteSpec | None = None
    """Generated site, which the worker serves; None: the live web."""
    block_network: bool = True
    """Whether the sandbox has no network. The task's own site is reached anyway."""
    browser: BrowserSettings = BrowserSettings()


class GuiStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One answer of the model, and its results."""

    thought: str = ""
    """Reasoning and text of the answer."""
    calls: tuple[tuple[str, str], ...] = ()
    """Tool and arguments of each call, as the model wrote them."""
    results: tuple[str, ...] = ()
    """Result line of each call. Empty: the answer had no call that could be read."""
    screenshot: Image | None = None
    """Screenshot after the calls; None if none was taken, as after `done`."""


class GuiSubmission(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The submission of a rollout of this domain: what graders read."""

    start_url: str
    url: str
    """URL of the active tab at the end."""
    title: str
    ended: str
    """Exit status: `finished` for `done`, `format_failure`, or the budget that ran out."""
    answer: str | None = None
    """Answer in the call of `done`; None without one."""
    parsed: bool = True
    """Whether every answer of the model had a call that could be read."""
    records: dict[str, Any] | None = None
    """The site's own record of events; None without a site."""
    first: Image | None = None
    """Screenshot before the first answer."""
    steps: tuple[GuiStep, ...] = ()
    injections: int = 0
    """Number of page texts (titles, labels, dialogs) that the model was shown and that imitate marks of its
    prompt."""

    @property
    def screenshots(self) -> list[Image]:
        """All screenshots that the model saw, oldest first."""
        shown = [self.first, *(step.screenshot for step in self.steps)]
        return [image for image in shown if image is not None]


def reward(outcome: GuiSubmission, success: bool) -> float:
    """Maps a verdict to a reward (docs/gui.md): +1 for a success in which every turn was parsed, -1 for a
    format failure, else 0."""
    if outcome.ended == "format_failure":
        return -1.0
    return 1.0 if success and outcome.parsed else 0.0
