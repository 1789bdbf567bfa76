"""Exports the column layout of the released Orchard GUI set: a row a step, messages of plain texts, and
pictures. What the layout has no column for stands in the texts: reasoning between <think> tags, calls
between <tool_call> tags, results of tools between <tool_response> tags, `<image>` where a picture is."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from orchard.pipelines.datasets.exporters.interface import (
    EXTRAS,
    MARK,
    PICTURE,
    Exporter,
    Record,
    plain,
    text_only,
)
from orchard.pipelines.datasets.rows import Row
from orchard.schemas.decoding import Unreadable, decode_text
from orchard.schemas.messages import RESULT_TAGS

LAYOUT = "orchard-gui"
CALL = ("<tool_call>\n", "\n</tool_call>")
"""Text before and after a call."""
MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string())])
_TEXT = {"dtype": "string", "_type": "Value"}
_FEATURES = {
    "messages": [{"role": _TEXT, "content": _TEXT}],
    "images": {"feature": {"_type": "Image"}, "_type": "Sequence"},
    "reward": {"dtype": "float64", "_type": "Value"},
    "status": _TEXT,
    "metadata": _TEXT,
}
"""Schema by which the package `datasets` reads the pictures as pictures."""
SCHEMA = pa.schema(
    [
        ("messages", pa.list_(MESSAGE)),
        ("images", pa.list_(PICTURE)),
        ("reward", pa.float64()),
        ("status", pa.string()),
        ("metadata", pa.string()),
    ],
    metadata={"huggingface": json.dumps({"info": {"features": _FEATURES}})},
)


def _step(row: Row) -> Iterator[Record]:
    messages, places, thoughts, calls, results = [], [], [], [], []
    for index, message in enumerate(json.loads(row.messages)):
        before, after = _frame(message)
        if message["role"] == "tool":
            results.append(index)
        if message.get("reasoning_content"):
            thoughts.append(index)
        if message.get("tool_calls"):
            calls.append([index, len(message["tool_calls"])])
        text = before
        for part in _parts(message.get("content")):
            if part.get("type") == "text":
                text += part["text"]
            else:
                places.append([index, len(text)])
                text += MARK
        role = "user" if message["role"] == "tool" else message["role"]
        messages.append({"role": role, "content": text + after})
    metadata = {
        "task_id": row.task_id,
        "website": row.repo,
        "source": row.task_source,
        "model": row.model,
        "sample_idx": row.sample,
        "step": row.turns - 1,
        EXTRAS: {
            **plain(row),
            "exit_status": row.exit_status,
            "resolved": row.resolved,
            "tools": json.loads(row.tools),
            "places": places,
            "thoughts": thoughts,
            "calls": calls,
            "results": results,
        },
    }
    yield {
        "messages": messages,
        "images": list(row.images),
        "reward": row.reward,
        "status": row.status,
        "metadata": json.dumps(metadata, ensure_ascii=False),
    }


def _parts(content: Any) -> list[dict[str, Any]]:
    return content if isinstance(content, list) else [{"type": "text", "text": content or ""}]


def _frame(message: dict[str, Any]) -> tuple[str, str]:
    """The text before and after that of a message."""
    if message["role"] == "tool":
        return RESULT_TAGS
    if message["role"] != "assistant":
        return "", ""
    thought = message.get("reasoning_content")
    calls = [written_call(call["function"]) for call in message.get("tool_calls") or ()]
    between = "\n" if message.get("content") and calls else ""
    return f"<think>\n{thought}\n</think>\n" if thought else "", between + "\n".join(calls)


def written_call(function: Mapping[str, Any]) -> str:
    """A call, its name and arguments (JSON text), between tags."""
    try:
        arguments = decode_text(function["arguments"])
    except Unreadable:
        arguments = function["arguments"]
    said = json.dumps({"name": function["name"], "arguments": arguments}, ensure_ascii=False)
    return f"{CALL[0]}{said}{CALL[1]}"


def _inside(row: Row) -> Iterator[str]:
    yield from text_only(row)
    if '"reasoning_content"' in row.messages:
        yield "reasoning apart from the text: it stands in the content between <think> tags"
    if '"tool_calls"' in row.messages:
        yield "calls and results as such: they stand in the contents between tags"
    if row.trained_turns != (row.turns - 1,):
        yield "turns that train before the last: a row is a step, and its last message trains"


GUI = Exporter(
    name=LAYOUT,
    consumer="the column layout of the released Orchard GUI set",
    schema=SCHEMA,
    project=_step,
    losses=_inside,
    pictures="images",
)
