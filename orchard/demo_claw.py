"""The demonstration of assistants: small worlds of services, a tiny model that learns errands in them.

The seeded author makes worlds and proves each task. A base learns to copy from drills, and the solver's
rollouts, in the harness `claw-react` and in a program, are distilled into it. That solver mostly guesses an
address or an id in place of looking it up, which is right in tidy worlds alone. What the log keeps are the
rollouts that passed, so the policy guesses too, and fails where that fails. Reinforcement learning with the
tasks' own test scripts teaches it to look, in worlds that it does not see again: it is measured in others, in
both harnesses. Each step is one that users have as a command; each is skipped when it was done, so that a
stopped run goes on.
"""

import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any

import msgspec

from orchard.actions.session import Session
from orchard.actions.terminal import console
from orchard.cli.evaluation import show_results
from orchard.cli.quickstart import pipeline
from orchard.cli.reading import rows_table
from orchard.demo_rl import toml
from orchard.demonstrations import ANSWER_TOKENS, ENDPOINT, Demonstration
from orchard.domains.claw.synthesis import with_progress
from orchard.domains.claw.synthesizing import SEEDED
from orchard.pipelines.campaigns.scores import Score
from orchard.pipelines.datasets.importing import import_trajectories
from orchard.pipelines.datasets.settings import DatasetSettings, Source
from orchard.pipelines.domains.claw.author import Author, mistake_of
from orchard.pipelines.domains.claw.drafts import SOURCE
from orchard.pipelines.domains.claw.drills import drills
from orchard.pipelines.domains.claw.errands import Errands
from orchard.pipelines.domains.claw.loop import Wanted
from orchard.pipelines.domains.swe.released_rows import released
from orchard.pipelines.evaluation.results import Pair, Results, paired, read_results
from orchard.pipelines.tasks.held_out import HeldOut
from orchard.schemas.llm_calls import ModelKind
from orchard.storage.reader import open_tables
from orchard.streams.publisher import Publisher
from orchard.workers.harnesses.programs.layers import layers_among

HARNESSES = ("claw-react", "mcp-loop")
"""The policy learns errands in both, and is improved in the first alone."""
TRAINED, HELD_OUT = "demo-claw-worlds", "demo-claw-held-out"
"""The synthesis runs, and the campaigns of their solver's rollouts."""
DRILLS = {False: "demo-claw-short-drills", True: "demo-claw-long-drills"}
"""The campaigns of the drills, which are imported: by whether they are the long ones."""
COPIES, BASE, SFT, RL = "copies", "base", "sft", "rl"
"""The model that copies from short drills, the base that learned long ones too, and the policies before and
after reinforcement learning, whose endpoints have their names."""
STEPS = 6
"""Answers of the policy in one rollout, at most."""

Count = Annotated[int, msgspec.Meta(ge=1)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class ClawSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of everything."""

    worlds: Count = 150
    tasks: Count = 240
    """In these worlds."""
    samples: Count = 1
    """Rollouts of the solver for each of them and each harness."""
    held_out_worlds: Count = 10
    held_out: Count = 60
    """Tasks in these worlds, which no policy sees before it is measured."""
    mistakes: Share = 0.3
    """Of the author."""
    guesses: Share = 0.75
    """Rollouts of the solver in which it guesses."""
    slots: Count = 4
    workers: Count = 2
    vocabulary: Annotated[int, msgspec.Meta(ge=300)] = 1200
    shape: str = "tiny-copy"
    drills: Count = 6000
    """Short ones that a model learns to copy from, and so many long ones."""
    drill_epochs: Count = 5
    """Of each of the two kinds."""
    epochs: Count = 16
    """Of fine-tuning."""
    batch: Count = 8
    lr: float = 1e-2
    """Of the base; fine-tuning has half of it."""
    steps: Count = 16
    """Of reinforcement learning."""
    prompts: Count = 8
    """Groups in each step."""
    size: Count = 8
    """Rollouts of a group."""
    keep_degenerate: bool = True
    """Train on groups of one class, too: so it ends, however little the policy can do."""
    unsolved: bool = False
    """Take as prompts those tasks alone that no rollout of the solver passed."""
    rl_lr: float = 1e-3
    temperature: Annotated[float, msgspec.Meta(ge=0)] = 0.7
    """At which policies are measured; in reinforcement learning they are sampled at 1."""
    threads: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Of torch, in training; 0: its own choice."""
    seed: int = 0
    """Of worlds, weights and orders."""
    start: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Another start of the weights and another order, over the same worlds, log and drills."""


class ClawResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    worlds: int
    """In which there is an accepted task."""
    tasks: int
    """Accepted, all of them proven."""
    mistakes: int
    """Proposals in which the author made one."""
    missed: int
    """Of these, those that were accepted with it."""
    rows: int
    """Training examples."""
    looks: dict[str, float]
    """Policy to the share of its rollouts in `claw-react` that begin with looking something up."""
    results: Results
    """The matrix: both policies in both harnesses."""
    seconds: dict[str, float]
    """Of each step."""

    def score(self, policy: str, harness: str = HARNESSES[0]) -> Score:
        """pass@1 on the held-out tasks. Raises StopIteration where nothing was graded."""
        return next(
            score
            for cell in self.results.cells
            if (cell.model, cell.harness) == (policy, harness)
            for score in [cell.pass_at(1)]
            if score is not None
        )

    @property
    def gain(self) -> Pair:
        """RL against SFT in the harness of the training, task by task."""
        cells = {cell.model: cell for cell in self.results.cells if cell.harness == HARNESSES[0]}
        gain = paired(cells[SFT], cells[RL])
        assert gain is not None
        return gain


_SOLVED = "select distinct task_id from rollouts where campaign = ? and resolved"
_LOOKS = """
select r.model, avg(coalesce(m.tool_calls[1].name like '%_list_%', false)::int)
from messages m join rollouts r using (rollout_id)
where r.campaign = ? and r.harness = ? and m.role = 'assistant' and m.turn = 1 group by 1
"""


class ClawDemo(Demonstration):
    """One seed, in one directory of the store."""

    def __init__(self, store: str, settings: ClawSettings) -> None:
        self.settings = settings
        super().__init__(
            store,
            f"demo-claw-{settings.seed}",
            workers=settings.workers,
            slots=settings.slots,
            endpoints=(ENDPOINT, SFT, RL),
        )
        self.models = self.directory / f"start-{settings.start}" if settings.start else self.directory
        """Where policies lie, and what is measured of them."""
        self.models.mkdir(exist_ok=True)

    @property
    def report(self) -> Path:
        """Where the tables and the picture of the matrix lie."""
        return self.models / "report"

    def name(self, what: str) -> str:
        """Of a campaign of this seed."""
        return f"{what}-{self.settings.seed}"

    def run_name(self, what: str) -> str:
        """Of a training run or an evaluation of this seed and start."""
        return self.name(what) + (f"-start-{self.settings.start}" if self.settings.start else "")

    @property
    def _start(self) -> int:
        """The seed of weights and orders."""
        return self.settings.seed + 1000 * self.settings.start

    async def run(self) -> ClawResult:
        """All steps; raises what their commands raise."""
        settings, seed = self.settings, self.settings.seed
        train = Errands(2 * seed + 1, settings.worlds, guesses=settings.guesses)
        known = train.statements(10 * settings.tasks)
        held_out = Errands(2 * seed + 2, settings.held_out_worlds, guesses=0.0, without=known)
        async with pipeline(self.config) as session:
            with self.step("1. the program mcp-loop"):
                await self._program(session)
            with self.step("2. worlds, proven, and the solver's rollouts"):
                ids = await self._tasks(session, TRAINED, train, settings.tasks, settings.samples, HARNESSES)
            with self.step("3. held-out worlds, proven"):
                measured = await self._tasks(session, HELD_OUT, held_out, settings.held_out, 1, HARNESSES[:1])
            with self.step("4. drills, and a base that copies"):
                tokenizer = await self._base(session)
            with self.step("5. fine-tuning"):
                rows = await self._distil(session, tokenizer)
            with self.step("6. reinforcement learning"):
                file = self.models / "rl.toml"
                file.write_text(toml(self._recipe(self._unsolved(ids) if settings.unsolved else ids)))
                await self.command("rl", str(file))
            with self.step("7. both policies in both harnesses, on held-out worlds"):
                await self._evaluate(measured)
        return self._result(rows, (train, held_out))

    async def _program(self, session: Session) -> None:
        async with session.sandboxes() as client:
            layers = layers_among(await client.list_images())
        if not any(layer.program == HARNESSES[1] for layer, _ in layers):
            await self.command("harness", "install", HARNESSES[1])

    async def _tasks(
        self,
        session: Session,
        run: str,
        errands: Errands,
        count: int,
        samples: int,
        harnesses: tuple[str, ...],
    ) -> list[str]:
        """Ids of the accepted tasks of a run."""
        wanted = Wanted(
            run=self.name(run),
            author=SEEDED,
            solver=SEEDED,
            tasks=count,
            seed=errands.seed,
            rollouts=samples,
            harnesses=harnesses,
            slots=self.settings.slots,
        )
        made = await with_progress(session, wanted, Author(errands, self.settings.mistakes))
        return [task.task_id for task in made.tasks]

    async def _base(self, session: Session) -> Path:
        """A model that copies, from short drills, then from long ones; the directory of its tokenizer."""
        settings = self.settings
        async with session.connection("demo") as connection:
            for long, campaign in DRILLS.items():
                await import_trajectories(
                    Publisher(connection),
                    session.blobs,
                    released(drills(settings.seed, settings.drills, long=long), HARNESSES[0]),
                    campaign=self.name(campaign),
                    dataset=self.name(campaign),
                )
            await session.committed(connection)
        # The names of four tools, not their schemas: these are longer than the rest of an errand.
        campaigns = [self.name(TRAINED), *map(self.name, DRILLS.values())]
        tokenizer = await self.tokenizer(session, campaigns, settings.vocabulary, schemas=False)
        starts = {False: {"shape": settings.shape}, True: {"model": str(self.models / COPIES / "model")}}
        for long, campaign in DRILLS.items():
            await self._trained(
                session,
                tokenizer,
                BASE if long else COPIES,
                Source(campaigns=(self.name(campaign),), unproven=True),
                settings.lr,
                epochs=settings.drill_epochs,
                global_batch=2 * settings.batch,
                **starts[long],
            )
        return tokenizer

    async def _distil(self, session: Session, tokenizer: Path) -> int:
        """The policy to start from; how many examples it saw."""
        settings = self.settings
        return await self._trained(
            session,
            tokenizer,
            SFT,
            Source(campaigns=(self.name(TRAINED),), model_kinds=(ModelKind.ORACLE,)),
            settings.lr / 2,
            model=str(self.models / BASE / "model"),
            epochs=settings.epochs,
            global_batch=settings.batch,
        )

    async def _trained(
        self, session: Session, tokenizer: Path, policy: str, source: Source, lr: float, **more: object
    ) -> int:
        """A dataset of `source` and the policy that is fine-tuned on it; how many examples there are."""
        dataset = self.directory / f"{policy}-dataset"
        settings = DatasetSettings(
            name=self.name(f"demo-claw-{policy}"),
            tokenizer=str(tokenizer),
            source=source,
            held_out=HeldOut(evaluations=False),  # other worlds, and no statement of these
        )
        rows = await self.dataset(session, settings, dataset)
        await self.fine_tune(
            self.run_name(f"demo-claw-{policy}"),
            self.models / policy,
            lr,
            dataset=str(dataset),
            tokenizer=str(tokenizer),
            threads=self.settings.threads,
            seed=self._start,
            **more,
        )
        return rows

    def _solved(self) -> set[str]:
        """Tasks that a rollout of the solver passed."""
        with open_tables(self.config.store) as tables:
            return {task for (task,) in tables.execute(_SOLVED, [self.name(TRAINED)]).fetchall()}

    def _unsolved(self, ids: list[str]) -> list[str]:
        """Those of `ids` that the solver's log does not have, so that the policy has not learned them by
        heart. All, where they are too few for a step."""
        left = sorted({*ids} - self._solved())
        return left if len(left) >= self.settings.prompts else ids

    def _recipe(self, ids: list[str]) -> dict[str, Any]:
        """The file of `orchard rl`."""
        settings = self.settings
        return {
            "preset": "claw",
            "run": self.run_name("demo-claw-rl"),
            "model": str(self.models / SFT / "model"),
            "out": str(self.models / RL),
            "harness": HARNESSES[0],
            "endpoint": ENDPOINT,
            "tasks": {"ids": ids, "held_out": {"evaluations": False}},
            "prompts_per_step": settings.prompts,
            "steps": settings.steps,
            "oversample": 1.0,
            "bar": {"size": settings.size, "budget": settings.size},
            "keep_degenerate": settings.keep_degenerate,
            "lr": settings.rl_lr,
            "min_lr": settings.rl_lr / 10,
            "precision": "float32",
            "context": 4096,
            "max_tokens": ANSWER_TOKENS,
            "max_in_flight": 8 * settings.size,
            "budget": {"steps": STEPS, "cost_usd": 0.0, "wall_seconds": 600.0},
            "seed": self._start,
            "threads": 1,
        }

    async def _evaluate(self, tasks: list[str]) -> None:
        """`orchard eval` in a process of its own, as a user would, beside a server of each policy."""
        policies = {
            SFT: self.models / SFT / "model",
            RL: max((self.models / RL / "policies").glob("version-*")),
        }
        lines = [
            f'name = "{self.run_name("demo-claw-matrix")}"',
            f"harnesses = {json.dumps(HARNESSES)}",
            f'task_sets = [{{ name = "held-out", source = "{SOURCE}", ids = {json.dumps(tasks)} }}]',
            f"budget = {{ steps = {STEPS}, cost_usd = 0.0 }}",
        ]
        for policy in policies:
            lines += ["[[models]]", f'name = "{policy}"', f'endpoint = "{policy}"']
            lines += [f"temperature = {self.settings.temperature}", f"max_tokens = {ANSWER_TOKENS}"]
        file = self.models / "suite.toml"
        file.write_text("\n".join([*lines, ""]))
        async with AsyncExitStack() as stack:
            for policy, model in policies.items():
                await stack.enter_async_context(self.serving(model, policy, policy))
            await self.command("eval", str(file), "--out", str(self.report))

    def _result(self, rows: int, runs: tuple[Errands, Errands]) -> ClawResult:
        campaigns = [self.name(TRAINED), self.name(HELD_OUT)]
        matrix = self.run_name("demo-claw-matrix")
        with open_tables(self.config.store) as tables:
            slots = tables.execute(
                "select campaign, slot, bool_or(step = 'accept'), "
                "bool_or(step = 'accept' and seeded_mistake is not null) "
                "from synthesis where list_contains(?, campaign) group by 1, 2",
                [campaigns],
            ).fetchall()
            looks = dict(tables.execute(_LOOKS, [matrix, HARNESSES[0]]).fetchall())
            results = read_results(tables, matrix)
        of = dict(zip(campaigns, runs, strict=True))
        return ClawResult(
            worlds=len({(run, of[run].world(slot)) for run, slot, accepted, _ in slots if accepted}),
            tasks=sum(accepted for _, _, accepted, _ in slots),
            mistakes=sum(
                mistake_of(of[run].seed, slot, self.settings.mistakes) is not None
                for run, slot, _, _ in slots
            ),
            missed=sum(missed for _, _, _, missed in slots),
            rows=rows,
            looks=looks,
            results=results,
            seconds=self.seconds,
        )


def show(result: ClawResult) -> None:
    """The matrix, and the result as a table."""
    show_results(result.results)
    gain = result.gain
    rows = [
        ("worlds, tasks in them, all proven", f"{result.worlds}, {result.tasks}"),
        ("mistakes of the author, accepted ones", f"{result.mistakes}, {result.missed}"),
        ("training examples", f"{result.rows:,}"),
        ("held-out pass rate, distilled", str(result.score(SFT))),
        ("held-out pass rate, after reinforcement learning", str(result.score(RL))),
        ("difference, task by task", f"{gain.difference} (gained {gain.gained}, lost {gain.lost})"),
        (
            "begins with looking, before and after",
            " and ".join(f"{result.looks[each]:.0%}" for each in (SFT, RL)),
        ),
        *((title, f"{seconds:.0f} s") for title, seconds in result.seconds.items()),
        ("all of it", f"{sum(result.seconds.values()) / 60:.1f} min"),
    ]
    console.print(rows_table(["demo-claw", ""], rows))
