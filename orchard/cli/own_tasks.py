"""`tasks from-repo|from-jsonl|from-harbor|show`: tasks of your own (docs/own-tasks.md)."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from orchard.actions.session import Session
from orchard.actions.terminal import console
from orchard.cli.left_out import SkipMalformed, Strict
from orchard.cli.task_page import task_page
from orchard.cli.task_work import import_directories, import_rows, own_task
from orchard.configuration.config import ConfigError
from orchard.pipelines.domains.swe.own_repository import Wanted, read_change
from orchard.pipelines.tasks.prompts import SOURCE, Defaults, task_from_prompt


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""

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
        task_id: Annotated[str, typer.Option("--id", help="Of the task.", show_default="NAME-COMMIT")] = "",
        image: Annotated[
            str, typer.Option(help="Image with all that the tests need.", show_default="made of this machine")
        ] = "",
        require: Annotated[
            list[str] | None, typer.Option(help="PyPI package that the tests need; repeat it.")
        ] = None,
        setup: Annotated[
            list[str] | None, typer.Option(help="Shell line that builds the repository; repeat it.")
        ] = None,
        test_path: Annotated[
            list[str] | None,
            typer.Option(help="Pattern of test files; repeat it.", show_default="by their names"),
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
        sandbox: some come to pass by it (fail-to-pass), others must stay (pass-to-pass). The grader that
        judges rollouts then proves the task. For example:

            orchard tasks from-repo ./calculator --tests "pytest -q" --gold 1f3c2a9
            orchard tasks from-repo . --tests "pytest -q" --base v1.2 --gold v1.3
            orchard tasks from-repo . --tests "pytest -q" --gold HEAD --require six
        """
        session: Session = context.obj
        if statement is not None and statement_file is not None:
            raise ConfigError("give --statement or --statement-file, not both")
        if statement_file is not None:
            statement = statement_file.read_text(encoding="utf-8")
        wanted = Wanted(
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
        asyncio.run(own_task(session, change, wanted, runs=runs))

    @app.command("from-jsonl")
    def from_jsonl(
        context: typer.Context,
        file: Annotated[Path, typer.Argument(help="One JSON object a line, with a `prompt`.")],
        check: Annotated[
            str, typer.Option(help="Shell command that judges rows without one: exit status 0 is solved.")
        ] = "",
        grader: Annotated[str, typer.Option(help="Plug-in that judges rows without a check.")] = "",
        image: Annotated[str, typer.Option(help="Image of rows that name none.")] = "host",
        workdir: Annotated[str, typer.Option(help="Directory of rows that name none.")] = "/tmp",
        source: Annotated[str, typer.Option(help="Source of the tasks, for `submit --source`.")] = SOURCE,
        strict: Strict = False,
        skip_malformed: SkipMalformed = False,
    ) -> None:
        """Import prompts, each with a command that checks the outcome or with a grader by name.

        A malformed line is left out and named; the exit status is then 3. A line has `prompt` and `check`
        (or `grader` and its `settings`), and may have `id`, `files` (path to text, brought for the check
        alone), `solution` (shell text, for the proof), `setup`, `image`, `workdir`, `environment`, `cpu`,
        `memory`, `timeout_seconds`, `repo` and `labels`. For example:

            {"id": "sum", "prompt": "Write 2+2 to n.txt.", "check": "grep -qx 4 n.txt"}

            orchard tasks from-jsonl prompts.jsonl
            orchard tasks from-jsonl prompts.jsonl --grader same-text
        """
        defaults = Defaults(source=source, image=image, workdir=workdir, check=check, grader=grader)
        del skip_malformed
        import_rows(context.obj, file, partial(task_from_prompt, defaults=defaults), strict)

    @app.command("from-harbor")
    def from_harbor(
        context: typer.Context,
        path: Annotated[Path, typer.Argument(help="A task directory, or a directory of them.")],
        image: Annotated[
            str,
            typer.Option(help="Image of all of them.", show_default="the task's, else from its Dockerfile"),
        ] = "",
        source: Annotated[
            str, typer.Option(help="Source of the tasks, for `submit` and suites.", show_default="the format")
        ] = "",
        strict: Strict = False,
    ) -> None:
        """Import task directories of Harbor (task.toml) or Terminal-Bench (task.yaml).

        Images that are missing are built by buildah or docker. A directory that is no task, or whose image
        cannot be built, is left out and named; the exit status is then 3. The task is solved when its test
        script says so, and proven by its solution. For example:

            orchard tasks from-harbor ./terminal-bench-2/fix-git
            orchard tasks from-harbor ./terminal-bench-2 --source terminal-bench-2
            orchard tasks from-harbor ./my-dataset --image registry.example/base:1
        """
        import_directories(context.obj, path, image, source, strict)

    @app.command("show")
    def show(
        context: typer.Context,
        task: Annotated[str, typer.Argument(help="Task id.")],
        full: Annotated[bool, typer.Option("--full", help="Do not cut long texts and lists.")] = False,
    ) -> None:
        """A task, readable: statement, image, how it is judged, and what validation found.

        Neither the solution nor the hidden tests are printed, nor values of variables. For example:

            orchard tasks show calculator-1f3c2a9d0b7e
        """
        session: Session = context.obj
        console.print(task_page(session.config.store, task, full=full))
