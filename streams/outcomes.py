"""Whether a rollout is open, and the outcome of one that ends without an attempt."""

from datetime import UTC, datetime

from orchard.schemas.campaigns import RolloutRequest
from orchard.schemas.events import RolloutAborted, RolloutReopened, outcome_in
from orchard.schemas.outcomes import AbortCause
from orchard.streams.records import StoredEvent


def open_at(newest: StoredEvent | None) -> int | None:
    """The fence of an open rollout's request, from the newest event on its `done` subject; None: it has an
    outcome, which may be one that cannot be read."""
    if newest is None:
        return 0
    return newest.sequence if isinstance(outcome_in(newest.event), RolloutReopened) else None


def aborted(request: RolloutRequest, cause: AbortCause, detail: str, deliveries: int = 0) -> RolloutAborted:
    """The terminal payload of a dead letter or a cancelled request: no worker is named, nothing was spent."""
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
