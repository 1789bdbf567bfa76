"""The case of an unresolved trajectory in an annotator's view: request, actions, observations and grade."""

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import msgspec

from orchard.pipelines.trajectories.reading import AttemptSpan, read_paths
from orchard.schemas.blobs import BlobRef
from orchard.schemas.messages import MessageNode, Role
from orchard.schemas.tasks import Task, judging_tests
from orchard.storage.blobs import BlobStore

PASSING = frozenset({"PASSED", "XFAIL", "SKIPPED"})


@dataclass(frozen=True)
class CaseStep:
    thought: str
    actions: tuple[tuple[str, str], ...]
    """Names of tools with their arguments in the model's spelling."""
    results: tuple[str, ...]
    """Observations, and the harness's answers to unusable messages."""


@dataclass(frozen=True)
class Case:
    """The case of one trajectory."""

    rollout_id: str
    attempt: int
    campaign: str
    statement: str
    steps: tuple[CaseStep, ...]
    exit_status: str
    unfixed: tuple[str, ...]
    """Tests that had to pass after the repair and did not."""
    regressed: tuple[str, ...]
    """Tests that passed before and do not now."""
    fixed: int
    detail: str
    """Details of the grader beside the tests."""
    submission: str


_OUTCOME = """
select r.campaign, r.exit_status, r.submission, r.submission_sha256, r.leaf, w.tests, w.detail, q.task_sha256
from rollouts r
join requests q on q.rollout_id = r.rollout_id
left join rewards w on w.rollout_id = r.rollout_id
where r.rollout_id = $rollout and r.attempt = $attempt
"""


def read_case(tables: duckdb.DuckDBPyConnection, blobs: BlobStore, place: AttemptSpan) -> Case | None:
    """The case of one attempt; None while the tables lack its outcome. Raises BlobMissing, BlobCorrupt."""
    rows = tables.execute(_OUTCOME, {"rollout": place.rollout_id, "attempt": place.attempt}).fetchall()
    if not rows:
        return None
    campaign, exit_status, submission, submission_sha256, leaf, tests, detail, task_sha256 = rows[0]
    task = msgspec.json.decode(blobs.get(BlobRef(sha256=task_sha256, size=0)), type=Task)
    if submission_sha256:
        submission = blobs.get(BlobRef(sha256=submission_sha256, size=0)).decode("utf-8", "replace")
    whole = AttemptSpan(place.rollout_id, place.attempt, leaf, place.first, place.last)
    path = read_paths(tables, blobs, [whole])[place.rollout_id]
    needed = set(judging_tests(task.grading)[0])
    failing = [name for name, status in sorted((tests or {}).items()) if status not in PASSING]
    return Case(
        rollout_id=place.rollout_id,
        attempt=place.attempt,
        campaign=campaign,
        statement=task.statement,
        steps=steps_of(path),
        exit_status=exit_status,
        unfixed=tuple(name for name in failing if name in needed),
        regressed=tuple(name for name in failing if name not in needed),
        fixed=len(needed & set(tests or {})) - sum(name in needed for name in failing),
        detail=detail or "",
        submission=submission or "",
    )


def steps_of(path: Sequence[MessageNode]) -> tuple[CaseStep, ...]:
    """The steps of a path of messages."""
    steps: list[CaseStep] = []
    for node in path:
        if node.role is Role.ASSISTANT:
            thought = "\n".join(filter(None, [node.reasoning, node.content]))
            actions = tuple((call.name, call.arguments) for call in node.tool_calls)
            steps.append(CaseStep(thought, actions, ()))
        elif steps:
            last = steps[-1]
            steps[-1] = CaseStep(last.thought, last.actions, (*last.results, node.content))
    return tuple(steps)
