"""Reads trajectories from the tables: the accepted attempt's path of messages, many rollouts at a time."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from orchard.schemas.blobs import BlobRef
from orchard.schemas.messages import Image, MessageNode, Role, TokenRecord, ToolCall
from orchard.storage.blobs import BlobStore
from orchard.workers.episode.large_messages import whole

LEAKED_ERRORS = ("Agent connection error", "No pod IP available", "Command timed out after 180s")
"""Infrastructure errors that released rows contain as observations."""

_SEMI_JOIN = "semi join _wanted w on w.rollout_id = m.rollout_id and w.attempt = m.attempt"
_COLUMNS = (
    *("node_id", "parent", "role", "turn", "content", "content_sha256", "content_length"),
    *("reasoning", "tool_calls", "tool_call_id", "rest_sha256", "token_ids", "images"),
)
_QUERY = f"""
select rollout_id, {", ".join(_COLUMNS)} from tables.messages_all m {_SEMI_JOIN}
where m.sequence between $first and $last order by m.sequence
"""


_CUT = """
select distinct c.rollout_id, c.node from tables.llm_calls_all c
semi join _wanted w on w.rollout_id = c.rollout_id and w.attempt = c.attempt
where c.sequence between $first and $last and c.finish_reason in ('length', 'unparsed')
"""


_AUTHORS = """
select distinct rollout_id, node, model from tables.llm_calls_all where list_contains($ids, rollout_id)
"""


@dataclass(frozen=True)
class AttemptSpan:
    """The range of the log that holds a finished attempt."""

    rollout_id: str
    attempt: int
    leaf: str | None
    """Node id of the last message; None: the newest one."""
    first: int
    last: int
    """`first` is the sequence of its start, `last` that of its terminal event."""


def read_paths(
    tables: duckdb.DuckDBPyConnection, blobs: BlobStore, places: Sequence[AttemptSpan]
) -> dict[str, list[MessageNode]]:
    """The messages from root to leaf of each attempt, by rollout id; empty where the log has none. Reads
    and raises like `read_trees`."""
    trees = read_trees(tables, blobs, places)
    return {place.rollout_id: path(trees[place.rollout_id], place.leaf) for place in places}


def read_trees(
    tables: duckdb.DuckDBPyConnection, blobs: BlobStore, places: Sequence[AttemptSpan]
) -> dict[str, dict[str, MessageNode]]:
    """All messages of each attempt by their ids, in the order of the log, by rollout id.

    Reads the range of the log that the attempts span, so neighbours in the log should be read together.
    Results of commands are left out. Raises BlobMissing or BlobCorrupt.
    """
    if not places:
        return {}
    found = _asked(tables, _QUERY, places)
    nodes: dict[str, dict[str, MessageNode]] = {place.rollout_id: {} for place in places}
    columns = [found.column(name).to_pylist() for name in ("rollout_id", *_COLUMNS)]
    for rollout, *values in zip(*columns, strict=True):
        known = nodes[rollout]
        if values[0] not in known:  # an event may be in the log twice
            known[values[0]] = _node(blobs, *values)
    return nodes


def read_cut(tables: duckdb.DuckDBPyConnection, places: Sequence[AttemptSpan]) -> set[tuple[str, str]]:
    """Answers that `max_tokens` cut or whose server's response was unreadable, as rollout id and node id:
    the model did not end them."""
    found = _asked(tables, _CUT, places) if places else None
    return set() if found is None else set(zip(*found.to_pydict().values(), strict=True))


def read_authors(tables: duckdb.DuckDBPyConnection, rollouts: Collection[str]) -> list[tuple[str, str, str]]:
    """Who said what in some rollouts: rollout id, node id and model of each answer, in whichever attempt."""
    return tables.execute(_AUTHORS, {"ids": list(rollouts)}).fetchall() if rollouts else []


def _asked(tables: duckdb.DuckDBPyConnection, query: str, places: Sequence[AttemptSpan]) -> pa.Table:
    """Run a query for these attempts over the range of the log that they span."""
    wanted = pa.table(
        {
            "rollout_id": [place.rollout_id for place in places],
            "attempt": pa.array([place.attempt for place in places], pa.int64()),
        }
    )
    tables.register("_wanted", wanted)
    try:
        bounds = {"first": min(p.first for p in places), "last": max(p.last for p in places)}
        return tables.sql(query, params=bounds).to_arrow_table()
    finally:
        tables.unregister("_wanted")


def path(nodes: dict[str, MessageNode], leaf: str | None) -> list[MessageNode]:
    """The path from the root to `leaf`; to the last of `nodes` where `leaf` is None."""
    at = leaf if leaf is not None else next(reversed(nodes), None)
    found = []
    while at is not None and at in nodes:
        found.append(nodes[at])
        at = found[-1].parent
    return found[::-1]


def assistants(path: Iterable[MessageNode]) -> list[MessageNode]:
    """The assistant messages: step t is the one at index t."""
    return [node for node in path if node.role is Role.ASSISTANT]


def stored_node(blobs: BlobStore, row: Mapping[str, Any]) -> MessageNode:
    """A message of the view `messages` or `messages_all`, without the facts of a command's result. Raises
    BlobMissing or BlobCorrupt."""
    return _node(blobs, *(row[name] for name in _COLUMNS))


def stored_image(row: Mapping[str, Any]) -> Image:
    """A picture of the column `images`."""
    blob = BlobRef(sha256=row["sha256"], size=row["size"], media_type=row["media_type"])
    plain = {name: row[name] for name in ("media_type", "width", "height", "at")}
    return Image(blob=blob, **plain, caption=row["caption"] or "")


def _node(
    blobs: BlobStore,
    node_id: str,
    parent: str | None,
    role: str,
    turn: int,
    content: str,
    content_sha256: str | None,
    content_length: int,
    reasoning: str,
    tool_calls: list[dict[str, str]] | None,
    tool_call_id: str,
    rest_sha256: str | None,
    token_ids: list[int] | None,
    images: list[dict[str, Any]] | None,
) -> MessageNode:
    return whole(
        MessageNode(
            node_id=node_id,
            parent=parent,
            role=Role(role),
            turn=turn,
            content=content,
            content_blob=BlobRef(sha256=content_sha256, size=content_length) if content_sha256 else None,
            reasoning=reasoning,
            tool_calls=tuple(ToolCall(**call) for call in tool_calls or ()),
            tool_call_id=tool_call_id,
            tokens=TokenRecord(ids=tuple(token_ids)) if token_ids else None,
            rest_blob=BlobRef(sha256=rest_sha256, size=0) if rest_sha256 else None,
            images=tuple(stored_image(image) for image in images or ()),
        ),
        blobs,
    )
