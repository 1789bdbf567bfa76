"""Orchard-Claw in the worker: services, the HTTP and MCP servers of a task's world, and the ReAct harness."""

from orchard.workers.domain import WorkerDomain

DOMAIN = WorkerDomain(
    name="claw",
    package=__name__,
    harnesses={"claw-react": f"{__name__}.react:ClawReact"},
    graders={
        "claw": f"{__name__}.grading:ClawGrader",
        "claw-eval": f"{__name__}.claw_eval.grading:ClawEvalGrader",
    },
    worlds={
        "claw": f"{__name__}.world:ClawServices",
        "claw-eval": f"{__name__}.claw_eval.world:ClawEvalServices",
    },
    default_harness="claw-react",
    sources=("*.py", "services/*.py"),
)
