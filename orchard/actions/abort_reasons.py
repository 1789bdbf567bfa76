"""Why rollouts were aborted or retried: the commonest detail of each cause, and what to do about it. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from orchard.schemas.outcomes import AbortCause

REMEDIES: Mapping[AbortCause, str] = {
    AbortCause.SANDBOX_UNAVAILABLE: "see by `orchard doctor` and the log of the sandbox service why it makes "
    "no sandbox",
    AbortCause.IMAGE_MISSING: "fetch the image with `orchard images pull`, or correct its name in the task",
    AbortCause.IMAGE_UNAVAILABLE: "see that the registry can be reached and lets you in, and that the disk "
    "has room",
    AbortCause.SANDBOX_REFUSED: "have the cluster's policies admit such sandboxes",
    AbortCause.SANDBOX_DIED: "see in the log of the sandbox service what ended it: mostly memory, disk or a "
    "restart",
    AbortCause.SANDBOX_OUT_OF_MEMORY: "raise worker.max_memory, or leave the task out",
    AbortCause.LLM_UNAVAILABLE: "see that the endpoint runs and is reachable from the workers",
    AbortCause.LLM_REFUSED: "correct the key, the address or the model's name, start the workers again",
    AbortCause.CONTEXT_TOO_SMALL: "serve the model with a larger context, or lower max_tokens",
    AbortCause.GRADER_FAILED: "prove the task again with `orchard tasks validate`, which says what its "
    "check lacks",
    AbortCause.TASK_BROKEN: "mend the task and prove it again with `orchard tasks validate`",
    AbortCause.JUDGE_FAILED: "see that the endpoint and the model of [judge] answer",
    AbortCause.STORE_FAILED: "see by `orchard store check` what the store lacks",
    AbortCause.HARNESS_MISSING: "install the harness's program with `orchard harness install`",
    AbortCause.HARNESS_FAILED: "correct the model or the settings that the program's output names",
    AbortCause.WALL_CLOCK: "give the agent more time with `--wall` at submit",
    AbortCause.BLOCKED: "use another address or a slower pace for this site",
    AbortCause.SITE_UNAVAILABLE: "see that the site is up and reachable from the sandboxes",
    AbortCause.ROLLOUT_TIMEOUT: "see by `orchard doctor` and the logs what hung: the sandbox service, the "
    "endpoint or the machine",
    AbortCause.INVALID_REQUEST: "correct the task or the configuration that the text names",
    AbortCause.ATTEMPTS_EXHAUSTED: "see by `orchard dead list` what became of the attempts: workers died or "
    "lost their claims",
    AbortCause.CANCELLED: "nothing is broken: its user cancelled it",
    AbortCause.INTERNAL_ERROR: "this is a defect of Orchard: report it with the worker's log",
}
"""What a user does about each cause, as the middle of a sentence."""

LIMIT = 300
"""Characters of a detail that are shown."""
FORM = (
    r"regexp_replace(left(detail, 1000), '[\w.-]*(?:[A-Za-z_.-]\d|\d[A-Za-z_.-]|\d\d\d\d)[\w.-]*', '#', 'g')"
)
"""SQL: a detail without the ids and long numbers in which equal failures differ; statuses of HTTP stay."""
_CONTROLS = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")


class AbortReason(msgspec.Struct, frozen=True, kw_only=True):
    """Aborted or retried rollouts of one cause."""

    cause: str
    """The AbortCause."""
    rollouts: int
    """Number of rollouts with this cause; a retried one counts by its newest failure."""
    detail: str
    """The commonest detail, cut to 300 characters."""
    remedy: str
    """What to do about it."""


def abort_reasons(rows: Iterable[Mapping[str, Any]]) -> tuple[AbortReason, ...]:
    """Reasons from rows of `cause`, `detail` and `rollouts`, the commonest cause first."""
    by_cause: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_cause.setdefault(row["cause"], []).append(row)
    found = [
        AbortReason(
            cause=cause,
            rollouts=sum(row["rollouts"] for row in alike),
            detail=shortened(max(alike, key=lambda row: (row["rollouts"], row["detail"]))["detail"]),
            remedy=remedy(cause),
        )
        for cause, alike in by_cause.items()
    ]
    return tuple(sorted(found, key=lambda reason: (-reason.rollouts, reason.cause)))


def abort_sentence(reasons: Sequence[AbortReason], campaign: str) -> str:
    """Sentence on the commonest cause of a campaign's aborts; empty without any.

    Cancelled and blocked rollouts, which nothing failed for, are not counted.
    """
    failed = [one for one in reasons if one.cause not in (AbortCause.CANCELLED, AbortCause.BLOCKED)]
    if not failed:
        return ""
    first, every = failed[0], sum(one.rollouts for one in failed)
    share = f", {first.rollouts:,} of them {first.cause}" if len(failed) > 1 else f", {first.cause}"
    return f"{every:,} aborted{share}: {first.detail}: {first.remedy}, then `orchard resume {campaign}`"


def retry_sentence(reasons: Sequence[AbortReason]) -> str:
    """Sentence on the commonest cause for which open rollouts are retried; empty without any."""
    if not reasons:
        return ""
    first, every = reasons[0], sum(one.rollouts for one in reasons)
    count = "1 rollout is" if every == 1 else f"{every:,} rollouts are"
    share = f", {first.rollouts:,} of them" if len(reasons) > 1 else ""
    then = "it then continues by itself" if every == 1 else "they then continue by themselves"
    return f"{count} retried{share} after {first.cause}: {first.detail}: {first.remedy}; {then}"


def remedy(cause: str) -> str:
    """What to do about a cause; empty for one of a later version."""
    return REMEDIES[AbortCause(cause)] if cause in set(AbortCause) else ""


def shortened(detail: str | None) -> str:
    """A detail on one line without control characters, cut to LIMIT."""
    text = _CONTROLS.sub(" ", detail or "").strip() or "no detail"
    return text if len(text) <= LIMIT else f"{text[: LIMIT - 3]}..."
