"""Maps names of sites to the classes that make them."""

from collections.abc import Callable

from orchard.schemas.gui import SiteSpec
from orchard.workers.domains.gui.sites.calendar import CalendarSite
from orchard.workers.domains.gui.sites.desk import DeskSite
from orchard.workers.domains.gui.sites.ledger import LedgerSite
from orchard.workers.domains.gui.sites.manual import ManualSite
from orchard.workers.domains.gui.sites.map import MapSite
from orchard.workers.domains.gui.sites.pages import SiteContent
from orchard.workers.domains.gui.sites.shop import ShopSite
from orchard.workers.domains.gui.sites.tiny import TinySite

_SITES: dict[str, Callable[[SiteSpec], SiteContent]] = {
    "shop": lambda site: ShopSite(site.seed),
    "calendar": lambda site: CalendarSite(site.seed),
    "desk": lambda site: DeskSite(site.seed),
    "manual": lambda site: ManualSite(site.seed),
    "map": lambda site: MapSite(site.seed),
    "ledger": lambda site: LedgerSite(site.seed),
    "tiny": TinySite,
}


def content_of(site: SiteSpec) -> SiteContent:
    return _SITES[site.name](site)
