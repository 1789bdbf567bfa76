"""SWE-bench Pro: the script that runs the tests and its parser stand beside the rows, in a directory for each
instance."""

import ast
from collections.abc import Sequence
from pathlib import Path

from orchard.pipelines.domains.swe.rows.columns import Columns, Family, RowFamily, patched_paths, row_task
from orchard.pipelines.domains.swe.rows.scripted import by_scripts
from orchard.schemas.tasks import SWETests, Task

_PARTS = (("requirements", "Requirements:"), ("interface", "New interfaces introduced:"))
"""Columns that the benchmark's prompt shows below the issue, and their headings there."""


def _read(columns: Columns) -> Task:
    test_patch = columns.patch("test_patch")
    parts = [columns.text("problem_statement")]
    parts += [f"{title}\n{said}" for name, title in _PARTS if (said := columns.optional(name))]
    image = columns.image()
    if not image:
        image = f"jefzda/sweap-images:{columns.text('dockerhub_tag')}"
    return row_task(
        columns,
        Family.SWE_BENCH_PRO,
        repo=columns.repo(),
        image=image,
        workdir=columns.given.workdir or "/app",
        statement="\n\n".join(parts),
        language=columns.optional("repo_language"),
        grading=SWETests(
            test_patch=test_patch,
            test_files=tuple(patched_paths(test_patch)),
            test_command=by_scripts(
                _script(columns, "run_script", "run_script.sh"),
                _script(columns, "parsing_script", "parser.py"),
                _names(columns, "selected_test_files_to_run"),
            ),
            parser="statuses-json",
            fail_to_pass=_names(columns, "fail_to_pass"),
            pass_to_pass=_names(columns, "pass_to_pass", empty=True),
        ),
    )


def _script(columns: Columns, column: str, file: str) -> str:
    """The script in the row, or in the directory that the user names."""
    if own := columns.optional(column):
        return own
    instance = columns.text("instance_id")
    if not columns.given.scripts:
        raise columns.fail(
            column, f"is missing: pass --scripts, the directory that has {instance}/{file} for each row"
        )
    path = Path(columns.given.scripts, instance, file)
    if Path(instance).name != instance or not path.is_file():
        raise columns.fail(column, f"is missing, and so is {path}: take the row out, or add the file")
    return path.read_text("utf-8", errors="replace")


def _names(columns: Columns, column: str, *, empty: bool = False) -> tuple[str, ...]:
    """A list, or its text as JSON or Python write it."""
    found = columns.value(column)
    if isinstance(found, str):
        try:
            found = ast.literal_eval(found)
        except (ValueError, SyntaxError, RecursionError) as error:
            raise columns.fail(column, f"is no list of names: {error}") from error
    if not isinstance(found, Sequence) or not all(isinstance(each, str) and each for each in found):
        raise columns.fail(column, "must be a list of names, or that list as text")
    if not found and not empty:
        raise columns.fail(column, "is empty, but names at least one")
    return tuple(dict.fromkeys(found))


SWE_BENCH_PRO = RowFamily(Family.SWE_BENCH_PRO, lambda row: "selected_test_files_to_run" in row, _read)
