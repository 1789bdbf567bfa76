"""`tasks from-jsonl|from-harbor|show`: imports and shows a user's own tasks (docs/own-tasks.md)."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from orchard.actions.session import Session
from orchard.actions.tasks import read_directories
from orchard.cli.facts import AsJson, print_facts
from orchard.cli.task_page import task_page, task_record
from orchard.pipelines.tasks.prompts import SOURCE, Defaults, task_from_prompt
from orchard.terminal.console import console, reporting
from orchard.terminal.left_out import SkipMalformed, Strict, import_shown, import_shown_rows


def register(app: typer.Typer) -> None:
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
        import_shown_rows(context.obj, file, partial(task_from_prompt, defaults=defaults), strict=strict)

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
        resolved_at: Annotated[
            float | None,
            typer.Option(help="Least reward of a Harbor task that is solved.", show_default="exactly 1"),
        ] = None,
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
        session: Session = context.obj
        with reporting() as told:
            tasks, left_out = read_directories(
                session, path, image, source, strict=strict, resolved_at=resolved_at, told=told
            )
        import_shown(session, lambda: tasks, len(tasks), left_out, source=str(path), strict=strict)

    @app.command("show")
    def show(
        context: typer.Context,
        task: Annotated[str, typer.Argument(help="Task id.")],
        full: Annotated[bool, typer.Option("--full", help="Do not cut long texts and lists.")] = False,
        as_json: AsJson = False,
    ) -> None:
        """Show a task: statement, image, how it is judged, and what validation found.

        Neither the solution nor the hidden tests are printed, nor values of variables. For example:

            orchard tasks show calculator-1f3c2a9d0b7e
        """
        session: Session = context.obj
        if as_json:
            print_facts(task_record(session.config.store, task))
        else:
            console.print(task_page(session.config.store, task, full=full))
