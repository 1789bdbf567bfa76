"""Converts one path of messages to the steps of an ATIF trajectory. Pure.

What is stored of an imported trajectory is its difference to what stands here: what this adds later, it adds
where `times` is given, which is never the case for imported ones.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from orchard.pipelines.interchange import atif
from orchard.schemas.messages import Image, MessageNode, Role, placed

PICTURES = "images"
"""Directory of the pictures, beside the files."""
KEY = "orchard"
"""Key in `extra` of the data that the format has no field for."""
_SOURCES = {Role.SYSTEM: "system", Role.USER: "user", Role.ASSISTANT: "agent"}

Row = Mapping[str, Any]


def place(image: Image) -> str:
    """The path of a picture, relative to the trajectory's file."""
    return f"{PICTURES}/{image.blob.sha256}.{image.media_type.rpartition('/')[2]}"


def conversation(
    harness: str,
    model: str,
    name: str,
    messages: Sequence[MessageNode],
    calls: Mapping[str, Row],
    *,
    copied: frozenset[str] = frozenset(),
    times: Mapping[str, datetime] | None = None,
    begun: Mapping[str, Sequence[str]] | None = None,
) -> atif.Trajectory:
    """One path from root to leaf. Results of tools go to the step whose call they answer. `calls` are rows of
    the table `llm_calls` by message; `times` are those of the messages, and `begun` the embedded trajectories
    that a message began."""
    steps: list[atif.Step] = []
    for node in messages:
        if node.role is Role.TOOL and steps:
            steps[-1] = _answered(steps[-1], node)
        else:
            step = _step(node, len(steps) + 1, calls.get(node.node_id), node.node_id in copied)
            if times and (time := times.get(node.node_id)):
                said = time.astimezone(UTC).isoformat().replace("+00:00", "Z")
                step = msgspec.structs.replace(step, timestamp=said)
            steps.append(step)
        if others := (begun or {}).get(node.node_id):
            refs = [atif.SubagentRef(trajectory_id=other) for other in others]
            steps[-1] = _with_result(steps[-1], atif.Result(subagent_trajectory_ref=refs))
    return atif.Trajectory(
        schema_version=atif.VERSION,
        trajectory_id=name,
        agent=atif.Agent(name=harness, version="unknown", model_name=model),
        steps=steps,
    )


def _content(node: MessageNode) -> tuple[atif.Content, dict[str, Any] | None]:
    """The text of a message, or its parts; and the data that the format has no field for."""
    if not node.images:
        return node.content, None
    parts = [
        atif.Part(type="text", text=each)
        if isinstance(each, str)
        else atif.Part(type="image", source=atif.MediaSource(media_type=each.media_type, path=place(each)))
        for each in placed(node.content, node.images)
    ]
    return parts, {KEY: {"captions": [image.caption for image in node.images]}}


def _step(node: MessageNode, number: int, call: Row | None, copied: bool) -> atif.Step:
    message, extra = _content(node)
    step = atif.Step(
        step_id=number,
        source=_SOURCES.get(node.role, "agent"),  # type: ignore[arg-type]
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
    more: dict[str, Any] = {}
    if call is not None:
        more = {name: call[name] for name in ("finish_reason", "seconds", "reasoning_tokens") if call[name]}
    if tokens is not None and tokens.versions:
        more["versions"] = [[run.start, run.version] for run in tokens.versions]
    return atif.Metrics(
        prompt_tokens=call["prompt_tokens"] if call else None,
        completion_tokens=call["completion_tokens"] if call else None,
        cached_tokens=call["cached_tokens"] if call else None,
        cost_usd=call["cost_usd"] if call else None,
        prompt_token_ids=list(tokens.prompt_ids) or None if tokens else None,
        completion_token_ids=list(tokens.ids) if tokens else None,
        logprobs=list(tokens.logprobs) or None if tokens else None,
        extra={KEY: more} if more else None,
    )


def _answered(step: atif.Step, node: MessageNode) -> atif.Step:
    known = {call.tool_call_id for call in step.tool_calls or ()}
    named = node.tool_call_id if node.tool_call_id in known else None
    content, extra = _content(node)
    return _with_result(step, atif.Result(source_call_id=named, content=content, extra=extra))


def _with_result(step: atif.Step, result: atif.Result) -> atif.Step:
    before = step.observation.results if step.observation else []
    return msgspec.structs.replace(step, observation=atif.Observation(results=[*before, result]))
