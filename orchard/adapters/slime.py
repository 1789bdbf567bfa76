"""A rollout function for slime: it trains on our groups, which real rollouts in real sandboxes made.

    --rollout-function-path orchard.slime.generate_rollout --custom-config-path orchard.yaml

where orchard.yaml has `orchard_run: FILE.toml`, the run's configuration as `orchard rl` takes it, and, if
wanted, `orchard_advantages: true`. The pipeline is found as by every command, and `orchard rl coordinator
FILE.toml` runs beside it. The workers' endpoint is slime's router, whose fields our client reads.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

from orchard.actions.session import Session
from orchard.configuration.config import ConfigError, load
from orchard.pipelines.rl.exchange import UNEQUAL, Terms, slime_samples
from orchard.pipelines.rl.external_trainer import ExternalTrainer
from orchard.pipelines.rl.settings import RlSettings, read_settings
from orchard.pipelines.rl.stepping import Chosen, Limits, unprotected
from orchard.processes.rl_run import enter
from orchard.schemas.groups import GroupOutcome

_runs: dict[str, ExternalTrainer] = {}
"""Trainers of this process by run; the log has their state too."""


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """One step's groups as slime's `RolloutFnTrainOutput`, N rollouts each; the same for a step.

    `args` are slime's arguments. With `orchard_advantages` a sample's reward is our advantage and its own
    reward is `metadata["raw_reward"]`; slime's normalization must be off then. Without it slime counts
    samples, so a rollout whose harness rewrote history, which is several, costs its group; a rollout over
    `context` costs it in both. The prompts are the run's, not those of `data_source`. Raises ConfigError for
    arguments that do not fit the run.
    """
    del data_source
    if evaluation:
        raise ConfigError("orchard.slime has no evaluation: leave --eval-interval out and submit a campaign")
    if not getattr(args, "orchard_run", None):
        raise ConfigError("slime has no `orchard_run`: name the run's TOML file in --custom-config-path")
    settings = read_settings(Path(args.orchard_run))
    ours = bool(getattr(args, "orchard_advantages", False))
    check_arguments(args, settings, ours)
    with ThreadPoolExecutor(1) as alone:  # slime may call from a thread that has an event loop
        handed = alone.submit(asyncio.run, _handed(settings, rollout_id, ours)).result()
    terms = Terms(settings.bar.budget, settings.loss.baseline, settings.temperature, settings.overlong)
    return train_output(handed, ours, terms)


def check_arguments(args: Any, settings: RlSettings, ours: bool) -> None:
    """Checks slime's arguments. Raises ConfigError if slime would split batches differently or normalize
    Orchard's advantages again."""
    if settings.frugal is not None:
        raise ConfigError(UNEQUAL)
    if settings.distill is not None:
        raise ConfigError('slime has on-policy distillation of its own: leave objective = "distill" out')
    if settings.eval_every:
        raise ConfigError("slime does not wait for evaluations: leave `eval_every` and `eval_tasks` out")
    wanted = {"rollout_batch_size": settings.prompts_per_step, "n_samples_per_prompt": settings.bar.size}
    for name, value in wanted.items():
        if getattr(args, name) != value:
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag} is {getattr(args, name)} and the run's is {value}: make them equal")
    if ours and args.rewards_normalization:
        raise ConfigError("slime would normalize the advantages again: pass --disable-rewards-normalization")


def train_output(handed: list[Chosen], ours: bool, terms: Terms) -> Any:
    """Converts groups with their sequences to slime's own objects."""
    types, base = import_module("slime.utils.types"), import_module("slime.rollout.base_types")
    samples = []
    for group, rows in handed:
        records = list(slime_samples(group, rows, terms))
        for record in records if ours else []:
            record["metadata"]["raw_reward"] = record["reward"]
            record["reward"] = record["metadata"]["advantage"]
        samples.append([types.Sample.from_dict(record) for record in records])
    groups = [group for group, _ in handed]
    generated = sum(group.generated for group in groups)
    metrics = {
        "orchard/generated": generated,
        "orchard/aborted": sum(group.aborted for group in groups),
        "orchard/balanced": sum(group.outcome is GroupOutcome.BALANCED for group in groups) / len(groups),
        "orchard/unprotected": unprotected(groups),
        "orchard/positive": sum(group.positive for group in groups) / sum(len(g.members) for g in groups),
    }
    return base.RolloutFnTrainOutput(samples=samples, metrics=metrics)


async def _handed(settings: RlSettings, step: int, ours: bool) -> list[Chosen]:
    session = Session(load())
    plan, start = await enter(session, settings)
    handing = _runs.get(settings.run)
    if handing is None:
        limits = Limits(settings.staleness, settings.context, whole=True, one_sequence=not ours)
        handing = _runs[settings.run] = ExternalTrainer(plan, session.blobs, start, limits)
    async with session.connection("slime") as connection:
        return await handing.step(connection, step)
