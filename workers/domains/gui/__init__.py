"""Browser agents: Chromium in a sandbox, generated sites, graders and judges."""

from orchard.workers.domain import WorkerDomain

DOMAIN = WorkerDomain(
    name="gui",
    package=__name__,
    default_harness="browser",
    oracle=f"{__name__}.sites.oracle:SitesPlayer",
    standby=f"{__name__}.browser.pool:spare_browsers",
    sources=("browser/*.py",),
)
