"""The second demonstration: the policy that `orchard demo-sft` made learns further from its own rollouts.

The oracle knows many modules by heart and changes them unread; the policy imitates that and fails, as it
knows none. Nothing but the reward tells it to read first. Tasks that it sometimes solves, groups of Balanced
Adaptive Rollout, rewards from real test suites in real sandboxes, held-out tasks before and after. Stopped
in the middle it goes on where it was.
"""

import asyncio
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from orchard.actions.session import Session
from orchard.configuration.config import ConfigError
from orchard.demo_sft import AFTER, ORACLE
from orchard.demonstrations import (
    ANSWER_TOKENS,
    BUDGET,
    ENDPOINT,
    HARNESS,
    TIMEOUTS,
    Demonstration,
    campaign_score,
    repair_refs,
)
from orchard.injector.client import AsyncSandboxClient
from orchard.injector.errors import SandboxError
from orchard.pipelines.campaigns.scores import Score
from orchard.pipelines.domains.swe.repairs import Split
from orchard.pipelines.rl.curves import plot_curves, plot_seeds
from orchard.processes.pipeline import pipeline
from orchard.schemas.campaigns import TaskRef
from orchard.storage.reader import open_tables
from orchard.terminal.console import console
from orchard.terminal.tables import rows_table

DEATHS_POLL_SECONDS = 0.1

Count = Annotated[int, msgspec.Meta(ge=1)]
Method = Literal["bar", "fixed", "dynamic", "frugal"]


class RlDemoSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of everything."""

    seed: int = 0
    """Of the order of tasks; the policy to start from is the same for all."""
    method: Method = "bar"
    steps: Count = 8
    prompts: Count = 8
    """Groups in each step."""
    size: Count = 8
    budget: Count = 16
    lr: float = 3e-4
    negative: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Weight of the loss of what failed."""
    pool: Count = 160
    """Training tasks whose pass rate is measured; the policy has not seen them."""
    measured: Count = 3
    """Rollouts of each."""
    hardest: float = 0.75
    """Tasks of a higher pass rate are left out, like those that were never solved."""
    samples: Count = 2
    """Rollouts of each held-out task."""
    temperature: float = 0.7
    """Of the held-out tasks."""
    deaths: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    """Share of all sandboxes that are destroyed while they are used, in training."""
    workers: Count = 2
    slots: Count = 8


def demo_settings(**given: object) -> RlDemoSettings:
    """Checked settings. Raises ConfigError."""
    try:
        return msgspec.convert(given, RlDemoSettings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the demonstration cannot be run so: {error}") from error


class RlDemoResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    run: str
    before: Score
    after: Score
    greedy_before: Score
    """As `orchard demo-sft` measured it: one rollout of each held-out task, without chance."""
    greedy_after: Score
    reads_before: float
    """Share of these rollouts that begin with reading the module."""
    reads_after: float
    pool: int
    """Tasks that had groups."""
    groups: int
    balanced: int
    rollouts: int
    """Graded, in training."""
    aborted: int
    """Aborted tries, in training, those of prompts that were given up among them."""
    aborted_members: int
    """Members of groups without a reward: must be 0."""
    failed: int
    """Prompts that aborts left without a group."""
    informative: int
    seconds: dict[str, float]


_WASTE = """
select count(*), count(*) filter (outcome = 'balanced'), coalesce(sum(generated), 0),
       count(*) filter (not degenerate)
from groups where run = ?
"""
_ABORTED = "select count(*) from rollouts_all where campaign = ? and status = 'aborted'"
_MEMBERS_WITHOUT_REWARD = """
select count(*) from (select unnest(members, recursive := true) from groups where run = ?) m
left join rollouts r using (rollout_id) where r.reward is null
"""
_READS = """
select avg(coalesce(tool_calls[1].arguments like '%cat -n%', false)::int) from messages
where campaign = ? and role = 'assistant' and turn = 1
"""
_SHOWN = "select distinct task_id from rollouts where campaign = ?"
_GRADED = "select distinct campaign from rollouts where resolved is not null"
_RUNS = "select distinct run from policy_steps where run like 'demo-rl-%' order by run"
_POOL = "select count(distinct task_id) from groups where run = ?"
_FAILED = "select count(*) from events where campaign = ? and type = 'prompt.failed'"


class RlDemo(Demonstration):
    """One seed and method, in the store of `orchard demo-sft`."""

    def __init__(self, store: str, settings: RlDemoSettings) -> None:
        """Raises ConfigError where `orchard demo-sft` has not been through."""
        self.policy = Path(store).absolute() / "demo-sft" / "run" / "model"
        if not self.policy.is_dir():
            raise ConfigError(
                f"{store} has no policy to start from: run `orchard --store {store} demo-sft` first"
            )
        super().__init__(store, "demo-rl", workers=settings.workers, slots=settings.slots)
        self.settings = settings
        deaths = f"-deaths{settings.deaths:g}".replace(".", "-") if settings.deaths else ""
        self.run_name = f"demo-rl-{settings.method}-{settings.seed}{deaths}"
        self.out = self.directory / self.run_name

    async def run(self) -> RlDemoResult:
        """All steps; raises what their commands raise."""
        settings, store = self.settings, self.config.store
        before, measuring = "demo-rl-before", "demo-rl-measuring"
        after, greedy = f"{self.run_name}-after", f"{self.run_name}-greedy"

        async def evaluate(
            session: Session, name: str, model: Path, temperature: float, samples: int
        ) -> None:
            tasks = repair_refs(store, Split.HELD_OUT)
            await self.sampled(session, name, model, tasks, temperature=temperature, samples=samples)

        chance = (settings.temperature, settings.samples)

        async with pipeline(self.config, console.print) as session:
            train = await asyncio.to_thread(self._new_tasks)
            with self.step("1. held-out tasks before"):
                await evaluate(session, before, self.policy, *chance)
            with self.step("2. how hard the training tasks are"):
                await self.sampled(
                    session, measuring, self.policy, train, temperature=1.0, samples=settings.measured
                )
            with self.step("3. reinforcement learning"):
                file = self.directory / f"{self.run_name}.toml"
                file.write_text(toml(self._recipe(measuring)))
                async with self._deaths(session):
                    await self.command("rl", str(file))
            with self.step("4. held-out tasks after"):
                newest = max((self.out / "policies").glob("version-*"))
                await evaluate(session, after, newest, *chance)
                await evaluate(session, greedy, newest, 0.0, 1)
        return self._result(before, after, greedy)

    def _new_tasks(self) -> list[TaskRef]:
        """The first training tasks that the policy has not been shown. Raises ConfigError for too few, and
        where `orchard demo-sft` has not measured the policy, as its figure stands beside ours."""
        settings = self.settings
        with open_tables(self.config.store) as tables:
            if (AFTER,) not in tables.execute(_GRADED).fetchall():
                raise ConfigError(
                    f"{self.config.store} has a policy that was not measured: run `orchard --store "
                    f"{self.config.store} demo-sft` once more, which goes on where it was"
                )
            shown = {task for (task,) in tables.execute(_SHOWN, [ORACLE]).fetchall()}
        new = [ref for ref in repair_refs(self.config.store, Split.TRAIN) if ref.task_id not in shown]
        if len(new) < settings.pool:
            raise ConfigError(
                f"the store has {len(new)} training tasks that the policy has not seen, not {settings.pool}: "
                "lower --pool, or run `orchard demo-sft` once more, which adds them"
            )
        return new[: settings.pool]

    def _recipe(self, measuring: str) -> dict[str, Any]:
        """The file of `orchard rl`."""
        settings = self.settings
        bar: dict[str, Any] = {"size": settings.size}
        if settings.method == "bar":
            bar |= {"budget": settings.budget, "stride": settings.size}
        return {
            "method": settings.method,
            "run": self.run_name,
            "model": str(self.policy),
            "out": str(self.out),
            "harness": HARNESS,
            "endpoint": ENDPOINT,
            "tasks": {
                "unproven": True,  # written by this program, with their repairs
                "ids": ["repair-train-*"],
                "measured_in": measuring,
                "above": 0.0,
                "at_most": settings.hardest,
            },
            "prompts_per_step": settings.prompts,
            "steps": settings.steps,
            "lr": settings.lr,
            "min_lr": settings.lr / 10,
            "context": 4096,
            "max_tokens": ANSWER_TOKENS,
            "max_in_flight": 8 * settings.size,
            "budget": {"steps": BUDGET.steps, "cost_usd": BUDGET.cost_usd},
            "timeouts": {"command": TIMEOUTS.command},
            "keep_policies": 1000,
            "max_tries": 1 if settings.deaths else 3,
            "seed": settings.seed,
            "threads": 1,
            "loss": {"negative": settings.negative},
            **({} if settings.method == "frugal" else {"bar": bar}),
        }

    @asynccontextmanager
    async def _deaths(self, session: Session) -> AsyncIterator[None]:
        """Destroy a share of the sandboxes while they are used."""
        if not self.settings.deaths:
            yield
            return
        async with session.sandboxes() as client:
            task = asyncio.create_task(destroy(client, self.settings.deaths, self.settings.seed))
            try:
                yield
            finally:
                task.cancel()
                await asyncio.wait({task})

    def _result(self, before: str, after: str, greedy: str) -> RlDemoResult:
        store, settings = self.config.store, self.settings
        with open_tables(store) as tables:
            groups, balanced, rollouts, informative = tables.execute(_WASTE, [self.run_name]).fetchall()[0]
            aborted = tables.execute(_ABORTED, [self.run_name]).fetchall()[0][0]
            members = tables.execute(_MEMBERS_WITHOUT_REWARD, [self.run_name]).fetchall()[0][0]
            failed = tables.execute(_FAILED, [self.run_name]).fetchall()[0][0]
            runs = [run for (run,) in tables.execute(_RUNS).fetchall()]
            plot_curves(tables, runs, self.directory / "curves.png")
            mine = [run for run in runs if re.fullmatch(rf"demo-rl-{settings.method}-\d+", run)]
            graded = {name for (name,) in tables.execute(_GRADED).fetchall()}
            finished = [run for run in mine if f"{run}-after" in graded]
            held_out = [
                (f"seed {run.rsplit('-', 1)[1]}", campaign_score(store, f"{run}-after")) for run in finished
            ]
            plot_seeds(
                tables,
                mine,
                [("before", campaign_score(store, before)), *held_out],
                self.directory / "seeds.png",
            )
            pool = tables.execute(_POOL, [self.run_name]).fetchall()[0][0]
            reads = [tables.execute(_READS, [name]).fetchall()[0][0] for name in (AFTER, greedy)]
        return RlDemoResult(
            run=self.run_name,
            before=campaign_score(store, before),
            after=campaign_score(store, after),
            greedy_before=campaign_score(store, AFTER),
            greedy_after=campaign_score(store, greedy),
            reads_before=reads[0],
            reads_after=reads[1],
            pool=pool,
            groups=groups,
            balanced=balanced,
            rollouts=rollouts,
            aborted=aborted,
            aborted_members=members,
            failed=failed,
            informative=informative,
            seconds=self.seconds,
        )


async def destroy(client: AsyncSandboxClient, share: float, seed: int) -> None:
    """Delete `share` of all sandboxes soon after they are seen, until cancelled."""
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


def show(result: RlDemoResult) -> None:
    """The result as a table."""
    tried = result.rollouts + result.aborted
    lost = result.aborted / max(tried, 1)
    rows = [
        ("held-out pass rate before", str(result.before)),
        ("held-out pass rate after", str(result.after)),
        ("the same without chance, before", str(result.greedy_before)),
        ("the same without chance, after", str(result.greedy_after)),
        ("begins with reading, before and after", f"{result.reads_before:.0%}, {result.reads_after:.0%}"),
        ("training tasks", f"{result.pool}"),
        ("groups, balanced, with both classes", f"{result.groups}, {result.balanced}, {result.informative}"),
        ("graded rollouts", f"{result.rollouts:,}"),
        ("aborted rollouts, refilled", f"{result.aborted} of {tried:,} ({lost:.1%})"),
        ("members of groups without a reward", str(result.aborted_members)),
        ("prompts given up for aborts", str(result.failed)),
        ("groups of 8 that would be lost without refills", f"{1 - (1 - lost) ** 8:.1%}"),
        *((title, f"{seconds:.0f} s") for title, seconds in result.seconds.items()),
        ("all of it", f"{sum(result.seconds.values()) / 60:.1f} min"),
    ]
    console.print(rows_table([result.run, ""], rows))


def toml(tree: dict[str, Any]) -> str:
    """A TOML file of these values; tables are inline ones."""
    return "".join(f"{name} = {_value(value)}\n" for name, value in tree.items())


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_value(each)}" for name, each in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
