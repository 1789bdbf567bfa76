"""`python -m tests.benchmarks.rollout_methods`: which rollouts to ask for, in a simulated world.

BAR, fixed groups of 8 and of 4, dynamic sampling (DAPO) with 8 and with 4, and frugal sampling, by the
pipeline's own decision functions, on a hard pool (expected pass rates of at most 0.25 to begin with), once
with equal graded rollouts and once with equal updates. Each method has the learning rate (and, at equal
rollouts, the number of groups in an update) that was best for it on tuning seeds, which are not those that
are reported. The measure is the expected pass rate held out, after the last update within the budget.
Results are kept by budget, method and seed in docs/benchmarks/rollout-methods.json; what is there is not
run again.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean

import msgspec
import numpy as np

from orchard.pipelines.rl import bar, frugal
from orchard.pipelines.rl.bar import BarSettings, Rollout, Slot
from orchard.pipelines.rl.frugal import FrugalSettings, VersionCounts, information
from orchard.schemas.outcomes import RolloutStatus
from tests.benchmarks.over_seeds import over_seeds, paired_over_seeds
from tests.benchmarks.simulated_world import Sampled, Shape, World

RESULTS = Path(__file__).parents[2] / "docs" / "benchmarks"
PROMPTS = {"rollouts": (1, 2, 4, 8), "updates": (16,), "still": (16,)}
"""Groups in an update, of which tuning chooses: where rollouts are what is paid for, updates are free."""
ROLLOUTS, UPDATES = 6_000, 47
"""Budgets; groups of 8 as they come spend about as much in so many updates."""
RATES = {"rollouts": (0.1, 0.2, 0.4, 0.8), "updates": (0.4, 0.8, 1.6, 3.2), "still": (0.0,)}
TUNING = {"rollouts": range(1_000, 1_010), "updates": range(1_000, 1_005), "still": range(1_000, 1_001)}
SEEDS = {"rollouts": 30, "updates": 20, "still": 20}
LIMIT = 40_000
"""Rollouts of a run with equal updates: a policy that is at 0 or 1 everywhere would never end."""
BUDGETS = ("rollouts", "updates", "still")
"""`still`: equal rollouts of a policy that does not learn, so that all methods see the same pass rates."""

_DONE = (
    Rollout(status=RolloutStatus.COMPLETED, reward=-1.0),
    Rollout(status=RolloutStatus.COMPLETED, reward=1.0),
)


class Spent(msgspec.Struct):
    """What a run has used and made so far."""

    rollouts: int = 0
    trained: int = 0
    updates: int = 0
    groups: int = 0
    informative: int = 0
    information: float = 0.0
    tasks: set[int] = msgspec.field(default_factory=set)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run at its end."""

    budget: str
    method: str
    seed: int
    lr: float
    prompts: int
    before: float
    held_out: float
    pool: float
    """Expected pass rate on the training pool at the end."""
    rollouts: int
    trained: int
    updates: int
    groups: int
    """Prompts decided."""
    informative: int
    information: float
    tasks: int
    """Distinct tasks that had a group with both classes."""


Group = list[Sampled]
Method = Callable[[World, Spent], Iterator[Group | None]]
"""Yields groups for updates for ever; None is a prompt without one. Counts what is spent."""


def passes(world: World) -> Iterator[int]:
    """Tasks in passes over the pool, each in an order of its own."""
    while True:
        yield from world.dice.permutation(len(world.pool)).tolist()


def slots(resolved: Sequence[bool]) -> list[Slot]:
    """A pool as the decision functions see it."""
    return [Slot(tried=(_DONE[bool(one)],)) for one in resolved]


def counted(spent: Spent, group: Group) -> None:
    """Note what a group has to teach."""
    resolved = np.concatenate([part.resolved for part in group])
    worth = information(int(resolved.sum()), len(resolved))
    if worth:
        spent.informative += 1
        spent.information += worth
        spent.tasks.add(group[0].task)


def with_bar(settings: BarSettings, *, keep_degenerate: bool = False) -> Method:
    """BAR, and what its settings make of it: fixed groups and dynamic sampling."""

    def run(world: World, spent: Spent) -> Iterator[Group | None]:
        for task in passes(world):
            drawn: Sampled | None = None
            while True:
                known = slots(drawn.resolved) if drawn is not None else []
                decision = bar.decide(known, settings)
                if isinstance(decision, bar.Generate):
                    more = world.sample(task, len(decision.slots))
                    drawn = drawn.joined(more) if drawn is not None else more
                    spent.rollouts += len(decision.slots)
                    continue
                assert isinstance(decision, bar.Assemble) and drawn is not None
                break
            spent.groups += 1
            group = [drawn.picked(decision.slots)]
            counted(spent, group)
            yield group if keep_degenerate or not decision.degenerate else None

    return run


def with_frugal(settings: FrugalSettings) -> Method:
    """Frugal sampling."""

    def run(world: World, spent: Spent) -> Iterator[Group | None]:
        seen: dict[int, dict[int, VersionCounts]] = {}
        left: dict[int, tuple[int, Sampled]] = {}
        in_a_row: dict[int, int] = {}
        worth = 0.0
        for number, task in enumerate(passes(world)):
            version = spent.updates
            mine = seen.setdefault(task, {})
            belief = frugal.posterior(mine.values(), version, settings)
            row = in_a_row.get(task, 0)
            if frugal.visit(belief, settings, seed=f"{number}", skipped_in_a_row=row) is not None:
                in_a_row[task] = row + 1
                continue
            in_a_row[task] = 0
            old = left.pop(task, None)
            over = old[1] if old is not None and version - old[0] <= settings.reuse else None
            carried = slots(over.resolved) if over is not None else []
            drawn: Sampled | None = None
            while True:
                own = slots(drawn.resolved) if drawn is not None else []
                decision = frugal.decide(
                    own,
                    [slot.tried[-1] for slot in carried],
                    frugal.posterior(mine.values(), version, settings),
                    worth / max(spent.rollouts, 1),
                    settings,
                )
                if not isinstance(decision, frugal.Generate):
                    break
                more = world.sample(task, len(decision.slots))
                drawn = drawn.joined(more) if drawn is not None else more
                spent.rollouts += len(decision.slots)
                before = mine.get(version, VersionCounts(version, 0, 0))
                mine[version] = VersionCounts(
                    version, before.positive + int(more.resolved.sum()), before.graded + len(more.right)
                )
            assert drawn is not None
            spent.groups += 1
            if isinstance(decision, frugal.OneClass):
                left[task] = (version, drawn)
                yield None
                continue
            assert isinstance(decision, frugal.Grown)
            group = [drawn.picked(decision.slots)]
            if decision.carried:
                assert over is not None
                group.append(over.picked(range(decision.carried)))
            counted(spent, group)
            worth = spent.information
            yield group

    return run


METHODS: dict[str, Method] = {
    "bar": with_bar(BarSettings()),
    "fixed 8": with_bar(BarSettings(size=8, budget=8, interval=None), keep_degenerate=True),
    "fixed 4": with_bar(BarSettings(size=4, budget=4, interval=None), keep_degenerate=True),
    "dynamic 8": with_bar(BarSettings(size=8, budget=8, interval=None)),
    "dynamic 4": with_bar(BarSettings(size=4, budget=4, interval=None)),
    "frugal": with_frugal(FrugalSettings()),
}


def simulate(
    budget: str, method: str, seed: int, lr: float, prompts: int, method_of: Method | None = None
) -> Run:
    """One run: updates of `prompts` groups each until the budget is spent."""
    world, spent = World(seed, Shape(), lr), Spent()
    before = world.held_out()
    groups = (method_of or METHODS[method])(world, spent)
    while True:
        batch: list[Group] = []
        while len(batch) < prompts and spent.rollouts < (LIMIT if budget == "updates" else ROLLOUTS):
            if (group := next(groups)) is not None:
                batch.append(group)
        if len(batch) < prompts:
            break  # the budget ended before the batch was full
        share = (spent.updates + 1) / UPDATES if budget == "updates" else spent.rollouts / ROLLOUTS
        world.update(batch, share)
        spent.updates += 1
        spent.trained += sum(len(part.right) for group in batch for part in group)
        if spent.updates == UPDATES and budget == "updates":
            break
    return Run(
        budget=budget,
        method=method,
        seed=seed,
        lr=lr,
        prompts=prompts,
        before=before,
        held_out=world.held_out(),
        pool=float(world.pool_rates().mean()),
        rollouts=spent.rollouts,
        trained=spent.trained,
        updates=spent.updates,
        groups=spent.groups,
        informative=spent.informative,
        information=spent.information,
        tasks=len(spent.tasks),
    )


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """What tuning chose."""

    budget: str
    method: str
    lr: float
    prompts: int
    held_out: float
    """Mean over the tuning seeds."""


class Results(msgspec.Struct, kw_only=True):
    """All that was done so far, resumable."""

    frugal: FrugalSettings = FrugalSettings()
    tuned: list[Tuned] = []
    runs: list[Run] = []


def tune(budget: str, method: str) -> Tuned:
    """The best of the grid for a method."""
    found = []
    for prompts in PROMPTS[budget]:
        for lr in RATES[budget]:
            rates = [simulate(budget, method, seed, lr, prompts).held_out for seed in TUNING[budget]]
            found.append(Tuned(budget=budget, method=method, lr=lr, prompts=prompts, held_out=fmean(rates)))
    return max(found, key=lambda one: one.held_out)


def complete(file: Path) -> Results:
    """Do what is missing, and keep each step."""
    done = msgspec.json.decode(file.read_bytes(), type=Results) if file.exists() else Results()
    if done.frugal != FrugalSettings():
        raise ValueError(f"{file} is of other settings of frugal sampling: delete it")

    def keep() -> None:
        file.write_bytes(msgspec.json.format(msgspec.json.encode(done), indent=1) + b"\n")

    for budget in BUDGETS:
        for method in METHODS:
            best = next((one for one in done.tuned if (one.budget, one.method) == (budget, method)), None)
            if best is None:
                best = tune(budget, method)
                done.tuned.append(best)
                keep()
            known = {run.seed for run in done.runs if (run.budget, run.method) == (budget, method)}
            done.runs += [
                simulate(budget, method, seed, best.lr, best.prompts)
                for seed in range(SEEDS[budget])
                if seed not in known
            ]
            keep()
    return done


TITLES = {
    "rollouts": f"Equal rollouts: {ROLLOUTS:,} graded ones",
    "updates": f"Equal updates: {UPDATES}",
    "still": f"A policy that does not learn: {ROLLOUTS:,} graded rollouts",
}
COLUMNS = (
    "method",
    "rate, groups an update",
    "held-out",
    "frugal - it, points",
    "rollouts",
    "trained",
    "updates",
    "tasks",
    "groups with both classes per 1,000 rollouts",
    "information per 1,000 rollouts",
    "information per update",
)


def rows(results: Results, budget: str) -> Iterator[tuple[str, ...]]:
    """A row for each method."""
    of = {
        method: [run for run in results.runs if (run.budget, run.method) == (budget, method)]
        for method in METHODS
    }
    rate = {method: {run.seed: 100 * run.held_out for run in runs} for method, runs in of.items()}
    for method, runs in of.items():
        tuned = next(one for one in results.tuned if (one.budget, one.method) == (budget, method))
        against = paired_over_seeds(rate[method], rate["frugal"]).shown(signed=True)
        per_rollout = [1000 * run.information / run.rollouts for run in runs]
        groups = [1000 * run.informative / run.rollouts for run in runs]
        yield (
            method,
            f"{tuned.lr:g}, {tuned.prompts}",
            str(over_seeds([run.held_out for run in runs])) + " %",
            "" if method == "frugal" else against,
            f"{fmean(run.rollouts for run in runs):,.0f}",
            f"{fmean(run.trained for run in runs):,.0f}",
            f"{fmean(run.updates for run in runs):.0f}",
            f"{fmean(run.tasks for run in runs):.0f}",
            over_seeds(groups).shown(digits=0),
            over_seeds(per_rollout).shown(digits=0),
            over_seeds([run.information / run.updates for run in runs]).shown(),
        )


def tables(results: Results) -> str:
    """Both budgets in Markdown."""
    text = []
    for budget in BUDGETS:
        text += [f"## {TITLES[budget]}", ""]
        cells = [COLUMNS, ("---",) * len(COLUMNS), *rows(results, budget)]
        if budget == "still":  # no rate, and nothing is learned
            cells = [(row[0], *row[4:]) for row in cells]
        text += ["| " + " | ".join(row) + " |" for row in cells]
        text.append("")
    return "\n".join(text)


def main() -> None:
    """Do what is missing and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS / "rollout-methods.json")
    options = parser.parse_args()
    sys.stdout.write(tables(complete(options.results)))


if __name__ == "__main__":
    main()
