"""Generated sites: what a site is made from, and what a rollout on one is graded by.

A site is served in the worker's process, outside of the sandbox. Everything on it follows from its Site: the
same five values give the same pages.
"""

from typing import Any, Literal

import msgspec

NAME = "sites"
"""Name of the grader, and of the source of tasks that are synthesized."""

SiteName = Literal["shop", "calendar", "desk", "manual", "map", "ledger", "tiny"]
"""A shop, a calendar of rooms, a help desk, documentation, a route planner, a data table; and the family of
small worlds for tiny policies."""
Fault = Literal["captcha", "down", "slow", "consent"]
"""A wall that asks whether you are human, a site that answers 503, one whose pages take seconds, and one
whose pages lie under a consent banner until it is answered."""
Records = dict[str, Any]
"""What a site knows happened, as plain JSON."""


class Site(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a site is made from."""

    name: SiteName
    seed: int
    """Of its content: names, prices, places, order."""
    layout: str
    """Where things stand: a name of LAYOUTS (`gui.sites.appearance`), or of the tiny family's own."""
    theme: str
    """Size, colours and type: a name of THEMES."""
    fault: Fault | None = None
    """What is wrong with it."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The exact answer to a task that asks for one."""

    value: str
    """The answer. A number is written with digits."""
    others: tuple[str, ...] = ()
    """Wrong answers of the same kind: an answer that also names one of these is wrong."""


class Expected(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a task on a site is graded: settings of the grader `sites`."""

    site: Site
    goal: str
    """Kind of the task, such as `shop.buy`."""
    records: Records
    """The site's records when the task is done, and nothing beside it. Of a task that only asks: the records
    at the beginning."""
    answer: Answer | None = None
    """None: any answer will do."""
