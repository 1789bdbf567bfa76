"""The matrix: small policies, each taught in one harness, evaluated in three, as the paper's Table 10 does.

The oracle plays tasks in the compact harness, and a base is distilled from that log. Of some of these tasks
it has a log in two other harnesses; policies are trained further from the base on one of these alone. All are
evaluated on held-out tasks in both, and in a third that none has seen, a program of another's making.
Each step is one that users have as a command; each is skipped when it was done, so that a stopped run goes
on.
"""

import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import msgspec

from orchard.actions.session import Session
from orchard.demonstrations import ANSWER_TOKENS, BUDGET, HARNESS, TIMEOUTS, Demonstration, campaign_of
from orchard.pipelines.domains.swe.repairs import SOURCE, Split, repair_tasks
from orchard.pipelines.evaluation.results import Results, read_results
from orchard.processes.pipeline import pipeline
from orchard.schemas.campaigns import ModelSpec, TaskRef
from orchard.schemas.llm_calls import ModelKind
from orchard.schemas.tasks import Task
from orchard.storage.reader import open_tables
from orchard.terminal.console import console
from orchard.terminal.evaluation_tables import show_results
from orchard.workers.domains.swe.oracle.repairs import at_home
from orchard.workers.episode.diffs import parse_diff
from orchard.workers.harnesses.programs.layers import layers_among

PLAIN, LESSONS = "matrix-plain", "matrix-lessons"
"""The oracle's campaigns: in the compact harness for the base, and in the others for the policies."""
MATRIX = "demo-matrix"
"""The evaluation."""
TAUGHT = ("orchard-bash", "mini-swe-agent-text")
"""Harnesses that policies are trained in."""
UNSEEN = "mini-swe-agent-cli"
"""A program: it calls tools as the first of them does, and has the words of the second."""

Count = Annotated[int, msgspec.Meta(ge=1)]


class MatrixSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of everything."""

    tasks: Count = 160
    """Training tasks of the base."""
    lessons: Count = 48
    """Of these, the ones that the oracle plays in the other harnesses, too."""
    held_out: Count = 20
    """Tasks that no policy has seen."""
    kinds: tuple[str, ...] = ("sum", "difference", "larger", "smaller")
    """Kinds of bug."""
    functions: Count = 24
    """Names of functions in all tasks."""
    seeds: Count = 1
    """Policies of each harness, trained from one base in different orders."""
    workers: Count = 2
    slots: Count = 4
    vocabulary: Annotated[int, msgspec.Meta(ge=300)] = 2048
    shape: str = "tiny-far"
    base_epochs: Count = 20
    """Over the log of the compact harness."""
    epochs: Count = 12
    """Over the log of the policy's harness."""
    batch: Count = 4
    lr: float = 1e-2
    threads: Annotated[int, msgspec.Meta(ge=0)] = 1
    """Of torch, in training; 0: its own choice."""
    seed: int = 0


class MatrixDemo(Demonstration):
    """One demonstration in one directory of the store."""

    def __init__(self, store: str, settings: MatrixSettings) -> None:
        self.settings = settings
        self.arms = {harness: [f"{harness}-{seed}" for seed in range(settings.seeds)] for harness in TAUGHT}
        """Names of the policies by the harness that they were taught in."""
        super().__init__(
            store,
            "demo-matrix",
            workers=settings.workers,
            slots=settings.slots,
            mix={"resolves": 1.0},
            endpoints=[policy for policies in self.arms.values() for policy in policies],
        )

    @property
    def report(self) -> Path:
        """Where the tables and the picture lie."""
        return self.directory / "report"

    async def run(self) -> Results:
        """All steps; raises what their commands raise."""
        async with pipeline(self.config, console.print) as session:
            with self.step(f"1. the program {UNSEEN}"):
                await self._program(session)
            with self.step("2. tasks and their image"):
                train, held_out = await self._tasks(session)
            with self.step("3. the oracle in each harness"):
                await self._oracle(session, train)
            with self.step("4. tokenizer and datasets"):
                await self.tokenizer(session, [PLAIN, LESSONS], self.settings.vocabulary)
                for harness in (HARNESS, *TAUGHT):
                    await self._dataset(session, harness)
            with self.step("5. a base, and policies of each harness from it"):
                await self._train()
            with self.step("6. every policy in every harness, on held-out tasks"):
                await self._evaluate(held_out)
            with open_tables(session.config.store) as tables:
                return read_results(tables, MATRIX)

    async def _program(self, session: Session) -> None:
        async with session.sandboxes() as client:
            layers = layers_among(await client.list_images())
        if not any(layer.program == UNSEEN for layer, _ in layers):
            await self.command("harness", "install", UNSEEN)

    async def _tasks(self, session: Session) -> tuple[list[TaskRef], list[TaskRef]]:
        settings = self.settings
        return await self.repair_world(
            session, self._drawn(Split.TRAIN, settings.tasks), self._drawn(Split.HELD_OUT, settings.held_out)
        )

    def _drawn(self, split: Split, count: int) -> list[Task]:
        """The first tasks of folders in which the oracle reads before it changes a line."""
        settings = self.settings
        tasks = repair_tasks(None, settings.seed, split, settings.kinds, settings.functions)
        read = [task for task in tasks if not at_home(parse_diff(task.gold_patch)[0].path.partition("/")[0])]
        if len(read) < count:
            raise ValueError(f"there are {len(read)} {split} tasks of these kinds and functions, not {count}")
        return read[:count]

    async def _oracle(self, session: Session, tasks: list[TaskRef]) -> None:
        model = ModelSpec(name="oracle", endpoint="oracle", kind=ModelKind.ORACLE)
        lessons = tasks[: self.settings.lessons]
        await self.campaign(session, campaign_of(PLAIN, tasks, model, 1))
        await self.campaign(session, campaign_of(LESSONS, lessons, model, 1, TAUGHT))

    async def _dataset(self, session: Session, harness: str) -> None:
        from orchard.pipelines.datasets.settings import DatasetSettings, Source

        settings = DatasetSettings(
            name=f"matrix-{harness}",
            tokenizer=str(self.directory / "tokenizer"),
            source=Source(
                campaigns=(PLAIN, LESSONS),
                harnesses=(harness,),
                model_kinds=(ModelKind.ORACLE,),
                unproven=True,  # the tasks are written by this program, with their repairs
            ),
        )
        await self.dataset(session, settings, self.directory / "datasets" / harness)

    async def _train(self) -> None:
        settings = self.settings
        base, tokenizer = self.directory / "runs" / "base", str(self.directory / "tokenizer")
        base.parent.mkdir(exist_ok=True)
        shared = {"tokenizer": tokenizer, "global_batch": settings.batch, "threads": settings.threads}
        await self.fine_tune(
            "matrix-base",
            base,
            settings.lr,
            dataset=str(self.directory / "datasets" / HARNESS),
            shape=settings.shape,
            epochs=settings.base_epochs,
            seed=settings.seed,
            **shared,
        )
        for harness, policies in self.arms.items():
            for number, policy in enumerate(policies):
                await self.fine_tune(
                    policy,
                    base.with_name(policy),
                    settings.lr / 2,
                    dataset=str(self.directory / "datasets" / harness),
                    model=str(base / "model"),
                    epochs=settings.epochs,
                    seed=settings.seed + number,
                    **shared,
                )

    async def _evaluate(self, held_out: list[TaskRef]) -> None:
        """`orchard eval` in a process of its own, as a user would, beside a server of each policy."""
        ids = json.dumps([task.task_id for task in held_out])
        lines = [
            f'name = "{MATRIX}"',
            f"harnesses = {json.dumps([*TAUGHT, UNSEEN])}",
            f'task_sets = [{{ name = "held-out", source = "{SOURCE}", ids = {ids}, unproven = true }}]',
            f"budget = {{ steps = {BUDGET.steps}, cost_usd = {BUDGET.cost_usd} }}",
            f"timeouts = {{ command = {TIMEOUTS.command} }}",
        ]
        if self.settings.seeds > 1:
            members = (f'"{harness}" = {json.dumps(policies)}' for harness, policies in self.arms.items())
            lines.append(f"arms = {{ {', '.join(members)} }}")
        for policy in self.ports:
            lines += ["[[models]]", f'name = "{policy}"', f'endpoint = "{policy}"']
            lines += ["temperature = 0.0", f"max_tokens = {ANSWER_TOKENS}"]
        file = self.directory / "suite.toml"
        file.write_text("\n".join([*lines, ""]))
        async with AsyncExitStack() as stack:
            for policy in self.ports:
                model = self.directory / "runs" / policy / "model"
                await stack.enter_async_context(self.serving(model, policy, policy))
            await self.command("eval", str(file), "--out", str(self.report))


def show(demo: MatrixDemo, results: Results) -> None:
    """The tables again, and where they lie."""
    show_results(results)
    for title, seconds in demo.seconds.items():
        console.print(f"{title}: {seconds:.0f} s", highlight=False)
    console.print(f"the report: {demo.report}", highlight=False)
