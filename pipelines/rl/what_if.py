"""What other settings would have made of a finished log: groups, rollouts and tokens, with no model.

Groups are a fold over graded rollouts, so those that the log has can be dealt out again. A prompt here is a
task, with its rollouts in the order in which they ended. Where a cell asks for more rollouts of a task than
there are, that task says nothing about the cell and is counted as such.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import msgspec

from orchard.pipelines.rl.bar import Assemble, BarSettings, GiveUp, Rollout, Slot, decide
from orchard.schemas.groups import GroupOutcome


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One setting to try; `method` is `bar`, `fixed` (GRPO) or `dynamic` (DAPO)."""

    method: str
    bar: BarSettings


class Yield(msgspec.Struct, frozen=True, kw_only=True):
    """What a cell makes of the log. Rollouts and tokens count all that was generated, trained on or not."""

    cell: Cell
    prompts: int
    """Decided from the log."""
    too_few: int
    """Prompts of which the log has too few rollouts to tell."""
    outcomes: dict[GroupOutcome, int]
    informative: int
    """Groups with both classes: those that carry a gradient."""
    positive_share: float | None
    """Mean over the informative groups."""
    rollouts: int
    tokens: int
    dropped: int
    """Prompts whose rollouts trained nothing; with `fixed` their zero advantages are trained on."""

    @property
    def per_thousand(self) -> float | None:
        """Informative groups for each 1,000 rollouts."""
        return 1000 * self.informative / self.rollouts if self.rollouts else None


def grid(
    sizes: Sequence[int],
    budgets: Sequence[int],
    strides: Sequence[int | None],
    intervals: Sequence[tuple[float, float]],
    methods: Sequence[str] = ("bar", "fixed", "dynamic"),
) -> Iterator[Cell]:
    """Every combination that makes a group; fixed N and dynamic sampling depend on the size alone."""
    if "bar" in methods:
        for size, budget, stride, interval in product(sizes, budgets, strides, intervals):
            try:
                yield Cell(
                    method="bar", bar=BarSettings(size=size, budget=budget, stride=stride, interval=interval)
                )
            except ValueError:
                continue  # a stride that does not divide the budget, an interval without a whole number
    for size in sizes:
        for method in ("fixed", "dynamic"):
            if method in methods:
                yield Cell(method=method, bar=BarSettings(size=size, budget=size, interval=None))


def dealt(pool: Sequence[Rollout], settings: BarSettings) -> tuple[Assemble, int] | None:
    """The group that graded rollouts in their order would have made, and how many it took; None: too few."""
    used = 0
    while True:
        decision = decide([Slot(tried=(rollout,)) for rollout in pool[:used]], settings)
        if isinstance(decision, Assemble):
            return decision, used
        if isinstance(decision, GiveUp) or used + settings.step > len(pool):
            return None
        used += settings.step


def told_by_all(
    pools: Mapping[str, Sequence[Rollout]], cells: Sequence[Cell]
) -> dict[str, Sequence[Rollout]]:
    """The tasks with enough rollouts for every cell: only over the same prompts can rates be compared."""
    return {
        task: pool for task, pool in pools.items() if all(dealt(pool, cell.bar) is not None for cell in cells)
    }


def what_if(pools: Mapping[str, Sequence[Rollout]], cell: Cell) -> Yield:
    """Deal every task's graded rollouts out under one setting."""
    outcomes: dict[GroupOutcome, int] = {}
    shares: list[float] = []
    too_few = rollouts = tokens = 0
    for pool in pools.values():
        result = dealt(pool, cell.bar)
        if result is None:
            too_few += 1
            continue
        group, used = result
        outcomes[group.outcome] = outcomes.get(group.outcome, 0) + 1
        rollouts += used
        tokens += sum(rollout.tokens for rollout in pool[:used])
        if not group.degenerate:
            shares.append(group.positive / cell.bar.size)
    prompts = sum(outcomes.values())
    return Yield(
        cell=cell,
        prompts=prompts,
        too_few=too_few,
        outcomes=outcomes,
        informative=len(shares),
        positive_share=sum(shares) / len(shares) if shares else None,
        rollouts=rollouts,
        tokens=tokens,
        dropped=prompts - len(shares),
    )
