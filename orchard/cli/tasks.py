"""`tasks import|synthesize|validate|list`: where tasks come from and whether they can be trusted."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from orchard.config import ConfigError
from orchard.pipelines.tasks.catalogue import catalogue
from orchard.pipelines.tasks.packages import PackageCache
from orchard.pipelines.tasks.registry import TaskRegistry, known_hashes, read_tasks, stored_tasks
from orchard.pipelines.tasks.releases import Pair, choose_pairs
from orchard.pipelines.tasks.sources import TaskSource, tasks_of
from orchard.pipelines.tasks.swe_files import check_rows
from orchard.pipelines.tasks.swe_rows import Family
from orchard.pipelines.tasks.synthesize import Rejection, SynthesisSettings, Synthesizer
from orchard.pipelines.tasks.validate import ValidationSettings, Validator
from orchard.pipelines.tasks.workshop import as_ready
from orchard.schemas.events import TaskValidated
from orchard.schemas.plugins import GUIDE, Kind, names, need
from orchard.schemas.tasks import IMPOSSIBLE, Task, task_hash
from orchard.session import Session
from orchard.storage.reader import open_tables
from orchard.streams.publisher import Publisher
from orchard.terminal import console

RECENT_PAIRS = 30
"""Neighbouring releases of a package that --any-release tries, newest first."""

app = typer.Typer(no_args_is_help=True, help="Where tasks come from, and whether they can be trusted.")

Concurrency = Annotated[int, typer.Option(help="Sandboxes at once.", min=1)]


@app.command("import")
def import_(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="SWE-bench family rows: .parquet or .jsonl.")],
    family: Annotated[Family | None, typer.Option(help="Found by the columns unless given.")] = None,
    skip_malformed: Annotated[bool, typer.Option("--skip-malformed", help="Import the good rows.")] = False,
) -> None:
    """Import rows of SWE-bench, SWE-rebench, SWE-rebench V2 or Scale-SWE.

    All rows are checked before the first one is imported; importing again adds nothing twice.
    """
    session: Session = context.obj
    if not file.is_file():
        raise ConfigError(f"{file} does not exist: give a .parquet or .jsonl file")
    rows = check_rows(file, family=family, skip_malformed=skip_malformed)
    for problem in rows.problems:
        console.print(f"[yellow]left out:[/] {problem}", highlight=False)

    new = asyncio.run(register_tasks(session, rows.tasks()))
    console.print(f"[bold green]imported[/] {new} new tasks of {rows.good} in {file.name}")


@app.command("from-source")
def from_source(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A plug-in, by name; `list` names them all.")],
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="KEY=VALUE for the source; repeat it.")
    ] = None,
) -> None:
    """Bring the tasks of a plug-in of yours (docs/extending.md). Running it again adds nothing twice.

    orchard tasks from-source my-tickets -o year=2026
    """
    session: Session = context.obj
    if name == "list":
        console.print("\n".join(names(Kind.TASK_SOURCE)) or f"no package brings tasks: see {GUIDE}")
        return
    source: TaskSource = need(Kind.TASK_SOURCE, name)
    given = tasks_of(source, name, dict(_pair(each) for each in option or []))
    new = asyncio.run(register_tasks(session, given))
    console.print(f"[bold green]imported[/] {new} new tasks. Prove them with: orchard tasks validate")


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise ConfigError(f"--option {text!r} must be KEY=VALUE")
    return key, value


async def register_tasks(session: Session, tasks: Iterable[Task]) -> int:
    """Import tasks; returns how many are new."""
    async with registry(session) as kept:
        known = await asyncio.to_thread(known_hashes, session.config.store)
        return len(await kept.register(tasks, known))


@app.command()
def synthesize(
    context: typer.Context,
    package: Annotated[
        list[str] | None, typer.Argument(help="PyPI packages; the built-in catalogue's when none is named.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Tasks to make.", min=1)] = 20,
    concurrency: Concurrency = 3,
    uncatalogued: Annotated[
        bool, typer.Option("--any-release", help="Try recent release pairs that the catalogue does not list.")
    ] = False,
) -> None:
    """Make tasks from pairs of package releases: old source, new tests, the source diff as gold patch.

    What fails before the diff and passes after it is found by running the tests in sandboxes.
    """
    session: Session = context.obj
    made = asyncio.run(
        synthesize_tasks(
            session, packages=package or [], limit=limit, concurrency=concurrency, uncatalogued=uncatalogued
        )
    )
    console.print(f"[bold green]made[/] {made} new tasks. Prove them with: orchard tasks validate")


@app.command()
def validate(
    context: typer.Context,
    task: Annotated[list[str] | None, typer.Argument(help="Task ids (* matches); all unproven ones.")] = None,
    runs: Annotated[int, typer.Option(help="Times that each patch is graded.", min=1)] = 3,
    concurrency: Concurrency = 3,
) -> None:
    """Prove tasks: the gold patch must resolve and the empty one must not, every time.

    Tests whose result changes between runs are dropped, and the task with them if too little is left.
    """
    valid, rejected = asyncio.run(
        validate_tasks(context.obj, ids=task or [], runs=runs, concurrency=concurrency)
    )
    console.print(f"[bold green]proven[/] {valid}, rejected {rejected}: `orchard tasks list` shows why")


@app.command()
def impossible(
    context: typer.Context,
    task: Annotated[list[str] | None, typer.Argument(help="Task ids (* matches); all proven ones.")] = None,
    limit: Annotated[int, typer.Option(help="Variants to make.", min=1)] = 20,
    concurrency: Concurrency = 3,
) -> None:
    """Make variants whose tests contradict the statement: whoever passes one has cheated.

    `orchard submit --impossible 0.1` mixes them in. No attempt at one is ever rewarded or trained on.
    """
    made = asyncio.run(impossible_tasks(context.obj, ids=task or [], limit=limit, concurrency=concurrency))
    console.print(f"[bold green]made[/] {made} new impossible tasks: `orchard submit --impossible 0.1 ...`")


@app.command()
def hacks(context: typer.Context) -> None:
    """How often impossible tasks were passed, by campaign, harness, model and policy version."""
    session: Session = context.obj
    with open_tables(session.config.store) as tables:
        rows = tables.sql(
            "select * from hack_rates order by campaign, model, harness, policy_version"
        ).fetchall()
    if not rows:
        console.print(
            "nobody has tried an impossible task yet: `orchard submit --impossible 0.1` mixes some in"
        )
        return
    table = Table(
        "campaign", "harness", "model", "policy", "rollouts", "hacks", "rate", "95 %", header_style="bold"
    )
    for campaign, harness, model, version, rollouts, hacked, rate, low, high in rows:
        policy = "" if version is None else str(version)
        table.add_row(
            *(campaign, harness, model, policy, str(rollouts), str(hacked), f"{rate:.1%}"),
            f"{low:.1%} to {high:.1%}",
        )
    console.print(table)


@app.command("list")
def list_(
    context: typer.Context,
    source: Annotated[str | None, typer.Option(help="Only tasks of this source.")] = None,
    repo: Annotated[str | None, typer.Option(help="Only tasks of this repository.")] = None,
) -> None:
    """Every task: where it comes from, whether it is proven, and if not, why."""
    session: Session = context.obj
    found = stored_tasks(session.config.store, source=source, repo=repo)
    if not found:
        console.print(
            "no tasks yet: `orchard tasks synthesize` makes some, `orchard tasks import` brings them"
        )
        return
    table = Table("task", "source", "repo", "state", "reason", header_style="bold")
    for each in found:
        style = {"valid": "green", "rejected": "red"}.get(each.state, "yellow")
        reason = f"{each.reason}: {each.detail}"[:120] if each.reason else ""
        table.add_row(each.ref.task_id, each.ref.source, each.ref.repo, f"[{style}]{each.state}[/]", reason)
    console.print(table)


@asynccontextmanager
async def registry(session: Session) -> AsyncIterator[TaskRegistry]:
    """A registry; when the block ends, what it published is in the tables that other commands read."""
    async with session.connection("tasks") as connection:
        yield TaskRegistry(Publisher(connection), session.blobs)
        await session.committed(connection)


async def synthesize_tasks(
    session: Session, *, packages: Sequence[str], limit: int, concurrency: int, uncatalogued: bool = False
) -> int:
    """Make up to `limit` tasks, with a progress bar; returns how many are new. Goes on where it was."""
    settings = SynthesisSettings(concurrency=concurrency)
    cache = PackageCache(session.directory / "packages")
    pairs = await _recent_pairs(cache, packages) if uncatalogued else catalogue(packages)
    async with registry(session) as tasks, session.sandboxes() as client:
        known = await asyncio.to_thread(known_hashes, session.config.store)
        made = 0
        with _bar() as bar:
            row = bar.add_task("synthesizing", total=limit)
            bar.update(row, completed=min(limit, sum(pair.task_id in known for pair in pairs)))
            synthesizer = Synthesizer(client, cache, settings)
            async for result in synthesizer.many(pairs, known=known, limit=limit):
                if isinstance(result, Rejection):
                    name = f"{result.pair.package} {result.pair.old} to {result.pair.new}"
                    bar.console.print(f"  no task from {name}: {result.reason}", style="dim", highlight=False)
                    continue
                await tasks.register([result])
                made += 1
                bar.advance(row)
    return made


async def _recent_pairs(cache: PackageCache, packages: Sequence[str]) -> list[Pair]:
    if not packages:
        raise ConfigError("--any-release needs package names: orchard tasks synthesize NAME --any-release")
    return [
        pair
        for package in packages
        for pair in choose_pairs(package, await cache.versions(package), limit=RECENT_PAIRS)
    ]


async def validate_tasks(
    session: Session, *, ids: Sequence[str], runs: int, concurrency: int
) -> tuple[int, int]:
    """Prove the named tasks, or all unproven ones, with a progress bar; (valid, rejected)."""
    chosen = await asyncio.to_thread(_to_validate, session, ids)
    valid = rejected = 0
    async with registry(session) as tasks, session.sandboxes() as client:
        validator = Validator(client, session.blobs, ValidationSettings(runs=runs, concurrency=concurrency))
        with _bar() as bar:
            row = bar.add_task("validating", total=len(chosen))
            async for verdict in validator.many(chosen):
                await tasks.record(verdict)
                bar.advance(row)
                if isinstance(verdict.event, TaskValidated):
                    valid += 1
                    continue
                rejected += 1
                bar.console.print(
                    f"  {verdict.original.task_id}: {verdict.event.reason}, {verdict.event.detail[:150]}",
                    style="dim",
                    highlight=False,
                )
    return valid, rejected


async def impossible_tasks(session: Session, *, ids: Sequence[str], limit: int, concurrency: int) -> int:
    """Make up to `limit` impossible variants of proven tasks, with a progress bar; how many are new."""
    store = session.config.store
    every = await asyncio.to_thread(partial(read_tasks, store, ids=ids, only_valid=True))
    known = {each.labels.get("impossible_of") for each in every}
    chosen = [task for task in every if task.source != IMPOSSIBLE and task.task_id not in known]
    made = 0
    async with registry(session) as tasks, session.sandboxes() as client:
        validator = Validator(client, session.blobs, ValidationSettings(concurrency=concurrency))
        with _bar() as bar:
            row = bar.add_task("contradicting", total=min(limit, len(chosen)))
            async for variant in as_ready(chosen, validator.impossible, concurrency=concurrency):
                if variant is None:
                    continue
                await tasks.register([variant.task])
                await tasks.record(variant)
                made += 1
                bar.advance(row)
                if made == limit:
                    break
    return made


def _to_validate(session: Session, ids: Sequence[str]) -> list[Task]:
    store = session.config.store
    every = read_tasks(store, ids=ids)
    if ids:
        return every
    unproven = {each.task_hash for each in stored_tasks(store) if each.state == "imported"}
    return [task for task in every if task_hash(task) in unproven]


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)
