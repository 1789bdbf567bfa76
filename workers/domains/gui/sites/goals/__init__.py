"""Tasks on the sites: a goal is determined by a site and the name of its kind."""

import random

from orchard.schemas.gui import SiteSpec
from orchard.workers.domains.gui.sites.catalog import content_of
from orchard.workers.domains.gui.sites.goals import calendar, desk, ledger, manual, map, shop, tiny
from orchard.workers.domains.gui.sites.solving import Goal, Maker, NoGoal

__all__ = ["KINDS", "Goal", "NoGoal", "goal_of", "kinds_of"]

_MAKERS = {
    "shop": shop.MAKERS,
    "calendar": calendar.MAKERS,
    "desk": desk.MAKERS,
    "manual": manual.MAKERS,
    "map": map.MAKERS,
    "ledger": ledger.MAKERS,
    "tiny": tiny.MAKERS,
}
KINDS: dict[str, Maker] = {
    f"{site}.{kind}": maker for site, makers in _MAKERS.items() for kind, maker in makers.items()
}
"""Maps the name of a kind (`shop.buy`) to what makes its goals."""


def kinds_of(site: str) -> list[str]:
    return [kind for kind in KINDS if kind.partition(".")[0] == site]


def goal_of(site: SiteSpec, kind: str) -> Goal:
    """Makes the task of that kind on the site. Raises NoGoal, and KeyError for an unknown kind."""
    return KINDS[kind](content_of(site), random.Random(f"{kind}-{site.seed}"))
