"""Software agents: grading by a repository's own tests."""

from orchard.workers.domain import WorkerDomain

DOMAIN = WorkerDomain(name="swe", package=__name__)
