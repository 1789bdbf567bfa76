"""Which rollouts are open, the reopening of aborted ones, and the end of those that no attempt ends.

The newest event on a rollout's `done` subject decides (decision 0001). Its sequence is the fence of the next
request, and only what is stored over that fence is accepted.
"""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from orchard.schemas.campaigns import RolloutRequest
from orchard.schemas.events import (
    Event,
    RolloutAborted,
    RolloutFinished,
    RolloutReopened,
    UnreadablePayload,
    done_payload,
    make_event,
)
from orchard.schemas.outcomes import AbortCause, ExitStatus
from orchard.streams.publisher import Publisher
from orchard.streams.records import StoredEvent


def open_at(newest: StoredEvent | None) -> int | None:
    """Returns the fence of an open rollout's request, from the newest event on its `done` subject; None if
    the rollout has an outcome, readable or not."""
    if newest is None:
        return 0
    return newest.sequence if isinstance(done_payload(newest.event), RolloutReopened) else None


async def opened(
    publisher: Publisher,
    rollouts: Sequence[tuple[RolloutRequest, StoredEvent | None]],
    *,
    reason: str,
    source: str,
    ended: Collection[ExitStatus] = (),
) -> list[RolloutRequest]:
    """Reopens those of the rollouts that aborted, and returns the requests of all that are open then: each
    with its fence, and a base of attempt numbers above those of the outcomes.

    Each request comes with the newest event on its rollout's `done` subject. Left out are finished rollouts,
    unless their exit status is in `ended`, and those that have another newest event by now.
    """
    fences = {request.rollout_id: open_at(newest) for request, newest in rollouts}
    aborted = [
        (request.rollout_id, event, newest.sequence)
        for request, newest in rollouts
        if newest is not None and (event := _reopening(request, newest, reason, source, ended)) is not None
    ]
    stored = await publisher.guarded([(event, expected) for _, event, expected in aborted])
    fences |= {rollout: fence for (rollout, _, _), fence in zip(aborted, stored, strict=True)}
    return [
        msgspec.structs.replace(
            request, fence=fence, attempt_base=max(request.attempt_base, _attempt(newest))
        )
        for request, newest in rollouts
        if (fence := fences[request.rollout_id]) is not None
    ]


def facts_of(request: RolloutRequest) -> dict[str, Any]:
    """Returns the fields of RolloutFacts that the request decides."""
    return {
        "task_id": request.task.task_id,
        "task_source": request.task.source,
        "repo": request.task.repo,
        "harness": request.harness,
        "model": request.model.name,
        "sample": request.sample,
    }


def aborted(
    request: RolloutRequest,
    cause: AbortCause,
    detail: str,
    started: StoredEvent | None,
    deliveries: int = 0,
) -> RolloutAborted:
    """Returns the terminal payload of a dead letter or a cancelled request: it names no worker.

    `started` is the rollout's newest `rollout.started`. If it is over the request's fence, an attempt has
    worked, and its figures are not known; else all are 0.
    """
    figure = None if started is not None and started.sequence > request.fence else 0
    seconds = None if figure is None else 0.0
    return RolloutAborted(
        **facts_of(request),
        model_kind=request.model.kind,
        worker="",
        started_at=datetime.now(UTC),
        seconds=seconds,
        llm_calls=figure,
        prompt_tokens=figure,
        completion_tokens=figure,
        cost_usd=seconds,
        seconds_creating=seconds,
        seconds_llm=seconds,
        seconds_commands=seconds,
        seconds_grading=seconds,
        deliveries=deliveries,
        cause=cause,
        detail=detail,
        failures=request.failures,
    )


def cancelled(request: RolloutRequest, started: StoredEvent | None, source: str) -> Event:
    """Returns the terminal event of a rollout that a cancel ends; `started` is its newest
    `rollout.started`."""
    return make_event(
        aborted(request, AbortCause.CANCELLED, "campaign cancelled", started),
        id=f"{request.rollout_id}.cancelled.{request.fence}",
        source=source,
        campaign=request.campaign,
        rollout_id=request.rollout_id,
        attempt=_attempt(started) or None,
    )


def _reopening(
    request: RolloutRequest, newest: StoredEvent, reason: str, source: str, ended: Collection[ExitStatus]
) -> Event | None:
    """Returns the event that reopens a rollout that aborted, has an unreadable outcome, or ended with a
    status in `ended`."""
    match done_payload(newest.event):
        case RolloutAborted(cause=cause):
            pass
        case UnreadablePayload():
            cause = AbortCause.INTERNAL_ERROR
        case RolloutFinished(exit_status=status) if status in ended:
            cause = AbortCause.WALL_CLOCK
        case _:
            return None
    return make_event(
        RolloutReopened(superseded_sequence=newest.sequence, cause=cause, reason=reason),
        id=f"{request.rollout_id}.reopened.{newest.sequence}",
        source=source,
        campaign=request.campaign,
        rollout_id=request.rollout_id,
        attempt=_attempt(newest) or None,
    )


def _attempt(stored: StoredEvent | None) -> int:
    return (stored and stored.event and stored.event.attempt) or 0
