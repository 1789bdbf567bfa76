"""Errors of tasks before they are registered. Each message is one sentence that names the fix."""

from orchard.pipelines.tasks.left_out import LeftOut


class TaskError(ValueError):
    """A fault of tasks that the user can fix."""


class MalformedRow(TaskError):
    """A row is not a task: the message names the row, the column at fault, and what is wrong."""

    def __init__(self, row: int, column: str, problem: str) -> None:
        self.left_out = LeftOut(f"row {row}, column {column}" if column else f"line {row}", problem)
        super().__init__(str(self.left_out))
        self.row = row
        self.column = column


class IndexFailed(TaskError):
    """pip could not fetch what a task is made from."""


class IndexUnreachable(TaskError):
    """No package index could be asked: connection, certificate or sign-in at a proxy failed."""


class NotATask(TaskError):
    """A pair of releases cannot become a task; `reason` is a word as in `task.rejected`."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
