"""`tasks synthesize gui`: makes, proves and registers tasks on generated sites."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import NamedTuple, get_args

from rich.markup import escape

from orchard.actions.session import Session
from orchard.actions.tasks import registry
from orchard.configuration.config import ConfigError
from orchard.pipelines.domains.gui.proof import by_records
from orchard.pipelines.domains.gui.synthesis import SITES, synthesize
from orchard.pipelines.tasks.registry import known_hashes
from orchard.pipelines.tasks.sandboxes import as_ready
from orchard.pipelines.tasks.validate import Validation, Validator, validation
from orchard.schemas.events import TaskRejected
from orchard.schemas.gui import NAME, Fault
from orchard.schemas.tasks import Task, task_hash
from orchard.terminal.console import console
from orchard.workers.domains.gui.sites.appearance import LAYOUTS
from orchard.workers.domains.gui.sites.goals import KINDS


class GuiOptions(NamedTuple):
    seed: int
    limit: int
    sites: tuple[str, ...]
    kinds: tuple[str, ...]
    layouts: str
    faults: tuple[str, ...]
    prove: bool
    concurrency: int


async def synthesize_gui(session: Session, options: GuiOptions) -> None:
    """Makes the tasks, and proves and registers new ones. A repetition adds nothing."""
    tasks = _made(options)
    known = await asyncio.to_thread(known_hashes, session.config.store)
    new = [task for task in tasks if known.get(task.task_id) != task_hash(task)]
    rejected = 0
    async with registry(session) as kept:
        await kept.register(new)
        async for verdict in _proven(session, new, options):
            await kept.record(verdict)
            if isinstance(verdict.event, TaskRejected):
                rejected += 1
                said = f"{verdict.event.task_id}: {verdict.event.reason}, {verdict.event.detail}"
                console.print(f"[yellow]rejected:[/] {escape(said)}", highlight=False)
    how = "playing it in Chromium" if options.prove else "its records"
    console.print(
        f"[bold green]made[/] {len(new)} new tasks of {len(tasks)}, proven by {how}; {rejected} rejected."
        f" Run them: orchard submit NAME --model MODEL --harness browser --source {NAME}",
        highlight=False,
    )


async def _proven(session: Session, tasks: list[Task], options: GuiOptions) -> AsyncIterator[Validation]:
    if not options.prove:
        for task in tasks:
            yield validation(task, by_records(task), seconds=0.0)
        return
    async with session.sandboxes() as client:
        validator = Validator(client, session.blobs, play=True)
        ready = as_ready(tasks, validator.validate, concurrency=options.concurrency)
        async with aclosing(ready):
            async for verdict in ready:
                yield verdict


def _made(options: GuiOptions) -> list[Task]:
    known = {kind.partition(".")[0] for kind in KINDS}
    _check("site", options.sites, known)
    _check("kind of task", options.kinds, set(KINDS))
    _check("fault", options.faults, set(get_args(Fault)))
    _check("set of layouts", (options.layouts,), set(LAYOUTS))
    sites = options.sites or tuple(dict.fromkeys(kind.partition(".")[0] for kind in options.kinds)) or SITES
    try:
        return list(
            synthesize(
                options.seed,
                options.limit,
                sites=sites,
                split="held-out" if options.layouts == "held-out" else "train",
                kinds=options.kinds,
                faults=[fault for fault in get_args(Fault) if fault in options.faults],
            )
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _check(what: str, named: tuple[str, ...], known: set[str]) -> None:
    if bad := [each for each in named if each not in known]:
        raise ConfigError(f"there is no {what} {', '.join(bad)}: there is {', '.join(sorted(known))}")
