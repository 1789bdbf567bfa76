"""Published rows as trajectories: each has an id of its own, bad ones are counted, large parts are blobs."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchard.pipelines.datasets.foreign import Foreign
from orchard.pipelines.datasets.importing import events_of
from orchard.pipelines.domains.swe.released_rows import released
from orchard.pipelines.tasks.left_out import LeftOut
from orchard.schemas.blobs import INLINE_LIMIT
from orchard.schemas.events import payload
from orchard.schemas.identity import rollout_id
from orchard.schemas.messages import MessageNode, NodeRest, Role
from orchard.storage.blobs import BlobStore


def row(
    text: str = "Done.", role: str | None = "user", function: object = ..., **metadata: object
) -> dict[str, Any]:
    """A row of the released layout."""
    known = {"instance_id": "a__1", "model": "m", "verify_status": "resolved", "sample_idx": 7}
    call = {"id": "c", "function": {"name": "bash", "arguments": "{}"} if function is ... else function}
    said = {"role": "assistant", "content": text, "tool_calls": [call]}
    return {
        "messages": [{"role": role, "content": "Repair it."}, said],
        "tools": "[]",
        "metadata": json.dumps(known | metadata),
    }


def test_a_row_that_is_not_in_the_layout_is_named_with_what_is_wrong_and_the_others_come() -> None:
    bad = [
        row(role="critic"),
        row(role=None),
        row(function=None),
        row(function={"name": "bash", "arguments": {"command": "ls"}}),
        row(verify_status="unknown"),
        row(instance_id=3),
        row() | {"tools": "{}"},
        row() | {"tools": '[{"a": ' + "[" * 5000},
        row() | {"metadata": "no"},
        row() | {"metadata": None},
        row() | {"messages": None},
    ]
    rows = [*enumerate([*bad, row("first"), row(role=None), row("last", role="developer")])]
    every = list(released(rows, "h"))
    found = [one for one in every if isinstance(one, Foreign)]
    assert [one.nodes[1].content for one in found] == ["first", "last"]
    assert found[1].nodes[0].role is Role.SYSTEM
    left_out = {one.name: one.why for one in every if isinstance(one, LeftOut)}
    assert list(left_out) == [f"row {number}" for number in (*range(11), 12)]
    assert left_out["row 1"] == "messages: Expected `str`, got `null` - at `$[0].role`"
    assert left_out["row 2"] == "messages: Expected `object`, got `null` - at `$[1].tool_calls[0].function`"
    assert left_out["row 9"] == "metadata: not JSON text"


def test_what_a_row_says_is_its_identity_and_not_its_place_or_index() -> None:
    def ids(*rows: dict[str, Any]) -> list[str]:
        found = released(enumerate(rows), "h")
        return [rollout_id("c", one.task_id, one.harness, one.model, one.sample) for one in found]

    assert ids(row("first"), row("second")) == [*ids(row("first")), *ids(row("second"))]
    assert len({*ids(row("first"), row("second"), row("first", sample_idx=8))}) == 3
    assert [one.row for one in released(enumerate([row("first"), row("second")]), "h")] == [0, 1]


def test_a_field_that_is_null_empty_or_absent_is_the_same() -> None:
    """A file has all fields in all of its messages, where one of them has it."""
    samples = set()
    for empty in ({}, {"tool_calls": None, "tool_call_id": None}, {"tool_calls": [], "tool_call_id": ""}):
        one = row()
        one["messages"] = [{**one["messages"][0], **empty}, {"name": None, **one["messages"][1]}]
        samples |= {one.sample for one in released(enumerate([one, one | {"tools": None}]), "h")}
    assert len(samples) == 1


LONG = "x" * (INLINE_LIMIT + 1)


@pytest.mark.parametrize(
    ("thought", "text", "arguments"),
    [(LONG, "short", "{}"), ("", "short", LONG), ("", LONG, "{}"), (LONG,) * 3],
)
def test_large_parts_of_a_message_are_blobs(tmp_path: Path, thought: str, text: str, arguments: str) -> None:
    call = {"id": "c", "function": {"name": "bash", "arguments": arguments}}
    said = {"role": "assistant", "content": f"<think>{thought}</think>{text}", "tool_calls": [call]}
    row = {
        "messages": [{"role": "user", "content": "Repair it."}, said],
        "tools": "[]",
        "metadata": json.dumps({"instance_id": "a__1", "model": "m", "verify_status": "resolved"}),
    }
    blobs = BlobStore(str(tmp_path))
    events = events_of(blobs, next(released([(0, row)], "h")), campaign="c", dataset="d")
    assert max(len(msgspec.json.encode(event)) for event in events) < INLINE_LIMIT + 4096
    nodes = [data for event in events if isinstance(data := payload(event), MessageNode)]
    (node,) = [node for node in nodes if node.role is Role.ASSISTANT]
    rest = (
        msgspec.json.decode(blobs.get(node.rest_blob), type=NodeRest)
        if node.rest_blob
        else NodeRest(reasoning=node.reasoning, tool_calls=node.tool_calls)
    )
    assert (rest.reasoning, rest.tool_calls[0].arguments) == (thought, arguments)
    assert (blobs.get(node.content_blob).decode() if node.content_blob else node.content) == text
