"""Attempt numbers: pure arithmetic that keeps every attempt of a rollout apart, over all its queue entries.

Within one queue entry the server counts deliveries from 1. A rollout that goes back to the queue is a new
entry, so its request carries the numbers that earlier entries may have used.
"""

import msgspec

from orchard.schemas.campaigns import RolloutRequest


def attempt_number(attempt_base: int, deliveries: int) -> int:
    """The attempt that one delivery is, counted from 1."""
    return attempt_base + deliveries


def next_attempt_base(attempt_base: int, deliveries: int, max_deliver: int) -> int:
    """The base of the entry that replaces one with `attempt_base`, seen at `deliveries`.

    All of `max_deliver` are given up, since a delivery presumed dead may still publish; `deliveries` counts
    where `max_deliver` was lowered meanwhile.
    """
    return attempt_base + max(deliveries, max_deliver)


def renewed(request: RolloutRequest, deliveries: int, max_deliver: int) -> RolloutRequest:
    """The same rollout as a new queue entry whose attempts cannot collide with the old entry's."""
    base = next_attempt_base(request.attempt_base, deliveries, max_deliver)
    return msgspec.structs.replace(request, attempt_base=base)


def reopened(
    request: RolloutRequest, deliveries: int, max_deliver: int, fence: int, last_attempt: int
) -> RolloutRequest:
    """A dead-lettered rollout for another round: attempts above all earlier ones, failures forgotten.

    `last_attempt` is that of the newest event on the `done` subject (0: none), which counts where others
    have put the rollout on the queue since.
    """
    base = max(next_attempt_base(request.attempt_base, deliveries, max_deliver), last_attempt)
    return msgspec.structs.replace(request, attempt_base=base, fence=fence, failures=0)
