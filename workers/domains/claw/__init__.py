"""Orchard-Claw in the worker: services, the HTTP and MCP servers of a task's world, and the ReAct harness."""

from orchard.workers.domain import WorkerDomain

DOMAIN = WorkerDomain(
    name="claw",
    package=__name__,
    default_harness="claw-react",
    sources=("*.py", "services/*.py"),
)
