"""`tasks import|synthesize|validate|list`: makes, imports, proves and lists tasks."""

import asyncio
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from orchard.actions.domain import domains
from orchard.actions.session import Session
from orchard.actions.tasks import impossible_tasks, validate_tasks
from orchard.cli import own_tasks
from orchard.cli.facts import AsJson, print_facts
from orchard.cli.routes import chosen, help_text, options_of, routed
from orchard.configuration.config import ConfigError
from orchard.pipelines.tasks.registry import StoredTask, stored_tasks
from orchard.pipelines.tasks.sources import source_names, task_source, tasks_of
from orchard.schemas.plugins import GUIDE
from orchard.storage.reader import open_tables
from orchard.terminal.console import console, reporting
from orchard.terminal.left_out import SkipMalformed, Strict, import_shown
from orchard.workers.discovery import load

COMMANDS = {"tasks": "Make, import, prove and list tasks."}

app = typer.Typer(no_args_is_help=True)


class TaskFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A task in `orchard tasks list --json`."""

    task_id: str
    source: str
    repo: str
    state: str
    """`imported`, `valid` or `rejected`."""
    reason: str
    detail: str
    protected: str
    """Label of its protection; empty without one."""
    protected_why: str


class TaskListing(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `orchard tasks list --json`."""

    tasks: list[TaskFacts]


class PolicyHacks(msgspec.Struct, frozen=True, kw_only=True):
    """How often impossible tasks were passed by one policy; `low` to `high` is the interval of 95 %."""

    campaign: str
    harness: str
    model: str
    policy_version: int | None
    rollouts: int
    hacks: int
    rate: float
    low: float
    high: float


class HackListing(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `orchard tasks hacks --json`."""

    rates: list[PolicyHacks]


Concurrency = Annotated[int, typer.Option(help="Number of concurrent sandboxes.", min=1)]

_IMPORTS = [each.imports for each in domains() if each.imports]
_SYNTHESES = [each.synthesis for each in domains() if each.synthesis]
_SECOND = " ".join(f"With {route.title}: {route.second}." for route in _IMPORTS if route.second)
_LIMITS = [f"of {route.title} {route.limit}" for route in _SYNTHESES if route.limit != _SYNTHESES[0].limit]


def import_(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help=f"{'; or '.join(route.argument for route in _IMPORTS)}.")],
    directory: Annotated[Path | None, typer.Argument(help=_SECOND)] = None,
    strict: Strict = False,
    skip_malformed: SkipMalformed = False,
    *,
    options: dict[str, Any],
) -> None:
    del skip_malformed
    words = [str(each) for each in (file, directory) if each is not None]
    route = chosen(_IMPORTS, words)
    if not route.words and directory is not None:
        known = [word for each in _IMPORTS for word in each.words]
        raise ConfigError(f"{file} is not the name of a benchmark: choose one of {', '.join(known)}")
    load(route.run)(context.obj, words, strict, **options_of(route, options))


app.command("import")(
    routed(
        import_,
        _IMPORTS,
        help_text(
            "tasks import",
            "Import",
            _IMPORTS,
            ",",
            "A malformed row or task is left out and named; the exit status is then 3. Importing again adds "
            "no duplicates.",
        ),
    )
)


@app.command("from-source")
def from_source(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A plug-in, by name; `list` names them all.")],
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="Setting of the source, KEY=VALUE. Repeatable.")
    ] = None,
    strict: Strict = False,
) -> None:
    """Import the tasks of your own plug-in (docs/extending.md). Running it again adds no duplicates. Items
    that are no valid tasks are skipped and named; the exit status is then 3.

    For example:

        orchard tasks from-source my-tickets -o year=2026
    """
    session: Session = context.obj
    if name == "list":
        console.print("\n".join(source_names()) or f"no package brings tasks: see {GUIDE}")
        return
    found, left_out = tasks_of(task_source(name), name, dict(_pair(each) for each in option or []))
    import_shown(session, lambda: found, len(found), left_out, source=name, strict=strict)


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise ConfigError(f"--option {text!r} has no value: write KEY=VALUE")
    return key, value


def synthesize(
    context: typer.Context,
    package: Annotated[
        list[str] | None, typer.Argument(help=f"{'; '.join(route.argument for route in _SYNTHESES)}.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            "--count",
            help="Tasks to make.",
            min=1,
            show_default="; ".join([str(_SYNTHESES[0].limit), *_LIMITS]),
        ),
    ] = None,
    concurrency: Concurrency = 3,
    *,
    options: dict[str, Any],
) -> None:
    words = package or []
    route = chosen(_SYNTHESES, words)
    given = options_of(route, options)
    load(route.run)(context.obj, words, limit or route.limit, concurrency, **given)


app.command("synthesize")(
    routed(synthesize, _SYNTHESES, help_text("tasks synthesize", "Make tasks", _SYNTHESES, ";"))
)


@app.command()
def validate(
    context: typer.Context,
    task: Annotated[list[str] | None, typer.Argument(help="Task ids (* matches); all unproven ones.")] = None,
    runs: Annotated[int, typer.Option(help="Number of times that each task is graded.", min=1)] = 3,
    concurrency: Annotated[int, typer.Option(help="Maximum concurrent tasks in this process.", min=1)] = 3,
) -> None:
    """Prove tasks: with the known solution the tests must pass, and without any change they must fail, every
    time.

    Workers of `orchard up` help. Run it again to resume.

    Tests whose result changes between runs are dropped, and the task with them if too little is left. Exit
    code 1 when a task was rejected, or could not be judged now.
    """
    with reporting() as told:
        valid, rejected, undecided = asyncio.run(
            validate_tasks(context.obj, ids=task or [], runs=runs, concurrency=concurrency, told=told)
        )
    why = ": `orchard tasks list` shows why" if rejected else ""
    console.print(f"[bold green]proven[/] {valid}, rejected {rejected}{why}")
    if undecided:
        console.print(f"[yellow]not judged[/] {undecided}: `orchard tasks validate` tries them again")
    if rejected or undecided:
        raise typer.Exit(1)


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
    with reporting() as told:
        made = asyncio.run(
            impossible_tasks(context.obj, ids=task or [], limit=limit, concurrency=concurrency, told=told)
        )
    console.print(f"[bold green]made[/] {made} new impossible tasks: `orchard submit --impossible 0.1 ...`")


@app.command()
def hacks(context: typer.Context, as_json: AsJson = False) -> None:
    """Show how often impossible tasks were passed, by campaign, harness, model and policy version."""
    session: Session = context.obj
    with open_tables(session.config.store) as tables:
        rows = tables.sql(
            "select * from hack_rates order by campaign, model, harness, policy_version"
        ).fetchall()
    if as_json:
        fields = PolicyHacks.__struct_fields__
        print_facts(HackListing(rates=[PolicyHacks(**dict(zip(fields, row, strict=True))) for row in rows]))
        return
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
    as_json: AsJson = False,
) -> None:
    """List every task: where it comes from, whether it is proven, and if not, why; its label."""
    session: Session = context.obj
    found = stored_tasks(session.config.store, source=source, repo=repo)
    if as_json:
        print_facts(TaskListing(tasks=[_facts(each) for each in found]))
        return
    if not found:
        console.print(
            "no tasks yet: `orchard tasks synthesize` makes some, `orchard tasks import` brings them"
        )
        return
    table = Table("task", "source", "repo", "state", "protected", "reason", header_style="bold")
    for each in found:
        style = {"valid": "green", "rejected": "red"}.get(each.state, "yellow")
        reason = ": ".join(filter(None, (each.reason, each.detail)))[:120]
        state = f"[{style}]{each.state}[/]"
        table.add_row(each.ref.task_id, each.ref.source, each.ref.repo, state, each.protected or "", reason)
    console.print(table)


def _facts(task: StoredTask) -> TaskFacts:
    return TaskFacts(
        task_id=task.ref.task_id,
        source=task.ref.source,
        repo=task.ref.repo,
        state=task.state,
        reason=task.reason,
        detail=task.detail,
        protected=task.protected or "",
        protected_why=task.protected_why,
    )


own_tasks.register(app)
for domain in domains():
    for module in domain.task_commands:
        import_module(module).register(app)
