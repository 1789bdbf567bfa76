"""What can be wrong with tasks on the way in. Each message is one sentence that names the fix."""

from typing import NamedTuple


class TaskError(ValueError):
    """Something about tasks that the user can mend."""


class LeftOut(NamedTuple):
    """What was not imported, while the rest was."""

    name: str
    """Row, directory or task."""
    why: str


class MalformedRow(TaskError):
    """A row that is not a task: names the row, the column where it is one's fault, and what is wrong."""

    def __init__(self, row: int, column: str, problem: str) -> None:
        super().__init__(f"row {row}, column {column}: {problem}" if column else f"line {row}: {problem}")
        self.row = row
        self.column = column


class MalformedRows(TaskError):
    """Rows of a file that was therefore not imported at all."""

    SHOWN = 20

    def __init__(self, path: str, problems: list[MalformedRow]) -> None:
        shown = "\n".join(f"  {problem}" for problem in problems[: self.SHOWN])
        more = f"\n  and {len(problems) - self.SHOWN} more" if len(problems) > self.SHOWN else ""
        super().__init__(
            f"{path} has {len(problems)} malformed rows and nothing was imported: mend them, or pass "
            f"--skip-malformed to import the others\n{shown}{more}"
        )
        self.problems = problems


class IndexFailed(TaskError):
    """pip could not fetch what a task is made from."""


class NotATask(TaskError):
    """A pair of releases that cannot become a task; `reason` is a word as in `task.rejected`."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
