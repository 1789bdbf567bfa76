"""Steps of the repair examples: worlds of small modules, each with one bug."""

import asyncio
import random
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from examples import steps
from examples.example import Example
from orchard.actions.tasks import register_tasks, validate_tasks
from orchard.configuration.config import ConfigError
from orchard.domains.swe.tasks import synthesize_tasks
from orchard.injector.client import AsyncSandboxClient
from orchard.injector.errors import SandboxError
from orchard.pipelines.domains.swe.packages import PackageCache
from orchard.pipelines.domains.swe.releases import SOURCE as RELEASES
from orchard.pipelines.domains.swe.repairs import SOURCE, Split, build_repair_image, repair_tasks
from orchard.pipelines.rl.curves import plot_curves, plot_seeds
from orchard.pipelines.rl.runs import pass_rates
from orchard.pipelines.tasks.registry import read_task_refs, stored_tasks
from orchard.schemas.campaigns import TaskRef
from orchard.schemas.tasks import Task
from orchard.storage.reader import open_tables
from orchard.terminal.console import reporting
from orchard.workers.domains.swe.oracle.repairs import at_home
from orchard.workers.episode.diffs import parse_diff

ORACLE, BEFORE, AFTER = "demo-oracle", "demo-rl-before", "demo-after"
"""Names of campaigns: the oracle's, and the policies' on held-out tasks."""
DEATHS_POLL_SECONDS = 0.1

Refs = list[TaskRef]


async def repair_world(
    example: Example, *, tasks: int, further: int, held_out: int, seed: int, kinds: list[str], functions: int
) -> tuple[Refs, Refs]:
    """Plans training tasks without the `further` ones of later runs, and held-out tasks."""
    train = list(repair_tasks(tasks + further, seed, Split.TRAIN, kinds, functions))
    refs, measured = await _registered(
        example, train, list(repair_tasks(held_out, seed, Split.HELD_OUT, kinds, functions))
    )
    tried = {task.task_id for task in train[:tasks]}
    return [ref for ref in refs if ref.task_id in tried], measured


async def further_tasks(example: Example, *, tried: Sequence[TaskRef]) -> Refs:
    """Training tasks of the store beyond those that were `tried`."""
    known = {ref.task_id for ref in tried}
    return [ref for ref in repair_refs(example.config.store, Split.TRAIN) if ref.task_id not in known]


async def solved_at_times(
    example: Example, *, campaign: str, hardest: float, tasks: Sequence[TaskRef]
) -> Sequence[TaskRef]:
    """Tasks with a pass rate above 0 and of at most `hardest` in a campaign; without any, all of them."""
    with open_tables(example.config.store) as tables:
        rates = pass_rates(tables, campaign)
    among = [ref for ref in tasks if ref.task_id in rates and 0 < rates[ref.task_id].rate <= hardest]
    return among or tasks


async def release_tasks(example: Example, *, count: int) -> Refs:
    """Makes and proves the first tasks of the quick start: real packages, with the tests of a later
    release."""
    session = example.session
    with reporting() as told:
        await synthesize_tasks(session, packages=[], limit=count, concurrency=2, told=told)
        made = await asyncio.to_thread(stored_tasks, session.config.store, source=RELEASES)
        unproven = [task.ref.task_id for task in made if task.state == "imported"]
        if unproven:
            await validate_tasks(session, ids=unproven, runs=2, concurrency=2, told=told)
    return read_task_refs(session.config.store, source=RELEASES)[:count]


async def reading_world(
    example: Example, *, tasks: int, held_out: int, seed: int, kinds: list[str], functions: int
) -> tuple[Refs, Refs]:
    """First tasks of both splits in which the oracle reads before it changes a line."""

    def drawn(split: Split, count: int) -> list[Task]:
        every = repair_tasks(None, seed, split, kinds, functions)
        read = [task for task in every if not at_home(parse_diff(task.gold_patch)[0].path.partition("/")[0])]
        if len(read) < count:
            raise ConfigError(
                f"there are {len(read)} {split} tasks of these kinds and functions, not {count}: ask for "
                "fewer"
            )
        return read[:count]

    return await _registered(example, drawn(Split.TRAIN, tasks), drawn(Split.HELD_OUT, held_out))


async def _registered(example: Example, train: Sequence[Task], held_out: Sequence[Task]) -> tuple[Refs, Refs]:
    """Registers repair tasks, builds their image, and returns both splits as in the store."""
    session, every = example.session, [*train, *held_out]
    async with session.sandboxes() as client:
        await build_repair_image(client, PackageCache(session.directory / "packages"), every)
    await register_tasks(session, every)
    await example.committed()
    return (
        repair_refs(session.config.store, Split.TRAIN, train),
        repair_refs(session.config.store, Split.HELD_OUT, held_out),
    )


def repair_refs(store: str, split: Split, among: Sequence[Task] | None = None) -> Refs:
    """Repair tasks of the store, or those of them in `among`."""
    prefix, wanted = f"repair-{split}-", None if among is None else {task.task_id for task in among}
    refs = read_task_refs(store, source=SOURCE, only_valid=False)
    return [
        ref for ref in refs if ref.task_id.startswith(prefix) and (wanted is None or ref.task_id in wanted)
    ]


def arms(values: Mapping[str, Any]) -> dict[str, Any]:
    """Names of the matrix's policies: all, and by the harness that they are taught in; None if each
    harness has only one."""
    named = {harness: [f"{harness}-{n}" for n in range(values["seeds"])] for harness in values["taught"]}
    every = [policy for policies in named.values() for policy in policies]
    return {"policies": every, "arms": named, "several": named if values["seeds"] > 1 else None}


async def taught(
    example: Example, *, arms: Mapping[str, list[str]], runs: str, datasets: str, seed: int, **settings: Any
) -> dict[str, str]:
    """Trains the policies of each harness from one base in different orders, and returns their folders."""
    made = {}
    for harness, policies in arms.items():
        for number, policy in enumerate(policies):
            out, data = f"{runs}/{policy}", f"{datasets}/{harness}"
            await steps.sft(example, run=policy, out=out, dataset=data, seed=seed + number, **settings)
            made[policy] = f"{out}/model"
    return made


def policy_of_sft(values: Mapping[str, Any]) -> dict[str, Any]:
    """Initial policy and name of the run. Raises ConfigError if sft.toml has not been run."""
    policy = Path(values["store"]) / "demo-sft" / "run" / "model"
    if not policy.is_dir():
        raise ConfigError(f"{values['store']} has no policy to start from: run `make demo-sft` first")
    if values["method"] not in METHODS:
        raise ConfigError(f"there is no method {values['method']!r}: there is {', '.join(METHODS)}")
    deaths = values["sandbox_deaths"]
    run = f"demo-rl-{values['method']}-{values['seed']}"
    return {
        "policy": str(policy),
        "run": run + (f"-deaths{deaths:g}".replace(".", "-") if deaths else ""),
        "tries": 1 if deaths else 3,
    }


METHODS = ("bar", "fixed", "dynamic", "frugal")


async def new_tasks(example: Example, *, pool: int) -> tuple[Refs, Refs]:
    """First training tasks that the policy has not seen, and the held-out ones. Raises ConfigError for too
    few, and if sft.toml has not measured the policy, whose figure is shown for comparison."""
    store = example.config.store
    with open_tables(store) as tables:
        if (AFTER,) not in tables.execute(_GRADED).fetchall():
            raise ConfigError(
                f"{store} has a policy that was not measured: run `make demo-sft` once more, which goes on "
                "where it was"
            )
        shown = {task for (task,) in tables.execute(_SHOWN, [ORACLE]).fetchall()}
    new = [ref for ref in repair_refs(store, Split.TRAIN) if ref.task_id not in shown]
    if len(new) < pool:
        raise ConfigError(
            f"the store has {len(new)} training tasks that the policy has not seen, not {pool}: lower "
            "--pool, or run `make demo-sft` once more, which adds them"
        )
    return new[:pool], repair_refs(store, Split.HELD_OUT)


async def reinforced(
    example: Example, *, deaths: float, size: int, most: int, method: str, seed: int, **settings: Any
) -> None:
    """Runs `orchard rl` by a method while a share of its sandboxes is destroyed."""
    if method != "frugal":
        settings["bar"] = {"size": size} | ({"budget": most, "stride": size} if method == "bar" else {})
    async with _deaths(example, deaths, seed):
        await steps.rl(example, method=method, seed=seed, **settings)


@asynccontextmanager
async def _deaths(example: Example, share: float, seed: int) -> AsyncIterator[None]:
    if not share:
        yield
        return
    async with example.session.sandboxes() as client:
        task = asyncio.create_task(destroy(client, share, seed))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})


async def destroy(client: AsyncSandboxClient, share: float, seed: int) -> None:
    """Deletes `share` of all sandboxes soon after they appear, until cancelled."""
    chance = random.Random(seed)
    seen: set[str] = set()
    while True:
        for sandbox in await client.list_sandboxes():
            if sandbox.sandbox_id not in seen:
                seen.add(sandbox.sandbox_id)
                if chance.random() < share:
                    try:
                        await client.delete_sandbox(sandbox.sandbox_id)
                    except SandboxError:
                        continue  # its worker was through with it
        await asyncio.sleep(DEATHS_POLL_SECONDS)


_SHOWN = "select distinct task_id from rollouts where campaign = ?"
_GRADED = "select distinct campaign from rollouts where resolved is not null"
_RUNS = "select distinct run from policy_steps where run like 'demo-rl-%' order by run"
_FIGURES = """
select count(*) as groups, count(*) filter (outcome = 'balanced') as balanced,
       count(*) filter (not degenerate) as informative, coalesce(sum(generated), 0) as rollouts,
       count(distinct task_id) as pool,
       (select count(*) from rollouts_all where campaign = $run and status = 'aborted') as aborted,
       (select count(*) from events where campaign = $run and type = 'prompt.failed') as failed,
       (select count(*) from (select unnest(members, recursive := true) from groups where run = $run) m
        left join rollouts r using (rollout_id) where r.reward is null) as aborted_members
from groups where run = $run
"""
_READS = """
select avg(coalesce(tool_calls[1].arguments like '%cat -n%', false)::int) from messages
where campaign = ? and role = 'assistant' and turn = 1
"""


async def rl_figures(example: Example, *, run: str, method: str, greedy: str) -> dict[str, Any]:
    """Costs of groups and the share of rollouts that read first; draws the curves of all runs and seeds."""
    store, directory = example.config.store, example.directory
    with open_tables(store) as tables:
        cursor = tables.execute(_FIGURES, {"run": run})
        names = [column[0] for column in cursor.description or []]
        found: dict[str, Any] = dict(zip(names, cursor.fetchall()[0], strict=True))
        for name, campaign in (("reads_before", AFTER), ("reads_after", greedy)):
            found[name] = tables.execute(_READS, [campaign]).fetchall()[0][0]
        runs = [one for (one,) in tables.execute(_RUNS).fetchall()]
        plot_curves(tables, runs, directory / "curves.png")
        mine = [one for one in runs if re.fullmatch(rf"demo-rl-{method}-\d+", one)]
        graded = {name for (name,) in tables.execute(_GRADED).fetchall()}
        scores = [("before", steps.campaign_score(store, BEFORE))] + [
            (f"seed {one.rsplit('-', 1)[1]}", steps.campaign_score(store, f"{one}-after"))
            for one in mine
            if f"{one}-after" in graded
        ]
        plot_seeds(tables, mine, scores, directory / "seeds.png")
    tried = found["rollouts"] + found["aborted"]
    lost = found["aborted"] / max(tried, 1)
    return found | {
        "before_greedy": steps.campaign_score(store, AFTER),
        "tried": tried,
        "lost": lost,
        "groups_lost": 1 - (1 - lost) ** 8,
    }
