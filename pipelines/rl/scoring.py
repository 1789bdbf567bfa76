"""Has the turns of a run's groups scored: asks annotators over their queue, reads verdicts from the log."""

from collections.abc import Iterable, Mapping

import duckdb

from orchard.pipelines.rl.coordinator import RunError
from orchard.pipelines.rl.turn_rewards import ProcessReward
from orchard.pipelines.values.requests import offer
from orchard.pipelines.values.rubrics import JUDGE_VERSION
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import ModelSpec, TaskRef
from orchard.schemas.events import payload
from orchard.schemas.groups import GroupAssembled, GroupMember
from orchard.schemas.subjects import EVENTS_PREFIX
from orchard.schemas.values import AnnotationFailed, AnnotationRequest, ValueAnnotated
from orchard.streams.publisher import Publisher
from orchard.streams.records import StoredEvent

VERDICTS = f"{EVENTS_PREFIX}.annotated.*"
"""Subjects of all verdicts, of every run."""


def run_rubrics(
    tables: duckdb.DuckDBPyConnection, tasks: Iterable[TaskRef], process: ProcessReward
) -> dict[str, BlobRef]:
    """The rubric of each task of a run, by task id. Raises RunError where one is missing."""
    rows = tables.execute(
        "select task_sha256, rubric_sha256 from rubrics where teacher = ?", [process.teacher]
    ).fetchall()
    known = {task: BlobRef(sha256=rubric, size=0) for task, rubric in rows}
    tasks = list(tasks)
    if missing := [task.task_id for task in tasks if task.blob.sha256 not in known]:
        raise RunError(
            f"{len(missing)} of {len(tasks)} tasks have no rubric of {process.teacher!r}, {missing[0]} among "
            "them: `orchard values rubrics --source SOURCE --model MODEL` writes them, or leave `process` out"
        )
    return {task.task_id: known[task.blob.sha256] for task in tasks}


class TurnScores:
    """Scores of the turns of one run's rollouts."""

    def __init__(
        self, run: str, process: ProcessReward, rubrics: Mapping[str, BlobRef], publisher: Publisher
    ) -> None:
        self._run, self._process, self._rubrics, self._publisher = run, process, rubrics, publisher
        self._rewards: dict[str, tuple[float, ...]] = {}
        """Rewards of turns by rollout; none where no judge's reply was accepted."""
        self._spans: dict[str, tuple[int, int]] = {}
        """First and last sequence of each rollout's events."""
        self._asked: set[str] = set()

    def take(self, batch: Iterable[StoredEvent]) -> None:
        """Apply events of the log, in order."""
        for stored in batch:
            event = stored.fact
            if event is None or event.campaign != self._run or event.rollout_id is None:
                continue
            data = payload(event)
            if isinstance(data, ValueAnnotated | AnnotationFailed):
                if data.annotator == self._process.layer and data.prompt_version == JUDGE_VERSION:
                    rewards = data.turn_rewards if isinstance(data, ValueAnnotated) else ()
                    self._rewards[event.rollout_id] = rewards
                continue
            first, _ = self._spans.get(event.rollout_id, (stored.sequence, 0))
            self._spans[event.rollout_id] = first, stored.sequence

    async def ask(self, groups: Iterable[GroupAssembled]) -> None:
        """Ask for the scores of members that have no verdict, each once. Raises StreamsError."""
        wanted = [
            self._request(group, member)
            for group in groups
            for member in group.members
            if member.rollout_id not in self._asked and member.rollout_id not in self._rewards
        ]
        if wanted:
            await offer(self._publisher, wanted)
            self._asked |= {request.rollout_id for request in wanted}

    def _request(self, group: GroupAssembled, member: GroupMember) -> AnnotationRequest:
        first, last = self._spans[member.rollout_id]
        return AnnotationRequest(
            rollout_id=member.rollout_id,
            attempt=member.attempt,
            campaign=self._run,
            annotator=self._process.layer,
            model=ModelSpec(name=self._process.model, endpoint=self._process.endpoint),
            prompt_version=JUDGE_VERSION,
            first_sequence=first,
            last_sequence=last,
            rubric=self._rubrics[group.task_id],
        )

    def ready(self, group: GroupAssembled) -> bool:
        """Whether each member has a verdict."""
        return all(member.rollout_id in self._rewards for member in group.members)

    def of(self, rollout_id: str) -> tuple[float, ...]:
        """Rewards of a rollout's turns; none where it was not scored."""
        return self._rewards.get(rollout_id, ())

    def forget(self, groups: Iterable[GroupAssembled]) -> None:
        for member in (member for group in groups for member in group.members):
            self._rewards.pop(member.rollout_id, None)
            self._spans.pop(member.rollout_id, None)
