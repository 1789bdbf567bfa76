"""Generated sites: their specification, and the settings of their grader.

A site is served in the worker's process, outside of the sandbox. Everything on it follows from its SiteSpec:
the same five values give the same pages.
"""

from typing import Any, Literal

import msgspec

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
