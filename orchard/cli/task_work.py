"""What the `tasks` commands do: register, make, prove; each with a progress bar where it takes long."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from orchard.actions.session import Session
from orchard.actions.terminal import console
from orchard.cli.left_out import counted, end, tell_left_out
from orchard.configuration.config import ConfigError
from orchard.configuration.running import UNSAFE_HOST
from orchard.injector.agent.local.images import ImageStore
from orchard.pipelines.domains.claw.claw_eval import Reading, read_checkout
from orchard.pipelines.domains.swe.benchmark_files import Reader, check_rows
from orchard.pipelines.domains.swe.catalogue import catalogue
from orchard.pipelines.domains.swe.environments import Environments, SynthesisSettings
from orchard.pipelines.domains.swe.own_repository import Change, Wanted, make_task
from orchard.pipelines.domains.swe.packages import PackageCache
from orchard.pipelines.domains.swe.releases import Pair, choose_pairs
from orchard.pipelines.domains.swe.synthesize import Rejection, Synthesizer
from orchard.pipelines.tasks.directories import Directory, directory_task, read_all
from orchard.pipelines.tasks.dockerfiles import build_image
from orchard.pipelines.tasks.errors import TaskError
from orchard.pipelines.tasks.left_out import LeftOut, insist
from orchard.pipelines.tasks.proving import ValidationSettings
from orchard.pipelines.tasks.registry import TaskRegistry, known_hashes, read_tasks, stored_tasks
from orchard.pipelines.tasks.sandboxes import as_ready
from orchard.pipelines.tasks.validate import Validator, provable
from orchard.schemas.events import TaskRejected, TaskValidated
from orchard.schemas.tasks import IMPOSSIBLE, SWETests, Task, task_hash
from orchard.streams.publisher import Publisher
from orchard.workers.episode.networks import refusal
from orchard.workers.failures import InfrastructureError

RECENT_PAIRS = 30
"""Neighbouring releases of a package that --any-release tries, newest first."""


@asynccontextmanager
async def registry(session: Session) -> AsyncIterator[TaskRegistry]:
    """A registry; when the block ends, what it published is in the tables that other commands read."""
    async with session.connection("tasks") as connection:
        yield TaskRegistry(Publisher(connection), session.blobs)
        await session.committed(connection)


async def register_tasks(session: Session, tasks: Iterable[Task]) -> int:
    """Import tasks; returns how many are new."""
    async with registry(session) as kept:
        known = await asyncio.to_thread(known_hashes, session.config.store)
        return len(await kept.register(tasks, known))


def import_rows(
    session: Session,
    file: Path,
    read: Reader,
    strict: bool,
    then: str = "Prove them with: orchard tasks validate",
) -> None:
    """Import the tasks of a file's rows; say what to do `then`."""
    if not file.is_file():
        raise ConfigError(f"{file} does not exist: give a .parquet or .jsonl file")
    rows = check_rows(file, read)
    import_all(session, rows.tasks, rows.good, rows.left_out, source=str(file), strict=strict, then=then)


def import_all(
    session: Session,
    tasks: Callable[[], Iterable[Task]],
    good: int,
    left_out: Sequence[LeftOut],
    *,
    source: str,
    strict: bool,
    then: str = "Prove them with: orchard tasks validate",
) -> None:
    """Import the `good` tasks of a source, tell what is left out of it, and what to do `then`. Raises
    NotImported for none at all, or with `strict` for fewer than all."""
    insist(source, good, left_out, strict=strict)
    new = asyncio.run(register_tasks(session, tasks()))
    tell_left_out(left_out, session.directory)
    console.print(
        f"[bold green]imported[/] {new} new tasks of {good} in {escape(Path(source).name)}"
        f"{counted(left_out)}. {then}",
        highlight=False,
    )
    end(left_out)


def import_checkout(session: Session, root: Path, reading: Reading, strict: bool) -> None:
    """Import the tasks of a checkout of Claw-Eval."""
    read = read_checkout(root.resolve(), session.blobs.put, reading)
    judged = sum(task.labels["judge"] == "yes" for task in read.tasks)
    online = sum(task.labels["internet"] == "yes" for task in read.tasks)
    then = (
        f"{judged} need a judge (judge.model in orchard.toml), {online} the internet. Run them with: "
        f"orchard submit NAME --model MODEL --harness claw-react --source {reading.source} --unproven"
    )
    import_all(
        session,
        lambda: read.tasks,
        len(read.tasks),
        read.left_out,
        source=str(root),
        strict=strict,
        then=then,
    )


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
) -> tuple[int, int, int]:
    """Prove the named tasks, or all unproven ones, with a progress bar; (valid, rejected, not judged now)."""
    chosen = await asyncio.to_thread(_to_validate, session, ids)
    valid = rejected = undecided = 0
    async with registry(session) as tasks, session.sandboxes() as client:
        validator = Validator(
            client,
            session.blobs,
            ValidationSettings(runs=runs, concurrency=concurrency),
            task_network=session.config.sandbox.task_network,
        )
        with _bar() as bar:
            row = bar.add_task("validating", total=len(chosen))

            def left(task: Task, error: InfrastructureError) -> None:
                nonlocal undecided
                undecided += 1
                line = escape(f"  {task.task_id} is not judged: {error}"[:300])
                bar.console.print(line, style="yellow", highlight=False)
                bar.advance(row)

            async for verdict in validator.many(chosen, left=left):
                await tasks.record(verdict)
                bar.advance(row)
                event = verdict.event
                if isinstance(event, TaskValidated):
                    valid += 1
                    said = event.detail or ""
                else:
                    rejected += 1
                    said = f"{event.reason}, {event.detail}"
                if said:
                    line = escape(f"  {event.task_id}: {said[:200]}")
                    bar.console.print(line, style="dim", highlight=False)
    return valid, rejected, undecided


async def own_task(session: Session, change: Change, wanted: Wanted, *, runs: int) -> None:
    """Make and prove the task of a repository's change. Raises TaskError where it is none, or is rejected."""
    settings = SynthesisSettings(cpu=wanted.cpu, memory=wanted.memory, test_seconds=wanted.seconds)
    async with registry(session) as tasks, session.sandboxes() as client:
        environments = Environments(client, PackageCache(session.directory / "packages"), settings)
        with console.status(f"running the tests of {change.name} before and after {change.gold[:12]}"):
            task = await make_task(change, wanted, environments)
        await tasks.register([task])
        console.print(f"[bold green]made[/] {escape(task.task_id)} in image {escape(task.image)}")
        with console.status("proving it"):
            proof = ValidationSettings(runs=runs)
            verdict = await Validator(client, session.blobs, proof).validate(task)
        await tasks.record(verdict)
    if isinstance(verdict.event, TaskRejected):
        raise TaskError(f"{task.task_id} is rejected as {verdict.event.reason}: {verdict.event.detail}")
    assert isinstance(verdict.task.grading, SWETests)
    fixed, kept = len(verdict.task.grading.fail_to_pass), len(verdict.task.grading.pass_to_pass)
    dropped = f", {len(verdict.dropped)} unsteady ones dropped" if verdict.dropped else ""
    console.print(
        f"[bold green]proven[/] fail-to-pass tests: {fixed}, pass-to-pass tests: {kept}{dropped}. See "
        f"`orchard tasks show {escape(task.task_id)}`"
    )


def import_directories(session: Session, root: Path, image: str, source: str, strict: bool) -> None:
    """Import the task directories at `root`, in their own images, built where need be, or in `image`; from
    `source`, unless that is empty."""
    found, left_out = read_all(root)
    insist(str(root), len(found), left_out, strict=strict)
    tasks = []
    for each in found:
        try:
            task = _directory_task(session, each, image)
        except TaskError as error:
            left_out.append(LeftOut(str(each.path), str(error).removeprefix(f"{each.path}: ")))
            insist(str(root), len(found) - 1, left_out, strict=strict)
            continue
        tasks.append(msgspec.structs.replace(task, source=source) if source else task)
    import_all(session, lambda: tasks, len(tasks), left_out, source=str(root), strict=strict)


def _directory_task(session: Session, directory: Directory, image: str) -> Task:
    name = image or directory.image_name
    local = ImageStore(session.directory / "sandboxes")
    if name not in local.names() and not image and not directory.image:
        if session.config.sandbox.url not in (None, UNSAFE_HOST):
            raise TaskError(
                f"{directory.path}: sandboxes are made at {session.config.sandbox.url}, so build "
                f"{directory.dockerfile} there and pass --image"
            )
        console.print(f"building {escape(name)}", style="dim", highlight=False)
        build_image(session.directory / "sandboxes", directory.context, name)
    if name not in ("host", *local.names()):
        return directory_task(directory, name)
    known = local.find(name)
    return directory_task(directory, name, known.working_directory, known.environment)


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
    left_out = [task for task in every if not provable(task)]
    if left_out and ids:
        raise ConfigError(
            f"{left_out[0].task_id} has a world that only a rollout can judge: submit it with --unproven"
        )
    if not ids:
        unproven = {each.task_hash for each in stored_tasks(store) if each.state == "imported"}
        every = [task for task in every if task_hash(task) in unproven and provable(task)]
    refused = [why for task in every if (why := refusal(task, session.config.sandbox.task_network))]
    if refused and len(refused) == len(every):
        raise ConfigError(refused[0])
    if refused:
        console.print(
            f"[yellow]left out:[/] {len(refused)} tasks that ask for a network: without it nothing is shown "
            f"of them. {escape(refused[0])}",
            highlight=False,
        )
    return [task for task in every if not refusal(task, session.config.sandbox.task_network)]


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)
