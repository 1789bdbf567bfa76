"""Aligns two rollouts turn by turn: where they diverge, and what each does afterwards."""

from dataclasses import dataclass
from typing import Any

import duckdb

from orchard.actions.attempt_ranges import QueryRange
from orchard.actions.rollout import RolloutView, ShownRollout, read
from orchard.actions.rollout_turns import ShownTurn
from orchard.page.rendering import Renderer
from orchard.storage.blobs import BlobStore
from orchard.storage.reader import within

TURNS = 20
"""Turns on one page."""
TEXT = 4_000
"""Characters shown of one text."""
Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class TurnPair:
    """Turns of both rollouts with the same number; None in a rollout that lacks it."""

    number: int
    left: tuple[ShownTurn, Messages] | None
    right: tuple[ShownTurn, Messages] | None

    @property
    def same(self) -> bool:
        """Whether both sides have the same messages up to here: ids of messages are hashes over their
        ancestors."""
        return self.left is not None and self.right is not None and self.left[0].nodes == self.right[0].nodes


@dataclass(frozen=True)
class SideBySide:
    """Two rollouts and a window of their turns."""

    left: ShownRollout
    right: ShownRollout
    parts: int | None
    """First different turn, or None."""
    pairs: list[TurnPair]
    before: int | None
    """First turn of the previous window."""
    after: int | None


def read_both(
    tables: duckdb.DuckDBPyConnection,
    left: str,
    right: str,
    turn: int,
    *,
    beyond: int = 0,
    narrow: QueryRange = within,
) -> tuple[ShownRollout, ShownRollout]:
    """Reads both rollouts with the window around a turn. Raises UnknownName."""
    view = RolloutView(turn=turn - turn % TURNS, window=TURNS, text=TEXT, beyond=beyond, others=False)
    return read(tables, left, view, narrow), read(tables, right, view, narrow)


def parting(left: ShownRollout, right: ShownRollout) -> int | None:
    """First turn that differs, or None."""
    nodes = [{each.number: each.nodes for each in rollout.turns} for rollout in (left, right)]
    every = sorted(nodes[0].keys() | nodes[1].keys())
    return next((number for number in every if nodes[0].get(number) != nodes[1].get(number)), None)


def aligned(
    left: ShownRollout, right: ShownRollout, turn: int, renderer: Renderer, blobs: BlobStore
) -> SideBySide:
    """Pairs the turns of the window by number. Reads blobs."""
    first = turn - turn % TURNS
    sides = [
        {
            each.number: (each, renderer.messages(rollout, each, blobs, TEXT))
            for each in rollout.window
            if first <= each.number < first + TURNS
        }
        for rollout in (left, right)
    ]
    numbers = sorted(sides[0].keys() | sides[1].keys())
    last = max((each.number for rollout in (left, right) for each in rollout.turns), default=0)
    return SideBySide(
        left,
        right,
        parting(left, right),
        [TurnPair(number, sides[0].get(number), sides[1].get(number)) for number in numbers],
        first - TURNS if first else None,
        first + TURNS if first + TURNS <= last else None,
    )
