"""Finds what trains of a rollout whose harness is a program: every root-to-leaf path, and each answer
once. A program sends its model anything: it rewrites its history, gives work to other agents, asks for
a title, and repeats what was cut off. The log has all of that as one tree or several."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import duckdb
import msgspec

from orchard.pipelines.trajectories.reading import path
from orchard.schemas.blobs import BlobRef
from orchard.schemas.llm_calls import CallKind
from orchard.schemas.messages import MessageNode, Role
from orchard.storage.blobs import BlobStore
from orchard.workers.gateway.forest import superseded

UNTRAINED = frozenset({CallKind.TITLE, CallKind.PROBE})
"""Kinds of calls that are no work on the task."""


class Made(NamedTuple):
    """The call that made an answer."""

    kind: CallKind
    tools: BlobRef | None


class Branch(NamedTuple):
    nodes: list[MessageNode]
    trained: frozenset[str]
    """Node ids of the answers that train here, and in no earlier branch."""
    tools: BlobRef | None
    """Tools that its last trained answer was offered."""


_CALLS = """
select c.rollout_id, c.node, c.call_kind, c.tools_sha256 from tables.llm_calls_all c
semi join (select unnest($rollouts) as rollout_id, unnest($attempts) as attempt) w
on w.rollout_id = c.rollout_id and w.attempt = c.attempt where c.call_kind is not null order by c.sequence
"""


def read_calls(tables: duckdb.DuckDBPyConnection, attempts: Mapping[str, int]) -> dict[str, dict[str, Made]]:
    """Calls of programs by the node id of their answer, by rollout id; `attempts` maps rollouts to their
    attempt."""
    found: dict[str, dict[str, Made]] = {rollout: {} for rollout in attempts}
    wanted = {"rollouts": list(attempts), "attempts": list(attempts.values())}
    for rollout, node, kind, sha256 in tables.execute(_CALLS, wanted).fetchall():
        tools = BlobRef(sha256=sha256, size=0) if sha256 else None
        found[rollout].setdefault(node, Made(CallKind(kind), tools))
    return found


_OFFERED = """
select rollout_id, arg_max(tools_sha256, sequence) from tables.llm_calls_all
where tools_sha256 is not null and list_contains($rollouts, rollout_id) group by rollout_id
"""


def read_offered(tables: duckdb.DuckDBPyConnection, rollouts: Sequence[str]) -> dict[str, BlobRef]:
    """Tools that the model of each rollout was offered: the same in all of its attempts."""
    found = tables.execute(_OFFERED, {"rollouts": list(rollouts)}).fetchall()
    return {rollout: BlobRef(sha256=sha256, size=0) for rollout, sha256 in found}


def training(parent_of: Mapping[str, str | None], kind_of: Mapping[str, CallKind]) -> set[str]:
    """Node ids of the answers that train; the messages come with their parents, in the order of the log.

    These are answers of calls for work on the task that were read: not those that the program wrote
    itself, or asked for again.
    """
    answers = [(parent, name) for name, parent in parent_of.items() if name in kind_of]
    left = superseded(answers, set(parent_of.values()))
    return {name for name, kind in kind_of.items() if name not in left and kind not in UNTRAINED}


def branches(nodes: Mapping[str, MessageNode], leaf: str | None, made: Mapping[str, Made]) -> list[Branch]:
    """The branches of an attempt that train something: that of `leaf` first, others in the order of the
    log."""
    parent_of = {name: node.parent for name, node in nodes.items()}
    counted = training(parent_of, {name: call.kind for name, call in made.items()})
    ends = nodes.keys() - set(parent_of.values())
    found = []
    for end in [leaf, *(name for name in nodes if name in ends and name != leaf)]:
        way = path(dict(nodes), end)
        own = [node.node_id for node in way if node.role is Role.ASSISTANT and node.node_id in counted]
        if own:
            counted -= set(own)
            found.append(Branch(way, frozenset(own), made[own[-1]].tools))
    return found


def tools_of(blobs: BlobStore, reference: BlobRef | None) -> tuple[dict[str, Any], ...]:
    """Tools that a program offered, in the form of chat completions. Raises BlobMissing or BlobCorrupt."""
    return () if reference is None else tuple(msgspec.json.decode(blobs.get(reference)))
