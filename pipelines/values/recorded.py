"""Reads a finished attempt from the log, exactly as it was recorded: what can be replayed step by step."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import duckdb
import msgspec

from orchard.pipelines.trajectories.reading import path
from orchard.schemas.campaigns import RolloutRequest
from orchard.schemas.events import EVENT_TYPES, SandboxCreated
from orchard.schemas.llm_calls import LLMCall
from orchard.schemas.messages import MessageNode, Role, ToolCall
from orchard.schemas.outcomes import ExitStatus
from orchard.schemas.tasks import Task
from orchard.storage.blobs import BlobStore
from orchard.workers.episode.divergence import Executed
from orchard.workers.episode.large_messages import whole
from orchard.workers.episode.totals import Totals, used_by
from orchard.workers.harnesses.interface import text_action

T = TypeVar("T")

BEFORE = -1
"""The step of the state before any action."""


class UnknownRollout(ValueError):
    """No rollout with an outcome can be replayed under that name; the message says why."""


@dataclass(frozen=True)
class Recorded:
    """The accepted attempt of one rollout."""

    request: RolloutRequest
    attempt: int
    task: Task
    memory: str
    """Memory of its sandbox."""
    exit_status: ExitStatus
    path: tuple[MessageNode, ...]
    """Whole messages from the root to the last."""
    calls: dict[str, LLMCall]
    """Calls by the node that each made."""

    @property
    def steps(self) -> int:
        """Assistant messages: step t is the one of turn t + 1."""
        return sum(node.role is Role.ASSISTANT for node in self.path)

    def until(self, step: int) -> tuple[MessageNode, ...]:
        """The path up to the last result of step `step`; with BEFORE, up to the task."""
        end = len(self.path)
        for index, node in enumerate(self.path):
            if node.role is Role.ASSISTANT and node.turn == step + 2:
                end = index
                break
        return self.path[:end]

    def spent(self, step: int) -> Totals:
        """The part of the budget that the path up to step `step` has used."""
        totals = Totals()
        for node in self.until(step):
            if node.role is Role.ASSISTANT:
                call = self.calls.get(node.node_id)
                totals += used_by(call) if call else Totals(turns=1, calls=1, uncounted=1, unpriced=1)
            elif node.result is not None:
                totals += Totals(seconds_commands=node.result.seconds)
        return totals

    def executed(self, step: int) -> list[Executed]:
        """The commands of steps 0 to `step` in order.

        A harness executes a message's calls in order, so its results, which follow it, are those of
        its first calls: ids are the model's, and need not differ.
        """
        found: list[Executed] = []
        calls: list[ToolCall] = []
        for node in self.until(step):
            if node.role is Role.ASSISTANT:
                calls = list(node.tool_calls) or [text_action(node.content)]
            elif node.result is not None and calls:
                found.append(Executed(node.turn - 1, calls.pop(0), node))
        return found

    @property
    def submitted(self) -> int | None:
        """The step that submitted the work, after which nothing can continue."""
        over = self.exit_status in (ExitStatus.SUBMITTED, ExitStatus.FINISHED)
        return self.steps - 1 if over else None


_FIND = """
select rollout_id, attempt, status, exit_status, leaf, sequence from rollouts
where starts_with(rollout_id, $name) limit 2
"""
_EVENTS = """
select type, payload from events
where rollout_id = $rollout and sequence <= $last
and (attempt = $attempt or type in ('rollout.requested', 'llm.called'))
and type in ('rollout.requested', 'sandbox.created', 'message.appended', 'llm.called')
order by sequence
"""
"""The calls of all attempts: one that was inherited is the earlier attempt's."""


def _can_be_checked(node: MessageNode) -> bool:
    """Whether a replay of the message's command can be compared with it; True for a message that is no
    result."""
    return node.role is not Role.TOOL or bool(node.result and node.result.output_sha256)


def _memory(created: Sequence[SandboxCreated]) -> str:
    """Memory of the last sandbox that was made for the rollout itself; empty where it is not known."""
    return next((one.memory for one in reversed(created) if one.purpose == "rollout"), "")


def _first(events: Iterable[T], name: str) -> dict[str, T]:
    """The first event of each value of a field: an event may be in the log twice."""
    found: dict[str, T] = {}
    for event in events:
        found.setdefault(getattr(event, name), event)
    return found


def read_recorded(tables: duckdb.DuckDBPyConnection, blobs: BlobStore, name: str) -> Recorded:
    """The rollout whose id begins with `name`. Raises UnknownRollout, BlobMissing, BlobCorrupt."""
    rows = tables.execute(_FIND, {"name": name}).fetchall()
    if len(rows) != 1:
        what = "more than one rollout" if rows else "no rollout with an outcome"
        raise UnknownRollout(f"{what} starts with {name!r}: `orchard sql 'from rollouts'` lists them")
    rollout, attempt, status, exit_status, leaf, last = rows[0]
    if status == "aborted":
        raise UnknownRollout(f"rollout {rollout} was aborted: only one with an outcome can be replayed")
    events: dict[str, list[Any]] = {kind: [] for kind in EVENT_TYPES}
    for kind, payload in tables.execute(
        _EVENTS, {"rollout": rollout, "attempt": attempt, "last": last}
    ).fetchall():
        events[kind].append(msgspec.json.decode(payload, type=EVENT_TYPES[kind]))
    requests: list[RolloutRequest] = events["rollout.requested"]
    nodes: dict[str, MessageNode] = _first(events["message.appended"], "node_id")
    calls: dict[str, LLMCall] = _first(events["llm.called"], "node")
    if not (requests and nodes):
        raise UnknownRollout(f"rollout {rollout} has no request or no messages in the log: nothing to replay")
    request, steps = requests[0], path(nodes, leaf)
    if not all(map(_can_be_checked, steps)):
        raise UnknownRollout(
            f"rollout {rollout} does not say what its commands returned, as imported ones do not: a replay "
            "could not be checked"
        )
    task = msgspec.json.decode(blobs.get(request.task.blob), type=Task)
    return Recorded(
        request=request,
        attempt=attempt,
        task=task,
        memory=_memory(events["sandbox.created"]) or task.memory,
        exit_status=ExitStatus(exit_status),
        path=tuple(whole(node, blobs) for node in steps),
        calls=calls,
    )
