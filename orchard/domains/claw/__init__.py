"""Commands and views of the domain Claw: tasks of assistants in worlds of services, and how their rollouts
are shown."""

from orchard.actions.domain import FrontDomain, TaskRoute

DOMAIN = FrontDomain(
    name="claw",
    synthesis=TaskRoute(
        run="orchard.domains.claw.task_routes:synthesize",
        words=("claw",),
        title="claw",
        argument="`claw`: tasks of assistants",
        summary="of assistants (`claw`) by an author in four steps",
        details="Of claw (docs/claw-grading.md): an author proposes, writes and repairs, a solver tries, and "
        "what is not proven is left out.",
        examples=(
            "claw --limit 12 --seed 7",
            "claw --author gpt-x --solver small-y --run mine",
        ),
        limit=192,
    ),
    imports=TaskRoute(
        run="orchard.domains.claw.task_routes:import_checkout",
        words=("claw-eval",),
        title="`claw-eval`",
        argument="`claw-eval`",
        second="your checkout of it",
        summary="Claw-Eval's tasks",
        examples=("claw-eval ./claw-eval --image claw-eval:1",),
    ),
    rollout_tables="orchard.domains.claw.services_shown:worlds_tables",
    submission="orchard.domains.claw.services_shown:submission",
    solution="orchard.domains.claw.services_shown:solution",
)
