"""The learning demonstration of browser agents: a model from nothing learns to see a screen and click on it.

Generated sites of the tiny family, oracle rollouts in real Chromium with seeded mistakes, drawn drills that a
base learns to see from, a dataset with pictures, a vision-language model from scratch, reinforcement learning
on rewards from the sites' records, and held-out layouts before and after; and once more with black pictures,
which says what of it is owed to seeing. Seeds of one store share worlds, drills and the oracle's log. Stopped
in the middle it goes on where it was.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec

from orchard.actions.session import Session
from orchard.actions.terminal import console
from orchard.cli.quickstart import pipeline
from orchard.cli.reading import rows_table
from orchard.demonstrations import ENDPOINT, CommandFailed, Demonstration, campaign_score
from orchard.pipelines.campaigns.scores import Score
from orchard.pipelines.datasets.settings import DatasetSettings, Pictures, Source
from orchard.pipelines.domains.gui.screens import screen_drills, screen_episodes, write_drills
from orchard.pipelines.domains.gui.synthesis import synthesize
from orchard.pipelines.rl.barren import NothingToLearn
from orchard.pipelines.rl.curves import plot_curves
from orchard.pipelines.tasks.registry import read_task_refs
from orchard.schemas.campaigns import Budget, CampaignSpec, ModelSpec, TaskRef
from orchard.schemas.gui import DOMAIN
from orchard.schemas.llm_calls import ModelKind
from orchard.schemas.sites import NAME
from orchard.storage.reader import open_tables
from orchard.workers.domains.gui.sites.appearance import Split

HARNESS = "browser-compact"
SITE = "tiny"
BUDGET = Budget(steps=6, cost_usd=0.0)
"""A task takes four steps at most."""
CONTEXT = 2048
"""Tokens of a rollout."""
SHARED = "demo-gui"
"""Begin of the names of what all seeds share, and its directory in the store."""

SCREENS, EPISODES = "screens", "episodes"
"""Kinds of drills."""
ROUNDS = ((SCREENS,), (SCREENS, EPISODES))
"""Of the base. What is short comes first: a call is copied from what was seen, and nothing is seen yet."""

Count = Annotated[int, msgspec.Meta(ge=1)]


class GuiDemoSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of everything."""

    seed: int = 0
    """Of weights, and of the order of examples and tasks."""
    tasks: Count = 160
    """Tasks that the oracle plays."""
    mistakes: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.08
    """Share of the oracle's turns with one."""
    held_out: Count = 60
    """Tasks on layouts, grounds and contents that training has not seen."""
    before: Count = 10
    """The first of these, for the untrained model: it ends no answer by itself, so each of its rollouts is
    three answers of full length, and none acts."""
    vocabulary: Annotated[int, msgspec.Meta(ge=300)] = 768
    shape: str = "tiny-vision"
    drills: Count = 16_000
    """Drawn screens that the base learns to see from."""
    episodes: Count = 2_000
    """Drawn episodes beside them: one to three clicks and an end, in the words of the harness."""
    drill_epochs: Count = 2
    """Passes over them, first over the screens alone and then over all, each from the full learning rate."""
    epochs: Count = 3
    """Of fine-tuning."""
    batch: Annotated[int, msgspec.Meta(ge=2)] = 16
    """Of the drills; fine-tuning takes half of it."""
    lr: float = 3e-3
    """Of the base."""
    tuning_lr: float = 5e-4
    """Of fine-tuning: some hundred examples, so small that the base keeps what it sees."""
    answer_tokens: Count = 80
    """Of one answer of the model, at most."""
    rl_tasks: Count = 120
    """Tasks that the oracle did not play."""
    rl_steps: Annotated[int, msgspec.Meta(ge=0)] = 4
    """0: no reinforcement learning, as for a policy that never succeeds."""
    prompts: Count = 6
    """Groups in each step."""
    size: Count = 6
    """Rollouts of a group."""
    rl_patience: Count = 144
    """Rollouts without a group to learn from after which the policy stays as it is."""
    rl_lr: float = 3e-4
    temperature: float = 0.8
    """At which reinforcement learning samples."""
    workers: Count = 1
    slots: Count = 4
    threads: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Of torch, in training; 0: its own choice."""


class GuiDemoResult(msgspec.Struct, frozen=True, kw_only=True):
    """Success rates on the held-out tasks, by the sites' records."""

    run: str
    before: Score
    """Of the model as it was made."""
    base: Score
    """That has seen drills alone."""
    sft: Score
    """Fine-tuned on the oracle's log."""
    after: Score
    """After reinforcement learning."""
    blind: Score
    """The same with black pictures."""
    drills: int
    """Training examples of the base, drawn screens and episodes."""
    rows: int
    """Training examples of the oracle's log."""
    policies: int
    """That reinforcement learning made; 0 where there was nothing to learn from."""
    seconds: dict[str, float]
    """Of each step."""


class GuiDemo(Demonstration):
    """One seed in its own directory of the store."""

    def __init__(self, store: str, settings: GuiDemoSettings) -> None:
        self.run_name = f"demo-gui-{settings.seed}"
        super().__init__(store, self.run_name, workers=settings.workers, slots=settings.slots, domain=DOMAIN)
        self.settings = settings
        self.out = self.directory / "rl"
        self.shared = Path(store).absolute() / SHARED
        self.shared.mkdir(parents=True, exist_ok=True)

    async def run(self) -> GuiDemoResult:
        """All steps; raises what their commands raise."""
        settings, name = self.settings, self.run_name
        async with pipeline(self.config) as session:
            with self.step("1. worlds"):
                train = await self._tasks(session, "train", settings.tasks, 0)
                further = await self._tasks(session, "train", settings.rl_tasks, 1)
                held_out = await self._tasks(session, "held-out", settings.held_out, 0)
            with self.step("2. the oracle in Chromium"):
                share = f"oracle/{settings.mistakes:g}"
                oracle = ModelSpec(name=share, endpoint="oracle", kind=ModelKind.ORACLE)
                await self.campaign(session, self._plan(f"{SHARED}-oracle", train, oracle))
            with self.step("3. drawn drills, tokenizer and datasets"):
                await self._drills(SCREENS, screen_drills(0, settings.drills))
                await self._drills(EPISODES, screen_episodes(0, settings.episodes))
                await asyncio.to_thread(self._made, await self._words(session))
                for number, kinds in enumerate(ROUNDS, 1):
                    campaigns = tuple(f"{SHARED}-{kind}" for kind in kinds)
                    drills = Source(campaigns=campaigns, unproven=True)
                    drawn = await self._dataset(session, f"drills-{number}", drills, 1)
                log = Source(campaigns=(f"{SHARED}-oracle",), model_kinds=(ModelKind.ORACLE,), unproven=True)
                rows = await self._dataset(session, "oracle", log, "shown")
            with self.step("4. held-out layouts before training"):
                untrained = self.directory / "untrained"
                await self._measure(session, "before", untrained, held_out[: settings.before])
            with self.step("5. a base that sees, from drills"):
                base = untrained
                for number in range(1, len(ROUNDS) + 1):
                    what, drills_of = f"base-{number}", f"drills-{number}"
                    await self._train(
                        what, base, drills_of, settings.drill_epochs, settings.lr, settings.batch
                    )
                    base = self.directory / what / "model"
                await self._measure(session, "base", base, held_out)
            with self.step("6. fine-tuning on the oracle's log"):
                await self._train(
                    "sft", base, "oracle", settings.epochs, settings.tuning_lr, settings.batch // 2
                )
            with self.step("7. held-out layouts after fine-tuning"):
                tuned = self.directory / "sft" / "model"
                await self._measure(session, "tuned", tuned, held_out)
            if settings.rl_steps:
                with self.step("8. reinforcement learning"):
                    await self._reinforce(tuned, further)
            policies = sorted((self.out / "policies").glob("version-*"))
            newest = policies[-1] if policies else tuned
            with self.step("9. held-out layouts after it, and with black pictures"):
                if policies:
                    await self._measure(session, "after", newest, held_out)
                await self._measure(session, "blind", newest, held_out, blind=True)
            store = session.config.store
            if policies:
                with open_tables(store) as tables:
                    plot_curves(tables, [name], self.directory / "curves.png")
            before, drilled, sft, after, blind = (
                campaign_score(store, f"{name}-{each}")
                for each in ("before", "base", "tuned", "after" if policies else "tuned", "blind")
            )
        return GuiDemoResult(
            run=name,
            before=before,
            base=drilled,
            sft=sft,
            after=after,
            blind=blind,
            drills=drawn,
            rows=rows,
            policies=len(policies),
            seconds=self.seconds,
        )

    async def _tasks(self, session: Session, split: Split, count: int, part: int) -> list[TaskRef]:
        """Tasks of the tiny family, registered as `orchard tasks synthesize gui` does it."""
        options = ("--sites", SITE, "--limit", str(count), "--seed", str(part), "--layouts", split)
        await self.command("tasks", "synthesize", "gui", *options)
        async with session.connection("demo") as connection:
            await session.committed(connection)
        wanted = {task.task_id for task in synthesize(part, count, sites=(SITE,), split=split)}
        return [ref for ref in read_task_refs(session.config.store, source=NAME) if ref.task_id in wanted]

    def _plan(self, name: str, tasks: list[TaskRef], model: ModelSpec) -> CampaignSpec:
        return CampaignSpec(
            name=name,
            tasks=tuple(tasks),
            harnesses=(HARNESS,),
            models=(model,),
            samples=1,
            domain=DOMAIN,
            budget=BUDGET,
        )

    async def _drills(self, kind: str, rows: Iterator[dict[str, Any]]) -> None:
        """Drills in the log, imported as a user's own data would be."""
        if (done := self.shared / f"{kind}-imported").exists():
            return
        file = self.shared / f"{kind}.parquet"
        await asyncio.to_thread(write_drills, file, rows)
        campaign = f"{SHARED}-{kind}"
        options = (
            "--format",
            "orchard-gui",
            "--campaign",
            campaign,
            "--name",
            campaign,
            "--harness",
            HARNESS,
        )
        await self.command("dataset", "import", str(file), *options)
        done.touch()

    async def _words(self, session: Session) -> Path:
        """The tokenizer of all seeds."""
        campaigns = [f"{SHARED}-{kind}" for kind in ("oracle", SCREENS, EPISODES)]
        words = self.settings.vocabulary
        return await self.tokenizer(session, campaigns, words, pictures=True, out=self.shared / "tokenizer")

    def _made(self, words: Path) -> None:
        """The model as it is before any training, and what makes tokens of texts and pictures."""
        from orchard.pipelines.models.directories import load_tokenizer, save_model
        from orchard.pipelines.models.tiny_vision import new_vision_model

        out, reader = self.directory / "untrained", self.shared / "reader"
        if not out.is_dir():
            tokenizer = load_tokenizer(words)
            shape, seed = self.settings.shape, self.settings.seed
            model, processor = new_vision_model(shape, tokenizer=tokenizer, seed=seed)
            for part in (tokenizer, processor):
                part.save_pretrained(reader)
            save_model(model, out, tokenizer=tokenizer, processor=processor)

    async def _dataset(self, session: Session, what: str, source: Source, pictures: Pictures) -> int:
        """A dataset that all seeds share; how many examples."""
        settings = DatasetSettings(
            name=f"{SHARED}-{what}",
            tokenizer=str(self.shared / "reader"),
            source=source,
            pairs=True,
            pictures=pictures,
        )
        return await self.dataset(session, settings, self._examples(what))

    def _examples(self, what: str) -> Path:
        return self.shared / f"{what}-dataset"

    async def _train(self, what: str, model: Path, examples: str, epochs: int, lr: float, batch: int) -> None:
        settings = self.settings
        await self.fine_tune(
            f"{self.run_name}-{what}",
            self.directory / what,
            lr,
            dataset=str(self._examples(examples)),
            model=str(model),
            epochs=epochs,
            global_batch=batch,
            threads=settings.threads,
            seed=settings.seed,
        )

    async def _reinforce(self, policy: Path, tasks: list[TaskRef]) -> None:
        """`orchard rl` with the paper's loss: dynamic sampling, no mean over a rollout's tokens.

        A policy that gives it nothing to learn from stays as it is, also when the demonstration goes on.
        """
        settings, barren = self.settings, self.out / "nothing-to-learn"
        if barren.exists():
            return
        tokens = settings.prompts * settings.size * 4 * settings.answer_tokens
        recipe: dict[str, Any] = {
            "method": "dynamic",
            "run": self.run_name,
            "model": str(policy),
            "out": str(self.out),
            "harness": HARNESS,
            "domain": DOMAIN,
            "endpoint": ENDPOINT,
            "tasks": {"ids": [task.task_id for task in tasks], "unproven": True},
            "bar": {"size": settings.size, "budget": settings.size},
            "loss": {"reduction": "constant_sum", "constant": float(tokens)},
            "prompts_per_step": settings.prompts,
            "steps": settings.rl_steps,
            "lr": settings.rl_lr,
            "min_lr": settings.rl_lr / 10,
            "context": CONTEXT,
            "max_tokens": settings.answer_tokens,
            "temperature": settings.temperature,
            "max_in_flight": 4 * settings.size,
            "budget": {"steps": BUDGET.steps, "cost_usd": BUDGET.cost_usd},
            "patience": settings.rl_patience,
            "keep_policies": 1000,
            "seed": settings.seed,
            "threads": 1,
        }
        file = self.directory / "rl.toml"
        file.write_text("".join(f"{key} = {_toml(value)}\n" for key, value in recipe.items()))
        try:
            await self.command("rl", str(file))
        except CommandFailed as failed:
            if failed.code != NothingToLearn.exit_code:
                raise
            barren.touch()

    async def _measure(
        self, session: Session, what: str, model: Path, tasks: list[TaskRef], *, blind: bool = False
    ) -> None:
        """One rollout of each task, the most probable one."""
        spec = ModelSpec(
            name="policy",
            endpoint=ENDPOINT,
            temperature=0.0,
            max_tokens=self.settings.answer_tokens,
            logprobs=True,
        )
        async with self.serving(model, blind=blind):
            await self.campaign(session, self._plan(f"{self.run_name}-{what}", tasks, spec))


def show(result: GuiDemoResult) -> None:
    """The result as a table."""
    rows = [
        (f"held-out success before training, {result.before.tasks} tasks", str(result.before)),
        ("after drills alone", str(result.base)),
        ("after fine-tuning on the oracle's log", str(result.sft)),
        ("after reinforcement learning", str(result.after)),
        ("the same with black pictures", str(result.blind)),
        ("held-out tasks", str(result.after.tasks)),
        ("training examples of drills", f"{result.drills:,}"),
        ("training examples of the oracle's log", f"{result.rows:,}"),
        ("policies of reinforcement learning", str(result.policies)),
        *((title, f"{seconds:.0f} s") for title, seconds in result.seconds.items()),
        ("all of it", f"{sum(result.seconds.values()) / 60:.1f} min"),
    ]
    console.print(rows_table([result.run, ""], rows))


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_toml(each)}" for name, each in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
