"""Orchard-Claw in the worker: services, the HTTP and MCP servers of a task's world, and the ReAct harness."""

from orchard.workers.discovery import components_in
from orchard.workers.domain import WorkerDomain

DOMAIN = WorkerDomain(
    name="claw",
    package=__name__,
    harnesses=components_in(__name__, "HARNESSES"),
    graders=components_in(__name__, "GRADERS"),
    worlds=components_in(__name__, "WORLDS"),
    default_harness="claw-react",
    sources=("*.py", "services/*.py"),
)
