"""Files of SWE-bench family rows: read as a stream, checked whole before the first task is given out."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from orchard.pipelines.tasks.errors import MalformedRow, MalformedRows, TaskError
from orchard.pipelines.tasks.swe_rows import Family, task_from_row
from orchard.schemas.tasks import Task

BATCH_ROWS = 64
"""Rows decoded at once: a row may hold megabytes of patches and test names."""


class RowFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file whose rows have all been looked at."""

    path: Path
    family: Family | None
    good: int
    """Rows that are tasks."""
    problems: tuple[MalformedRow, ...]

    def tasks(self) -> Iterator[Task]:
        """The tasks of the good rows, read again from the file."""
        bad = {problem.row for problem in self.problems}
        for number, row in read_rows(self.path):
            if number not in bad and isinstance(row, dict):
                yield task_from_row(row, number, self.family)


def check_rows(path: Path, *, family: Family | None = None, skip_malformed: bool = False) -> RowFile:
    """Look at every row of a `.parquet`, `.jsonl` or `.json` (one object a line) file.

    Raises MalformedRows when any row is not a task, unless `skip_malformed`; TaskError when the file cannot
    be read at all. `family` is found for each row by its columns unless given.
    """
    problems: list[MalformedRow] = []
    seen: dict[str, int] = {}
    for number, row in read_rows(path):
        if isinstance(row, MalformedRow):
            problems.append(row)
            continue
        try:
            task = task_from_row(row, number, family)
        except MalformedRow as problem:
            problems.append(problem)
            continue
        if task.task_id in seen:
            first = seen[task.task_id]
            problems.append(
                MalformedRow(number, "instance_id", f"{task.task_id!r} already stands in row {first}")
            )
        else:
            seen[task.task_id] = number
    if problems and not skip_malformed:
        raise MalformedRows(str(path), problems)
    if not seen:
        raise TaskError(f"{path} holds no task: give a file with SWE-bench family rows")
    return RowFile(path=path, family=family, good=len(seen), problems=tuple(problems))


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, Any] | MalformedRow]]:
    """Row number from 1 (for JSONL, the line) and the row, or what is wrong with a line that is none.

    Raises TaskError for a file that is missing or of another kind.
    """
    if not path.is_file():
        raise TaskError(f"{path} is not a file: give a .parquet or .jsonl file of SWE-bench family rows")
    if path.suffix == ".parquet":
        yield from enumerate(_parquet_rows(path), start=1)
    elif path.suffix in (".jsonl", ".json"):
        yield from _json_rows(path)
    else:
        raise TaskError(f"{path} is neither .parquet nor .jsonl: convert it to one of them")


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise TaskError(f"{path} cannot be read as Parquet: {error}") from error


def _json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any] | MalformedRow]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (json.JSONDecodeError, UnicodeDecodeError) as error:
                yield number, MalformedRow(number, "(whole line)", f"is not JSON: {error}")
                continue
            if isinstance(row, dict):
                yield number, row
            else:
                yield number, MalformedRow(number, "(whole line)", "must be a JSON object")
