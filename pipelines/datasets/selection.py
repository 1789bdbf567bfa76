"""Selection strategies for a budget of N trajectories (the paper's Table 9). Pure and deterministic.

Ties and random choices go by a hash of the seed and the rollout id, never by the order of the input.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchard.pipelines.datasets.settings import Strategy


@dataclass(frozen=True)
class Choice:
    """What a strategy looks at."""

    rollout_id: str
    repo: str
    gold_files: int = 0
    gold_lines: int = 0
    """Of the task's gold patch; 0 where there is none."""


def select(
    pool: Sequence[Choice],
    budget: int | None,
    strategy: Strategy,
    *,
    seed: int = 0,
    per_repo: int | None = None,
) -> set[str]:
    """Rollout ids of at most `budget` of the pool, of all of it where `budget` is None.

    random: uniformly. diverse-repo: no repository has more than a cap, which is `per_repo` or the smallest
    that fills the budget. concentrated-repo: the repositories with most of the pool first. multi-file: gold
    patches of more files first. large-diff: of more lines first. composite: by the mean rank of both and of
    lines per file.
    """
    budget = len(pool) if budget is None else budget
    shuffled = sorted(pool, key=lambda one: lottery(seed, one.rollout_id))
    return {one.rollout_id for one in _STRATEGIES[strategy](shuffled, budget, per_repo)}


def lottery(seed: int, rollout_id: str) -> bytes:
    """The place of a rollout in a shuffle that anybody can repeat."""
    return hashlib.sha256(f"{seed}:{rollout_id}".encode()).digest()


def _random(shuffled: list[Choice], budget: int, _: int | None) -> list[Choice]:
    return shuffled[:budget]


def _diverse(shuffled: list[Choice], budget: int, per_repo: int | None) -> list[Choice]:
    """Round by round, one of each repository; the last round by lot."""
    taken: Counter[str] = Counter()
    rounds: dict[int, list[Choice]] = defaultdict(list)
    for one in shuffled:
        rounds[taken[one.repo]].append(one)
        taken[one.repo] += 1
    last = len(rounds) if per_repo is None else per_repo
    return [one for number in range(min(last, len(rounds))) for one in rounds[number]][:budget]


def _concentrated(shuffled: list[Choice], budget: int, _: int | None) -> list[Choice]:
    sizes = Counter(one.repo for one in shuffled)
    return sorted(shuffled, key=lambda one: (-sizes[one.repo], one.repo))[:budget]


def _by(key: Callable[[Choice], int]) -> Callable[[list[Choice], int, int | None], list[Choice]]:
    return lambda shuffled, budget, _: sorted(shuffled, key=key, reverse=True)[:budget]


def _composite(shuffled: list[Choice], budget: int, _: int | None) -> list[Choice]:
    properties: list[Callable[[Choice], float]] = [
        lambda one: one.gold_files,
        lambda one: one.gold_lines,
        lambda one: one.gold_lines / max(one.gold_files, 1),
    ]
    ranks: dict[str, float] = defaultdict(float)
    for key in properties:
        values = sorted({key(one) for one in shuffled})
        rank = {value: number / max(len(values) - 1, 1) for number, value in enumerate(values)}
        for one in shuffled:
            ranks[one.rollout_id] += rank[key(one)]
    return sorted(shuffled, key=lambda one: ranks[one.rollout_id], reverse=True)[:budget]


_STRATEGIES: dict[Strategy, Callable[[list[Choice], int, int | None], list[Choice]]] = {
    "random": _random,
    "diverse-repo": _diverse,
    "concentrated-repo": _concentrated,
    "multi-file": _by(lambda one: one.gold_files),
    "large-diff": _by(lambda one: one.gold_lines),
    "composite": _composite,
}
