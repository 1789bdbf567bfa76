"""Names the NATS subjects of events."""

from orchard.schemas.events import DECISION_TYPES, DONE_TYPES, NEXT_NAMES, STARTED_TYPE, Event
from orchard.schemas.identity import rollout_stream, shard
from orchard.schemas.values import VERDICT_TYPES

EVENTS_PREFIX = "orchard.events"

FENCES = frozenset({"annotated", "answered", "decided", "done", "started"})
"""Third tokens of the subjects that stay in the stream for ever, because later events are compared with
them."""


_ANSWERS = "answers."


def event_subject(event: Event) -> str:
    """Subject of an event; docs/schemas/asyncapi.json has all forms."""
    if event.type in DONE_TYPES and event.rollout_id:
        return done_subject(event.rollout_id)
    if event.type == STARTED_TYPE and event.rollout_id:
        return started_subject(event.rollout_id)
    if event.type in VERDICT_TYPES:
        return annotated_subject(event.id)
    if event.type in DECISION_TYPES:
        return decided_subject(event.campaign, int(event.subject.rpartition("/")[2]))
    cause = event.causation_id or ""
    if cause.startswith(_ANSWERS):
        return f"{EVENTS_PREFIX}.answered.{cause.removeprefix(_ANSWERS)}"
    return f"{EVENTS_PREFIX}.{event.campaign}.{shard(event.rollout_id or '00')}.{event.type}"


def event_stream(subject: str, rollout: str | None) -> int:
    """The stream of an event: that of its rollout. Verdicts, answers and decisions are found by other names,
    and so are in stream 0, as is all that has no rollout."""
    kind, _, name = subject.removeprefix(f"{EVENTS_PREFIX}.").partition(".")
    if kind in ("done", "started"):
        return rollout_stream(name)
    return 0 if kind in FENCES else rollout_stream(rollout or "")


def campaign_subjects(campaign: str) -> str:
    """Pattern of all subjects of a campaign's events but the fences."""
    return f"{EVENTS_PREFIX}.{campaign}.>"


def type_subjects(campaign: str, kind: str) -> list[str]:
    """Patterns of a campaign's events of a type that is no fence, one for each name by which it is read."""
    names = [kind, *(name for name, known in NEXT_NAMES.items() if known == kind)]
    return [f"{EVENTS_PREFIX}.{campaign}.*.{name}" for name in names]


def is_misplaced(event: Event, subject: str, stream: int) -> bool:
    """Whether an outcome is on a subject, or in a stream, where no compare-and-set has guarded it, so that it
    counts as none."""
    rollout = event.rollout_id or ""
    guarded = subject == done_subject(rollout) and stream == rollout_stream(rollout)
    return event.type in DONE_TYPES and not guarded


def started_subject(rollout_id: str) -> str:
    """Subject of a rollout's `rollout.started` events: the newest one names its latest attempt."""
    return f"{EVENTS_PREFIX}.started.{rollout_id}"


def annotated_subject(event_id: str) -> str:
    """Subject of the result of one annotation or measurement: one look tells whether it was asked."""
    return f"{EVENTS_PREFIX}.annotated.{event_id}"


def decided_subject(run: str, prompt: int | str) -> str:
    """Subject of the one decision about a prompt; `*` for all of a run."""
    return f"{EVENTS_PREFIX}.decided.{run}.{prompt}"


def done_subject(rollout_id: str) -> str:
    """Subject of a rollout's one terminal event."""
    return f"{EVENTS_PREFIX}.done.{rollout_id}"


def answering(kind: str, key: str) -> str:
    """The causation id of an event that answers the request of a kind with this key."""
    return f"{_ANSWERS}{kind}.{key}"


def answered_subject(kind: str, key: str) -> str:
    """The subject of the answers to the requests of a kind with this key: the newest one is the fence of the
    next request."""
    return f"{EVENTS_PREFIX}.answered.{kind}.{key}"
