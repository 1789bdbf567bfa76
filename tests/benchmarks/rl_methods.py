"""`python -m tests.benchmarks.rl_methods`: balanced groups, fixed groups and dynamic sampling compared.

Each method trains from the policy of `orchard demo-sft` in the same store, with the same seeds, tasks and
learning rate. They are compared at equal numbers of graded rollouts, whatever these were spent on; beside it
stands what `what-if` makes of the campaign that measured the tasks.
"""

import argparse
import asyncio
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import duckdb
import msgspec

from orchard.demo_rl import Method, RlDemo, RlDemoSettings
from orchard.demonstrations import campaign_score
from pipelines.rl.log_pools import graded_pools
from pipelines.rl.what_if import grid, what_if
from storage.reader import open_tables

METHODS: tuple[Method, ...] = ("bar", "fixed", "dynamic")

# A step with the graded rollouts that had ended when its policy came, and all their passes until then.
_STEPS = """
select p.step, s.pass_rate, (
    select count(*) from rollouts r
    where r.campaign = p.run and r.reward is not null and r.sequence <= p.sequence
) as spent
from policies p join policy_steps s on s.run = p.run and s.step = p.step
where p.run = ? and p.kind = 'updated' order by p.step
"""
_GROUPS = """
select count(*), count(*) filter (not degenerate), coalesce(sum(generated), 0) from groups where run = ?
"""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One run at the common budget."""

    method: str
    seed: int
    rollouts: int
    """Graded, of all decided prompts."""
    groups: int
    informative: int
    steps: int
    """That the common budget was enough for."""
    pass_rates: tuple[float, float, float]
    """Of the training rollouts, mean over each third of these steps."""
    before: str
    after: str
    """Held-out, after all steps of the run."""

    @property
    def per_thousand(self) -> float:
        """Groups with both classes for each 1,000 graded rollouts."""
        return 1000 * self.informative / max(self.rollouts, 1)


def compare(store: str, runs: Sequence[tuple[Method, int, str]]) -> tuple[int, list[Line]]:
    """The common budget in graded rollouts, and each finished run at it."""
    with open_tables(store) as tables:
        steps = {name: tables.execute(_STEPS, [name]).fetchall() for _, _, name in runs}
        budget = min(rows[-1][2] for rows in steps.values())
        return budget, [_line(tables, store, run, steps[run[2]], budget) for run in runs]


def _line(
    tables: duckdb.DuckDBPyConnection,
    store: str,
    run: tuple[Method, int, str],
    steps: list[tuple[int, float, int]],
    budget: int,
) -> Line:
    method, seed, name = run
    groups, informative, rollouts = tables.execute(_GROUPS, [name]).fetchall()[0]
    rates = [rate for _, rate, spent in steps if spent <= budget]
    third = max(len(rates) // 3, 1)
    parts = (rates[:third], rates[third : 2 * third], rates[2 * third :])
    return Line(
        method=method,
        seed=seed,
        rollouts=rollouts,
        groups=groups,
        informative=informative,
        steps=len(rates),
        pass_rates=tuple(sum(part) / max(len(part), 1) for part in parts),  # type: ignore[arg-type]
        before=str(campaign_score(store, "demo-rl-before")),
        after=str(campaign_score(store, f"{name}-after")),
    )


def page(store: str, budget: int, lines: Iterable[Line]) -> str:
    """The comparison in Markdown."""
    text = [
        f"At {budget:,} graded rollouts each.",
        "",
        "| method | seed | groups | informative | per 1,000 rollouts | steps | "
        "training pass rate by thirds | held-out before | after |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for line in lines:
        rates = ", ".join(f"{rate:.0%}" for rate in line.pass_rates)
        text.append(
            f"| {line.method} | {line.seed} | {line.groups} | {line.informative} | {line.per_thousand:.1f} | "
            f"{line.steps} | {rates} | {line.before} | {line.after} |"
        )
    with open_tables(store) as tables:
        pools = graded_pools(tables, "demo-rl-measuring")
    text += [
        "",
        "What-if on the measuring campaign:",
        "",
        "| method | N | N_max | s | informative | per 1,000 |",
    ]
    text.append("|---|---|---|---|---|---|")
    for cell in grid([4], [4, 8], [4], [(0.25, 0.75)], list(METHODS)):
        found = what_if(pools, cell)
        rate = "" if found.per_thousand is None else f"{found.per_thousand:.1f}"
        bar = cell.bar
        text.append(
            f"| {cell.method} | {bar.size} | {bar.budget} | {bar.step} | {found.informative} | {rate} |"
        )
    return "\n".join(text) + "\n"


def main() -> None:
    """Train what is missing, then compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", required=True, help="Where `orchard demo-sft` has been.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--lr", type=float, default=RlDemoSettings().lr)
    parser.add_argument("--pool", type=int, default=RlDemoSettings().pool)
    parser.add_argument("--page", type=Path, help="File for the result; standard output otherwise.")
    options = parser.parse_args()
    runs = []
    for seed in range(options.seeds):
        for method in METHODS:
            settings = RlDemoSettings(
                method=method,
                seed=seed,
                steps=options.steps,
                prompts=options.prompts,
                lr=options.lr,
                pool=options.pool,
            )
            demo = RlDemo(options.store, settings)
            asyncio.run(demo.run())
            runs.append((method, seed, demo.run_name))
    result = page(options.store, *compare(options.store, runs))
    if options.page is not None:
        options.page.write_text(result)
    sys.stdout.write(result)


if __name__ == "__main__":
    main()
