"""Browser agents: Chromium in a sandbox, generated sites, graders and judges."""

from orchard.workers.domain import WorkerDomain

DOMAIN = WorkerDomain(
    name="gui",
    package=__name__,
    harnesses={
        "browser": f"{__name__}.browser.harness:BrowserHarness",
        "browser-compact": f"{__name__}.browser.harness:CompactBrowser",
    },
    graders={
        "sites": f"{__name__}.sites.grading:SitesGrader",
        "gui-judge": f"{__name__}.judging:GuiJudgeGrader",
    },
    worlds={"browser": f"{__name__}.browser.world:BrowserWorld"},
    judges={
        "orchard-2": f"{__name__}.judge_protocols:ORCHARD",
        "webvoyager-2": f"{__name__}.judge_protocols:WEBVOYAGER",
        "webjudge-2": f"{__name__}.judge_protocols:WEBJUDGE",
        "deepshop-2": f"{__name__}.judge_protocols:DEEPSHOP",
    },
    default_harness="browser",
    oracle=f"{__name__}.sites.oracle:SitesPlayer",
    standby=f"{__name__}.browser.pool:spare_browsers",
    sources=("browser/*.py",),
)
