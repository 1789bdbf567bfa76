"""Finished attempts as a value model sees them: conversation and submission, never tests, grade or gold."""

import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import duckdb
import numpy as np

from orchard.pipelines.trajectories.reading import AttemptSpan, read_paths
from orchard.schemas.blobs import BlobRef
from orchard.schemas.messages import MessageNode, Role
from orchard.storage.blobs import BlobStore

BUCKETS = 1 << 13
"""Numbers that features are hashed to."""
MOST_FEATURES = 4096
"""Features of one section of an attempt; of a longer one, the first and last half."""
RESULTS_READ = 3
"""Last results of commands that are read."""
BATCH = 200
_TOKEN = re.compile(r"[A-Za-z_]+|\d+|[^\sA-Za-z_\d]")


@dataclass(frozen=True)
class GradedAttempt:
    """A graded rollout of which a value model may read the conversation."""

    span: AttemptSpan
    task_id: str
    sample: int
    resolved: bool
    submission: str
    submission_sha256: str | None
    exit_status: str
    harness: str = ""
    model: str = ""
    task_set: str = ""

    @property
    def rollout_id(self) -> str:
        return self.span.rollout_id


_ATTEMPTS = """
select r.rollout_id, r.attempt, r.leaf, coalesce(s.sequence, 0) as first, r.sequence as last,
       r.task_id, r.sample, r.resolved, coalesce(r.submission, ''), r.submission_sha256, r.exit_status,
       r.harness, r.model, r.task_source
from rollouts r
left join (
    select rollout_id, attempt, min(sequence) as sequence from tables.attempts_all
    where kind = 'started' group by all
) s on s.rollout_id = r.rollout_id and s.attempt = r.attempt
where r.resolved is not null and r.turns > 0 and list_contains($campaigns, r.campaign)
order by r.sequence
"""


def graded_attempts(tables: duckdb.DuckDBPyConnection, campaigns: Sequence[str]) -> list[GradedAttempt]:
    """The graded rollouts of campaigns, in the order of the log; `task_set` is the source of their task."""
    rows = tables.execute(_ATTEMPTS, {"campaigns": list(campaigns)}).fetchall()
    return [GradedAttempt(AttemptSpan(*row[:5]), *row[5:]) for row in rows]


def whole_submission(one: GradedAttempt, blobs: BlobStore) -> str:
    """Raises StorageError."""
    if one.submission_sha256 is None:
        return one.submission
    return blobs.get(BlobRef(sha256=one.submission_sha256, size=0)).decode("utf-8", "replace")


def conversations(
    tables: duckdb.DuckDBPyConnection, blobs: BlobStore, attempts: Sequence[GradedAttempt]
) -> Iterator[tuple[GradedAttempt, list[MessageNode]]]:
    """Each attempt with its path of messages. Raises StorageError."""
    for start in range(0, len(attempts), BATCH):
        batch = attempts[start : start + BATCH]
        paths = read_paths(tables, blobs, [one.span for one in batch])
        for one in batch:
            yield one, paths[one.rollout_id]


def features(path: Sequence[MessageNode], submission: str | None, exit_status: str = "") -> np.ndarray:
    """The features of an attempt, int64 in [0, BUCKETS): hashed words and pairs of words of what the model
    said and did, of its last results, and of its submission; its length and ending. None for an attempt
    that has not ended."""
    said = [node for node in path if node.role is Role.ASSISTANT]
    spoken = "\n".join(
        "\n".join([node.reasoning, node.content, *(call.arguments for call in node.tool_calls)])
        for node in said
    )
    results = [node.content for node in path[1:] if node.role is not Role.ASSISTANT and node.turn > 0]
    found = [_number(f"turns {_magnitude(len(said))}")]
    found += _hashed("said", spoken)
    found += _hashed("result", "\n".join(results[-RESULTS_READ:]))
    if submission is not None:
        found += _hashed("submission", submission)
        found.append(_number(f"submitted {_magnitude(len(submission))}"))
        found.append(_number(f"ended {exit_status}"))
    return np.array(found, dtype=np.int64)


def _hashed(section: str, text: str) -> list[int]:
    words = _TOKEN.findall(text)
    grams = [*words, *(f"{first} {second}" for first, second in pairwise(words))]
    if len(grams) > MOST_FEATURES:
        half = MOST_FEATURES // 2
        grams = [*grams[:half], *grams[-half:]]
    return [_number(f"{section} {gram}") for gram in grams]


def _number(feature: str) -> int:
    return zlib.crc32(feature.encode("utf-8", "surrogatepass")) % BUCKETS


def _magnitude(count: int) -> int:
    return count.bit_length()


def cut_after(path: Iterable[MessageNode], step: int) -> list[MessageNode]:
    """The messages up to the results of `step`; -1 is before any action."""
    return [node for node in path if node.turn <= step + 1]
