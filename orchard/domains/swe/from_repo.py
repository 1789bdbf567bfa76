"""`tasks from-repo`: makes a task of a commit in a git repository (docs/own-tasks.md)."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from orchard.actions.session import Session
from orchard.configuration.config import ConfigError
from orchard.domains.swe.tasks import own_task
from orchard.pipelines.domains.swe.own_repository import CommitDiff, CommitTaskSettings, read_change
from orchard.schemas.tasks import SWETests
from orchard.terminal.console import console, reporting


def register(app: typer.Typer) -> None:
    @app.command("from-repo")
    def from_repo(
        context: typer.Context,
        path: Annotated[Path, typer.Argument(help="A git repository on this machine.")],
        tests: Annotated[str, typer.Option(help="Command that runs its tests: pytest or unittest.")],
        gold: Annotated[str, typer.Option(help="Commit with the solution and its tests.")],
        base: Annotated[
            str | None, typer.Option(help="Commit to start from.", show_default="the one before --gold")
        ] = None,
        statement: Annotated[
            str | None,
            typer.Option(help="What the model reads.", show_default="message of the gold commit"),
        ] = None,
        statement_file: Annotated[
            Path | None, typer.Option(help="File with the statement.", exists=True, dir_okay=False)
        ] = None,
        task_id: Annotated[
            str, typer.Option("--id", help="Id of the task.", show_default="NAME-COMMIT")
        ] = "",
        image: Annotated[
            str, typer.Option(help="Image with all that the tests need.", show_default="made of this machine")
        ] = "",
        require: Annotated[
            list[str] | None, typer.Option(help="PyPI package that the tests need. Repeatable.")
        ] = None,
        setup: Annotated[
            list[str] | None, typer.Option(help="Shell line that builds the repository. Repeatable.")
        ] = None,
        test_path: Annotated[
            list[str] | None,
            typer.Option(help="Pattern of test files. Repeatable.", show_default="by their names"),
        ] = None,
        parser: Annotated[
            str,
            typer.Option(help="Output: pytest, junit, unittest or sympy.", show_default="by --tests"),
        ] = "",
        cpu: Annotated[str, typer.Option(help="Cores of its sandboxes.")] = "1",
        memory: Annotated[str, typer.Option(help="Memory of its sandboxes.")] = "2Gi",
        test_seconds: Annotated[float, typer.Option(help="Limit of one run of the tests.", min=1)] = 300.0,
        runs: Annotated[int, typer.Option(help="Times that each patch is graded.", min=1)] = 3,
    ) -> None:
        """Make a task of a commit in a git repository, and prove it.

        The commit is split into tests and solution. The tests run before and after the solution, in a
        sandbox: those that it repairs are fail-to-pass, those that pass before and after it pass-to-pass. The
        grader that judges rollouts then proves the task. For example:

            orchard tasks from-repo ./calculator --tests "pytest -q" --gold 1f3c2a9
            orchard tasks from-repo . --tests "pytest -q" --base v1.2 --gold v1.3
            orchard tasks from-repo . --tests "pytest -q" --gold HEAD --require six
        """
        session: Session = context.obj
        if statement is not None and statement_file is not None:
            raise ConfigError("give --statement or --statement-file, not both")
        if statement_file is not None:
            statement = statement_file.read_text(encoding="utf-8")
        wanted = CommitTaskSettings(
            tests=tests,
            statement=statement or "",
            task_id=task_id,
            image=image,
            requires=tuple(require or ()),
            setup=tuple(setup or ()),
            parser=parser,
            cpu=cpu,
            memory=memory,
            seconds=test_seconds,
        )
        change = read_change(path, base or f"{gold}^", gold, test_path or ())
        _made(session, change, wanted, runs)


def _made(session: Session, change: CommitDiff, wanted: CommitTaskSettings, runs: int) -> None:
    with reporting() as told:
        verdict = asyncio.run(own_task(session, change, wanted, runs=runs, told=told))
    assert isinstance(verdict.task.grading, SWETests)
    fixed, kept = len(verdict.task.grading.fail_to_pass), len(verdict.task.grading.pass_to_pass)
    dropped = f", {len(verdict.dropped)} unsteady ones dropped" if verdict.dropped else ""
    console.print(
        f"[bold green]proven[/] fail-to-pass tests: {fixed}, pass-to-pass tests: {kept}{dropped}. See "
        f"`orchard tasks show {escape(verdict.task.task_id)}`"
    )
