"""The sites by name."""

from collections.abc import Callable

from orchard.schemas.sites import SiteSpec
from orchard.workers.domains.gui.sites.calendar import Calendar
from orchard.workers.domains.gui.sites.desk import Desk
from orchard.workers.domains.gui.sites.ledger import Ledger
from orchard.workers.domains.gui.sites.manual import Manual
from orchard.workers.domains.gui.sites.map import Map
from orchard.workers.domains.gui.sites.pages import Content
from orchard.workers.domains.gui.sites.shop import Shop
from orchard.workers.domains.gui.sites.tiny import Tiny

_SITES: dict[str, Callable[[SiteSpec], Content]] = {
    "shop": lambda site: Shop(site.seed),
    "calendar": lambda site: Calendar(site.seed),
    "desk": lambda site: Desk(site.seed),
    "manual": lambda site: Manual(site.seed),
    "map": lambda site: Map(site.seed),
    "ledger": lambda site: Ledger(site.seed),
    "tiny": Tiny,
}


def content_of(site: SiteSpec) -> Content:
    """The site's content, at its beginning."""
    return _SITES[site.name](site)
