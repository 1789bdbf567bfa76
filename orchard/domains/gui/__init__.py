"""Commands and views of the domain GUI: tasks on sites, the funnel, repeated judging, and how its rollouts
are shown."""

from orchard.actions.domain import FrontDomain, TaskRoute
from orchard.pipelines.domains.gui.web_rows import PROTOCOLS

DOMAIN = FrontDomain(
    name="gui",
    commands={
        "judge": (
            "orchard.domains.gui.judging",
            "Judge rollouts of browser agents again, without running them, and measure judges against "
            "graders.",
        )
    },
    facts="orchard.domains.gui.judging:facts",
    task_commands=("orchard.domains.gui.funnel",),
    synthesis=TaskRoute(
        run="orchard.domains.gui.task_routes:synthesize",
        words=("gui",),
        title="gui",
        argument="`gui`: tasks of browser agents",
        summary="of browser agents (`gui`) on generated sites",
        details="Of gui (docs/gui.md): sites and tasks follow from the seed, and each task is proven by its "
        "records.",
        examples=("gui --count 60 --layouts held-out",),
        limit=20,
    ),
    imports=TaskRoute(
        run="orchard.domains.gui.task_routes:import_rows",
        words=tuple(PROTOCOLS),
        title="web tasks",
        argument=f"web tasks: {', '.join(PROTOCOLS)}",
        second="their rows",
        summary="web tasks",
        examples=(
            "webvoyager WebVoyager_data.jsonl",
            "insta pool.parquet --column intent=instruction",
        ),
    ),
    submission="orchard.domains.gui.submissions:submission",
)
