"""The learning demonstration: an oracle distilled into a model of a million parameters, from nothing.

Generated repair tasks, a campaign of oracle rollouts, values for the unresolved ones, a dataset, a tokenizer,
a trainer, a server, and held-out tasks in real sandboxes before and after. Each step is one that users have
as a command; each is skipped when it was done, so that a stopped run goes on.
"""

import asyncio
from pathlib import Path
from typing import Annotated

import msgspec

from orchard.actions.session import Session
from orchard.actions.values import annotate_campaign
from orchard.demonstrations import (
    ANSWER_TOKENS,
    Demonstration,
    campaign_of,
    campaign_score,
)
from orchard.pipelines.campaigns.scores import Score
from orchard.pipelines.domains.swe.repairs import FUNCTIONS, Split, repair_tasks
from orchard.pipelines.values.requests import Asking
from orchard.processes.pipeline import pipeline
from orchard.schemas.campaigns import CampaignSpec, ModelSpec, TaskRef
from orchard.schemas.llm_calls import ModelKind
from orchard.terminal.console import console
from orchard.terminal.tables import rows_table
from orchard.workers.oracle.behaviours import DEFAULT_MIX

ORACLE = "demo-oracle"
"""The campaign that is distilled."""
AFTER = "demo-after"
"""The trained model's campaign on the held-out tasks, greedy."""

Count = Annotated[int, msgspec.Meta(ge=1)]


class DemoSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of everything; the defaults take under 25 minutes on 2 cores."""

    tasks: Count = 500
    """Training tasks."""
    samples: Count = 3
    """Oracle rollouts of each."""
    further: Count = 200
    """Training tasks beyond these that no rollout tries: `orchard demo-rl` needs new ones."""
    kinds: tuple[str, ...] = ()
    """Kinds of bug; empty: all 28."""
    functions: Count = len(FUNCTIONS)
    """Names of functions in all tasks."""
    mix: dict[str, float] = msgspec.field(default_factory=DEFAULT_MIX.copy)
    """Shares of what the oracle does."""
    held_out: Count = 100
    """Tasks that no rollout of the campaign has seen."""
    workers: Count = 2
    slots: Count = 4
    vocabulary: Annotated[int, msgspec.Meta(ge=300)] = 1024
    shape: str = "tiny-1m"
    epochs: Count = 8
    batch: Count = 16
    lr: float = 3e-3
    threads: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Of torch, in training; 0: its own choice."""
    answer_tokens: Count = ANSWER_TOKENS
    """Of one answer of the model, at most."""
    seed: int = 0


class DemoResult(msgspec.Struct, frozen=True, kw_only=True):
    """Pass rates on the held-out tasks."""

    before: Score
    after: Score
    rows: int
    """Training examples."""
    seconds: dict[str, float]
    """Of each step."""


class Demo(Demonstration):
    """One demonstration in one directory of the store."""

    def __init__(self, store: str, settings: DemoSettings) -> None:
        super().__init__(store, "demo-sft", workers=settings.workers, slots=settings.slots, mix=settings.mix)
        self.settings = settings

    @property
    def model(self) -> Path:
        """Where the trained model lies."""
        return self.directory / "run" / "model"

    async def run(self) -> DemoResult:
        """All steps; raises what their commands raise."""
        async with pipeline(self.config, console.print) as session:
            with self.step("1. tasks and their image"):
                train, held_out = await self._tasks(session)
            with self.step("2. a campaign of oracle rollouts"):
                await self.campaign(session, self._oracle(train))
            with self.step("3. values of the unresolved trajectories"):
                await annotate_campaign(session, ORACLE, Asking(model="oracle", endpoint="oracle"), 16)
            with self.step("4. tokenizer and dataset"):
                rows = await self._dataset(session)
            with self.step("5. held-out tasks before training"):
                await asyncio.to_thread(self._untrained)
                await self._evaluate(session, "demo-before", self.directory / "untrained", held_out)
            with self.step("6. training"):
                await self.train(
                    "demo-sft", self.directory, self.settings, tokenizer=self.directory / "tokenizer"
                )
            with self.step("7. held-out tasks after training"):
                await self._evaluate(session, AFTER, self.model, held_out)
            before, after = (campaign_score(session.config.store, name) for name in ("demo-before", AFTER))
        return DemoResult(before=before, after=after, rows=rows, seconds=self.seconds)

    async def _tasks(self, session: Session) -> tuple[list[TaskRef], list[TaskRef]]:
        settings = self.settings
        total, drawn = settings.tasks + settings.further, (settings.kinds, settings.functions)
        train = list(repair_tasks(total, settings.seed, Split.TRAIN, *drawn))
        held_out = list(repair_tasks(settings.held_out, settings.seed, Split.HELD_OUT, *drawn))
        refs, held_out_refs = await self.repair_world(session, train, held_out)
        tried = {task.task_id for task in train[: settings.tasks]}
        return [ref for ref in refs if ref.task_id in tried], held_out_refs

    def _oracle(self, tasks: list[TaskRef]) -> CampaignSpec:
        model = ModelSpec(name="oracle", endpoint="oracle", kind=ModelKind.ORACLE)
        return campaign_of(ORACLE, tasks, model, self.settings.samples)

    async def _dataset(self, session: Session) -> int:
        """Dataset and tokenizer; how many examples."""
        from orchard.pipelines.datasets.settings import DatasetSettings, Source, Values

        settings = DatasetSettings(
            name="demo-sft",
            tokenizer=str(await self.tokenizer(session, [ORACLE], self.settings.vocabulary)),
            source=Source(  # the tasks are written by this program, with their repairs
                campaigns=(ORACLE,), model_kinds=(ModelKind.ORACLE,), unproven=True
            ),
            values=Values(annotator="oracle"),
        )
        return await self.dataset(session, settings, self.directory / "dataset")

    def _untrained(self) -> None:
        """The model as it is before any training, to be measured like the trained one."""
        from transformers import AutoTokenizer

        from orchard.pipelines.models.directories import save_model
        from orchard.pipelines.models.tiny import new_model

        out = self.directory / "untrained"
        if not out.is_dir():
            tokenizer = AutoTokenizer.from_pretrained(self.directory / "tokenizer")
            model = new_model(
                self.settings.shape, vocabulary=len(tokenizer), seed=self.settings.seed, tokenizer=tokenizer
            )
            save_model(model, out, tokenizer=tokenizer)

    async def train(self, run: str, directory: Path, settings: DemoSettings, *, tokenizer: Path) -> None:
        """Fine-tune a new model on the dataset that is in `directory`."""
        await self.fine_tune(
            run,
            directory / "run",
            settings.lr,
            dataset=str(directory / "dataset"),
            shape=settings.shape,
            tokenizer=str(tokenizer),
            epochs=settings.epochs,
            global_batch=settings.batch,
            threads=settings.threads,
            seed=settings.seed,
        )

    async def _evaluate(self, session: Session, name: str, model: Path, tasks: list[TaskRef]) -> None:
        """A campaign on the held-out tasks, one greedy rollout each."""
        longest = self.settings.answer_tokens
        await self.sampled(session, name, model, tasks, temperature=0.0, samples=1, max_tokens=longest)


def show(result: DemoResult) -> None:
    """The result as a table."""
    rows = [
        ("held-out pass rate before training", str(result.before)),
        ("held-out pass rate after training", str(result.after)),
        ("held-out tasks", str(result.after.tasks)),
        ("training examples", f"{result.rows:,}"),
        *((title, f"{seconds:.0f} s") for title, seconds in result.seconds.items()),
        ("all of it", f"{sum(result.seconds.values()) / 60:.1f} min"),
    ]
    console.print(rows_table(["demo-sft", ""], rows))
