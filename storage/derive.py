"""From an event to its row in a derived table: pure, one event at a time, with no memory of others.

What needs several events (the accepted outcome, the state of a task, conservation) is a view
(`orchard.storage.views`). An event that cannot be read gives a row of `unreadable_all`, never silence.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from orchard.schemas import events as e
from orchard.schemas.archives import CampaignArchived
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import RolloutRequest
from orchard.schemas.datasets import DatasetBuilt, TrajectoryImported
from orchard.schemas.groups import GroupAssembled, GroupDropped, PolicyUpdated, PromptFailed, RunStarted
from orchard.schemas.llm_calls import LLMCall
from orchard.schemas.messages import MessageNode
from orchard.schemas.outcomes import Reward
from orchard.schemas.training import PolicyStep, TrainingFinished, TrainingStarted, TrainingStep
from orchard.schemas.values import AnnotationFailed, ValueAnnotated, ValueMeasured
from orchard.storage.log import REFUSALS, Fact
from orchard.storage.tables import SCHEMAS

Row = dict[str, Any]

UNREADABLE = "unreadable_all"


def derive(fact: Fact) -> tuple[str, Row] | None:
    """The table an event belongs to and its row there; None for types no table is made from."""
    data = e.payload(fact.event)
    if isinstance(data, e.UnreadablePayload):
        return unreadable(fact, data.reason)
    rule = RULES.get(type(data))
    if rule is None:
        return None
    if e.is_misplaced(fact.event, fact.subject):
        return unreadable(fact, f"{fact.event.type} outside its rollout's done subject")
    table, columns = rule
    return table, columns(data) | _place(fact)


def unreadable(fact: Fact, reason: str) -> tuple[str, Row]:
    """The row that says an event could not be made into a row, and why."""
    return UNREADABLE, _place(fact) | {"type": fact.event.type, "reason": reason}


def derive_tables(facts: Iterable[Fact]) -> dict[str, pa.Table]:
    """The rows of every table that the facts give rows for, in their order."""
    found: dict[str, list[tuple[Fact, Row]]] = {}
    for fact in facts:
        if derived := derive(fact):
            found.setdefault(derived[0], []).append((fact, derived[1]))
    refused: list[tuple[Fact, Row]] = []
    tables: dict[str, pa.Table] = {}
    for name in list(found):
        if name != UNREADABLE:
            tables[name] = _fitting(name, found[name], refused)
    refused += found.get(UNREADABLE, [])
    if refused:
        refused.sort(key=lambda pair: pair[0].sequence)
        tables[UNREADABLE] = _table(UNREADABLE, [row for _, row in refused])
    return {name: table for name, table in tables.items() if table.num_rows}


def _fitting(name: str, pairs: list[tuple[Fact, Row]], refused: list[tuple[Fact, Row]]) -> pa.Table:
    """The rows as a table; those with a value no column can hold (a number over 64 bits) are refused."""
    try:
        return _table(name, [row for _, row in pairs])
    except REFUSALS:
        parts = [SCHEMAS[name].empty_table()]
        for fact, row in pairs:
            try:
                parts.append(_table(name, [row]))
            except REFUSALS as error:
                refused.append((fact, unreadable(fact, f"a value does not fit its column: {error}")[1]))
        return pa.concat_tables(parts)


def _table(name: str, rows: list[Row]) -> pa.Table:
    """Raises one of REFUSALS, also for a time that Python and DuckDB cannot give back (year 0)."""
    table = pa.Table.from_pylist(rows, schema=SCHEMAS[name])
    for field, column in zip(table.schema, table.columns, strict=True):
        if pa.types.is_timestamp(field.type):
            pc.min_max(column).as_py()
    return table


def _place(fact: Fact) -> Row:
    event = fact.event
    return {
        "sequence": fact.sequence,
        "time": event.time,
        "event_id": event.id,
        "campaign": event.campaign,
        "rollout_id": event.rollout_id,
        "attempt": event.attempt,
    }


_scalars = msgspec.structs.asdict
"""The fields as they are. Columns without such a field stay null; fields without a column are left out."""


def _sha256(blob: BlobRef | None) -> str | None:
    return blob.sha256 if blob else None


def _pairs(mapping: dict[str, Any]) -> list[tuple[str, Any]]:
    return list(mapping.items())


def _finished(data: e.RolloutFinished) -> Row:
    return _scalars(data) | {"submission_sha256": _sha256(data.submission_blob)}


def _message(data: MessageNode) -> Row:
    blob, result, tokens = data.content_blob, data.result, data.tokens
    row: Row = {
        "node_id": data.node_id,
        "parent": data.parent,
        "role": data.role.value,
        "turn": data.turn,
        "content": data.content,
        "content_sha256": _sha256(blob),
        "content_length": blob.size if blob else len(data.content),
        "reasoning": data.reasoning,
        "reasoning_length": len(data.reasoning),
        "tool_calls": [
            {"id": call.id, "name": call.name, "arguments": call.arguments} for call in data.tool_calls
        ],
        "tool_call_id": data.tool_call_id,
        "rest_sha256": _sha256(data.rest_blob),
        "inherited_from": data.inherited_from,
    }
    if result:
        row |= _scalars(result)
    if tokens:
        row["token_ids"] = tokens.ids
        row["logprobs"] = tokens.logprobs
        row["prompt_ids"] = tokens.prompt_ids
        row["versions"] = [{"start": run.start, "version": run.version} for run in tokens.versions]
    return row


def _reward(data: Reward) -> Row:
    return _scalars(data) | {
        "parts": _pairs(data.parts),
        "tests": _pairs(data.tests),
        "log_sha256": _sha256(data.log),
    }


def _llm_call(data: LLMCall) -> Row:
    return _scalars(data) | _scalars(data.usage)


def _request(data: RolloutRequest) -> Row:
    return _scalars(data) | {
        "task_id": data.task.task_id,
        "task_source": data.task.source,
        "repo": data.task.repo,
        "task_sha256": data.task.blob.sha256,
        "model": data.model.name,
        "model_kind": data.model.kind.value,
        "endpoint": data.model.endpoint,
    }


def _imported(data: e.TaskImported) -> Row:
    return _scalars(data) | {
        "state": "imported",
        "blob_sha256": data.blob.sha256,
        "blob_size": data.blob.size,
        "labels": _pairs(data.labels),
    }


def _submitted(data: e.CampaignSubmitted) -> Row:
    return _scalars(data) | {"spec_sha256": data.spec.sha256}


def _annotated(data: ValueAnnotated) -> Row:
    keys = [{name: getattr(key, name) for name in key.__struct_fields__} for key in data.key_steps]
    return _scalars(data) | {"kind": "annotated", "key_steps": keys}


def _built(data: DatasetBuilt) -> Row:
    return _scalars(data) | {"counts": _pairs(data.counts), "manifest_sha256": _sha256(data.manifest)}


def _assembled(data: GroupAssembled) -> Row:
    return _scalars(data) | {"kind": "assembled", "members": [_scalars(member) for member in data.members]}


def _run_started(data: RunStarted) -> Row:
    return _scalars(data) | {"kind": "started", "plan_sha256": data.plan.sha256}


def _with(**constants: str) -> Callable[[Any], Row]:
    return lambda data: _scalars(data) | constants


RULES: dict[type, tuple[str, Callable[[Any], Row]]] = {
    e.CampaignSubmitted: ("campaigns_all", _submitted),
    e.CampaignStateChanged: ("campaigns_all", _scalars),
    e.TaskImported: ("tasks_all", _imported),
    e.TaskValidated: ("tasks_all", _with(state="valid")),
    e.TaskRejected: ("tasks_all", _with(state="rejected")),
    RolloutRequest: ("requests_all", _request),
    e.RolloutStarted: ("attempts_all", _with(kind="started")),
    e.AttemptInherited: ("attempts_all", _with(kind="inherited")),
    e.AttemptReleased: ("attempts_all", _with(kind="released")),
    e.AttemptSuperseded: ("attempts_all", _with(kind="superseded")),
    MessageNode: ("messages_all", _message),
    LLMCall: ("llm_calls_all", _llm_call),
    Reward: ("rewards_all", _reward),
    e.RolloutFinished: ("rollouts_all", _finished),
    e.RolloutAborted: ("rollouts_all", _scalars),
    e.RolloutReopened: ("reopenings_all", _scalars),
    ValueAnnotated: ("values_all", _annotated),
    AnnotationFailed: ("values_all", _with(kind="failed")),
    ValueMeasured: ("measurements_all", _scalars),
    TrajectoryImported: ("imports_all", _scalars),
    DatasetBuilt: ("datasets_all", _built),
    TrainingStarted: ("training_all", _with(kind="started")),
    TrainingStep: ("training_all", _with(kind="step")),
    TrainingFinished: ("training_all", _with(kind="finished")),
    GroupAssembled: ("groups_all", _assembled),
    PromptFailed: ("groups_all", _with(kind="failed")),
    GroupDropped: ("groups_all", _with(kind="dropped")),
    RunStarted: ("policies_all", _run_started),
    PolicyUpdated: ("policies_all", _with(kind="updated")),
    PolicyStep: ("policy_steps_all", _scalars),
    CampaignArchived: ("archives_all", _scalars),
}
"""Payload type to its table and the columns it fills there."""
