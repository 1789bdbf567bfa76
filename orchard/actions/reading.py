"""The log for notebooks and scripts: `from orchard import Log`.

    log = Log(".orchard")
    log.rollouts(campaign="first").df()

Everything is a DuckDB relation over the views of `docs/reference/tables.md`: `.df()` is a pandas frame,
`.arrow()` an Arrow table, `.pl()` a polars frame; `.filter`, `.aggregate`, `.order` and `.limit` ask on.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Self

import duckdb

from orchard.actions.rollout import WHOLE, UnknownName, find, read
from orchard.actions.rollout_index import index_views
from orchard.pipelines.campaigns.scores import Tally
from orchard.pipelines.evaluation.results import Cell, CellComparison, paired
from orchard.pipelines.trajectories.reading import stored_node
from orchard.schemas.llm_calls import CallKind
from orchard.schemas.messages import MessageNode
from orchard.schemas.positions import PlainPosition, Position
from orchard.storage.blobs import BlobStore
from orchard.storage.reader import open_tables, refresh


class Arm(NamedTuple):
    """Selects rollouts of a campaign; None stands for all harnesses or models."""

    campaign: str
    harness: str | None = None
    model: str | None = None


@dataclass(frozen=True)
class TreeNode:
    """A message with its answers."""

    message: MessageNode
    kind: CallKind | None
    """Kind of the model call; None if it is unknown or the message is not a model's."""
    children: "list[TreeNode]" = field(default_factory=list)

    def __iter__(self) -> Iterator["TreeNode"]:
        """Yields this node and all below it, depth first."""
        waiting = [self]
        while waiting:
            found = waiting.pop()
            yield found
            waiting += reversed(found.children)


class Log:
    """A store opened for reading, also while a pipeline writes to it; a context manager."""

    def __init__(self, store: str = ".orchard", *, as_of: PlainPosition | None = None) -> None:
        """Opens a directory or `s3://BUCKET/PREFIX`; with `as_of`, the state at that sequence, or at the last
        sequences of all event streams.

        Raises StorageError where there is no store.
        """
        self.store, self._as_of = store, None if as_of is None else Position.of(as_of)
        self._tables = open_tables(store, as_of=self._as_of)
        index_views(self._tables)
        self._blobs = BlobStore(store)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the log; its relations cannot be queried afterwards."""
        self._tables.close()

    def refresh(self) -> None:
        """Includes what has been committed since the log was opened."""
        refresh(self._tables, self.store, as_of=self._as_of)

    def sql(self, query: str, **parameters: Any) -> duckdb.DuckDBPyRelation:
        """Runs a query; `$name` in it is a parameter."""
        return self._tables.sql(query, params=parameters or None)

    def rollouts(self, **equal: object) -> duckdb.DuckDBPyRelation:
        """Outcomes of rollouts by column values: `rollouts(campaign="first", resolved=True)`.

        Raises ValueError for a column that there is not.
        """
        return self._where("rollouts", equal)

    def messages(self, rollout: str) -> duckdb.DuckDBPyRelation:
        """Messages of a rollout's accepted attempt in the order of the log; the rollout by id or its first
        digits.

        Texts over 256 KiB are empty; `tree` has them.
        """
        return self.sql(
            "select * from messages where rollout_id = $id order by sequence", id=self.find(rollout)
        )

    def tree(self, rollout: str) -> list[TreeNode]:
        """Messages as trees, with large texts: the main conversation first, then the others.

        A node with several children is where the conversation branched. Raises BlobMissing and BlobCorrupt.
        """
        found = read(self._tables, self.find(rollout), WHOLE)
        kinds = {node: CallKind(kind) for node, call in found.calls.items() if (kind := call["call_kind"])}
        nodes, roots = dict[str, TreeNode](), list[TreeNode]()
        for row in found.texts.values():
            message = stored_node(self._blobs, row)
            node = TreeNode(message, kinds.get(message.node_id))
            nodes[message.node_id] = node
            parent = nodes.get(message.parent or "")
            (parent.children if parent else roots).append(node)
        return roots

    def groups(self, run: str) -> duckdb.DuckDBPyRelation:
        """Groups of a reinforcement-learning run, each with its result."""
        return self._where("groups", {"run": run})

    def compare(self, first: Arm | str, second: Arm | str) -> CellComparison:
        """Compares two arms over the tasks that both graded; a name stands for the only arm of a campaign.

        Difference of pass rates (second minus first) with its 95 % interval, tasks gained and lost, and `p`.
        Raises UnknownName where no task is in both, or the campaign of a name has several arms.
        """
        arms = [arm if isinstance(arm, Arm) else self._only_arm(arm) for arm in (first, second)]
        pair = paired(*map(self._cell, arms))
        if pair is None:
            raise UnknownName(f"no task was graded in both {arms[0]} and {arms[1]}: see `Log.rollouts()`")
        return pair

    def find(self, rollout: str) -> str:
        """Completes a rollout id from its first digits. Raises UnknownName."""
        return find(self._tables, rollout)

    def _only_arm(self, campaign: str) -> Arm:
        """The arm of a campaign; raises UnknownName if there are several, whose mixture compares nothing."""
        query = "select distinct harness, model from rollouts where campaign = $campaign order by all"
        arms = [Arm(campaign, *row) for row in self.sql(query, campaign=campaign).fetchall()]
        if len(arms) > 1:
            named = ", ".join(repr(tuple(arm)) for arm in arms[:10])
            raise UnknownName(
                f"{campaign} has {len(arms)} arms: compare one of them, as Arm(*...) of {named}"
            )
        return Arm(campaign)

    def _where(self, view: str, equal: dict[str, object]) -> duckdb.DuckDBPyRelation:
        relation = self._tables.view(view)
        if unknown := [name for name in equal if name not in relation.columns]:
            raise ValueError(f"{view} has no column {unknown[0]!r}: it has {', '.join(relation.columns)}")
        where = " and ".join(f'"{name}" is not distinct from ${name}' for name in equal) or "true"
        return self.sql(f"select * from {view} where {where}", **equal)

    def _cell(self, arm: Arm) -> Cell:
        found = self.sql(
            "select task_id, count(resolved), count(*) filter (resolved) from rollouts "
            "where campaign = $campaign and ($harness is null or harness = $harness) "
            "and ($model is null or model = $model) "
            "group by task_id having count(resolved) > 0",
            **arm._asdict(),
        ).fetchall()
        return Cell(
            task_set="",
            harness=arm.harness or arm.campaign,
            model=arm.model or arm.campaign,
            tasks={task: Tally(graded=graded, resolved=resolved) for task, graded, resolved in found},
            requested=0,
            aborted=0,
            turns=0,
            tokens=0,
            cost_usd=None,
            seconds=0.0,
        )
