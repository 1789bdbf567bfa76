"""`python -m tests.benchmarks.rl_methods`: balanced groups, fixed ones, dynamic and frugal sampling compared.

Each method trains from the policy of `orchard demo-sft` in the same store, with the same seeds, tasks and
learning rate. A seed's budget is what balanced groups spent in graded rollouts; the others have more steps,
and are compared where they have spent as much, whatever on: the groups that they had by then, their curve
until then, and the policy that they had then on the held-out tasks. Beside it stands what `what-if` makes of
a run's rollouts. Stopped in the middle it goes on where it was.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import duckdb
import matplotlib
import msgspec

from orchard.cli.quickstart import pipeline
from orchard.demo_rl import Method, RlDemo, RlDemoSettings, _toml
from orchard.demonstrations import campaign_score, repair_refs
from orchard.pipelines.rl.log_pools import graded_pools
from orchard.pipelines.rl.policies import policy_directory
from orchard.pipelines.rl.what_if import grid, what_if
from orchard.pipelines.scores import Score
from orchard.pipelines.tasks.repairs import Split
from orchard.session import Session
from orchard.storage.reader import open_tables
from tests.benchmarks.over_seeds import paired_over_seeds

METHODS: tuple[Method, ...] = ("bar", "fixed", "dynamic", "frugal")
INTERVAL = (0.375, 0.625)
"""Shares of positives in what is called balanced, by whatever method it came."""
BEFORE, MEASURING = "demo-rl-before", "demo-rl-measuring"

# Each policy with the graded rollouts that had ended when it came.
_STEPS = """
select p.step, s.pass_rate, (
    select count(*) from rollouts r
    where r.campaign = p.run and r.reward is not null and r.sequence <= p.sequence
) as spent
from policies p join policy_steps s on s.run = p.run and s.step = p.step
where p.run = ? and p.kind = 'updated' order by p.step
"""
_CUT = """
select sequence from rollouts where campaign = ? and reward is not null order by sequence limit ?
"""
_GROUPS = """
select count(*), count(*) filter (not degenerate), count(*) filter (positive between ? and ?)
from groups where run = ? and sequence <= ?
"""

Steps = list[tuple[int, float, int]]
"""Step, pass rate of its rollouts, graded rollouts spent."""


class Compared(RlDemo):
    """A run of the demonstration that is measured later."""

    async def train(self) -> None:
        """All steps, or those that are missing."""
        settings = self.settings
        async with pipeline(self.config) as session:
            tasks = await asyncio.to_thread(self._new_tasks)
            await self.held_out(session, BEFORE, self.policy)
            await self.sampled(
                session, MEASURING, self.policy, tasks, temperature=1.0, samples=settings.measured
            )
            file = self.directory / f"{self.run_name}.toml"
            file.write_text(_toml(self._recipe(MEASURING)))
            await self.command("rl", str(file))

    async def measure(self, step: int) -> str | None:
        """The campaign of the policy after `step` on the held-out tasks; None where it was not kept."""
        place = policy_directory(self.out, step) if step else self.policy
        if not place.is_dir():
            return None
        last = step == self.settings.steps
        name = f"{self.run_name}-after" if last else f"{self.run_name}-step-{step}"
        async with pipeline(self.config) as session:
            await self.held_out(session, name, place)
        return name

    async def held_out(self, session: Session, name: str, policy: Path) -> None:
        """A campaign on the held-out tasks."""
        tasks = repair_refs(self.config.store, Split.HELD_OUT)
        await self.sampled(
            session, name, policy, tasks, temperature=self.settings.temperature, samples=self.settings.samples
        )


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One run when it had spent its seed's budget."""

    method: str
    seed: int
    spent: int
    """Graded rollouts."""
    steps: int
    """Policies made by then."""
    groups: int
    informative: int
    balanced: int
    """Groups with a share of positives in INTERVAL."""
    pass_rates: tuple[float, float, float]
    """Of the training rollouts, mean over each third of these steps."""
    held_out: Score | None
    """Of the last of these policies; None where it was not kept."""

    @property
    def per_thousand(self) -> float:
        """Groups with unequal rewards for each 1,000 graded rollouts."""
        return 1000 * self.informative / self.spent


def spent(tables: duckdb.DuckDBPyConnection, run: str) -> Steps:
    """The steps of a run with what they had cost."""
    return tables.execute(_STEPS, [run]).fetchall()


def line_of(tables: duckdb.DuckDBPyConnection, demo: Compared, budget: int, held_out: Score | None) -> Line:
    """A run at `budget` graded rollouts, or at its end."""
    cuts = [sequence for (sequence,) in tables.execute(_CUT, [demo.run_name, budget]).fetchall()]
    few, many = (share * demo.settings.size for share in INTERVAL)
    counts = tables.execute(_GROUPS, [few, many, demo.run_name, cuts[-1]]).fetchall()
    groups, informative, balanced = counts[0]
    rates = [rate for _, rate, cost in spent(tables, demo.run_name) if cost <= budget]
    third = max(len(rates) // 3, 1)
    first, second, last = rates[:third], rates[third : 2 * third], rates[2 * third :]
    return Line(
        method=demo.settings.method,
        seed=demo.settings.seed,
        spent=len(cuts),
        steps=len(rates),
        groups=groups,
        informative=informative,
        balanced=balanced,
        pass_rates=(fmean(first or [0.0]), fmean(second or first or [0.0]), fmean(last or rates or [0.0])),
        held_out=held_out,
    )


def budgets(store: str, runs: Sequence[RlDemoSettings]) -> dict[int, int]:
    """What the balanced groups of each seed had spent when their last policy came."""
    with open_tables(store) as tables:
        return {
            settings.seed: spent(tables, run_name(settings))[-1][2]
            for settings in runs
            if settings.method == "bar"
        }


def compare(store: str, runs: Sequence[RlDemoSettings]) -> list[Line]:
    """Each finished run at the budget of its seed."""
    allowed = budgets(store, runs)
    lines = []
    for settings in runs:
        demo, budget = Compared(store, settings), allowed[settings.seed]
        with open_tables(store) as tables:
            rows = spent(tables, demo.run_name)
        step = max((step for step, _, cost in rows if cost <= budget), default=0)
        campaign = asyncio.run(demo.measure(step))
        score = campaign_score(store, campaign) if campaign else None
        with open_tables(store) as tables:
            lines.append(line_of(tables, demo, budget, score))
    return lines


def run_name(settings: RlDemoSettings) -> str:
    """As `RlDemo` names it."""
    return f"demo-rl-{settings.method}-{settings.seed}"


def page(store: str, settings: RlDemoSettings, lines: Sequence[Line]) -> str:
    """The comparison in Markdown."""
    text = [
        f"Held-out tasks before: {campaign_score(store, BEFORE)}.",
        "",
        "| method | seed | graded rollouts | steps | groups | balanced | with both classes | "
        "of these per 1,000 rollouts | training pass rate by thirds | held-out |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for line in lines:
        cells = [
            line.method,
            line.seed,
            line.spent,
            line.steps,
            line.groups,
            line.balanced,
            line.informative,
            f"{line.per_thousand:.1f}",
            ", ".join(f"{rate:.0%}" for rate in line.pass_rates),
            line.held_out or "not kept",
        ]
        text.append(f"| {' | '.join(map(str, cells))} |")
    methods = [method for method in METHODS if any(line.method == method for line in lines)]
    for method in methods:
        mine = [line for line in lines if line.method == method]
        values = [line.held_out.value for line in mine if line.held_out is not None]
        text.append(
            f"| {method}, mean | {len(mine)} seeds | {fmean(line.spent for line in mine):.0f} | "
            f"{fmean(line.steps for line in mine):.1f} | "
            f"{fmean(line.groups for line in mine):.1f} | {fmean(line.balanced for line in mine):.1f} | "
            f"{fmean(line.informative for line in mine):.1f} | "
            f"{fmean(line.per_thousand for line in mine):.1f} | "
            f"{', '.join(f'{fmean(line.pass_rates[at] for line in mine):.0%}' for at in range(3))} | "
            f"{f'{fmean(values):.1%}' if values else ''} |"
        )
    text += ["", "Held out, in points over seeds, pairs by seed:", ""]
    of = {
        method: {
            line.seed: 100 * line.held_out.value for line in lines if line.method == method and line.held_out
        }
        for method in methods
    }
    for method in methods[1:]:
        if of[method].keys() & of["bar"].keys():
            found = paired_over_seeds(of["bar"], of[method])
            text.append(f"- {method} - bar: {found.shown(signed=True)}, {found.seeds} seeds")
    run = run_name(settings)
    with open_tables(store) as tables:
        pools = graded_pools(tables, run)
    text += [
        "",
        f"What-if on the rollouts of {run}:",
        "",
        "| method | groups with both classes per 1,000 rollouts | information per 1,000 | positive |",
        "|---|---|---|---|",
    ]
    size, most = settings.size, settings.budget
    cells = list(grid([size], [most], sorted({size // 2, size, most}), [INTERVAL]))
    for found in what_if(pools, cells):
        share = "" if found.positive_share is None else f"{found.positive_share:.0%}"
        text.append(
            f"| {found.cell.label} | {found.groups_per_thousand:.1f} | "
            f"{found.information_per_thousand:.0f} [{found.low:.0f}, {found.high:.0f}] | {share} |"
        )
    return "\n".join(text) + "\n"


def plot(store: str, runs: Sequence[RlDemoSettings], path: Path) -> None:
    """Learning curves over graded rollouts as PNG: a line for each run, a colour for each method."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(8, 4.5))
    colours = dict(zip(METHODS, ("tab:green", "tab:orange", "tab:blue", "tab:red"), strict=True))
    with open_tables(store) as tables:
        for settings in runs:
            method, seed = settings.method, settings.seed
            rows = spent(tables, run_name(settings))
            axis.plot(
                [cost for *_, cost in rows],
                [rate for _, rate, _ in rows],
                color=colours[method],
                alpha=0.7,
                label=method if seed == runs[0].seed else None,
            )
    for budget in budgets(store, runs).values():
        axis.axvline(budget, color="black", linestyle=":", linewidth=1)
    axis.set_xlabel("graded rollouts")
    axis.set_title("pass rate of training rollouts")
    axis.grid(alpha=0.3)
    axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main() -> None:
    """Train what is missing, then compare."""
    usual = RlDemoSettings()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", required=True, help="Where `orchard demo-sft` has been.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--methods",
        nargs="+",
        choices=METHODS,
        default=METHODS,
        help="bar is always among them: it has the budget.",
    )
    for method, count in zip(METHODS, (usual.steps, 14, 12, 16), strict=True):
        parser.add_argument(f"--{method}-steps", type=int, default=count)
    for name in ("prompts", "size", "budget", "pool", "measured", "samples"):
        parser.add_argument(f"--{name}", type=int, default=getattr(usual, name))
    parser.add_argument("--lr", type=float, default=usual.lr)
    parser.add_argument("--hardest", type=float, default=usual.hardest)
    parser.add_argument("--page", type=Path, help="File for the result; standard output otherwise.")
    parser.add_argument("--plot", type=Path, help="PNG file for the learning curves.")
    options = vars(parser.parse_args())
    store, seeds, chosen = options.pop("store"), options.pop("seeds"), {"bar", *options.pop("methods")}
    file, picture = options.pop("page"), options.pop("plot")
    steps = {method: options.pop(f"{method}_steps") for method in METHODS}
    runs = [
        RlDemoSettings(method=method, seed=seed, steps=steps[method], **options)
        for seed in range(seeds)
        for method in METHODS
        if method in chosen
    ]
    for settings in runs:
        asyncio.run(Compared(store, settings).train())
    result = page(store, runs[0], compare(store, runs))
    if file is not None:
        file.write_text(result)
    if picture is not None:
        plot(store, runs, picture)
    sys.stdout.write(result)


if __name__ == "__main__":
    main()
