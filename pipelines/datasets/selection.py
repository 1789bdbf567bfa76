"""Selection strategies for a budget of N trajectories (the paper's Table 9). Pure and deterministic.

Ties and random choices go by a hash of the seed and the rollout id, never by the order of the input.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from orchard.pipelines.datasets.settings import Strategy


@dataclass(frozen=True)
class Choice:
    """What a strategy knows of a trajectory."""

    rollout_id: str
    repo: str
    task_id: str = ""
    gold_files: int = 0
    gold_lines: int = 0
    """Lines of the task's gold patch; 0 where there is none."""
    turns: int = 0
    length: int = 0
    """Characters of all assistant messages."""


@dataclass
class Caps:
    """Limits on the trajectories of one task and of one repository, over all selections, and the count of
    those taken."""

    per_task: int | None = None
    per_repo: int | None = None
    turned_away: Counter[str] = field(default_factory=Counter)
    """`dropped_task_cap` and `dropped_repo_cap` to the number that only the cap kept out."""
    _taken: Counter[tuple[str, str]] = field(default_factory=Counter)

    def trial(self) -> "Caps":
        """A copy for a selection that is not taken as a whole: what it admits does not count here, what it
        turns away does."""
        return replace(self, _taken=self._taken.copy())

    def admit(self, one: Choice) -> bool:
        """Count a trajectory, if the caps have room for it; returns whether."""
        task, repo = ("task", one.task_id), ("repo", one.repo)
        for cap, key in ((self.per_task, task), (self.per_repo, repo)):
            if cap is not None and self._taken[key] >= cap:
                self.turned_away[f"dropped_{key[0]}_cap"] += 1
                return False
        self._taken.update([task, repo])
        return True


def select(
    pool: Sequence[Choice],
    budget: int | None,
    strategy: Strategy,
    *,
    seed: int = 0,
    caps: Caps | None = None,
) -> set[str]:
    """Rollout ids of at most `budget` of the pool, of all of it where `budget` is None, within the caps.

    random: uniformly. diverse-repo: one of each repository, then a second of each, until the budget is full.
    concentrated-repo: the repositories with most of the pool first. multi-file: gold patches of more files
    first. large-diff: of more lines first. composite: by the mean rank of both and of lines per file.
    shortest: of each task that with the fewest turns, then with the shortest answers, before a second of any;
    the order of tasks is by lot.
    """
    caps = caps or Caps()
    budget = len(pool) if budget is None else budget
    shuffled = sorted(pool, key=lambda one: lottery(seed, one.rollout_id))
    chosen: set[str] = set()
    for one in _STRATEGIES[strategy](shuffled):
        if len(chosen) == budget:
            break
        if caps.admit(one):
            chosen.add(one.rollout_id)
    return chosen


def lottery(seed: int, rollout_id: str) -> bytes:
    """The place of a rollout in a shuffle that can be repeated."""
    return hashlib.sha256(f"{seed}:{rollout_id}".encode()).digest()


def _random(shuffled: list[Choice]) -> list[Choice]:
    return shuffled


def _diverse(shuffled: list[Choice]) -> list[Choice]:
    """Order round by round, one of each repository; the order in a round is random."""
    taken: Counter[str] = Counter()
    rounds: dict[int, list[Choice]] = defaultdict(list)
    for one in shuffled:
        rounds[taken[one.repo]].append(one)
        taken[one.repo] += 1
    return [one for number in range(len(rounds)) for one in rounds[number]]


def _concentrated(shuffled: list[Choice]) -> list[Choice]:
    sizes = Counter(one.repo for one in shuffled)
    return sorted(shuffled, key=lambda one: (-sizes[one.repo], one.repo))


def _by(key: Callable[[Choice], int]) -> Callable[[list[Choice]], list[Choice]]:
    return lambda shuffled: sorted(shuffled, key=key, reverse=True)


def _composite(shuffled: list[Choice]) -> list[Choice]:
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
    return sorted(shuffled, key=lambda one: ranks[one.rollout_id], reverse=True)


def _shortest(shuffled: list[Choice]) -> list[Choice]:
    """Order round by round, one of each task."""
    order = {id(one): place for place, one in enumerate(shuffled)}
    taken: Counter[str] = Counter()
    rounds: dict[int, list[Choice]] = defaultdict(list)
    for one in sorted(shuffled, key=lambda one: (one.turns, one.length)):
        rounds[taken[one.task_id]].append(one)
        taken[one.task_id] += 1
    lots: dict[str, int] = {}
    for one in shuffled:
        lots.setdefault(one.task_id, order[id(one)])
    return [
        one
        for number in range(len(rounds))
        for one in sorted(rounds[number], key=lambda one: lots[one.task_id])
    ]


_STRATEGIES: dict[Strategy, Callable[[list[Choice]], list[Choice]]] = {
    "random": _random,
    "diverse-repo": _diverse,
    "concentrated-repo": _concentrated,
    "multi-file": _by(lambda one: one.gold_files),
    "large-diff": _by(lambda one: one.gold_lines),
    "composite": _composite,
    "shortest": _shortest,
}
