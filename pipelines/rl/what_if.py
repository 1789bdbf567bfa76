"""Estimates what other methods and settings would make of a log's tasks, with no model.

Posterior-predictive: a task's graded rollouts make a Beta posterior over its pass rate, whose prior is
fitted to all tasks of the log; worlds are drawn from it, and each cell is dealt one pass over all
tasks of every world, by the pipeline's own decision functions. So no cell loses the prompts of which
the log has too few rollouts, and all cells see the same rewards. A policy that learns meanwhile is not
in it.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import ceil
from statistics import fmean, quantiles

import duckdb
import msgspec
import numpy as np

from orchard.pipelines.rl import frugal
from orchard.pipelines.rl.bar import Assemble, BarSettings, GiveUp, Rollout, Slot, decide, is_positive
from orchard.pipelines.rl.frugal import (
    FrugalSettings,
    Grown,
    OneClass,
    Posterior,
    VersionCounts,
    beta_binomial,
    information,
)
from orchard.schemas.outcomes import RolloutStatus

PROMPTS = 2_000
"""Minimum prompts that each cell is dealt: as many worlds as that takes."""
WORLDS = 20
"""Minimum number of worlds, for the interval."""


class WhatIfSetting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting to try; `method` is `bar`, `fixed` (GRPO), `dynamic` (DAPO) or `frugal`."""

    method: str
    bar: BarSettings = BarSettings()
    frugal: FrugalSettings | None = None

    @property
    def label(self) -> str:
        if self.frugal is not None:
            return f"frugal {self.frugal.least} to {self.frugal.most}"
        more = f" max={self.bar.budget} s={self.bar.step}" if self.bar.interval else ""
        return f"{self.method} N={self.bar.size}{more}"


class Yield(msgspec.Struct, frozen=True, kw_only=True):
    """Mean result of a cell over the log's tasks. Rollouts and tokens count all that was generated."""

    cell: WhatIfSetting
    prompts: int
    """Tasks of the log, each of which comes up once."""
    opened: float
    """Share of the prompts that rollouts were asked for."""
    informative: float
    """Groups with both classes, of one pass over the prompts."""
    trained: float
    """Groups that are trained on; with `fixed` those of one class too."""
    positive_share: float | None
    """Mean over the groups with both classes."""
    rollouts: float
    """Rollouts of one pass."""
    tokens: float
    information: float
    """Information of one pass: the sum over its groups of k (n - k) / n."""
    low: float
    """Information for each 1,000 rollouts that 5 % of the worlds are below."""
    high: float
    """Information for each 1,000 rollouts that 5 % of the worlds are above."""

    @property
    def groups_per_thousand(self) -> float:
        return 1000 * self.informative / self.rollouts

    @property
    def information_per_thousand(self) -> float:
        return 1000 * self.information / self.rollouts

    def information_per_update(self, groups: int) -> float:
        """Information of an update of so many groups."""
        return groups * self.information / self.trained if self.trained else 0.0


class Group(msgspec.Struct, frozen=True):
    """The result of a prompt."""

    positive: int
    size: int
    used: int
    """Rollouts that the prompt used."""


def grid(
    sizes: Sequence[int],
    budgets: Sequence[int],
    strides: Sequence[int | None],
    intervals: Sequence[tuple[float, float]],
    methods: Sequence[str] = ("bar", "fixed", "dynamic", "frugal"),
) -> Iterator[WhatIfSetting]:
    """Every combination that makes a group; fixed N and dynamic sampling depend on the size alone, and frugal
    sampling takes it as that of its largest group."""
    if "bar" in methods:
        for size, budget, stride, interval in product(sizes, budgets, strides, intervals):
            try:
                yield WhatIfSetting(
                    method="bar", bar=BarSettings(size=size, budget=budget, stride=stride, interval=interval)
                )
            except ValueError:
                continue  # a stride that does not divide the budget, an interval without a whole number
    for size in sizes:
        for method in ("fixed", "dynamic"):
            if method in methods:
                yield WhatIfSetting(method=method, bar=BarSettings(size=size, budget=size, interval=None))
        if "frugal" in methods and size >= FrugalSettings().least and size % FrugalSettings().stride == 0:
            yield WhatIfSetting(method="frugal", frugal=FrugalSettings(most=size, give_up=size))


def fitted_prior(pools: Mapping[str, Sequence[Rollout]]) -> Posterior:
    """The Beta distribution of pass rates, of a grid, under which the log is likeliest."""
    counts = [(sum(map(is_positive, pool)), len(pool)) for pool in pools.values()]
    means = np.linspace(0.01, 0.99, 50)
    priors = [
        Posterior(alpha=float(mean * weight), beta=float((1 - mean) * weight))
        for mean, weight in product(means, (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0))
    ]
    return max(priors, key=lambda prior: sum(beta_binomial(prior, k, n) for k, n in counts))


class _World:
    """Rewards without end for each task, the same whoever asks."""

    def __init__(
        self, pools: Mapping[str, Sequence[Rollout]], prior: Posterior, number: int, longest: int
    ) -> None:
        dice = np.random.default_rng([number])
        chance = random.Random(number)
        every = [rollout for pool in pools.values() for rollout in pool]
        self.rollouts: dict[str, list[Rollout]] = {}
        for task, pool in pools.items():
            hits = sum(map(is_positive, pool))
            rate = dice.beta(prior.alpha + hits, prior.beta + len(pool) - hits)
            like = {
                kind: [one for one in pool if is_positive(one) == kind]
                or [one for one in every if is_positive(one) == kind]
                or [msgspec.structs.replace(one, reward=1.0 if kind else -1.0) for one in every]
                for kind in (True, False)
            }
            marks = dice.random(longest) < rate
            self.rollouts[task] = [chance.choice(like[bool(mark)]) for mark in marks]
        self.order = chance.sample(sorted(pools), len(pools))


def dealt(rollouts: Sequence[Rollout], settings: BarSettings) -> Group | None:
    """The group that rollouts in their order make; None: there are too few."""
    used = 0
    while True:
        decision = decide([Slot(tried=(rollout,)) for rollout in rollouts[:used]], settings)
        if isinstance(decision, Assemble):
            return Group(decision.positive, len(decision.slots), used)
        if isinstance(decision, GiveUp) or used + settings.step > len(rollouts):
            return None
        used += settings.step


def foraged(
    rollouts: Sequence[Rollout], known: Sequence[VersionCounts], rate: float, settings: FrugalSettings
) -> Group:
    """The result of an open prompt by frugal sampling."""
    used = 0
    while True:
        hits = sum(map(is_positive, rollouts[:used]))
        belief = frugal.posterior([*known, VersionCounts(0, hits, used)], 0, settings)
        decision = frugal.decide(
            [Slot(tried=(rollout,)) for rollout in rollouts[:used]], [], belief, rate, settings
        )
        if isinstance(decision, Grown | OneClass):
            return Group(hits, used if isinstance(decision, Grown) else 0, used)
        assert not isinstance(decision, GiveUp)
        used += len(decision.slots)


def what_if(pools: Mapping[str, Sequence[Rollout]], cells: Sequence[WhatIfSetting]) -> list[Yield]:
    """What each cell makes of one pass over all tasks of the log. ValueError for a log without rollouts."""
    if not any(pools.values()):
        raise ValueError("the campaign has no graded rollout: name another")
    prior = fitted_prior(pools)
    worlds = max(WORLDS, ceil(PROMPTS / len(pools)))
    longest = max(cell.frugal.most if cell.frugal else cell.bar.budget for cell in cells)
    sums = [_Sums() for _ in cells]
    for number in range(worlds):
        world = _World(pools, prior, number, longest)
        for cell, total in zip(cells, sums, strict=True):
            _deal(world, pools, cell, total, number)
    return [total.mean(cell, len(pools), worlds) for cell, total in zip(cells, sums, strict=True)]


def _deal(
    world: _World, pools: Mapping[str, Sequence[Rollout]], cell: WhatIfSetting, total: "_Sums", number: int
) -> None:
    """Deal a cell one pass over a world."""
    before = total.information, total.rollouts
    for task in world.order:
        rollouts, settings = world.rollouts[task], cell.frugal
        if settings is None:
            group = dealt(rollouts, cell.bar)
            assert group is not None
        else:
            known = [VersionCounts(0, sum(map(is_positive, pools[task])), len(pools[task]))]
            belief = frugal.posterior(known, 0, settings)
            if frugal.visit(belief, settings, seed=f"{number}:{task}", skipped_in_a_row=0) is not None:
                continue
            group = foraged(rollouts, known, total.information / max(total.rollouts, 1), settings)
        total.add(group, rollouts, keep=cell.method == "fixed")
    spent = total.rollouts - before[1]
    if spent:
        total.per_thousand.append(1000 * (total.information - before[0]) / spent)


class _Sums:
    """Sums of a cell over all worlds."""

    def __init__(self) -> None:
        self.opened = self.informative = self.trained = self.rollouts = self.tokens = 0
        self.information = 0.0
        self.shares: list[float] = []
        self.per_thousand: list[float] = []

    def add(self, group: Group, rollouts: Sequence[Rollout], *, keep: bool) -> None:
        worth = information(group.positive, group.size)
        self.opened += 1
        self.rollouts += group.used
        self.tokens += sum(rollout.tokens or 0 for rollout in rollouts[: group.used])
        self.information += worth
        self.trained += bool(worth or keep)
        if worth:
            self.informative += 1
            self.shares.append(group.positive / group.size)

    def mean(self, cell: WhatIfSetting, prompts: int, worlds: int) -> Yield:
        cuts = quantiles(self.per_thousand, n=20) if len(self.per_thousand) > 1 else [0.0]
        return Yield(
            cell=cell,
            prompts=prompts,
            opened=self.opened / (prompts * worlds),
            informative=self.informative / worlds,
            trained=self.trained / worlds,
            positive_share=fmean(self.shares) if self.shares else None,
            rollouts=self.rollouts / worlds,
            tokens=self.tokens / worlds,
            information=self.information / worlds,
            low=cuts[0],
            high=cuts[-1],
        )


_GRADED = """
select task_id, status, completion_tokens, reward from rollouts
where campaign = ? and reward is not null and exit_status <> 'unanswered' and task_source <> 'impossible'
order by task_id, sequence
"""


def graded_pools(tables: duckdb.DuckDBPyConnection, campaign: str) -> dict[str, list[Rollout]]:
    """Graded rollouts of a campaign by task id, in the order in which they ended. Aborted rollouts, which
    have no reward, are not among them, nor those of impossible tasks."""
    pools: dict[str, list[Rollout]] = {}
    for task, status, tokens, reward in tables.execute(_GRADED, [campaign]).fetchall():
        rollout = Rollout(status=RolloutStatus(status), tokens=tokens, reward=reward)
        pools.setdefault(task, []).append(rollout)
    return pools
