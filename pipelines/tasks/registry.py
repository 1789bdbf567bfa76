"""Tasks in the store: a blob for each, its history as events.

`task.imported` names the blob; `task.validated` and `task.rejected` hold the verdict on that
`task_hash`. An import is known by its hash, so importing twice is one import. A verdict is a new fact
each time it is reached.
"""

import asyncio
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, get_args

import msgspec

from orchard.pipelines.tasks.errors import TaskError
from orchard.pipelines.tasks.validate import Validation
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import TaskRef
from orchard.schemas.events import Event, TaskImported, TaskRejected, TaskValidated, make_event
from orchard.schemas.identity import digest
from orchard.schemas.protection import Protected
from orchard.schemas.requests import ProveRequest
from orchard.schemas.subjects import answering
from orchard.schemas.tasks import (
    IMPOSSIBLE,
    Asked,
    CheckPlace,
    PluginGrading,
    Task,
    checked_in,
    checks_of,
    judging_tests,
    task_hash,
)
from orchard.storage.blobs import BlobStore
from orchard.storage.reader import open_tables
from orchard.streams.publisher import Publisher
from orchard.workers.episode.diffs import parse_diff
from orchard.workers.episode.networks import asked

CAMPAIGN = "tasks"
SOURCE = "orchard/tasks"
MEDIA_TYPE = "application/json"
GRADER_LABEL = "orchard.grader"
NETWORK_LABEL = "orchard.network"
PLACE_LABEL = "orchard.check_in"
BATCH = 100


class StoredTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task's row in the store's `tasks` table."""

    ref: TaskRef
    task_hash: str
    state: str
    """State of the task: `imported`, `valid` or `rejected`."""
    reason: str
    detail: str
    protected: Protected | None = None
    protected_why: str = ""


class TaskRegistry:
    def __init__(self, publisher: Publisher, blobs: BlobStore) -> None:
        self._publisher = publisher
        self._blobs = blobs

    async def register(self, tasks: Iterable[Task], known: Mapping[str, str] | None = None) -> list[TaskRef]:
        """Store the tasks and publish their import; returns the references of those that were new.

        `known` maps task ids to hashes that need no import (`known_hashes`). Raises the errors of the
        blob store and of the publisher; what was registered before stays so, and registering again
        resumes.
        """
        new: list[TaskRef] = []
        found = known or {}
        for batch in _batches(task for task in tasks if found.get(task.task_id) not in {*_hashes(task)}):
            references = [await asyncio.to_thread(reference, task, self._blobs) for task in batch]
            events = [
                _event(imported(task, ref.blob), f"{task_hash(task)}.imported", task.task_id)
                for task, ref in zip(batch, references, strict=True)
            ]
            await self._publisher.events(events)
            new += references
        return new

    async def record(self, validation: Validation, request: ProveRequest | None = None) -> None:
        """Publish a verdict; a task that was changed by its proof replaces the one it came from. As the
        answer to a `request` it comes last: a killed prover is followed by another. Raises OutcomeRefused
        where the request has another answer."""
        verdict, task = validation.event, validation.task
        if task_hash(task) != task_hash(validation.original):
            await self._publisher.event(_verdict(replaced(validation)))
            await self.register([task])
        event = _verdict(verdict)
        if request is None:
            await self._publisher.event(event)
            return
        cause = answering("prove", request.task_hash)
        await self._publisher.terminal(msgspec.structs.replace(event, causation_id=cause), request.fence)


def _hashes(task: Task) -> Iterator[str]:
    """The hash of a task, and those that its proof may give it by the choice of a sandbox for its check."""
    yield task_hash(task)
    for place in get_args(CheckPlace):
        moved = checked_in(task.grading, place)
        if moved != task.grading:
            yield task_hash(msgspec.structs.replace(task, grading=moved))


def reference(task: Task, blobs: BlobStore) -> TaskRef:
    """Store a task, unless the store has it."""
    blob = blobs.put(msgspec.json.encode(task), MEDIA_TYPE)
    return TaskRef(task_id=task.task_id, source=task.source, repo=task.repo, blob=blob)


def imported(task: Task, blob: BlobRef) -> TaskImported:
    fail_to_pass, pass_to_pass = judging_tests(task.grading)
    gold = parse_diff(task.gold_patch)
    return TaskImported(
        task_id=task.task_id,
        task_hash=task_hash(task),
        source=task.source,
        repo=task.repo,
        image=task.image,
        blob=blob,
        fail_to_pass=len(fail_to_pass),
        pass_to_pass=len(pass_to_pass),
        gold_files=len(gold),
        gold_lines=sum(len(h.added) + len(h.removed) for file in gold for h in file.hunks),
        labels=_labels(task),
    )


def _labels(task: Task) -> dict[str, str]:
    """The task's own labels, and those that `submit` reads: the plug-in that it needs, the network that
    it asks for, that its check runs where the agent's processes ended."""
    labels = dict(task.labels)
    if isinstance(task.grading, PluginGrading):
        labels[GRADER_LABEL] = task.grading.grader
    if isinstance(task.asks, Asked):
        labels[NETWORK_LABEL] = asked(task).told
    if any(each.check_in == "stopped" and not each.sandbox for each in checks_of(task.grading)):
        labels[PLACE_LABEL] = "stopped"
    return labels


class Needs(msgspec.Struct, frozen=True):
    """What a task needs, by the tasks table."""

    grader: str | None
    """Plug-in that judges the task."""
    network: str | None
    """Network that it asks for, in words; None: it was not read."""
    patch: bool
    """Whether a repository's tests judge it."""
    repo: str
    stopped: bool = False
    """Whether its check runs in the agent's sandbox after all processes in it ended."""


def needs_of(store: str, tasks: Sequence[TaskRef]) -> dict[str, Needs]:
    """Needs of these tasks, by id."""
    with open_tables(store, views=["tasks"]) as tables:
        rows = tables.execute(
            f"SELECT task_id, labels['{GRADER_LABEL}'], labels['{NETWORK_LABEL}'], fail_to_pass > 0, repo, "
            f"labels['{PLACE_LABEL}'] IS NOT NULL FROM tasks"
        ).fetchall()
    found = {task_id: Needs(*needs) for task_id, *needs in rows}
    return {task.task_id: found[task.task_id] for task in tasks if task.task_id in found}


def replaced(validation: Validation) -> TaskRejected:
    """The verdict on a task that was replaced by itself: without its unsteady tests, or with its check in
    another sandbox."""
    detail = f"replaced by {task_hash(validation.task)[:12]}"
    if validation.dropped:
        detail += f" without: {'; '.join(validation.dropped.values())}"
    elif checks := checks_of(validation.task.grading):
        detail += f" with check_in = {checks[0].check_in}"
    return TaskRejected(
        task_id=validation.original.task_id,
        task_hash=task_hash(validation.original),
        reason="flaky" if validation.dropped else "replaced",
        detail=detail,
    )


def _verdict(verdict: TaskValidated | TaskRejected) -> Event:
    return _event(verdict, f"{verdict.task_hash}.verdict.{digest(verdict, 16)}", verdict.task_id)


def _event(data: msgspec.Struct, event_id: str, task_id: str) -> Event:
    return make_event(data, id=event_id, source=SOURCE, campaign=CAMPAIGN, subject=f"tasks/{task_id}")


def _batches(tasks: Iterable[Task]) -> Iterator[list[Task]]:
    iterator = iter(tasks)
    while batch := list(itertools.islice(iterator, BATCH)):
        yield batch


def stored_tasks(
    store: str,
    *,
    source: str | None = None,
    repo: str | None = None,
    ids: Sequence[str] = (),
    only_valid: bool = False,
    limit: int | None = None,
) -> list[StoredTask]:
    """Tasks of the store by id, as the writer has committed them.

    `ids` are task ids, in which `*` matches anything; TaskError names one that matches no task.
    """
    conditions = {"source = ?": source, "repo = ?": repo}
    where = " AND ".join(["true", *(text for text, value in conditions.items() if value is not None)])
    values = [value for value in conditions.values() if value is not None]
    with open_tables(store, views=["tasks"]) as tables:
        rows = tables.execute(
            "SELECT task_id, source, repo, task_hash, state, reason, detail, protected, protected_why, "
            f"blob_sha256, blob_size FROM tasks WHERE {where} ORDER BY task_id",
            values,
        ).fetchall()
    found = [_stored(row) for row in rows]
    for pattern in ids:
        named = [task for task in found if fnmatchcase(task.ref.task_id, pattern)]
        if not named:
            raise TaskError(f"no task matches {pattern!r}: `orchard tasks list` shows what there is")
        if only_valid and all(task.state != "valid" for task in named):
            state = "rejected" if named[0].state == "rejected" else "not proven yet"
            raise TaskError(
                f"the task {named[0].ref.task_id} is {state}: `orchard tasks validate {pattern}` proves it, "
                "and `orchard submit --unproven` takes it as it is"
            )
    if only_valid:
        found = [task for task in found if task.state == "valid"]
    if ids:
        found = [t for t in found if any(fnmatchcase(t.ref.task_id, pattern) for pattern in ids)]
    return found[:limit]


def _stored(row: tuple[Any, ...]) -> StoredTask:
    task_id, source, repo, hashed, state, reason, detail, protected, why, sha256, size = row
    blob = BlobRef(sha256=sha256, size=size, media_type=MEDIA_TYPE)
    return StoredTask(
        ref=TaskRef(task_id=task_id, source=source, repo=repo, blob=blob),
        task_hash=hashed,
        state=state,
        reason=reason or "",
        detail=detail or "",
        protected=None if protected is None else Protected(protected),
        protected_why=why or "",
    )


def known_hashes(store: str) -> dict[str, str]:
    """Task id to the hash that the store has now."""
    return {task.ref.task_id: task.task_hash for task in stored_tasks(store)}


def campaign_tasks(
    store: str,
    *,
    source: str | None = None,
    repo: str | None = None,
    ids: Sequence[str] = (),
    only_valid: bool = True,
) -> list[StoredTask]:
    """Tasks for a campaign; filters as in `stored_tasks`. Impossible tasks are among them only where their
    source was asked for."""
    found = stored_tasks(store, source=source, repo=repo, ids=ids, only_valid=only_valid)
    return [task for task in found if source == IMPOSSIBLE or task.ref.source != IMPOSSIBLE]


def read_task_refs(
    store: str,
    *,
    source: str | None = None,
    repo: str | None = None,
    ids: Sequence[str] = (),
    only_valid: bool = True,
    limit: int | None = None,
) -> list[TaskRef]:
    """References of `campaign_tasks`."""
    found = campaign_tasks(store, source=source, repo=repo, ids=ids, only_valid=only_valid)
    return [task.ref for task in found[:limit]]


def read_tasks(
    store: str,
    *,
    source: str | None = None,
    ids: Sequence[str] = (),
    only_valid: bool = False,
) -> list[Task]:
    """The tasks themselves, out of their blobs; raises what `stored_tasks` and the blob store raise."""
    blobs = BlobStore(store)
    found = stored_tasks(store, source=source, ids=ids, only_valid=only_valid)
    return [msgspec.json.decode(blobs.get(task.ref.blob), type=Task) for task in found]


def mixed(refs: Sequence[TaskRef], traps: Sequence[TaskRef], share: float, seed: str) -> list[TaskRef]:
    """The tasks with so many of the impossible ones, drawn by `seed`, that they are `share` of all.
    Raises TaskError where there are too few."""
    count = round(share * len(refs) / (1 - share))
    if count > len(traps):
        raise TaskError(
            f"a share of {share:g} beside {len(refs)} tasks takes {count} impossible ones, and the store has "
            f"{len(traps)}: `orchard tasks impossible` makes more"
        )

    def lot(ref: TaskRef) -> bytes:
        return hashlib.sha256(f"{seed}:{ref.task_id}".encode()).digest()

    return [*refs, *sorted(traps, key=lot)[:count]]


def storable(task: Task) -> Task:
    """The task in the form that will be read. Raises TaskError for text that is no Unicode, such as names
    of files may be, and for values of other types, which no constructor refuses."""
    try:
        plain = msgspec.to_builtins(
            task, builtin_types=(bytes, bytearray)
        )  # no text, which they would become
        return msgspec.json.decode(msgspec.json.encode(msgspec.convert(plain, Task)), type=Task)
    except UnicodeEncodeError as error:
        raise TaskError(f"it has text that is no Unicode: {error}") from error
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise TaskError(f"it cannot be stored as a task: {error}") from error
