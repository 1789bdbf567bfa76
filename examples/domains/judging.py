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
from orchard.actions.reporter import Reporter
from orchard.actions.rubrics import write_rubrics
from orchard.actions.values import annotate_campaign
from orchard.configuration.config import ConfigError
from orchard.pipelines.values.calibration import agreement, compared
from orchard.pipelines.values.requests import Asking
from orchard.pipelines.values.rubric_writer import Teaching
from orchard.pipelines.values.rubrics import JUDGE_VERSION
from orchard.schemas.campaigns import ModelSpec
from orchard.storage.reader import open_tables
from orchard.terminal.console import reporting


def policy_of_sft(values: Mapping[str, Any]) -> dict[str, Any]:
    """The policy. Raises ConfigError if sft.toml has not been run."""
    policy = Path(values["store"]) / "demo-sft" / "run" / "model"
    if not policy.is_dir():
        raise ConfigError(f"{values['store']} has no policy: run `make demo-sft` first")
    return {"policy": str(policy)}


async def tasks(example: Example, *, pool: int, held_out: int) -> tuple[Refs, Refs]:
    """First training tasks that the policy has not seen, and the first held-out ones. Raises ConfigError for
    too few."""
    train, measured = await new_tasks(example, pool=pool)
    if len(measured) < held_out:
        raise ConfigError(f"the store has {len(measured)} held-out tasks, not {held_out}: lower --held-out")
    return train, measured[:held_out]


async def best_of_attempts(
    example: Example, *, out: str, train: str, evaluation: str, samples: int, seeds: Sequence[int]
) -> str:
    """Trains a value model for each seed, and returns what each way to choose resolves, in percent, and of
    how many tasks. Ways without a value model are the same for all seeds."""
    store, found, of = example.config.store, dict[str, list[str]](), ""
    for seed in seeds:
        model = f"{out}-{seed}"
        options = ["--without", evaluation, "--seed", str(seed)]
        await example.command("values", "train", model, train, *options)
        with open_tables(store) as tables:
            (cell,) = choose_best(tables, example.session.blobs, evaluation, samples, Path(model))
        for choice in cell.choices:
            found.setdefault(choice.by, []).append(str(choice.resolved))
        of = f"of {cell.tasks} tasks ({cell.short} have fewer than {samples} graded attempts)"
    return told_choices(found, of)


def told_choices(found: Mapping[str, Sequence[str]], of: str) -> str:
    """The scores of each way to choose, one for each seed, or one for all where they do not differ."""
    ways = (
        f"{by}: {', '.join(dict.fromkeys(one) if len(set(one)) == 1 else one)}" for by, one in found.items()
    )
    return "; ".join([*ways, of])


async def known_endpoint(example: Example, *, endpoint: str) -> None:
    """Raises ConfigError for an endpoint that the configuration does not have, before anything runs."""
    if endpoint not in (known := example.session.endpoints()):
        raise ConfigError(
            f"no endpoint is named {endpoint!r}: choose one of {', '.join(known)}, or set "
            f"ORCHARD_ENDPOINTS__{endpoint.upper()}__BASE_URL"
        )


async def scored(example: Example, *, campaign: str, endpoint: str, teacher: str, judge: str) -> None:
    """Writes rubrics, scores all rollouts by them, and annotates the unresolved ones by the oracle. Says what
    failed; raises ConfigError where a layer has no value, which all that follows would be compared with."""
    session, layer = example.session, f"rubric:{judge}"
    async with AsyncExitStack() as stack:
        told = stack.enter_context(reporting())
        if endpoint == "rules":
            await stack.enter_async_context(rubric_rules.served(example.ports["rules"]))
        spec = ModelSpec(name=teacher, endpoint=endpoint)
        written = await write_rubrics(session, Teaching(spec, teacher), campaign=campaign, told=told)
        _tell(told, "no rubric:", written.faults)
        asking = Asking(
            model=judge,
            endpoint=endpoint,
            judge=JUDGE_VERSION,
            annotator=layer,
            rubric=teacher,
        )
        judged = await annotate_campaign(session, campaign, asking, 8, told)
        _tell(told, "no scores:", judged.faults)
        by_oracle = await annotate_campaign(
            session, campaign, Asking(model="oracle", endpoint="oracle"), 8, told
        )
        _tell(told, "no values:", by_oracle.faults)
    with open_tables(example.config.store) as tables:
        layers = {name for (name,) in tables.execute(_LAYERS, [campaign]).fetchall()}
    if layer not in layers:
        raise ConfigError(f"no rollout of {campaign} has scores of {layer}: the notes above say why")


def _tell(told: Reporter, about: str, faults: Mapping[str, int]) -> None:
    for fault, number in sorted(faults.items()):
        told.note(f"{number} x {fault}", about)


_LAYERS = """
select distinct annotator from values where rollout_id in (select rollout_id from rollouts where campaign = ?)
"""
_ROLLOUTS = """
select rollout_id, turns from rollouts
where campaign = ? and resolved is not null and turns > 1 order by rollout_id
"""


async def measured_values(
    example: Example, *, campaign: str, model: str, points: int, continuations: int, seed: int
) -> int:
    """Measures steps of each rollout but its last, drawn by the seed; returns how many have a value. Says
    which have none; raises ConfigError where none has."""
    with open_tables(example.config.store) as tables:
        rollouts = tables.execute(_ROLLOUTS, [campaign]).fetchall()
    known = 0
    async with example.serving(model):
        with reporting() as told:
            for rollout, turns in rollouts:
                steps = drawn_steps(f"{seed}:{rollout}", turns, points)
                known += len(
                    await measure_rollout(
                        example.session, MeasureRequest(rollout, steps, continuations), told
                    )
                )
    if not known:
        raise ConfigError(f"no step of {len(rollouts)} rollouts of {campaign} has a measured value")
    return known


def drawn_steps(seed: str, turns: int, points: int) -> list[int]:
    """Steps of a rollout but its last. They depend on no other rollout, so a run that goes on measures the
    same ones."""
    return sorted(random.Random(seed).sample(range(turns - 1), min(points, turns - 1)))


async def correlations(example: Example, *, out: str) -> str:
    """Writes the report of `orchard values report`, and returns the rank correlation of each layer with the
    measured values of each policy: a store may have those of other examples."""
    await example.command("values", "report", "--out", out)
    with open_tables(example.config.store) as tables:
        pairs = {pair: agreement(points) for pair, points in compared(tables).items()}
    return "; ".join(
        f"{pair.annotator} and {pair.model}: {one.spearman} {one.spearman_interval} of {one.points} steps"
        for pair, one in pairs.items()
    )
