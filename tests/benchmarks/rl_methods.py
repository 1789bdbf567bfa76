"""`python -m tests.benchmarks.rl_methods --store DIR`: which rollouts to ask for, in real sandboxes.

Balanced groups, and others beside them, train from the same policy with the same tasks and seeds. A seed's
budget is what its balanced groups spent in graded rollouts; the others train until they have spent that, and
are compared at the policy that was nearest to it. The learning rate stays, so that a run can be cut anywhere.
The policy is the one of `make demo-sft` in the same store, or, with --small, one that is made here.
Results are kept by method and seed, so that a later session goes on: what is there is not run again.
"""

import argparse
import asyncio
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import duckdb
import matplotlib
import msgspec

from examples import steps
from examples.domains import swe
from examples.domains.swe import BEFORE, METHODS
from examples.run import FOLDER, OWN, example, filled, run
from orchard.pipelines.campaigns.scores import Score
from orchard.pipelines.rl.policies import policy_directory
from orchard.pipelines.rl.runs import pass_rates
from orchard.processes.pipeline import pipeline
from orchard.schemas.campaigns import TaskRef
from orchard.storage.reader import open_tables
from orchard.streams.tasks import end
from tests.benchmarks.credit_assignment import EXPERIMENT
from tests.benchmarks.over_seeds import over_seeds, paired_over_seeds

RESULTS = Path(__file__).parents[2] / "docs" / "benchmarks"
SMALL = EXPERIMENT | {"tasks": 160, "samples": 3, "further": 200, "held_out": 80}

INTERVAL = (0.375, 0.625)
"""Shares of positives in what is called balanced, by whatever method it came."""
POLL_SECONDS = 4.0
MEASURING = "demo-rl-measuring"

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


class Compared:
    """A run of `examples/rl.toml` that is measured where it had spent a budget."""

    def __init__(self, store: str, settings: Mapping[str, Any], *, unsolved: bool) -> None:
        self.settings, self.unsolved = dict(settings), unsolved
        """`unsolved`: tasks that were never solved when they were measured are prompts too."""
        self.example, self.values = example("rl", store, **settings)
        self.name: str = self.values["run"]
        self.out = self.example.directory / self.name

    async def measured(self, budget: int | None) -> "Line":
        """Train, or go on with it, and measure the policy at `budget`; None: the last."""
        made, values, store = self.example, self.values, self.example.config.store
        policy = Path(values["policy"])
        async with pipeline(made.config, print) as made.session:
            train, held_out = await swe.new_tasks(made, pool=values["pool"])
            before = await self._sampled(BEFORE, policy, held_out, values["temperature"], values["samples"])
            await self._sampled(MEASURING, policy, train, 1.0, values["measured"])
            await self._trained(budget)
            with open_tables(store) as tables:
                steps_ = spent(tables, self.name)
            at = len(steps_) if budget is None else nearest(steps_, budget)
            newest = policy_directory(self.out, at)
            after = await self._sampled(
                f"{self.name}-step-{at}", newest, held_out, values["temperature"], values["samples"]
            )
        with open_tables(store) as tables:
            return line_of(tables, self, steps_[:at], before, after)

    async def _sampled(
        self, name: str, model: Path, tasks: Sequence[TaskRef], temperature: float, samples: int
    ) -> Score:
        sampling = {"temperature": temperature, "samples": samples, "max_tokens": 160}
        return await steps.measure(self.example, name=name, model=model, tasks=tasks, **sampling)

    async def _trained(self, budget: int | None) -> None:
        """The run until its end, or until a policy has cost the budget."""
        training = asyncio.create_task(swe.reinforced(self.example, **self._recipe()))
        while not training.done():
            await asyncio.wait({training}, timeout=POLL_SECONDS)
            with open_tables(self.example.config.store) as tables:
                steps_ = spent(tables, self.name)
            if budget is not None and steps_ and steps_[-1][2] >= budget:
                await end(training)
                return
        await training

    def _recipe(self) -> dict[str, Any]:
        """What the file of the example says of reinforcement learning, with one learning rate."""
        step = next(one for one in self.example.steps if one["do"] == "examples.domains.swe:reinforced")
        recipe = filled({key: value for key, value in step.items() if key not in OWN}, self.values)
        recipe["min_lr"] = recipe["lr"]
        if self.unsolved:
            with open_tables(self.example.config.store) as tables:
                rates = pass_rates(tables, MEASURING)
            ids = [task for task, rate in sorted(rates.items()) if rate.rate <= self.values["hardest"]]
            recipe["tasks"] = {"unproven": True, "ids": ids}
        return dict(recipe)


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One run where it had spent its seed's budget."""

    settings: dict[str, Any]
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
    before: Score
    held_out: Score
    """Intervals over tasks: of these policies, not of the method."""

    def percent(self) -> float:
        """Pass rate of the held-out tasks."""
        return 100 * self.held_out.value

    def mixed(self) -> float:
        """Groups with unequal rewards for each 1,000 graded rollouts."""
        return 1000 * self.informative / self.spent


def nearest(steps: Steps, budget: int) -> int:
    """The step whose cost is nearest."""
    step, _, _ = min(steps, key=lambda one: abs(one[2] - budget))
    return step


def spent(tables: duckdb.DuckDBPyConnection, run: str) -> Steps:
    """The steps of a run with what they had cost."""
    return tables.execute(_STEPS, [run]).fetchall()


def line_of(
    tables: duckdb.DuckDBPyConnection, demo: Compared, steps: Steps, before: Score, held_out: Score
) -> Line:
    """A run at the end of these steps."""
    cost = steps[-1][2]
    (until,) = tables.execute(_CUT, [demo.name, cost]).fetchall()[-1]
    few, many = (share * demo.values["size"] for share in INTERVAL)
    counts = tables.execute(_GROUPS, [few, many, demo.name, until]).fetchall()
    groups, informative, balanced = counts[0]
    rates = [rate for _, rate, _ in steps]
    third = max(len(rates) // 3, 1)
    first, second, last = rates[:third], rates[third : 2 * third], rates[2 * third :]
    return Line(
        settings=demo.settings,
        spent=cost,
        steps=len(rates),
        groups=groups,
        informative=informative,
        balanced=balanced,
        pass_rates=(fmean(first), fmean(second or first), fmean(last or rates)),
        before=before,
        held_out=held_out,
    )


def table(lines: Sequence[Line]) -> str:
    """A row for each run and for each method, and the differences, in Markdown."""
    text = [
        "| method | seed | rate | graded rollouts | steps | groups | balanced | with both classes | "
        "per 1,000 rollouts | training pass rate by thirds | held-out before | held-out |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---|---|---|",
    ]
    for line in sorted(lines, key=lambda one: (one.settings["seed"], one.settings["method"])):
        cells = [
            line.settings["method"],
            line.settings["seed"],
            f"{line.settings.lr:g}",
            line.spent,
            line.steps,
            line.groups,
            line.balanced,
            line.informative,
            f"{line.mixed():.1f}",
            ", ".join(f"{rate:.0%}" for rate in line.pass_rates),
            line.before,
            line.held_out,
        ]
        text.append(f"| {' | '.join(map(str, cells))} |")
    text += [
        "",
        "| method | held-out, % | less bar | mixed per 1,000 rollouts | less bar | spent | steps |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for method in METHODS:
        if mine := [line for line in lines if line.settings["method"] == method]:
            bar = [line for line in lines if line.settings["method"] == "bar"]
            text.append(
                f"| {method} | {_beside(mine, bar, Line.percent)} | {_beside(mine, bar, Line.mixed)} | "
                f"{fmean(line.spent for line in mine):.0f} | {fmean(line.steps for line in mine):.1f} |"
            )
    return "\n".join(text) + "\n"


def _beside(mine: Sequence[Line], bar: Sequence[Line], measure: Callable[[Line], float]) -> str:
    """Two cells: a mean over seeds, and its difference from that of the balanced groups."""
    of, against = ({line.settings["seed"]: measure(line) for line in lines} for lines in (mine, bar))
    return f"{over_seeds(list(of.values())).shown()} | {paired_over_seeds(against, of).shown(signed=True)}"


def plot(store: str, lines: Sequence[Line], path: Path) -> None:
    """Learning curves over graded rollouts as PNG: a line for each run, a colour for each method."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(8, 4.5))
    colours = dict(zip(METHODS, ("tab:green", "tab:orange", "tab:blue", "tab:red"), strict=True))
    with open_tables(store) as tables:
        for line in lines:
            method, seed = line.settings["method"], line.settings["seed"]
            rows = spent(tables, f"demo-rl-{method}-{seed}")[: line.steps]
            axis.plot(
                [cost for *_, cost in rows],
                [rate for _, rate, _ in rows],
                color=colours[method],
                alpha=0.7,
                label=method if seed == lines[0].settings["seed"] else None,
            )
    axis.set_xlabel("graded rollouts")
    axis.set_title("pass rate of training rollouts")
    axis.grid(alpha=0.3)
    axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


async def compare(
    store: str, runs: Sequence[Mapping[str, Any]], results: Path, *, unsolved: bool
) -> list[Line]:
    """What is missing of these runs, each kept as it ends; the balanced groups of a seed come first."""
    done = msgspec.json.decode(results.read_bytes() if results.exists() else b"[]", type=list[Line])
    for settings in runs:
        of = {one.settings["method"]: one for one in done if one.settings["seed"] == settings["seed"]}
        if settings["method"] not in of:
            budget = of["bar"].spent if "bar" in of else None
            done.append(await Compared(store, settings, unsolved=unsolved).measured(budget))
            results.write_bytes(msgspec.json.format(msgspec.json.encode(done), indent=1))
    return done


def main() -> None:
    """Train what is missing, then compare."""
    usual = tomllib.loads((FOLDER / "rl.toml").read_text())["settings"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--store", required=True, help="where `make demo-sft` has been, or with --small")
    parser.add_argument("--small", action="store_true", help="make a small world and policy, as in make test")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS, help="beside bar")
    for method, count in zip(METHODS, (usual["steps"], 14, 12, 16), strict=True):
        parser.add_argument(f"--{method}-steps", type=int, default=count)
        parser.add_argument(f"--{method}-lr", type=float, default=usual["lr"])
    for name in ("prompts", "size", "budget", "pool", "measured", "samples"):
        parser.add_argument(f"--{name}", type=int, default=usual[name])
    parser.add_argument("--hardest", type=float, default=usual["hardest"])
    parser.add_argument("--unsolved", action="store_true", help="prompts that were never solved, too")
    parser.add_argument("--results", type=Path, default=RESULTS / "rollout-methods-sandboxes.json")
    parser.add_argument("--plot", type=Path, help="PNG file for the learning curves")
    options = vars(parser.parse_args())
    store, small, results, picture, unsolved = (
        options.pop(name) for name in ("store", "small", "results", "plot", "unsolved")
    )
    first, count, chosen = (options.pop(name) for name in ("first", "seeds", "methods"))
    counts, rates = (
        {method: options.pop(f"{method}_{name}") for method in METHODS} for name in ("steps", "lr")
    )
    runs = [
        {"method": method, "seed": seed, "steps": counts[method], "lr": rates[method], **options}
        for seed in range(first, first + count)
        for method in METHODS
        if method in {"bar", *chosen}
    ]
    if small:
        asyncio.run(run(*example("sft", store, **SMALL)))
    lines = asyncio.run(compare(store, runs, results, unsolved=unsolved))
    if picture is not None:
        plot(store, lines, picture)
    sys.stdout.write(table(lines))


if __name__ == "__main__":
    main()
