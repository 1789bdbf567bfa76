"""Writes rollouts of the log as ATIF files: every accepted attempt whole, with its branches and subagents."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from orchard.pipelines.interchange import atif
from orchard.pipelines.trajectories.reading import path, stored_node
from orchard.schemas.messages import Image, MessageNode, Role, placed
from orchard.storage.blobs import BlobStore
from orchard.storage.reader import rows

TOGETHER = 100
"""Rollouts that are read at once."""
PICTURES = "images"
"""Directory of the pictures, beside the files."""
KEY = "orchard"
"""Key in `extra` of the data that the format has no field for."""
_FACTS = (
    *("rollout_id", "campaign", "task_id", "task_source", "repo", "sample", "attempt", "status"),
    *("exit_status", "cause", "reward", "resolved"),
)
_ROLLOUTS = """
select rollout_id, campaign, task_id, task_source, repo, harness, model, sample, attempt, status, exit_status,
       cause, reward, resolved, leaf, turns, prompt_tokens, completion_tokens, cost_usd
from rollouts where campaign = ? and leaf is not null order by rollout_id
"""
_SOURCES = {Role.SYSTEM: "system", Role.USER: "user", Role.ASSISTANT: "agent"}

Row = Mapping[str, Any]


def write_trajectories(
    tables: duckdb.DuckDBPyConnection, blobs: BlobStore, campaign: str, out: Path
) -> Iterator[Path]:
    """Yield a file `ROLLOUT.json` for each rollout of the campaign that ended with messages, as they are
    written with their pictures. An existing file stays unchanged. Raises BlobMissing or BlobCorrupt."""
    out.mkdir(parents=True, exist_ok=True)
    rollouts = iter(rows(tables, _ROLLOUTS, [campaign]))
    while some := list(islice(rollouts, TOGETHER)):
        left = {row["rollout_id"]: row for row in some if not (out / f"{row['rollout_id']}.json").exists()}
        nodes = _by_rollout(tables, "select * from messages", list(left))
        calls = _by_rollout(tables, "select * from llm_calls", list(left))
        for name, row in left.items():
            tree = {each["node_id"]: _whole(blobs, each) for each in nodes.get(name, [])}
            made = {call["node"]: call for call in calls.get(name, [])}
            file = out / f"{name}.json"
            _write_pictures(blobs, tree.values(), out)
            whole = msgspec.json.format(msgspec.json.encode(trajectory_of(row, tree, made)), indent=1)
            partial = file.with_suffix(".part")
            partial.write_bytes(whole)
            partial.rename(file)
            yield file


def _write_pictures(blobs: BlobStore, nodes: Iterable[MessageNode], out: Path) -> None:
    for node in nodes:
        for image in node.images:
            file = out / _place(image)
            if not file.exists():
                file.parent.mkdir(exist_ok=True)
                partial = file.with_suffix(".part")
                partial.write_bytes(blobs.get(image.blob))
                partial.rename(file)


def _place(image: Image) -> str:
    return f"{PICTURES}/{image.blob.sha256}.{image.media_type.rpartition('/')[2]}"


def _content(node: MessageNode) -> tuple[atif.Content, dict[str, Any] | None]:
    """The text of a message, or its parts; and the data that the format has no field for."""
    if not node.images:
        return node.content, None
    parts = [
        atif.Part(type="text", text=each)
        if isinstance(each, str)
        else atif.Part(type="image", source=atif.PictureSource(media_type=each.media_type, path=_place(each)))
        for each in placed(node.content, node.images)
    ]
    return parts, {KEY: {"captions": [image.caption for image in node.images]}}


def _whole(blobs: BlobStore, row: Row) -> MessageNode:
    """The message with all its token records."""
    node = stored_node(blobs, row)
    if node.tokens is None or row["token_ids"] is None:
        return node  # none, or whole already
    tokens = msgspec.structs.replace(
        node.tokens, logprobs=tuple(row["logprobs"] or ()), prompt_ids=tuple(row["prompt_ids"] or ())
    )
    return msgspec.structs.replace(node, tokens=tokens)


def _by_rollout(
    tables: duckdb.DuckDBPyConnection, query: str, rollouts: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows(tables, f"{query} where rollout_id in (select unnest(?)) order by sequence", [rollouts]):
        found.setdefault(row["rollout_id"], []).append(row)
    return found


def trajectory_of(row: Row, nodes: dict[str, MessageNode], calls: Mapping[str, Row]) -> atif.Trajectory:
    """The trajectory of a rollout: `row` of the view `rollouts`, its messages by id, the calls by message."""
    main = path(nodes, row["leaf"])
    copied = {node.node_id for node in main}
    others = []
    for leaf in _leaves(nodes):
        if leaf != row["leaf"]:
            branch = path(nodes, leaf)
            others.append(_conversation(row, branch, calls, copied, leaf))
            copied |= {node.node_id for node in branch}
    whole = _conversation(row, main, calls, set(), row["rollout_id"])
    return msgspec.structs.replace(
        whole,
        session_id=row["rollout_id"],
        subagent_trajectories=others or None,
        final_metrics=atif.FinalMetrics(
            total_prompt_tokens=row["prompt_tokens"],
            total_completion_tokens=row["completion_tokens"],
            total_cost_usd=row["cost_usd"],
            total_steps=len(whole.steps),
        ),
        extra={KEY: {name: row[name] for name in _FACTS if row[name] is not None}},
    )


def _leaves(nodes: Mapping[str, MessageNode]) -> list[str]:
    parents = {node.parent for node in nodes.values()}
    return [name for name in nodes if name not in parents]


def _conversation(
    row: Row, messages: Sequence[MessageNode], calls: Mapping[str, Row], copied: set[str], name: str
) -> atif.Trajectory:
    """One path from root to leaf. Results of tools go to the step whose call they answer."""
    steps: list[atif.Step] = []
    for node in messages:
        if node.role is Role.TOOL:
            steps[-1] = _answered(steps[-1], node)
        else:
            steps.append(_step(node, len(steps) + 1, calls.get(node.node_id), node.node_id in copied))
    return atif.Trajectory(
        schema_version=atif.VERSION,
        trajectory_id=name,
        agent=atif.Agent(name=row["harness"], version="unknown", model_name=row["model"]),
        steps=steps,
    )


def _step(node: MessageNode, number: int, call: Row | None, copied: bool) -> atif.Step:
    message, extra = _content(node)
    step = atif.Step(
        step_id=number,
        source=_SOURCES[node.role],  # type: ignore[arg-type]
        message=message,
        extra=extra,
        is_copied_context=True if copied else None,
    )
    if node.role is not Role.ASSISTANT:
        return step
    return msgspec.structs.replace(
        step,
        reasoning_content=node.reasoning or None,
        tool_calls=[_call(each.id, each.name, each.arguments) for each in node.tool_calls] or None,
        metrics=_metrics(node, call),
        model_name=call["served_model"] if call else None,
    )


def _call(name: str, function: str, arguments: str) -> atif.AtifToolCall:
    """A call; arguments that are no JSON object, or not in this library's spelling, are kept as text
    beside it."""
    try:
        found = msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        found = {}
    exact = msgspec.json.encode(found).decode() == arguments
    return atif.AtifToolCall(
        tool_call_id=name,
        function_name=function,
        arguments=found,
        extra=None if exact else {KEY: {"arguments": arguments}},
    )


def _metrics(node: MessageNode, call: Row | None) -> atif.Metrics | None:
    tokens = node.tokens
    if call is None and tokens is None:
        return None
    return atif.Metrics(
        prompt_tokens=call["prompt_tokens"] if call else None,
        completion_tokens=call["completion_tokens"] if call else None,
        cost_usd=call["cost_usd"] if call else None,
        prompt_token_ids=list(tokens.prompt_ids) or None if tokens else None,
        completion_token_ids=list(tokens.ids) if tokens else None,
        logprobs=list(tokens.logprobs) or None if tokens else None,
    )


def _answered(step: atif.Step, node: MessageNode) -> atif.Step:
    known = {call.tool_call_id for call in step.tool_calls or ()}
    before = step.observation.results if step.observation else []
    named = node.tool_call_id if node.tool_call_id in known else None
    content, extra = _content(node)
    result = atif.Result(source_call_id=named, content=content, extra=extra)
    return msgspec.structs.replace(step, observation=atif.Observation(results=[*before, result]))
