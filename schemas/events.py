"""Events: immutable facts in a CloudEvents envelope, and the registry of their types.

Decoding reads the envelope first and leaves `data` raw; `payload` then looks the type up. A type this
version does not know keeps its bytes and is stored like any other, and so does a payload that does not fit
its type: one strange event never stops a replay.
Types evolve by adding fields with defaults. A type that gets another name is read under the new one a release
before it is written so (`NEXT_NAMES`).
"""

from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec

from orchard.schemas.access import CommandGiven, TeamHold
from orchard.schemas.archives import CampaignArchived
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import CampaignState, EvaluationPlanned, RolloutRequest
from orchard.schemas.claw import ServiceCalled
from orchard.schemas.datasets import DatasetBuilt, TrajectoryImported
from orchard.schemas.decoding import Unreadable, decode, decode_whole
from orchard.schemas.groups import (
    BudgetRaised,
    GroupAssembled,
    GroupDropped,
    GroupScored,
    PolicyEvaluated,
    PolicyUpdated,
    PromptFailed,
    PromptSkipped,
    RunStarted,
)
from orchard.schemas.judging import JudgeCalled, JudgeRuled
from orchard.schemas.llm_calls import LLMCall, ModelKind
from orchard.schemas.messages import MessageNode
from orchard.schemas.notes import CampaignTagged, RolloutNoted
from orchard.schemas.outcomes import AbortCause, ExitStatus, Reward, RolloutStatus
from orchard.schemas.protection import Protected
from orchard.schemas.quantities import Unit
from orchard.schemas.rests import EndpointRested
from orchard.schemas.synthesis import SynthesisStep
from orchard.schemas.training import PolicyStep, TrainingFinished, TrainingStarted, TrainingStep
from orchard.schemas.values import (
    AnnotationFailed,
    RubricFailed,
    RubricWritten,
    ValueAnnotated,
    ValueMeasured,
)


class MalformedEvent(ValueError):
    """Bytes that are not an event envelope."""


Name = Annotated[str, msgspec.Meta(max_length=1024)]
"""A string of the envelope; one over 1,024 characters is rejected."""
Number = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """The envelope: the attributes of CloudEvents, and where in the pipeline the event happened."""

    id: Name
    """Deterministic id made by the producer, so that duplicates are recognized."""
    source: Name
    """The process that published it: `orchard/<process>/<name>`."""
    type: Name
    subject: Name
    """What the event is about: `rollouts/<id>`, `tasks/<id>`, `campaigns/<name>`."""
    time: datetime
    """Time at the producer when it happened, in UTC."""
    dataschema: Name
    """Name of the payload's schema: `orchard:<type>`."""
    campaign: Name
    data: msgspec.Raw
    """The payload, whose struct follows from `type`."""
    rollout_id: Name | None = None
    attempt: Number | None = None
    causation_id: Name | None = None
    """Id of the event that led to this one."""
    traceparent: Name | None = None
    """Always null; kept because tables reproduce stored events byte for byte."""
    specversion: Name = "1.0"
    """Version of the CloudEvents specification."""


class UnknownPayload(msgspec.Struct, frozen=True):
    """The payload of a type this version does not know, byte for byte."""

    raw: bytes


class UnreadablePayload(msgspec.Struct, frozen=True):
    """A payload that does not fit its registered type. In place of a rollout's outcome it gives no reward,
    and no other outcome is accepted until the rollout is reopened."""

    raw: bytes
    reason: str


# --- campaigns and tasks -------------------------------------------------------------------------


class CampaignSubmitted(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign was submitted to the queue."""

    spec: BlobRef
    """Blob of the plan, a CampaignSpec."""
    spec_hash: str
    size: int
    tasks: int
    harnesses: tuple[str, ...]
    """Names of the plan's harnesses."""
    models: tuple[str, ...]
    """Names of the plan's models."""
    samples: int
    submitter: str | None = None
    """User who submitted it first: the login name on one machine, else that of the user's key; None in older
    events."""
    team: str | None = None
    """Team of the submitter, empty for none; None in older events."""


class CampaignStateChanged(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign was paused, cancelled, resumed or archived."""

    state: CampaignState
    previous: CampaignState
    """State of the campaign before."""
    reason: str = ""
    """Why the campaign was paused, if nobody asked for that."""
    revision: int = 0
    """Revision of the campaign's record."""
    max_cost_usd: Annotated[float, Unit("USD")] | None = None
    """Cap on the cost of its model calls from now on; None: no cap."""


class TaskImported(msgspec.Struct, frozen=True, kw_only=True):
    """A task entered the store; its text is the blob."""

    task_id: str
    task_hash: str
    source: str
    """Name of the task's source."""
    repo: str
    image: str
    blob: BlobRef
    fail_to_pass: int
    """Number of tests that the solution must make pass."""
    pass_to_pass: int
    """Number of tests that must stay passing."""
    gold_files: int = 0
    """Files that the known solution changes."""
    gold_lines: int = 0
    """Lines that the known solution adds or removes."""
    labels: dict[str, str] = {}
    """Labels by which tasks are chosen."""


class TaskValidated(msgspec.Struct, frozen=True, kw_only=True):
    """The known solution resolved the task and the empty one did not, `runs` times each."""

    task_id: str
    task_hash: str
    runs: int
    """Times that each patch was graded."""
    seconds: float
    without_canary: tuple[str, ...] | None = None
    """Written by earlier versions only."""
    detail: str | None = None
    """What the runs could not show: that the task can be solved, if no solution is known."""
    protected: Protected | None = None
    """Label of the task: the strongest of its `fail_to_pass` tests, `forgeable` where a generic forger passed
    them. None in older events."""
    protected_tests: dict[str, Protected] = {}
    """Label of each test that the task names, where tests are judged one by one."""
    protected_why: str = ""
    """One sentence: why the label is not a stronger one."""


class TaskRejected(msgspec.Struct, frozen=True, kw_only=True):
    """Validation found that the task cannot be trusted."""

    task_id: str
    task_hash: str
    reason: str
    """`gold_does_not_resolve`, `empty_resolves`, `flaky`, `solution_in_reach`, `image_missing`, ..."""
    detail: str = ""


# --- one rollout ---------------------------------------------------------------------------------


class RolloutStarted(msgspec.Struct, frozen=True, kw_only=True):
    """A worker began an attempt."""

    worker: str
    request_sequence: int
    """Sequence of the request in the work stream."""
    deliveries: int


class SandboxCreated(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox was created and is ready."""

    sandbox_id: str
    image: str
    purpose: str
    """What the sandbox is for: `rollout`, `grading`, `control-1` and `control-2` (further ones of a grading),
    or `validation`."""
    seconds: float
    tries: int = 1
    memory: str = ""


class SandboxFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox could not be created, or ended by itself."""

    cause: AbortCause
    detail: str
    will_retry: bool
    """Whether the attempt tries again to create it."""
    sandbox_id: str | None = None
    purpose: str = "rollout"
    memory: str = ""


class SandboxDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox was deleted after use."""

    sandbox_id: str
    purpose: str = "rollout"


class RolloutFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of both terminal events, so that one event makes one row of `rollouts`."""

    task_id: str
    task_source: str
    repo: str
    harness: str
    model: str
    model_kind: ModelKind
    sample: int
    worker: str
    started_at: datetime
    seconds: float | None
    """Duration in seconds. This and the other figures are None where they were not measured, as in
    imports."""
    turns: int = 0
    llm_calls: int | None = 0
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    cost_usd: float | None = None
    seconds_creating: float | None = 0.0
    seconds_llm: float | None = 0.0
    seconds_commands: float | None = 0.0
    seconds_grading: float | None = 0.0
    deliveries: int = 1
    inherited_turns: int | None = None
    """Turns that were replayed from an earlier attempt of the rollout. The figures above include them: they
    count each call of the trajectory once, whichever attempt made it. None in events that are older than
    replays."""
    inherited_tokens: int | None = None
    """Prompt and completion tokens of the replayed turns; None in older events."""
    inherited_cost_usd: float | None = None
    """Cost of the replayed turns in USD; None without any, or where a price is not known."""
    keys_masked: int | None = None
    """Number of API keys of known vendors that were masked in messages and submission
    (`workers/masking.py`). None in older events."""
    harness_version: str | None = None
    """Version of the harness's package; None for Orchard's own harnesses, in imported rollouts, and in older
    events."""
    harness_digest: str | None = None
    """SHA-256 of what decides the model's input: all files of a program's package as it ran, or the
    configuration of the package that the harness uses. Only rollouts with the same digest are comparable."""
    seconds_waiting: float | None = None
    """Seconds that model calls waited: for a free slot at the endpoint, on failed tries, and for an answer
    that had not arrived when the time ran out. Only the last counts against the wall clock. None in older
    events."""
    teacher: str | None = None
    """Model that took over and made the later turns; None where `model` made all of them, and in older
    events."""


class RolloutFinished(RolloutFacts, frozen=True, kw_only=True):
    """Terminal: the agent's work ended and was graded. `reward` is None only where the recipe does not
    grade."""

    status: RolloutStatus
    exit_status: ExitStatus
    reward: float | None
    resolved: bool | None
    submission: str = ""
    submission_blob: BlobRef | None = None
    """Blob of the submission, if it is too large for an event."""
    leaf: str | None = None
    """Node id of the last message."""
    protected: Protected | None = None
    """Label of the reward. None in older events, and without a reward."""


class RolloutAborted(RolloutFacts, frozen=True, kw_only=True):
    """Terminal: the rollout ended without a grade. There is no reward field, by design."""

    cause: AbortCause
    detail: str = ""
    failures: int = 0
    status: RolloutStatus = RolloutStatus.ABORTED


class RolloutReopened(msgspec.Struct, frozen=True, kw_only=True):
    """An aborted rollout was reopened and is tried again. The sequence of this event is the fence of the next
    terminal event."""

    superseded_sequence: int
    """Sequence of the outcome that no longer counts."""
    cause: AbortCause
    reason: str


class AttemptInherited(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt replayed what an earlier one of the rollout had done, and continues from there.

    The messages are in this attempt's tree too, each with `inherited_from`; their calls are the earlier
    attempt's. So the sums over these events are what was not asked and paid a second time.
    """

    from_attempt: int
    """Attempt whose record was replayed; it may itself have replayed a part of it."""
    leaf: str
    """Node id of the last message that was adopted."""
    messages: int
    """Number of messages that were adopted."""
    turns: int
    prompt_tokens: int | None
    completion_tokens: int | None
    cost_usd: float | None
    """Cost of the replayed calls in USD; None where a price is not known."""
    seconds: float
    """Seconds that the replay took, commands included."""
    replay_key: str
    """Digest of task, model, harness and limits, equal in both attempts."""
    divergence: str = ""
    """What the sandbox did differently, which ended the replay; empty if the record ended it."""


class AttemptReleased(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt ended without an outcome, and its request went back to the queue."""

    reason: str
    """Why it ended: `infrastructure`, `draining` (its worker ends), `resting` (its endpoint is not asked for
    a while), or `newer` (only a later version can carry it out)."""
    cause: AbortCause | None = None
    detail: str = ""
    retry_in_seconds: float = 0.0
    """Pause before the next attempt."""
    next_attempt_base: int | None = None
    """Number of attempts used so far."""


class AttemptSuperseded(msgspec.Struct, frozen=True, kw_only=True):
    """A late result was refused: another attempt's outcome had been accepted already."""

    accepted_attempt: int | None
    accepted_sequence: int
    refused_type: str
    """Type of the event that was refused."""


class RequestDeadLettered(msgspec.Struct, frozen=True, kw_only=True):
    """A request left the queue with its evidence; the message itself is in the dead-letter stream."""

    stream: str
    """Stream that the request was in."""
    sequence: int
    consumer: str
    reason: str
    """Why the queue gave it up: `max_deliver`, `terminated: <why>` or `swept`."""
    deliveries: int
    dead_sequence: int = 0


class RequestRequeued(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter was put back on its queue."""

    dead_sequence: int
    reason: str = ""


class RolloutReconciled(msgspec.Struct, frozen=True, kw_only=True):
    """An open rollout was on no queue, which is a defect, and was queued again."""

    reason: str
    fence: int = 0
    """Expected last sequence of the rollout's `done` subject."""


class EventLost(msgspec.Struct, frozen=True, kw_only=True):
    """Placeholder for an event that neither the stream nor the tables had when the stream was restored; it
    has the sequence of that event."""

    reason: str


class EventDisplaced(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a damaged stream, set aside when lost events were restored because it contradicts them."""

    subject: str
    """Subject that the event was published on."""
    sequence: int
    """Sequence in the damaged stream."""
    reason: str
    """What the restored events contradict: `outcome`, `attempt`, `decision` or `sequence`."""
    raw: str
    """The event's bytes as they were published; Base64 if they are not text."""


EVENT_TYPES: dict[str, type[msgspec.Struct]] = {
    "campaign.submitted": CampaignSubmitted,
    "campaign.state_changed": CampaignStateChanged,
    "campaign.tagged": CampaignTagged,
    "campaign.archived": CampaignArchived,
    "task.imported": TaskImported,
    "task.validated": TaskValidated,
    "task.rejected": TaskRejected,
    "synthesis.step": SynthesisStep,
    "rollout.requested": RolloutRequest,
    "rollout.started": RolloutStarted,
    "sandbox.created": SandboxCreated,
    "sandbox.failed": SandboxFailure,
    "sandbox.deleted": SandboxDeleted,
    "message.appended": MessageNode,
    "llm.called": LLMCall,
    "service.called": ServiceCalled,
    "judge.called": JudgeCalled,
    "judge.ruled": JudgeRuled,
    "reward.assigned": Reward,
    "rollout.finished": RolloutFinished,
    "rollout.aborted": RolloutAborted,
    "rollout.reopened": RolloutReopened,
    "rollout.reconciled": RolloutReconciled,
    "rollout.noted": RolloutNoted,
    "attempt.inherited": AttemptInherited,
    "attempt.released": AttemptReleased,
    "attempt.superseded": AttemptSuperseded,
    "request.dead_lettered": RequestDeadLettered,
    "request.requeued": RequestRequeued,
    "value.annotated": ValueAnnotated,
    "annotation.failed": AnnotationFailed,
    "value.measured": ValueMeasured,
    "rubric.written": RubricWritten,
    "rubric.failed": RubricFailed,
    "trajectory.imported": TrajectoryImported,
    "dataset.built": DatasetBuilt,
    "evaluation.planned": EvaluationPlanned,
    "training.started": TrainingStarted,
    "training.step": TrainingStep,
    "training.finished": TrainingFinished,
    "run.started": RunStarted,
    "group.assembled": GroupAssembled,
    "prompt.failed": PromptFailed,
    "prompt.skipped": PromptSkipped,
    "group.dropped": GroupDropped,
    "group.scored": GroupScored,
    "policy.updated": PolicyUpdated,
    "policy.evaluated": PolicyEvaluated,
    "budget.raised": BudgetRaised,
    "policy.step": PolicyStep,
    "endpoint.rested": EndpointRested,
    "command.given": CommandGiven,
    "team.held": TeamHold,
    "event.lost": EventLost,
    "event.displaced": EventDisplaced,
}
"""Every type that this version writes. Dots in a type separate subject tokens, so consumers can filter by
them."""

NEXT_NAMES = {
    "rollout.graded": "reward.assigned",
    "rl.started": "run.started",
    "rl.step": "policy.step",
    "sft.started": "training.started",
    "sft.step": "training.step",
    "sft.finished": "training.finished",
}
"""Names under which the next version writes a type, to the name that this version writes. Both are read, so
that the two versions can share a log (decision 0073)."""

TERMINAL_TYPES = frozenset({"rollout.finished", "rollout.aborted"})
DONE_TYPES = TERMINAL_TYPES | {"rollout.reopened"}
"""Types that are stored on a rollout's own `done` subject, under compare-and-set."""

STARTED_TYPE = "rollout.started"
"""This type is stored on a subject of the rollout's own too: attempt numbers are taken there by
compare-and-set."""

DECISION_TYPES = frozenset({"group.assembled", "prompt.failed", "prompt.skipped"})
"""Types of the one decision about a prompt of a run: on a subject of the prompt's own, under
compare-and-set."""

_TYPE_OF = {struct: name for name, struct in EVENT_TYPES.items()}
_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    name: msgspec.json.Decoder(struct) for name, struct in EVENT_TYPES.items()
}
_ENVELOPE = msgspec.json.Decoder(Event)
_ENCODER = msgspec.json.Encoder()


def make_event(
    data: msgspec.Struct,
    *,
    id: str,
    source: str,
    campaign: str,
    subject: str = "",
    rollout_id: str | None = None,
    attempt: int | None = None,
    causation_id: str | None = None,
    time: datetime | None = None,
) -> Event:
    """Makes the event of a registered payload; raises KeyError for a struct that is not in EVENT_TYPES."""
    kind = _TYPE_OF[type(data)]
    return Event(
        id=id,
        source=source,
        type=kind,
        subject=subject or (f"rollouts/{rollout_id}" if rollout_id else f"campaigns/{campaign}"),
        time=time or datetime.now(UTC),
        dataschema=f"orchard:{kind}",
        campaign=campaign,
        data=msgspec.Raw(_ENCODER.encode(data)),
        rollout_id=rollout_id,
        attempt=attempt,
        causation_id=causation_id,
    )


def encode_event(event: Event) -> bytes:
    return _ENCODER.encode(event)


def decode_event(raw: bytes) -> Event:
    """The envelope, with `data` still raw; a time without a zone is UTC. Raises MalformedEvent, and nothing
    else, when it is not one."""
    try:
        event = decode_whole(_ENVELOPE, raw)
        if event.time.tzinfo is not None:
            event.time.astimezone(UTC)
            return event
    except (Unreadable, OverflowError) as error:
        raise MalformedEvent(f"not an event envelope: {error}") from error
    return msgspec.structs.replace(event, time=event.time.replace(tzinfo=UTC))


def payload(event: Event) -> Any:
    """The typed payload, UnknownPayload for an unknown type, UnreadablePayload for one that does not fit."""
    decoder = _DECODERS.get(NEXT_NAMES.get(event.type, event.type))
    if decoder is None:
        return UnknownPayload(bytes(event.data))
    try:
        return decode(decoder, event.data)
    except Unreadable as error:
        return UnreadablePayload(bytes(event.data), f"event {event.id} of type {event.type}: {error}")


DonePayload = RolloutFinished | RolloutAborted | RolloutReopened | UnreadablePayload


def done_payload(event: Event | None) -> DonePayload:
    """The outcome or reopening on a rollout's `done` subject; UnreadablePayload for anything else, such as a
    message that is no event (None)."""
    data = UnreadablePayload(b"", "it is no event") if event is None else payload(event)
    if isinstance(data, DonePayload):
        return data
    return UnreadablePayload(b"", f"it is of type {event.type if event else ''}")
