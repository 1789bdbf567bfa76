"""Steps for all examples: each is a function that a file names, with its keys as arguments."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec

from examples.example import CommandFailed, Example
from orchard.actions.campaigns import resume_campaign, submit_campaign
from orchard.actions.datasets import announce
from orchard.actions.values import annotate_campaign
from orchard.configuration.config import ConfigError
from orchard.pipelines.campaigns.commands import OtherPlan
from orchard.pipelines.campaigns.scores import Score, Tally, score
from orchard.pipelines.evaluation.results import Results, read_results
from orchard.pipelines.rl.barren import NothingToLearn
from orchard.pipelines.values.requests import Asking
from orchard.schemas.campaigns import CampaignSpec, ModelSpec, TaskRef
from orchard.schemas.llm_calls import ModelKind
from orchard.storage.reader import open_tables
from orchard.terminal.campaign_tables import watch_campaign
from orchard.terminal.tables import show_results
from orchard.workers.harnesses.programs.layers import layers_among

POLICY = "policy"
"""Name of a served policy's model and endpoint."""
_SFT = {"context": 4096, "optimizer": "muon", "warmup": 0.05, "weight_decay": 0.05, "beta2": 0.95}
"""Settings for fine-tuning tiny models."""


async def campaign(
    example: Example, name: str, tasks: Sequence[TaskRef], model: Mapping[str, Any], **fields: Any
) -> None:
    """Runs or resumes a campaign to its end, and waits until the tables have its results. Raises
    ConfigError if the store has another one of this name."""
    plain = {"samples": 1, **example.campaign, **fields}
    spec = CampaignSpec(
        name=name,
        tasks=tuple(tasks),
        models=(msgspec.convert(model, ModelSpec),),
        **{key: msgspec.convert(plain[key], kind) for key, kind in _fields().items() if key in plain},
    )
    session = example.session
    try:
        await submit_campaign(session, spec)
    except OtherPlan as error:
        raise ConfigError(
            f"{session.config.store} has an example with other settings, in campaign {name}: repeat them, or "
            "choose another --store"
        ) from error
    await resume_campaign(session, name)
    await watch_campaign(session, name, every=1.0)
    await example.committed()


def _fields() -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(CampaignSpec)}


async def oracle(
    example: Example,
    *,
    name: str,
    tasks: Sequence[TaskRef],
    first: int | None = None,
    model: str = "oracle",
    **fields: Any,
) -> None:
    """Runs a campaign with the oracle on the `first` tasks."""
    spec = {"name": model, "endpoint": "oracle", "kind": ModelKind.ORACLE.value}
    await campaign(example, name, tasks[:first], spec, **fields)


async def measure(
    example: Example,
    *,
    name: str,
    model: str | Path,
    tasks: Sequence[TaskRef],
    max_tokens: int,
    temperature: float = 0.0,
    samples: int = 1,
    first: int | None = None,
    served: Mapping[str, Any] | None = None,
) -> Score:
    """Measures pass@1 of a model on the `first` tasks by a campaign; `served`: options of its server."""
    sampled = {"temperature": temperature, "max_tokens": max_tokens, "logprobs": True}
    async with example.serving(model, POLICY, POLICY, **served or {}):
        spec = {"name": POLICY, "endpoint": POLICY, **sampled}
        await campaign(example, name, tasks[:first], spec, samples=samples)
    return campaign_score(example.config.store, name)


async def taken_over(
    example: Example,
    *,
    name: str,
    model: str | Path,
    tasks: Sequence[TaskRef],
    takeover: Mapping[str, Any],
    max_tokens: int,
    temperature: float = 1.0,
    first: int | None = None,
) -> None:
    """Runs a campaign on the `first` tasks in which a teacher takes over from a model."""
    async with example.serving(model, POLICY, POLICY):
        spec = {"name": POLICY, "endpoint": POLICY, "temperature": temperature, "max_tokens": max_tokens}
        await campaign(example, name, tasks[:first], spec, takeover=takeover)


def campaign_score(store: str, campaign: str) -> Score:
    """pass@1 of a campaign with its interval, without aborted rollouts."""
    query = """
        select count(resolved), count(*) filter (resolved) from rollouts
        where campaign = ? and resolved is not null group by task_id order by task_id
    """
    with open_tables(store) as tables:
        rows = tables.execute(query, [campaign]).fetchall()
    return score([Tally(graded=graded, resolved=resolved) for graded, resolved in rows])


async def annotate(example: Example, *, campaign: str) -> None:
    """Annotates unresolved trajectories with the oracle's values."""
    await annotate_campaign(example.session, campaign, Asking(model="oracle", endpoint="oracle"), 16)


async def program(example: Example, *, name: str) -> None:
    """Installs the program of a harness if needed."""
    async with example.session.sandboxes() as client:
        layers = layers_among(await client.list_images())
    if not any(layer.program == name for layer, _ in layers):
        await example.command("harness", "install", name)


async def tokenizer(
    example: Example, *, out: str, campaigns: list[str], vocabulary: int, **options: bool
) -> str:
    """Trains a tokenizer on messages of some campaigns; `options` as in `train_tokenizer`."""
    from orchard.pipelines.datasets.tokenizer import log_texts, train_tokenizer

    if not Path(out).is_dir():
        with open_tables(example.config.store) as tables:
            texts = log_texts(tables, campaigns, 1_000_000)
            await asyncio.to_thread(train_tokenizer, texts, vocabulary, Path(out), **options)
    return out


async def dataset(example: Example, *, out: str, **settings: Any) -> int:
    """Builds a dataset as `orchard dataset build` does, records it in the log, and returns its number of
    examples."""
    from orchard.pipelines.datasets.build import build
    from orchard.pipelines.datasets.settings import DatasetSettings

    made, began = msgspec.convert(settings, DatasetSettings), time.monotonic()
    manifest = await asyncio.to_thread(build, example.config.store, made, Path(out), processes=2)
    await announce(example.session, manifest, time.monotonic() - began)
    return manifest.rows


async def untrained(example: Example, *, out: str, shape: str, tokenizer: str, seed: int) -> None:
    """Creates an untrained language model."""
    from transformers import AutoTokenizer

    from orchard.pipelines.models.directories import save_model
    from orchard.pipelines.models.tiny import new_model

    del example
    if not Path(out).is_dir():
        words = AutoTokenizer.from_pretrained(tokenizer)
        model = await asyncio.to_thread(new_model, shape, vocabulary=len(words), seed=seed, tokenizer=words)
        save_model(model, Path(out), tokenizer=words)


async def sft(example: Example, *, out: str, lr: float, **settings: Any) -> None:
    """Runs `orchard sft` with an optimizer for tiny models."""
    whole = {"out": out, **_SFT, "min_lr": lr / 20, **settings, "lr": lr}
    await example.command_with("sft", Path(f"{out}.toml"), whole)


async def rl(
    example: Example,
    *,
    out: str,
    lr: float,
    tasks: Mapping[str, Any],
    may_stop: bool = False,
    **settings: Any,
) -> None:
    """Runs `orchard rl`. With `may_stop`, a policy that the run cannot improve is kept as it is."""
    barren = Path(out) / "nothing-to-learn"
    if barren.exists():
        return
    prompts = {**tasks, "ids": _ids(tasks["ids"])}
    whole = {"out": out, "min_lr": lr / 10, "threads": 1, **settings, "tasks": prompts, "lr": lr}
    try:
        await example.command_with("rl", Path(f"{out}.toml"), whole)
    except CommandFailed as failed:
        if not may_stop or failed.code != NothingToLearn.exit_code:
            raise
        barren.touch()


async def keep(example: Example, *, value: object) -> object:
    del example
    return value


async def newest(example: Example, *, out: str, start: str = "") -> tuple[str, int]:
    """Newest policy of a run, or its initial model, and the number of policies."""
    del example
    policies = sorted(Path(out, "policies").glob("version-*"))
    return (str(policies[-1]) if policies else start), len(policies)


class FineTuning(msgspec.Struct, frozen=True, kw_only=True):
    """What a run of fine-tuning took."""

    steps: int
    tokens: int
    seconds: float
    """Of its steps, without those between them."""
    loss: float
    """Of the last step, nats per trained token."""

    def __str__(self) -> str:
        speed = self.tokens / self.seconds
        return f"{self.steps} steps, {self.tokens:,} tokens, {speed:,.0f} a second, last loss {self.loss:.3f}"


async def trained(example: Example, *, out: str) -> FineTuning:
    """What the run of fine-tuning in `out` took."""
    from orchard.pipelines.sft.metrics import read_steps

    del example
    steps = read_steps(Path(out) / "metrics.jsonl")
    return FineTuning(
        steps=len(steps),
        tokens=sum(step.tokens for step in steps),
        seconds=sum(step.seconds for step in steps),
        loss=steps[-1].loss,
    )


async def rewarded(example: Example, *, run: str) -> tuple[int, int]:
    """Numbers of steps and of graded rollouts of a run of reinforcement learning."""
    with open_tables(example.config.store) as tables:
        ((updates, rollouts),) = tables.execute(_REWARDED, {"run": run}).fetchall()
    return updates, rollouts


_REWARDED = """
select (select count(*) from policy_steps where run = $run),
       (select count(*) from rollouts where campaign = $run and resolved is not null)
"""
_CALLS = """
select avg(called::int) from (
    select bool_or(role = 'assistant') as said, bool_or(role = 'tool') as called from messages
    where campaign = ? group by rollout_id, turn
) where said
"""


async def valid_calls(example: Example, *, campaign: str) -> float:
    """Share of a campaign's answers in which a tool was called that could be executed."""
    with open_tables(example.config.store) as tables:
        ((share,),) = tables.execute(_CALLS, [campaign]).fetchall()
    return float(share)


async def outcome(example: Example, *, out: str, **figures: Any) -> None:
    """Writes figures to a JSON file, with the seconds of the steps before and the most memory."""
    whole = {**figures, "seconds": example.seconds, "peak_bytes": example.peak_bytes}
    Path(out).write_bytes(msgspec.json.format(msgspec.json.encode(whole)))


async def suite(
    example: Example,
    *,
    report: str,
    policies: Mapping[str, str],
    temperature: float,
    max_tokens: int,
    source: str,
    tasks: Sequence[str | TaskRef],
    unproven: bool = False,
    **fields: Any,
) -> Results:
    """Runs `orchard eval` with a server for each policy, and prints and returns the results."""
    models = [
        {"name": name, "endpoint": name, "temperature": temperature, "max_tokens": max_tokens}
        for name in policies
    ]
    held_out = {"name": "held-out", "source": source, "ids": _ids(tasks), "unproven": unproven}
    whole = {key: value for key, value in fields.items() if value is not None} | {"task_sets": [held_out]}
    file = Path(report).with_name("suite.toml")
    async with AsyncExitStack() as stack:
        for name, model in policies.items():
            await stack.enter_async_context(example.serving(model, name, name))
        await example.command_with("eval", file, {**whole, "models": models}, "--out", report)
    with open_tables(example.config.store) as tables:
        results = read_results(tables, fields["name"])
    show_results(results)
    return results


def _ids(tasks: Sequence[str | TaskRef]) -> list[str]:
    return [task if isinstance(task, str) else task.task_id for task in tasks]
