"""Reads files of rows that are tasks: as a stream, checked whole before the first task is yielded."""

import json
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from orchard.pipelines.tasks.errors import MalformedRow, TaskError
from orchard.pipelines.tasks.left_out import LeftOut
from orchard.pipelines.tasks.registry import storable
from orchard.schemas.tasks import Task

Reader = Callable[[dict[str, Any], int], Task]
"""Makes the task of a row; its number counts from 1 (for JSONL, the line). Raises MalformedRow."""

BATCH_ROWS = 64
"""Rows decoded at once: a row may hold megabytes of patches and test names."""
_HEAD = 1024
"""Bytes in which a list begins, after a mark of the byte order and blanks."""


class RowFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file whose rows have all been checked."""

    path: Path
    read: Reader
    good: int
    """Number of rows that are tasks."""
    problems: tuple[MalformedRow, ...]

    @property
    def left_out(self) -> list[LeftOut]:
        return [problem.left_out for problem in self.problems]

    def tasks(self) -> Iterator[Task]:
        """The tasks of the good rows, read again from the file."""
        bad = {problem.row for problem in self.problems}
        for number, row in read_rows(self.path):
            if number not in bad and isinstance(row, dict):
                yield self.read(row, number)


def check_rows(path: Path, read: Reader) -> RowFile:
    """Check every row of a `.parquet`, `.jsonl` or `.json` (one object a line, or one list) file.

    Raises TaskError when the file cannot be read at all, or has no row.
    """
    problems: list[MalformedRow] = []
    seen: dict[str, int] = {}
    for number, row in read_rows(path):
        try:
            task = _task(row, number, read)
        except MalformedRow as problem:
            problems.append(problem)
            continue
        if task.task_id in seen:
            first = seen[task.task_id]
            problems.append(
                MalformedRow(number, "", f"the task {task.task_id!r} already stands in line {first}")
            )
        else:
            seen[task.task_id] = number
    if not seen and not problems:
        raise TaskError(f"{path} has no row: give a file with a task a row")
    return RowFile(path=path, read=read, good=len(seen), problems=tuple(problems))


def _task(row: dict[str, Any] | MalformedRow, number: int, read: Reader) -> Task:
    """The task of a row. Raises MalformedRow, also for one that cannot be stored: half characters, lists in
    lists without end."""
    if isinstance(row, MalformedRow):
        raise row
    try:
        return storable(read(row, number))
    except MalformedRow:
        raise
    except (ValueError, RecursionError) as error:
        raise MalformedRow(number, "", f"it cannot be read: {error}") from error


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, Any] | MalformedRow]]:
    """Row number from 1 (for JSONL, the line) and the row, or what is wrong with a line that is none.

    Raises TaskError for a file that is missing or of another kind.
    """
    if not path.is_file():
        raise TaskError(f"{path} is not a file: give a .parquet or .jsonl file of rows")
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
        if path.suffix == ".json" and file.read(_HEAD).removeprefix(BOM_UTF8).lstrip().startswith(b"["):
            yield from _list_rows(path)
            return
        file.seek(0)
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield number, MalformedRow(number, "", f"is not JSON: {error}")
                continue
            if isinstance(row, dict):
                yield number, row
            else:
                yield number, MalformedRow(number, "", "must be a JSON object")


def _list_rows(path: Path) -> Iterator[tuple[int, dict[str, Any] | MalformedRow]]:
    """The rows of a file that is one JSON list; their numbers are places in it."""
    try:
        rows = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{path} cannot be read as a JSON list: {error}") from error
    for number, row in enumerate(rows, start=1):
        yield number, row if isinstance(row, dict) else MalformedRow(number, "", "must be a JSON object")
