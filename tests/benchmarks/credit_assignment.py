"""`python -m tests.benchmarks.credit_assignment --store DIR`: do parts of unresolved trajectories train?

Five arms from scratch, with the same resolved trajectories and as many steps: nothing more, rise segments of
unresolved ones, equally long segments at random places of the same ones, all of their steps, and as many
more resolved ones. A seed draws trajectories, weights and order anew; the statistics are over seeds, pairs by
seed. The oracle's campaign, its values and both datasets are made in DIR, and held-out tasks are run in its
sandboxes, one greedy rollout each. Results are kept by arm and seed, so that a later session goes on: an arm
that is there is not run again, unless its seed is not whole and was of another dataset.
"""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from examples.domains.swe import ORACLE
from examples.run import do_step, example
from examples.steps import measure
from orchard.pipelines.campaigns.scores import Score
from orchard.pipelines.datasets.build import build
from orchard.pipelines.datasets.manifest import Manifest, Shard, read_manifest, write_manifest
from orchard.pipelines.datasets.rows import Row, read_rows, row_digest, rows_sha256, write_rows
from orchard.pipelines.datasets.settings import CandidateSource, DatasetSettings, Values
from orchard.processes.pipeline import pipeline
from orchard.schemas.campaigns import TaskRef
from orchard.schemas.llm_calls import ModelKind
from orchard.streams.tasks import end
from orchard.terminal.console import console
from tests.benchmarks.credit_arms import Arm, rows_of
from tests.benchmarks.over_seeds import over_seeds, paired_over_seeds

_BEFORE = ("examples.domains.swe:repair_world", "oracle", "annotate", "tokenizer", "dataset")
"""Steps of the example that all arms share."""
RESULTS = Path(__file__).parents[2] / "docs" / "benchmarks"
EVERY_STEP = -2.0
"""Credit that every step has at least."""
EXPERIMENT: dict[str, Any] = {
    "tasks": 240,
    "samples": 2,
    "further": 1,
    "kinds": ["sum", "difference", "larger", "smaller"],
    "functions": 24,
    "mix": {"resolves": 0.55, "wrong_edit": 0.37, "gives_up": 0.02, "malformed": 0.02, "out_of_steps": 0.04},
    "held_out": 40,
    "vocabulary": 900,
    "shape": "tiny-test",
    "epochs": 16,
    "batch": 8,
    "lr": 1e-2,
    "threads": 1,
    "answer_tokens": 80,
}
"""Small, so that ten seeds of five arms can be had: see the cost of a seed in the results."""
TIMEOUTS = {"command": 120.0}
"""So that a busy machine ends no command of a policy."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One arm and seed."""

    arm: Arm
    seed: int
    source_sha256: str
    """Of the dataset that it was drawn from."""
    settings: dict[str, Any]
    examples: int
    trained_tokens: int
    steps: int
    final_loss: float
    score: Score
    """Interval over tasks: of this policy, not of the arm."""
    training_seconds: float
    measured: str


class Experiment:
    """Arms and seeds of `examples/sft.toml`, in the store of one oracle campaign."""

    def __init__(
        self, store: Path, results: Path, examples: int, settings: Mapping[str, Any] = EXPERIMENT
    ) -> None:
        self.example, self.values = example("sft", str(store), **settings)
        self.example.campaign = {**self.example.campaign, "timeouts": TIMEOUTS}
        self.directory, self.settings = self.example.directory, dict(settings)
        self._work, self._results, self._examples = store / "arms", results, examples
        found = results.read_bytes() if results.exists() else b"[]"
        self.done = msgspec.json.decode(found, type=list[Result])

    async def run_arms(self, seeds: Sequence[int], most: int | None = None) -> None:
        """What is missing of these seeds, all arms of one before the next; at most so many of them."""
        made, values = self.example, self.values
        before = [step for step in made.steps if step["do"] in _BEFORE]
        async with pipeline(made.config, console.print) as made.session:
            for step in before[:1] if (self.directory / "dataset").is_dir() else before:
                await do_step(made, step, values)
            whole = await asyncio.to_thread(self._with_every_step)
            rises = list(read_rows(self.directory / "dataset"))
            missing = [(arm, seed) for seed in seeds for arm in self._missing(seed)][:most]
            trained = self._trained_ahead(missing, rises, whole)
            async with aclosing(trained):
                async for policy in trained:
                    self.done.append(await self._measured(policy, values["measured"]))
                    self._results.write_bytes(msgspec.json.format(msgspec.json.encode(self.done), indent=1))

    def _with_every_step(self) -> dict[str, Row]:
        """The unresolved trajectories with all steps trained, by rollout."""
        settings = DatasetSettings(
            name="every-step",
            tokenizer=str(self.directory / "tokenizer"),
            source=CandidateSource(campaigns=(ORACLE,), model_kinds=(ModelKind.ORACLE,), unproven=True),
            values=Values(annotator="oracle", eps=EVERY_STEP),
        )
        out = self.directory / "dataset-every-step"
        build(self.example.config.store, settings, out)
        return {row.rollout_id: row for row in read_rows(out) if not row.resolved}

    def _missing(self, seed: int) -> list[Arm]:
        """Arms of a seed that are to be run; of another dataset's, all or none."""
        mine = [one for one in self.done if one.seed == seed]
        if len(mine) == len(Arm):
            return []
        sha256 = read_manifest(self.directory / "dataset").sha256
        kept = {one.arm for one in mine if one.source_sha256 == sha256}
        self.done = [one for one in self.done if one.seed != seed or one.arm in kept]
        return [arm for arm in Arm if arm not in kept]

    async def _trained_ahead(
        self, arms: Sequence[tuple[Arm, int]], rises: Sequence[Row], whole: Mapping[str, Row]
    ) -> AsyncIterator["Policy"]:
        """The policies of these arms and seeds; each trains while the one before it is measured."""
        trainings = (self._trained(arm, seed, rises, whole) for arm, seed in arms)
        ahead = [asyncio.create_task(training) for training in islice(trainings, 1)]
        try:
            while ahead:
                policy = await ahead.pop()
                ahead += [asyncio.create_task(training) for training in islice(trainings, 1)]
                yield policy
        finally:
            for task in ahead:
                await end(task)

    async def _trained(self, arm: Arm, seed: int, rises: Sequence[Row], whole: Mapping[str, Row]) -> "Policy":
        """The policy of one arm and seed, in a directory of its own."""
        name, dataset = f"{arm}-{seed}", read_manifest(self.directory / "dataset")
        directory = self._work / name
        rows = rows_of(arm, rises, whole, self._examples, seed)
        manifest = write_subset(rows, dataset, name, directory / "dataset")
        epochs = self.settings["epochs"] * (2 if arm is Arm.NOTHING else 1)
        settings = {**self.settings, "seed": seed, "epochs": epochs}
        step = next(one for one in self.example.steps if one["do"] == "sft")
        tokenizer = str(self.directory / "tokenizer")
        values = self.values | settings | {"directory": str(directory), "tokenizer": tokenizer}
        await do_step(self.example, {**step, "run": name}, values)
        return Policy(arm=arm, directory=directory, settings=settings, manifest=manifest, of=dataset.sha256)

    async def _measured(self, policy: "Policy", held_out: list[TaskRef]) -> Result:
        """What a policy does on the held-out tasks."""
        name = policy.directory.name
        console.rule(name)
        score = await measure(
            self.example,
            name=name,
            model=policy.directory / "run" / "model",
            tasks=held_out,
            max_tokens=self.values["answer_tokens"],
        )
        steps = (policy.directory / "run" / "metrics.jsonl").read_bytes().splitlines()
        last = msgspec.json.decode(steps[-1])
        return Result(
            arm=policy.arm,
            seed=policy.settings["seed"],
            source_sha256=policy.of,
            settings=policy.settings,
            examples=policy.manifest.rows,
            trained_tokens=policy.manifest.trained_tokens,
            steps=last["step"],
            final_loss=last["loss"],
            score=score,
            training_seconds=sum(msgspec.json.decode(step)["seconds"] for step in steps),
            measured=datetime.now(UTC).strftime("%Y-%m-%d"),
        )


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """A trained arm that is to be measured."""

    arm: Arm
    directory: Path
    settings: dict[str, Any]
    manifest: Manifest
    of: str
    """SHA-256 of the dataset that its own was drawn from."""


def write_subset(rows: Sequence[Row], whole: Manifest, name: str, out: Path) -> Manifest:
    """A dataset directory of some rows, for the trainer."""
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


def table(results: Sequence[Result]) -> str:
    """A row for each arm in Markdown: over whole seeds alone, pairs by seed against `nothing`."""
    arms_of: dict[int, set[Arm]] = {}
    for one in results:
        arms_of.setdefault(one.seed, set()).add(one.arm)
    whole = {seed for seed, arms in arms_of.items() if len(arms) == len(Arm)}
    if not whole:
        return "No seed has all arms yet.\n"
    rates = {
        arm: {one.seed: 100 * one.score.value for one in results if one.arm is arm and one.seed in whole}
        for arm in Arm
    }
    lines = [
        "| resolved and | held-out pass rate, % | difference from nothing, points | steps | trained tokens |",
        "|---|---:|---:|---:|---:|",
    ]
    for arm in Arm:
        mine = [one for one in results if one.arm is arm and one.seed in whole]
        against = paired_over_seeds(rates[Arm.NOTHING], rates[arm]).shown(signed=True)
        lines.append(
            f"| {arm} | {over_seeds(list(rates[arm].values())).shown()} | "
            f"{'' if arm is Arm.NOTHING else against} | {fmean(one.steps for one in mine):.0f} | "
            f"{fmean(one.trained_tokens for one in mine):,.0f} |"
        )
    random_against = paired_over_seeds(rates[Arm.RANDOM], rates[Arm.RISE]).shown(signed=True)
    return "\n".join([*lines, "", f"Rise - random over {len(whole)} seeds: {random_against} points.", ""])


def main() -> None:
    """Do what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--store", type=Path, required=True, help="made, or gone on with")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--examples", type=int, default=120, help="resolved ones, and those that are added")
    parser.add_argument("--results", type=Path, default=RESULTS / "credit-arms.json")
    parser.add_argument("--most", type=int, help="arms of this run, so that long ones can be cut in slices")
    options = parser.parse_args()
    if options.examples % EXPERIMENT["batch"]:
        parser.error(f"--examples must be whole batches of {EXPERIMENT['batch']}: else arms differ in steps")
    experiment = Experiment(options.store, options.results, options.examples)
    asyncio.run(experiment.run_arms(range(options.seeds), options.most))
    sys.stdout.write(table(experiment.done))


if __name__ == "__main__":
    main()
