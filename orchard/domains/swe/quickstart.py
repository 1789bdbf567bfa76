"""`quickstart`: tasks, proof, campaign and results in one command."""

import asyncio
import gc
import re
import time
from collections.abc import Callable, Sequence
from typing import Annotated

import typer
import uvloop
from rich.markup import escape

from orchard.actions.abort_reasons import abort_reasons, abort_sentence
from orchard.actions.campaigns import grow_campaign, known_plan, resume_campaign
from orchard.actions.reporter import Reporter, duration
from orchard.actions.session import Session
from orchard.actions.tasks import Validated, validate_tasks
from orchard.configuration.config import Config, ConfigError, UpSettings
from orchard.configuration.flags import replaced, with_endpoint
from orchard.configuration.run_files import UNSAFE_HOST
from orchard.domains.swe.tasks import synthesize_tasks
from orchard.pipelines.domains.swe.releases import SOURCE
from orchard.pipelines.tasks.registry import read_task_refs, stored_tasks
from orchard.processes.pipeline import pipeline
from orchard.processes.signals import stop_on_signals
from orchard.schemas.campaigns import Budget, CampaignSpec, ModelSpec, TaskRef
from orchard.schemas.llm_calls import ModelKind
from orchard.storage.reader import open_tables
from orchard.streams.tasks import end
from orchard.terminal.campaign_tables import watch_campaign
from orchard.terminal.console import console, reporting
from orchard.terminal.options import ApiKeyEnv, BaseUrl
from orchard.terminal.tables import rows_table

FIRST_TASKS = 5
"""Tasks that are made before the others, so that the first rollouts start early."""
LOOK_SECONDS, LATER_LOOK_SECONDS = 2.0, 5.0
"""Seconds between two looks for tasks that were proven meanwhile, before and after the first graded rollout:
each takes a processor 60 ms."""

RESULTS = """
select harness, model, model_kind, task_source as source, rollouts, resolved, graded - resolved as unresolved,
       aborted, round(100 * pass_rate, 1) as "pass %"
from pass_rates where campaign = $name order by all
"""
BY_CAUSE = """
select status, coalesce(exit_status, cause) as "how it ended", count(*) as rollouts,
       round(avg(turns), 1) as turns, sum(prompt_tokens + completion_tokens) as tokens,
       round(avg(seconds), 1) as "seconds each"
from rollouts where campaign = $name group by 1, 2 order by rollouts desc
"""
GRADED = "select count(*) from rollouts where campaign = ? and resolved is not null"
FOR_SHOW = "select rollout_id from rollouts where campaign = $name and resolved order by turns desc limit 1"


def register(app: typer.Typer) -> None:
    @app.command()
    def quickstart(
        context: typer.Context,
        tasks: Annotated[int, typer.Option(help="Number of proven tasks.", min=1)] = 8,
        samples: Annotated[int, typer.Option(help="Rollouts of each task.", min=1)] = 3,
        workers: Annotated[int, typer.Option(help="Worker processes.", min=1)] = 4,
        model: Annotated[str, typer.Option(help="Model name at the endpoint.")] = "oracle",
        base_url: BaseUrl = None,
        api_key_env: ApiKeyEnv = None,
        name: Annotated[str | None, typer.Option(help="Campaign.", show_default="quickstart-MODEL")] = None,
        steps: Annotated[int, typer.Option(help="Maximum turns of a rollout.", min=1)] = 30,
    ) -> None:
        """The first run: makes and proves real tasks, runs a campaign on them, shows the results.

        Without a model it uses the oracle teacher. With one:
        `orchard quickstart --base-url https://HOST/v1 --model NAME`, the key in OPENAI_API_KEY.
        Run it again to resume.
        """
        session: Session = context.obj
        if model != "oracle" and base_url is None and "default" not in session.config.endpoints:
            raise ConfigError(f"model {model!r} needs its endpoint: pass --base-url https://HOST/v1")
        if session.config.sandbox.url == UNSAFE_HOST:
            raise ConfigError(
                f"the quick start makes images of its tasks, and --sandbox {UNSAFE_HOST} has none: leave it "
                "out (`orchard doctor` says what isolated sandboxes lack here)"
            )
        config = with_endpoint(replaced(session.config, "up", workers=workers), base_url, api_key_env)
        slug = re.sub("[^a-z0-9]+", "-", model.lower()).strip("-")
        campaign = name or f"quickstart-{slug}"
        uvloop.run(_quickstart(config, tasks, samples, model, campaign, steps))


async def _quickstart(
    config: Config, tasks: int, samples: int, model: str, campaign: str, steps: int
) -> None:
    interrupted = stop_on_signals(asyncio.get_running_loop())
    work = asyncio.create_task(_work(config, tasks, samples, model, campaign, steps))
    waiting = asyncio.create_task(interrupted.wait())
    await asyncio.wait({work, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not work.done():
        console.print("stopping: run the same command again to continue from here")
        await end(work)
    if work.cancelled():
        raise typer.Exit(130)
    work.result()


async def _work(config: Config, tasks: int, samples: int, model: str, campaign: str, steps: int) -> None:
    gc.freeze()  # this process makes question sheets too, as workers do
    began = time.monotonic()
    kind = ModelKind.ORACLE if model == "oracle" else ModelKind.MODEL
    endpoint = "oracle" if model == "oracle" else "default"

    def plan(refs: Sequence[TaskRef]) -> CampaignSpec:
        return CampaignSpec(
            name=campaign,
            tasks=tuple(refs),
            harnesses=("orchard-bash",),
            models=(ModelSpec(name=model, endpoint=endpoint, kind=kind),),
            samples=samples,
            budget=Budget(steps=steps),
        )

    async with pipeline(config, console.print) as session:
        if (up := session.up()) is not None and up.page_url:
            console.print(f"Follow it in a browser: {up.page_url}", highlight=False)
        console.rule("1. tasks: old release + new tests, from PyPI; each is rolled out once it is proven")
        with reporting() as told:
            if await known_plan(session, campaign) and _aborted(session, campaign):
                await resume_campaign(session, campaign, told=told)
            offering = _Offering(session, tasks, plan)
            following = asyncio.create_task(offering.follow(told))
            try:
                await _prepare_tasks(session, tasks, told)
            finally:
                await end(following)
            await offering.proven()
        console.rule("2. campaign")
        await watch_campaign(session, campaign, every=1.0)
        async with session.connection("quickstart") as connection:
            await session.committed(connection)
    console.rule("3. results, read back by SQL")
    _show_results(session, campaign)
    if (reason := _reason(session, campaign)) and not _graded(session, campaign):
        raise ConfigError(f"no rollout was graded: {reason}")
    console.print(f"everything took {duration(time.monotonic() - began)}", style="dim")


class _Offering:
    """The campaign, which gets each task as it is proven."""

    def __init__(
        self, session: Session, wanted: int, plan: Callable[[Sequence[TaskRef]], CampaignSpec]
    ) -> None:
        self._session = session
        self._wanted = wanted
        self._plan = plan
        self._tasks: list[TaskRef] = []
        self._offered = 0
        """How many of them were offered."""

    async def proven(self) -> None:
        """Offers the rollouts of all proven tasks, up to as many as are wanted."""
        store = self._session.config.store
        refs = await asyncio.to_thread(read_task_refs, store, source=SOURCE)
        if not refs:
            return
        if not self._offered and (known := await known_plan(self._session, self._plan(refs).name)):
            self._tasks = [*known.tasks]
        ids = {task.task_id for task in self._tasks}
        self._tasks += [task for task in refs if task.task_id not in ids][: max(0, self._wanted - len(ids))]
        if len(self._tasks) > self._offered:
            await grow_campaign(self._session, self._plan(self._tasks), self._planned)
            self._offered = len(self._tasks)

    @property
    def _planned(self) -> int:
        """Rollouts of the campaign once all tasks are proven."""
        return self._plan(self._tasks).samples * max(self._wanted, len(self._tasks))

    async def follow(self, told: Reporter) -> None:
        """Offers tasks as they are proven and says how far the rollouts are, until it is cancelled."""
        began = time.monotonic()
        first = True
        while True:
            await asyncio.sleep(LOOK_SECONDS if first else LATER_LOOK_SECONDS)
            await self.proven()
            told.progress("tasks proven", len(self._tasks), self._wanted)
            if not self._tasks:
                continue
            graded = await asyncio.to_thread(_graded, self._session, self._plan(self._tasks).name)
            told.progress("rollouts graded", graded, self._planned)
            if first and graded:
                first = False
                spent = duration(time.monotonic() - began)
                told.note(f"the first graded rollout is there, {spent} after the start")


def _graded(session: Session, campaign: str) -> int:
    with open_tables(session.config.store, views=GRADED) as tables:
        found = tables.execute(GRADED, [campaign]).fetchone()
    return int(found[0]) if found else 0


def _aborted(session: Session, campaign: str) -> int:
    """Rollouts of an earlier run that infrastructure failures left without a reward."""
    with open_tables(session.config.store) as tables:
        found = tables.execute(
            "select count(*) from rollouts where campaign = ? and status = 'aborted'", [campaign]
        ).fetchone()
    return int(found[0]) if found else 0


def _reason(session: Session, campaign: str) -> str:
    """The commonest reason of the campaign's aborted rollouts, and what to do."""
    with open_tables(session.config.store) as tables:
        cursor = tables.execute(
            "select cause, detail, count(*) as rollouts from rollouts where campaign = ? and "
            "status = 'aborted' group by all",
            [campaign],
        )
        names = [column[0] for column in cursor.description or []]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return abort_sentence(abort_reasons(rows), campaign)


async def _prepare_tasks(session: Session, wanted: int, told: Reporter) -> None:
    """Makes and proves tasks until `wanted` are proven, the first few before the others. Raises ConfigError
    if the catalogue ends."""

    async def made(limit: int) -> int:
        parts = PartReporter(told, of=wanted)
        return await synthesize_tasks(session, packages=[], limit=limit, concurrency=3, told=parts)

    new = await made(min(FIRST_TASKS, wanted))
    attempted = wanted
    while len(proven := read_task_refs(session.config.store, source=SOURCE)) < wanted:
        proofs = Proofs(session, told)
        making = asyncio.create_task(made(attempted))
        try:
            await proofs.begin()
            new += await making
            await proofs.begin()  # of the others, whether or not those of the first have ended
            valid, rejected = await proofs.ended()
        finally:
            await end(making)
            await proofs.stop()
        if not new and not valid:
            raise ConfigError(
                f"the catalogue gives {len(proven)} proven tasks here, not {wanted}: "
                f"pass --tasks {max(len(proven), 1)}"
            )
        attempted += rejected
        new = 0
    told.note(f"{len(proven)} proven tasks")


class Proofs:
    """Proofs of the made tasks, in batches that do not wait for each other."""

    def __init__(self, session: Session, told: Reporter) -> None:
        self._session = session
        self._told = told
        self._ids: set[str] = set()
        self._batches: list[asyncio.Task[Validated]] = []

    async def begin(self) -> None:
        """Starts the proofs of all tasks that have none and are in no batch yet."""
        tasks = await asyncio.to_thread(stored_tasks, self._session.config.store, source=SOURCE)
        ids = {task.ref.task_id for task in tasks if task.state == "imported"} - self._ids
        self._ids |= ids
        if ids:
            told = PartReporter(self._told)
            # Making a task has run its tests once with the known solution and once without.
            proving = validate_tasks(self._session, ids=sorted(ids), runs=2, concurrency=3, told=told)
            self._batches.append(asyncio.create_task(proving))

    async def ended(self) -> tuple[int, int]:
        """Waits for all proofs and returns how many tasks are valid, and how many rejected."""
        ended = await asyncio.gather(*self._batches)
        return sum(batch.valid for batch in ended), sum(batch.rejected for batch in ended)

    async def stop(self) -> None:
        for batch in self._batches:
            await end(batch)


class PartReporter(Reporter):
    """Reports a part of the work: its progress as that of `of` items, of which there may be more, or not at
    all."""

    def __init__(self, told: Reporter, of: int | None = None) -> None:
        self._told = told
        self._of = of

    def note(self, text: str, label: str = "") -> None:
        self._told.note(text, label)

    def progress(self, title: str, done: int, total: int | None, doing: str = "") -> None:
        if self._of is not None:
            self._told.progress(title, done, max(self._of, total or 0), doing)


def _show_results(session: Session, campaign: str) -> None:
    with open_tables(session.config.store) as tables:
        for query in (RESULTS, BY_CAUSE):
            cursor = tables.execute(query, {"name": campaign})
            names = [column[0] for column in cursor.description or []]
            console.print(rows_table(names, cursor.fetchall()))
        shown = tables.execute(FOR_SHOW, {"name": campaign}).fetchone()
    if reason := _reason(session, campaign):
        console.print(
            f"[red]{escape(reason)}[/]; run the same command again to continue from here", highlight=False
        )
    console.print("Next, with the virtual environment active (source .venv/bin/activate):", style="bold")
    example = (
        [(f"orchard show {shown[0][:10]}", "read one trajectory, its diff and its tests")] if shown else []
    )
    for command, why in (
        ("orchard ui", f"everything in a browser, at http://127.0.0.1:{UpSettings().page_port}/"),
        *example,
        (
            'orchard sql "select repo, count(*), avg(turns) from rollouts where resolved group by 1"',
            "any query",
        ),
        ("orchard up --workers 4", "the pipeline as a service; then `orchard submit --help`"),
        ("orchard quickstart --base-url https://HOST/v1 --model NAME", "the same with your model"),
    ):
        console.print(f"  {command}   [dim]# {why}[/]", highlight=False, soft_wrap=True)
