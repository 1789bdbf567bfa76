"""Outcomes of rollouts that end without an attempt: dead letters and cancelled campaigns."""

from datetime import UTC, datetime

from orchard.schemas.campaigns import RolloutRequest
from orchard.schemas.events import RolloutAborted
from orchard.schemas.outcomes import AbortCause


def aborted(request: RolloutRequest, cause: AbortCause, detail: str, deliveries: int = 0) -> RolloutAborted:
    """The terminal payload; no worker is named, and nothing was spent."""
    return RolloutAborted(
        task_id=request.task.task_id,
        task_source=request.task.source,
        repo=request.task.repo,
        harness=request.harness,
        model=request.model.name,
        model_kind=request.model.kind,
        sample=request.sample,
        worker="",
        started_at=datetime.now(UTC),
        seconds=0.0,
        deliveries=deliveries,
        cause=cause,
        detail=detail,
        failures=request.failures,
    )
