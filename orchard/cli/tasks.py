"""`tasks import|synthesize|validate|list`: where tasks come from and whether they can be trusted."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from orchard.actions.session import Session
from orchard.actions.terminal import console
from orchard.cli import own_tasks
from orchard.cli.left_out import SkipMalformed, Strict
from orchard.cli.task_work import (
    import_all,
    import_checkout,
    import_rows,
    impossible_tasks,
    synthesize_tasks,
    validate_tasks,
)
from orchard.configuration.config import ConfigError
from orchard.domains.gui import funnel
from orchard.pipelines.domains.claw.claw_eval import Reading
from orchard.pipelines.domains.gui.web_rows import PROTOCOLS, task_from_web_row
from orchard.pipelines.domains.swe.benchmark_rows import Family, Given, task_from_row
from orchard.pipelines.tasks.registry import stored_tasks
from orchard.pipelines.tasks.sources import source_names, task_source, tasks_of
from orchard.schemas.claw_eval import NAME as CLAW_EVAL
from orchard.schemas.plugins import GUIDE
from orchard.storage.reader import open_tables

app = typer.Typer(no_args_is_help=True, help="Where tasks come from, and whether they can be trusted.")

Concurrency = Annotated[int, typer.Option(help="Sandboxes at once.", min=1)]


@app.command("import")
def import_(
    context: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            help="SWE-bench family rows: .parquet or .jsonl; or `claw-eval`; or web tasks: "
            f"{', '.join(PROTOCOLS)}."
        ),
    ],
    directory: Annotated[
        Path | None,
        typer.Argument(help="With `claw-eval`: your checkout of it. With web tasks: their rows."),
    ] = None,
    family: Annotated[Family | None, typer.Option(help="Found by the columns unless given.")] = None,
    test_command: Annotated[
        str, typer.Option(help="Runs the tests, for rows with no column test_command; {tests}: their files.")
    ] = "",
    parser: Annotated[
        str, typer.Option(help="Reads its output, for rows with no column log_parser.", show_default="pytest")
    ] = "",
    image: Annotated[
        str, typer.Option(help="For rows with no column image_name; {instance_id}: the row's.")
    ] = "",
    workdir: Annotated[str, typer.Option(help="The repository in the image.", show_default="/testbed")] = "",
    source: Annotated[
        str, typer.Option(help="Source of the tasks, for `submit` and suites.", show_default="the family")
    ] = "",
    python: Annotated[
        str, typer.Option(help="With `claw-eval`: interpreter in the image that has what it imports.")
    ] = "python3",
    error_rate: Annotated[
        float, typer.Option(help="With `claw-eval`: ERROR_RATE of the mock services.", min=0, max=1)
    ] = 0.0,
    column: Annotated[
        list[str] | None, typer.Option(help="With web tasks: PART=COLUMN where names differ; repeat it.")
    ] = None,
    strict: Strict = False,
    skip_malformed: SkipMalformed = False,
) -> None:
    """Import rows of SWE-bench, SWE-rebench, SWE-rebench V2 or Scale-SWE, Claw-Eval's tasks, or web tasks.

    A malformed row or task is left out and named; the exit status is then 3. Importing again adds nothing
    twice. Rows with the columns of SWE-bench may be of any repository, where its test command is given. For
    example:

        orchard tasks import verified.parquet --source swe-bench-verified
        orchard tasks import ours.jsonl --test-command "pytest -q {tests}"
        orchard tasks import theirs.jsonl --test-command "make check" --parser junit
        orchard tasks import claw-eval ./claw-eval --image claw-eval:1
        orchard tasks import webvoyager WebVoyager_data.jsonl
        orchard tasks import insta pool.parquet --column intent=instruction
    """
    del skip_malformed
    if directory is not None and str(file) in PROTOCOLS:
        columns = funnel.columns_of(column or [])
        read = partial(task_from_web_row, family=str(file), source=source, columns=columns)
        import_rows(context.obj, directory, read, strict, then="Run them with --unproven")
        return
    if directory is not None:
        if file != Path(CLAW_EVAL):
            raise ConfigError(f"there is no {file} among {', '.join([CLAW_EVAL, *PROTOCOLS])}")
        reading = Reading(
            image=image or "host", python=python, error_rate=error_rate, source=source or CLAW_EVAL
        )
        import_checkout(context.obj, directory, reading, strict)
        return
    given = Given(test_command=test_command, parser=parser, image=image, workdir=workdir, source=source)
    import_rows(context.obj, file, partial(task_from_row, family=family, given=given), strict)


@app.command("from-source")
def from_source(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A plug-in, by name; `list` names them all.")],
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="KEY=VALUE for the source; repeat it.")
    ] = None,
    strict: Strict = False,
) -> None:
    """Bring the tasks of a plug-in of yours (docs/extending.md). Running it again adds nothing twice. What is
    no task is left out and named; the exit status is then 3.

    For example:

        orchard tasks from-source my-tickets -o year=2026
    """
    session: Session = context.obj
    if name == "list":
        console.print("\n".join(source_names()) or f"no package brings tasks: see {GUIDE}")
        return
    found, left_out = tasks_of(task_source(name), name, dict(_pair(each) for each in option or []))
    import_all(session, lambda: found, len(found), left_out, source=name, strict=strict)


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise ConfigError(f"--option {text!r} must be KEY=VALUE")
    return key, value


@app.command()
def synthesize(
    context: typer.Context,
    package: Annotated[
        list[str] | None,
        typer.Argument(
            help="PyPI packages, the built-in catalogue's when none is named; `claw`: tasks of assistants; "
            "`gui`: tasks of browser agents."
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "--count", help="Tasks to make.", min=1, show_default="20; of claw 192"),
    ] = None,
    concurrency: Concurrency = 3,
    uncatalogued: Annotated[
        bool, typer.Option("--any-release", help="Try recent release pairs that the catalogue does not list.")
    ] = False,
    run: Annotated[str, typer.Option(help="With claw: name of the run; it goes on under it.")] = "synthesis",
    seed: Annotated[
        int, typer.Option(help="With claw and gui: the same seed gives the same tasks.", min=0)
    ] = 0,
    author: Annotated[
        str, typer.Option(help="With claw: model that writes.", show_default="the seeded author, no model")
    ] = "",
    solver: Annotated[
        str, typer.Option(help="With claw: model that solves.", show_default="the author")
    ] = "",
    endpoint: Annotated[str, typer.Option(help="With claw: endpoint of both models.")] = "default",
    rollouts: Annotated[int, typer.Option(help="With claw: of the solver, for each task.", min=1)] = 3,
    sites: Annotated[
        str, typer.Option(help="With gui: sites, by comma.", show_default="all but `tiny`")
    ] = "",
    kinds: Annotated[
        str, typer.Option(help="With gui: kinds of tasks, by comma (`shop.buy`).", show_default="all")
    ] = "",
    layouts: Annotated[str, typer.Option(help="With gui: `train`, or `held-out` to measure on.")] = "train",
    faults: Annotated[
        str, typer.Option(help="With gui: what is wrong with the sites: captcha, down, slow, consent.")
    ] = "",
    prove: Annotated[
        bool, typer.Option("--prove", help="With gui: play each task in Chromium, in a sandbox.")
    ] = False,
) -> None:
    """Make tasks from pairs of package releases; of assistants (`claw`) by an author in four steps; or of
    browser agents (`gui`) on generated sites.

    Of releases: old source, new tests, the source diff as gold patch; what fails before the diff and passes
    after it is found by running the tests in sandboxes. Of claw (docs/claw-grading.md): an author proposes,
    writes and repairs, a solver tries, and what is not proven is left out. Of gui (docs/gui.md): sites and
    tasks follow from the seed, and each task is proven by its records. For example:

        orchard tasks synthesize six attrs
        orchard tasks synthesize claw --limit 12 --seed 7
        orchard tasks synthesize claw --author gpt-x --solver small-y --run mine
        orchard tasks synthesize gui --count 60 --layouts held-out
    """
    session: Session = context.obj
    if package == ["gui"]:
        from orchard.domains.gui.tasks import GuiOptions, synthesize_gui

        asyncio.run(
            synthesize_gui(
                session,
                GuiOptions(
                    seed,
                    limit or 20,
                    _listed(sites),
                    _listed(kinds),
                    layouts,
                    _listed(faults),
                    prove,
                    concurrency,
                ),
            )
        )
        return
    if package == ["claw"]:
        from orchard.domains.claw.synthesis import Options, synthesize_claw

        options = Options(run, limit or 192, seed, author, solver, endpoint, rollouts, concurrency)
        asyncio.run(synthesize_claw(session, options))
        return
    made = asyncio.run(
        synthesize_tasks(
            session,
            packages=package or [],
            limit=limit or 20,
            concurrency=concurrency,
            uncatalogued=uncatalogued,
        )
    )
    console.print(f"[bold green]made[/] {made} new tasks. Prove them with: orchard tasks validate")


def _listed(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",") if each.strip())


@app.command()
def validate(
    context: typer.Context,
    task: Annotated[list[str] | None, typer.Argument(help="Task ids (* matches); all unproven ones.")] = None,
    runs: Annotated[int, typer.Option(help="Times that each is graded.", min=1)] = 3,
    concurrency: Concurrency = 3,
) -> None:
    """Prove tasks: the known solution must resolve and nothing at all must not, every time.

    Tests whose result changes between runs are dropped, and the task with them if too little is left. Exit
    code 1 when a task was rejected, or could not be judged now.
    """
    valid, rejected, undecided = asyncio.run(
        validate_tasks(context.obj, ids=task or [], runs=runs, concurrency=concurrency)
    )
    console.print(f"[bold green]proven[/] {valid}, rejected {rejected}: `orchard tasks list` shows why")
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
        reason = ": ".join(filter(None, (each.reason, each.detail)))[:120]
        table.add_row(each.ref.task_id, each.ref.source, each.ref.repo, f"[{style}]{each.state}[/]", reason)
    console.print(table)


own_tasks.register(app)
funnel.register(app)
