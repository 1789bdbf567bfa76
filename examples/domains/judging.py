"""Steps of the examples about judges: rubrics beside measured values, and the best of several attempts."""

import random
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from examples.domains import rubric_rules
from examples.domains.swe import Refs, new_tasks
from examples.example import Example
from orchard.actions.evaluation import choose_best
from orchard.actions.measuring import MeasureRequest, measure_rollout
from orchard.actions.rubrics import write_rubrics
from orchard.actions.values import annotate_campaign
from orchard.configuration.config import ConfigError
from orchard.pipelines.values.calibration import agreement, compared
from orchard.pipelines.values.requests import Asking
from orchard.pipelines.values.rubric_writer import Teaching
from orchard.pipelines.values.rubrics import JUDGE_VERSION
from orchard.schemas.campaigns import ModelSpec
from orchard.storage.reader import open_tables


def policy_of_sft(values: Mapping[str, Any]) -> dict[str, Any]:
    """The policy. Raises ConfigError if sft.toml has not been run."""
    policy = Path(values["store"]) / "demo-sft" / "run" / "model"
    if not policy.is_dir():
        raise ConfigError(f"{values['store']} has no policy: run `make demo-sft` first")
    return {"policy": str(policy)}


async def tasks(example: Example, *, pool: int, held_out: int) -> tuple[Refs, Refs]:
    """First training tasks that the policy has not seen, and the first held-out ones."""
    train, measured = await new_tasks(example, pool=pool)
    return train, measured[:held_out]


async def best_of_attempts(
    example: Example, *, out: str, train: str, evaluation: str, samples: int, seeds: Sequence[int]
) -> str:
    """Trains a value model for each seed, and returns what each way to choose resolves, in percent."""
    store, found = example.config.store, dict[str, list[str]]()
    for seed in seeds:
        model = f"{out}-{seed}"
        options = ["--without", evaluation, "--seed", str(seed)]
        await example.command("values", "train", model, train, *options)
        with open_tables(store) as tables:
            (cell,) = choose_best(tables, example.session.blobs, evaluation, samples, Path(model))
        for choice in cell.choices:
            found.setdefault(choice.by, []).append(str(choice.resolved))
    return "; ".join(f"{by}: {', '.join(dict.fromkeys(scores))}" for by, scores in found.items())


async def scored(example: Example, *, campaign: str, endpoint: str, teacher: str, judge: str) -> None:
    """Writes rubrics, scores all rollouts by them, and annotates the unresolved ones by the oracle."""
    session = example.session
    async with AsyncExitStack() as stack:
        if endpoint == "rules":
            await stack.enter_async_context(rubric_rules.served(example.ports["rules"]))
        spec = ModelSpec(name=teacher, endpoint=endpoint)
        await write_rubrics(session, Teaching(spec, teacher), campaign=campaign)
        asking = Asking(
            model=judge,
            endpoint=endpoint,
            judge=JUDGE_VERSION,
            annotator=f"rubric:{judge}",
            rubric=teacher,
        )
        await annotate_campaign(session, campaign, asking, 8)
    await annotate_campaign(session, campaign, Asking(model="oracle", endpoint="oracle"), 8)


_ROLLOUTS = """
select rollout_id, turns from rollouts
where campaign = ? and resolved is not null and turns > 1 order by rollout_id
"""


async def measured_values(
    example: Example, *, campaign: str, model: str, points: int, continuations: int, seed: int
) -> int:
    """Measures steps of each rollout but its last, drawn by the seed; returns how many have a value."""
    with open_tables(example.config.store) as tables:
        rollouts = tables.execute(_ROLLOUTS, [campaign]).fetchall()
    chance, known = random.Random(seed), 0
    async with example.serving(model):
        for rollout, turns in rollouts:
            steps = sorted(chance.sample(range(turns - 1), min(points, turns - 1)))
            known += len(
                await measure_rollout(example.session, MeasureRequest(rollout, steps, continuations))
            )
    return known


async def correlations(example: Example, *, out: str) -> str:
    """Writes the report of `orchard values report`, and returns the rank correlation of each layer."""
    await example.command("values", "report", "--out", out)
    with open_tables(example.config.store) as tables:
        pairs = {pair.annotator: agreement(points) for pair, points in compared(tables).items()}
    return "; ".join(
        f"{layer}: {one.spearman} {one.spearman_interval} of {one.points} steps"
        for layer, one in pairs.items()
    )
