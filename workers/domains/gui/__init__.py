"""Browser agents: Chromium in a sandbox, generated sites, graders and judges."""

from orchard.workers.discovery import components_in
from orchard.workers.domain import WorkerDomain

DOMAIN = WorkerDomain(
    name="gui",
    package=__name__,
    harnesses=components_in(__name__, "HARNESSES"),
    graders=components_in(__name__, "GRADERS"),
    worlds=components_in(__name__, "WORLDS"),
    judges=components_in(__name__, "JUDGES"),
    default_harness="browser",
    oracle=f"{__name__}.sites.oracle:SitesPlayer",
    standby=f"{__name__}.browser.pool:spare_browsers",
    sources=("browser/*.py",),
)
