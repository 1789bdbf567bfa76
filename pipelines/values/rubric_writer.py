"""Has a teacher write the rubrics of tasks, each once: a rubric that the log has is not asked for again."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import msgspec

from orchard.pipelines.tasks.registry import CAMPAIGN
from orchard.pipelines.values.asking import ask
from orchard.pipelines.values.prompt import retry_message
from orchard.pipelines.values.rubrics import TEACHER_VERSION, as_blob, read_rubric, teacher_prompt
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import ModelSpec, TaskRef
from orchard.schemas.events import Event, make_event
from orchard.schemas.identity import canonical, digest
from orchard.schemas.tasks import Task, task_hash
from orchard.schemas.values import RubricFacts, RubricFailed, RubricWritten
from orchard.storage.blobs import BlobStore
from orchard.streams.publisher import Publisher
from orchard.workers.llm.client import ModelClient

TRIES = 3
TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True)
class Teaching:
    """Teacher, and layer of its rubrics."""

    model: ModelSpec
    teacher: str
    """Name of the layer."""
    again: bool = False
    """Ask again about tasks whose rubric failed."""


class RubricWriter:
    def __init__(
        self, publisher: Publisher, models: ModelClient, blobs: BlobStore, teaching: Teaching
    ) -> None:
        self._publisher, self._models, self._blobs, self._teaching = publisher, models, blobs, teaching

    async def known(self, ref: TaskRef) -> Event | None:
        """The verdict on a task that the log has; None if `write` would ask. Raises StorageError and
        StreamsError."""
        return (await self._known(await self._task(ref)))[0]

    async def write(self, ref: TaskRef) -> Event:
        """The event with the verdict on a task: the log's own, or the result of asking now. Raises
        StorageError, StreamsError and InfrastructureError."""
        task, teaching = await self._task(ref), self._teaching
        event, identity = await self._known(task)
        if event is not None:
            return event
        prompt = teacher_prompt(task)
        asked_for = canonical(prompt)
        input_hash = digest(prompt, 64)
        await asyncio.to_thread(self._blobs.put, asked_for, "application/json")
        asked = await ask(
            self._models,
            teaching.model,
            prompt,
            lambda text: read_rubric(text, task),
            retry_message,
            what=f"task {task.task_id}",
            seed=int(input_hash[:7], 16),
            tries=TRIES,
            timeout=TIMEOUT_SECONDS,
        )
        facts = RubricFacts(
            task_id=task.task_id,
            task_hash=task_hash(task),
            task=ref.blob,
            teacher=teaching.teacher,
            prompt_version=TEACHER_VERSION,
            input_hash=input_hash,
            **asked.facts,
        )
        told = msgspec.structs.asdict(facts)
        data: RubricWritten | RubricFailed
        if (rubric := asked.found) is None:
            data = RubricFailed(**told, fault=asked.fault, detail=asked.detail)
        else:
            blob = await asyncio.to_thread(self._blobs.put, as_blob(rubric), "application/json")
            data = RubricWritten(**told, rubric=blob, criteria=len(rubric.criteria))
        event = make_event(data, id=identity, source="orchard/rubrics", campaign=CAMPAIGN)
        await self._publisher.event(event)
        return event

    async def _task(self, ref: TaskRef) -> Task:
        return msgspec.json.decode(await asyncio.to_thread(self._blobs.get, ref.blob), type=Task)

    async def _known(self, task: Task) -> tuple[Event | None, str]:
        """The verdict that the log has, and the identity of the next one."""
        teaching, input_hash = self._teaching, digest(teacher_prompt(task), 64)
        identity = digest(["rubric", task_hash(task), teaching.teacher, TEACHER_VERSION, input_hash])
        while (known := await self._publisher.annotation(identity)) is not None and known.event is not None:
            if known.event.type == "rubric.written" or not teaching.again:
                return known.event, identity
            identity = digest(["again", identity])
        return None, identity


_TASKS = """
select distinct on (q.task_id) q.task_id, q.task_source, q.repo, q.task_sha256 from requests q
where q.campaign = ? order by q.task_id, q.sequence desc
"""


def campaign_tasks(tables: duckdb.DuckDBPyConnection, campaign: str) -> list[TaskRef]:
    """The tasks of a campaign's rollouts."""
    return [
        TaskRef(task_id=task, source=source, repo=repo, blob=BlobRef(sha256=sha256, size=0))
        for task, source, repo, sha256 in tables.execute(_TASKS, [campaign]).fetchall()
    ]


def spent_on(tables: duckdb.DuckDBPyConnection, teacher: str) -> float:
    """USD that the rubrics of a layer have cost so far, as far as prices are known."""
    query = "select coalesce(sum(cost_usd), 0) from rubrics_all where teacher = ?"
    (usd,) = tables.execute(query, [teacher]).fetchall()[0]
    return float(usd)


def with_solution(blobs: BlobStore, refs: Sequence[TaskRef]) -> list[TaskRef]:
    """The tasks that have a known solution to write a rubric from."""
    return [ref for ref in refs if msgspec.json.decode(blobs.get(ref.blob), type=Task).gold_patch]
