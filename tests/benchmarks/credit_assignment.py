"""Does the productive part of unresolved trajectories train? Credit assignment against resolved-only.

`python -m tests.benchmarks.credit_assignment --store STORE --work DIR [--seeds 0,1,2]` takes the dataset that
`orchard demo-sft` left in STORE (only read) and trains two arms of equally many examples, each from scratch
with the demonstration's own settings and equally many steps:

- resolved: resolved trajectories alone;
- credit: resolved trajectories and rise segments of unresolved ones, as they come in the whole dataset.

Both are drawn anew for each seed, which also sets weights and order. Held-out tasks are the demonstration's,
one greedy rollout each, in real sandboxes of a store of its own in DIR. What is done already is not done
again. Writes docs/benchmarks/credit-assignment.md, .json and .png, and says what was found either way.
"""

import argparse
import asyncio
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean, stdev

import msgspec

from orchard.cli.quickstart import pipeline
from orchard.cli.reading import rows_table
from orchard.demo_sft import Demo, DemoSettings
from orchard.demonstrations import campaign_score
from orchard.pipelines.datasets.manifest import Manifest, Shard, read_manifest, write_manifest
from orchard.pipelines.datasets.rows import Row, read_rows, row_digest, rows_sha256, write_rows
from orchard.pipelines.scores import Score, paired_difference
from orchard.schemas.campaigns import TaskRef
from orchard.session import Session
from orchard.storage.reader import open_tables
from orchard.terminal import console

RESULTS = Path(__file__).parents[2] / "docs" / "benchmarks"
RESOLVED, CREDIT = ARMS = ("resolved", "credit")


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One arm and seed."""

    arm: str
    seed: int
    examples: int
    resolved_examples: int
    tokens: int
    trained_tokens: int
    steps: int
    final_loss: float
    dataset_sha256: str
    settings: DemoSettings
    score: Score
    by_task: dict[str, float]
    """1 where the held-out task was resolved, else 0; tasks whose rollout was aborted are not here."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that was measured."""

    measured: str
    source_sha256: str
    """Of the whole dataset that both arms are drawn from."""
    results: tuple[Result, ...]
    difference: Score
    """credit - resolved over held-out tasks, each the mean over seeds; the interval is over tasks."""
    by_seed: tuple[Score, ...]
    """The same of each seed."""


def draw(rows: Sequence[Row], arm: str, size: int, seed: int) -> list[Row]:
    """`size` examples of an arm in the order of the dataset, by a lottery that the seed decides."""
    pool = [row for row in rows if arm == CREDIT or row.resolved]
    if len(pool) < size:
        raise ValueError(
            f"the dataset has {len(pool)} examples for the arm {arm}, not {size}: lower --examples"
        )
    taken = set(random.Random(f"{arm} {seed}").sample(sorted(row.example_id for row in pool), size))
    return [row for row in pool if row.example_id in taken]


def write_subset(rows: Sequence[Row], whole: Manifest, name: str, out: Path) -> Manifest:
    """A dataset directory of some of a dataset's rows, for the trainer."""
    out.mkdir(parents=True, exist_ok=True)
    write_rows(out / "rows-00000.parquet", rows)
    sha256 = rows_sha256(map(row_digest, rows))
    tokens = sum(row.tokens for row in rows)
    manifest = msgspec.structs.replace(
        whole,
        name=name,
        sha256=sha256,
        rows=len(rows),
        tokens=tokens,
        trained_tokens=sum(row.trained_tokens for row in rows),
        resolved=sum(row.resolved for row in rows),
        counts={"drawn": len(rows), "of": whole.rows},
        shards=(Shard(file="rows-00000.parquet", rows=len(rows), tokens=tokens, sha256=sha256),),
    )
    write_manifest(out, manifest)
    return manifest


class Comparison(Demo):
    """The demonstration's steps, with a directory for each arm and seed."""

    def __init__(self, source: Path, work: Path, settings: DemoSettings, examples: int | None) -> None:
        work.mkdir(parents=True, exist_ok=True)
        super().__init__(str(work), settings)
        self._source, self._work = source, self.directory
        self._whole = read_manifest(source / "dataset")
        self._rows = list(read_rows(source / "dataset"))
        self._examples = examples or sum(row.resolved for row in self._rows)

    async def compare(self, seeds: Sequence[int]) -> list[Result]:
        """Every arm with every seed."""
        async with pipeline(self.config) as session:
            _, held_out = await self._tasks(session)
            return [await self._arm(session, arm, seed, held_out) for seed in seeds for arm in ARMS]

    async def _arm(self, session: Session, arm: str, seed: int, held_out: list[TaskRef]) -> Result:
        """One arm: drawn, trained, measured, or read where all that was done."""
        name = f"{arm}-{seed}"
        directory = self._work / name
        file = directory / "result.json"
        self.settings = msgspec.structs.replace(self.settings, seed=seed)
        if file.exists():
            done = msgspec.json.decode(file.read_bytes(), type=Result)
            if (done.settings, done.examples) != (self.settings, self._examples):
                raise ValueError(f"{file} was made with other settings: give another --work, or delete it")
            return done
        console.rule(name)
        directory.mkdir(exist_ok=True)
        tokenizer = directory / "tokenizer"
        if not tokenizer.is_symlink():
            tokenizer.symlink_to((self._source / "tokenizer").resolve())
        rows = draw(self._rows, arm, self._examples, seed)
        manifest = write_subset(rows, self._whole, name, directory / "dataset")
        self.directory = directory
        await self._train()
        await self._evaluate(session, name, self.model, held_out)
        steps = (directory / "run" / "metrics.jsonl").read_bytes().splitlines()
        last = msgspec.json.decode(steps[-1])
        store = session.config.store
        result = Result(
            arm=arm,
            seed=seed,
            examples=manifest.rows,
            resolved_examples=manifest.resolved,
            tokens=manifest.tokens,
            trained_tokens=manifest.trained_tokens,
            steps=last["step"],
            final_loss=last["loss"],
            dataset_sha256=manifest.sha256,
            settings=self.settings,
            score=campaign_score(store, name),
            by_task=by_task(store, name),
        )
        file.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1))
        return result

    def report(self, results: Sequence[Result], seeds: Sequence[int]) -> Report:
        """What the results say together."""
        of = {(result.arm, result.seed): result.by_task for result in results}
        return Report(
            measured=datetime.now(UTC).strftime("%Y-%m-%d"),
            source_sha256=self._whole.sha256,
            results=tuple(results),
            difference=difference([(of[RESOLVED, seed], of[CREDIT, seed]) for seed in seeds]),
            by_seed=tuple(difference([(of[RESOLVED, seed], of[CREDIT, seed])]) for seed in seeds),
        )


def by_task(store: str, campaign: str) -> dict[str, float]:
    """Whether each task's rollout resolved it."""
    query = """
        select task_id, avg(resolved::int) from rollouts
        where campaign = ? and resolved is not null group by task_id order by task_id
    """
    with open_tables(store) as tables:
        return dict(tables.execute(query, [campaign]).fetchall())


def difference(pairs: Sequence[tuple[dict[str, float], dict[str, float]]]) -> Score:
    """Mean of second - first over tasks that both of every pair have, each task the mean over pairs."""
    tasks = sorted(set.intersection(*(first.keys() & second.keys() for first, second in pairs)))
    first, second = ([mean(pair[side][task] for pair in pairs) for task in tasks] for side in (0, 1))
    return paired_difference(first, second)


def verdict(report: Report) -> str:
    """One sentence, as it is."""
    found = report.difference
    points = f"{100 * found.value:+.1f} points [{100 * found.low:+.1f}, {100 * found.high:+.1f}]"
    if found.low > 0:
        return f"With segments of unresolved trajectories the model is better: {points}."
    if found.high < 0:
        return f"With segments of unresolved trajectories the model is worse: {points}."
    return f"No difference can be told from chance: {points}."


def table(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """A row for each arm and seed."""
    return [
        (
            one.arm,
            str(one.seed),
            f"{one.examples:,} ({one.resolved_examples:,} resolved)",
            f"{one.trained_tokens:,}",
            f"{one.steps:,}",
            f"{one.final_loss:.3f}",
            str(one.score),
        )
        for one in results
    ]


COLUMNS = ("arm", "seed", "examples", "trained tokens", "steps", "last loss", "held-out pass rate")


def render(report: Report) -> str:
    """The report as Markdown."""
    lines = [
        "# Credit assignment against resolved-only",
        "",
        f"Measured {report.measured} by `python -m tests.benchmarks.credit_assignment` on the dataset of "
        f"`orchard demo-sft` (SHA-256 `{report.source_sha256[:16]}...`), with its settings. Both arms have "
        "equally many examples and steps, drawn and trained anew for each seed; the pass rate is of one "
        "greedy rollout of each held-out task, with a 95 % bootstrap interval over tasks.",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|---|---:|---:|---:|---:|---:|---:|",
        *("| " + " | ".join(row) + " |" for row in table(report.results)),
        "",
        "| credit - resolved | difference | tasks |",
        "|---|---:|---:|",
    ]
    seeds = list(dict.fromkeys(result.seed for result in report.results))
    for seed, one in zip(seeds, report.by_seed, strict=True):
        lines.append(f"| seed {seed} | {one} | {one.tasks} |")
    lines += [f"| all seeds | {report.difference} | {report.difference.tasks} |", ""]
    for arm in ARMS:
        values = [100 * result.score.value for result in report.results if result.arm == arm]
        spread = f", standard deviation over seeds {stdev(values):.1f}" if len(values) > 1 else ""
        lines.append(f"- {arm}: mean pass rate {mean(values):.1f} %{spread}")
    lines += ["", verdict(report), "", "![pass rates](credit-assignment.png)", ""]
    return "\n".join(lines)


def plot(report: Report, path: Path) -> None:
    """Pass rates of both arms by seed, with intervals."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    for offset, arm in zip((-0.08, 0.08), ARMS, strict=True):
        found = [result for result in report.results if result.arm == arm]
        places = [index + offset for index in range(len(found))]
        values = [100 * one.score.value for one in found]
        low = [100 * (one.score.value - one.score.low) for one in found]
        high = [100 * (one.score.high - one.score.value) for one in found]
        axes.errorbar(places, values, yerr=[low, high], fmt="o", capsize=4, label=arm)
        axes.set_xticks(range(len(found)), [f"seed {one.seed}" for one in found])
    axes.set_ylabel("held-out pass rate, %")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main() -> None:
    """Do what is missing, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--store", type=Path, required=True, help="of a finished `orchard demo-sft`; only read"
    )
    parser.add_argument("--work", type=Path, required=True, help="what is made; the same goes on with it")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--examples", type=int, help="of each arm; default: as many as are resolved")
    parser.add_argument("--epochs", type=int, default=DemoSettings().epochs)
    parser.add_argument("--held-out", type=int, default=DemoSettings().held_out, help="tasks")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the report is written")
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    settings = DemoSettings(epochs=options.epochs, held_out=options.held_out)
    comparison = Comparison(options.store / "demo-sft", options.work, settings, options.examples)
    report = comparison.report(asyncio.run(comparison.compare(seeds)), seeds)
    options.results.mkdir(parents=True, exist_ok=True)
    stem = options.results / "credit-assignment"
    stem.with_suffix(".json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    stem.with_suffix(".md").write_text(render(report))
    plot(report, stem.with_suffix(".png"))
    console.print(rows_table(list(COLUMNS), table(report.results)))
    console.print(verdict(report))


if __name__ == "__main__":
    main()
