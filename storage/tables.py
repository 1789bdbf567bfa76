"""The tables of a store and their columns, declared once for the writer, the readers and rebuilds.

`events` is the log itself. All others are derived: each row comes from one event and carries its `sequence`,
so that any of them can be rebuilt from `events` and compared row by row. Their columns are the fields of the
payloads (`orchard.storage.columns`); only the rest is declared here.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import pyarrow as pa

from orchard.schemas import events as e
from orchard.schemas.access import CommandGiven
from orchard.schemas.archives import CampaignArchived
from orchard.schemas.campaigns import EvaluationPlanned, RolloutRequest
from orchard.schemas.claw import ServiceCalled
from orchard.schemas.datasets import DatasetBuilt, TrajectoryImported
from orchard.schemas.groups import (
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
from orchard.schemas.llm_calls import LLMCall
from orchard.schemas.messages import MessageNode
from orchard.schemas.notes import CampaignTagged, RolloutNoted
from orchard.schemas.outcomes import Reward
from orchard.schemas.synthesis import SynthesisStep
from orchard.schemas.training import PolicyStep, TrainingFinished, TrainingStarted, TrainingStep
from orchard.schemas.values import (
    AnnotationFailed,
    RubricFailed,
    RubricWritten,
    ValueAnnotated,
    ValueMeasured,
)
from orchard.storage.columns import INT, TEXT, TIME, columns

EVENTS = "events"
PROGRESS = "progress"
"""A table without rows whose watermark is the sequence up to which every derived table is complete."""
UNREADABLE = "unreadable"
"""`type` of a stored message that is not a readable event; its bytes are in `payload`."""
NO_EVENT = frozenset({UNREADABLE, "malformed"})
"""Also "malformed", which earlier versions wrote."""
BASE64 = "base64"
"""`dataschema` of an unreadable row whose bytes are not UTF-8: `payload` is their Base64."""

_Payloads = dict[type[msgspec.Struct], dict[str, str]]


class _Derived(NamedTuple):
    payloads: _Payloads
    """Types of the events that have rows in it, with the text columns that each fills with a constant."""
    order: str = "*"
    """Columns; `*` stands for those that are not named, in the order of the payloads' fields. Stores rely
    on the order."""
    own: Mapping[str, pa.DataType] = MappingProxyType({})
    """Columns that are no fields: `orchard.storage.derive` computes them."""
    without: frozenset[str] = frozenset()
    """Fields that are no columns."""

    @property
    def schema(self) -> pa.Schema:
        """Its columns after those of `_ENVELOPE`."""
        found = {name: TEXT for words in self.payloads.values() for name in words}
        for payload in self.payloads:
            found |= columns(payload)
        found |= self.own
        named = self.order.split()
        rest = [
            name for name in found if name not in named and name not in self.without and name not in _ENVELOPE
        ]
        at = named.index("*") if "*" in named else len(named)
        ordered = [*named[:at], *(rest if "*" in named else []), *named[at + 1 :]]
        return pa.schema([*_ENVELOPE.items(), *((name, found[name]) for name in ordered)])


def _rows(*payloads: type[msgspec.Struct]) -> _Payloads:
    return {payload: {} for payload in payloads}


def _apart(column: str = "kind", /, **payloads: type[msgspec.Struct]) -> _Payloads:
    """Assign each payload a constant in `column` that identifies its rows."""
    return {payload: {column: word} for word, payload in payloads.items()}


_ENVELOPE = {
    "sequence": INT,
    "time": TIME,
    "event_id": TEXT,
    "campaign": TEXT,
    "rollout_id": TEXT,
    "attempt": INT,
}

_IMAGE = pa.struct(
    [
        ("sha256", TEXT),
        ("size", INT),
        ("media_type", TEXT),
        ("width", INT),
        ("height", INT),
        ("at", INT),
        ("caption", TEXT),
    ]
)

_DERIVED = {
    "rollouts_all": _Derived(
        _rows(e.RolloutFinished, e.RolloutAborted),
        "status exit_status cause detail reward resolved * failures submission submission_sha256 leaf "
        "inherited_turns inherited_tokens inherited_cost_usd keys_masked harness_version "
        "harness_digest seconds_waiting protected teacher",
    ),
    "messages_all": _Derived(
        _rows(MessageNode),
        "node_id parent role turn content content_sha256 content_length reasoning reasoning_length * "
        "rest_sha256 token_ids logprobs prompt_ids versions inherited_from images",
        {
            "content_length": INT,
            "reasoning_length": INT,
            "token_ids": pa.list_(INT),
            "images": pa.list_(_IMAGE),
        },
        frozenset({"ids", "first", "width", "blob_sha256"}),
    ),
    "rewards_all": _Derived(_rows(Reward), without=frozenset({"extra_sandboxes", "without_canary"})),
    "llm_calls_all": _Derived(_rows(LLMCall)),
    "service_calls_all": _Derived(_rows(ServiceCalled)),
    "judge_calls_all": _Derived(_rows(JudgeCalled)),
    "judgements_all": _Derived(_rows(JudgeRuled)),
    "tasks_all": _Derived(
        _apart("state", imported=e.TaskImported, valid=e.TaskValidated, rejected=e.TaskRejected),
        "state task_id task_hash source repo image blob_sha256 blob_size * reason detail protected "
        "protected_tests protected_why",
        {"blob_size": INT},
        frozenset({"without_canary"}),
    ),
    "requests_all": _Derived(
        _rows(RolloutRequest),
        "task_id task_source repo task_sha256 harness model model_kind endpoint sample domain priority "
        "max_tries attempt_base failures fence memory teacher teacher_endpoint after_turns team",
        dict.fromkeys(("task_source", "task_sha256", "model", "model_kind"), TEXT),
    ),
    "attempts_all": _Derived(
        _apart(
            started=e.RolloutStarted,
            released=e.AttemptReleased,
            superseded=e.AttemptSuperseded,
            inherited=e.AttemptInherited,
        )
    ),
    "reopenings_all": _Derived(_rows(e.RolloutReopened)),
    "campaigns_all": _Derived(
        _rows(e.CampaignStateChanged, e.CampaignSubmitted, CampaignTagged),
        "* max_cost_usd author tags removed_tags submitter team",
    ),
    "values_all": _Derived(
        _apart(annotated=ValueAnnotated, failed=AnnotationFailed), "* rubric_sha256 turn_rewards"
    ),
    "rubrics_all": _Derived(_apart(written=RubricWritten, failed=RubricFailed)),
    "notes_all": _Derived(_rows(RolloutNoted)),
    "measurements_all": _Derived(_rows(ValueMeasured)),
    "synthesis_all": _Derived(_rows(SynthesisStep)),
    "imports_all": _Derived(_rows(TrajectoryImported)),
    "datasets_all": _Derived(_rows(DatasetBuilt)),
    "evaluations_all": _Derived(_rows(EvaluationPlanned)),
    "training_all": _Derived(
        _apart(step=TrainingStep, started=TrainingStarted, finished=TrainingFinished),
        "kind run step steps * frozen_sha256",
        without=frozenset({"manifest_sha256"}),
    ),
    "groups_all": _Derived(
        _apart(
            assembled=GroupAssembled,
            failed=PromptFailed,
            dropped=GroupDropped,
            skipped=PromptSkipped,
            scored=GroupScored,
        ),
        "* causes reason detail gain rate carried chance learnability evidence probability version protected "
        "teacher scores_sha256 scored_tokens reused_tokens teacher_tokens teacher_cost_usd",
    ),
    "policies_all": _Derived(
        _apart(updated=PolicyUpdated, started=RunStarted),
        "kind run version step groups position checkpoint plan_hash *",
    ),
    "policy_steps_all": _Derived(_rows(PolicyStep)),
    "policy_evaluations_all": _Derived(_rows(PolicyEvaluated)),
    "commands_all": _Derived(_rows(CommandGiven)),
    "archives_all": _Derived(_rows(CampaignArchived)),
    "unreadable_all": _Derived({}, own={"type": TEXT, "reason": TEXT}),
}

ROWS = {
    payload: (table, words) for table, made in _DERIVED.items() for payload, words in made.payloads.items()
}
"""Type of a payload to the table where its event has a row, and the constants it fills in there."""

SCHEMAS: dict[str, pa.Schema] = {
    PROGRESS: pa.schema([("sequence", INT)]),
    EVENTS: pa.schema(
        [
            ("sequence", INT),
            ("stream_time", TIME),
            *((name, TEXT) for name in ("subject", "id", "source", "type", "ce_subject")),
            ("time", TIME),
            *((name, TEXT) for name in ("dataschema", "campaign", "rollout_id")),
            ("attempt", INT),
            *((name, TEXT) for name in ("causation_id", "traceparent", "payload", "raw")),
        ]
    ),
    **{table: made.schema for table, made in _DERIVED.items()},
}

DERIVED: tuple[str, ...] = tuple(_DERIVED)
TABLES: tuple[str, ...] = (EVENTS, *DERIVED)
"""The tables with rows."""
