"""Finds the tasks that must not train: held-out tasks, and those that are nearly the same."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import duckdb
import msgspec

from orchard.pipelines.tasks.errors import TaskError
from orchard.pipelines.tasks.held_out import HeldOut, Reason, TaskColumns, matches
from orchard.pipelines.tasks.overlap import TaskText, near, repo_name
from orchard.schemas.blobs import BlobRef
from orchard.schemas.tasks import Task
from orchard.storage.blobs import BlobStore

_EVALUATED = """
select distinct q.task_id, q.task_source, q.repo from requests q join evaluations e on e.campaign = q.campaign
where q.task_source <> 'impossible'
"""
_STORED = "select task_id, source, repo, blob_sha256, blob_size from tasks where source <> 'impossible'"
_SAID = """
select r.task_id, min(m.content) from messages m
join rollouts r on r.rollout_id = m.rollout_id and r.attempt = m.attempt
where m.role = 'user' and m.turn = 0 and list_contains($ids, r.task_id) group by r.task_id
"""


def contaminated(
    tables: duckdb.DuckDBPyConnection, blobs: BlobStore, held_out: HeldOut, tasks: Iterable[TaskColumns]
) -> dict[str, Reason]:
    """The tasks that may not train, by id.

    A task that the store lacks, as of imported trajectories, is compared by the user's first message
    in its rollouts. Raises TaskError for a pattern that names no task, and the blob store's errors.
    """
    stored = {row[0]: row for row in tables.execute(_STORED).fetchall()}
    out = _held_out(tables, held_out, [TaskColumns(*row[:3]) for row in stored.values()])
    if not out:
        return {}
    training = [task for task in {task.task_id: task for task in tasks}.values() if task.task_id not in out]
    found = {task_id: Reason("held_out", task_id) for task_id in out}
    of_repo = {repo_name(task.repo): task.task_id for task in sorted(out.values(), reverse=True)}
    if held_out.repos:
        for task in training:
            if held := of_repo.get(repo_name(task.repo)):
                found[task.task_id] = Reason("held_out_repo", held)
    missing = [task.task_id for task in (*out.values(), *training) if task.task_id not in stored]
    said = dict(tables.execute(_SAID, {"ids": missing}).fetchall()) if missing else {}

    def text(task: TaskColumns) -> TaskText:
        if (row := stored.get(task.task_id)) is None:
            return TaskText.of(task.task_id, task.repo, said.get(task.task_id) or "")
        whole = msgspec.json.decode(blobs.get(BlobRef(sha256=row[3], size=row[4])), type=Task)
        return TaskText.of(task.task_id, task.repo, whole.statement, whole.gold_patch)

    texts = (text(task) for task in training if task.task_id not in found)
    alike = near([text(task) for task in sorted(out.values())], texts, held_out.similarity)
    return found | {task_id: Reason("near_held_out", match.held_out) for task_id, match in alike.items()}


def _held_out(
    tables: duckdb.DuckDBPyConnection, held_out: HeldOut, stored: Sequence[TaskColumns]
) -> Mapping[str, TaskColumns]:
    found: dict[str, TaskColumns] = {}
    named: defaultdict[str, list[TaskColumns]] = defaultdict(list)
    for task in stored:
        for name in task:
            named[name].append(task)
    for pattern, names in matches(held_out.tasks, named.keys()).items():
        if not names:
            raise TaskError(
                f"held_out.tasks: no task's source, id or repository matches {pattern!r}: import the "
                "held-out tasks, or correct it; `orchard tasks list` shows what there is"
            )
        found |= {task.task_id: task for name in names for task in named[name]}
    if held_out.evaluations:
        for row in tables.execute(_EVALUATED).fetchall():
            found.setdefault(row[0], TaskColumns(*row))
    return found
