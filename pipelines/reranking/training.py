"""Trains a value model from a store: examples from the log, split by task."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal

import duckdb

from orchard.pipelines.reranking.attempts import (
    conversations,
    cut_after,
    features,
    graded_attempts,
    whole_submission,
)
from orchard.pipelines.reranking.errors import RerankError
from orchard.pipelines.reranking.model import (
    VERSION,
    Labelled,
    RerankManifest,
    held_out_tasks,
    judged,
    pairs_of,
    save_reranker,
    train,
)
from orchard.schemas.positions import PlainPosition
from orchard.storage.blobs import BlobStore

Labels = Literal["outcomes", "measured"]
HELD_OUT = 0.2
"""Share of the tasks that a model is judged by, not trained on."""

_MEASURED = """
select distinct on (m.rollout_id, m.attempt, m.step) m.rollout_id, m.step, m.value
from measurements m where list_contains($rollouts, m.rollout_id)
order by m.rollout_id, m.attempt, m.step, m.samples desc, m.sequence desc
"""


def examples_of(
    tables: duckdb.DuckDBPyConnection, blobs: BlobStore, campaigns: Sequence[str], labels: Labels
) -> list[Labelled]:
    """Finished attempts with their outcomes, or their beginnings with measured values."""
    attempts = graded_attempts(tables, campaigns)
    if labels == "outcomes":
        return [
            Labelled(
                one.task_id,
                features(path, whole_submission(one, blobs), one.exit_status),
                float(one.resolved),
            )
            for one, path in conversations(tables, blobs, attempts)
        ]
    points: dict[str, list[tuple[int, float]]] = {}
    rollouts = [one.rollout_id for one in attempts]
    for rollout, step, value in tables.execute(_MEASURED, {"rollouts": rollouts}).fetchall():
        points.setdefault(rollout, []).append((step, value))
    measured = [one for one in attempts if one.rollout_id in points]
    return [
        Labelled(one.task_id, features(cut_after(path, step), None), value)
        for one, path in conversations(tables, blobs, measured)
        for step, value in points[one.rollout_id]
    ]


def train_reranker(
    tables: duckdb.DuckDBPyConnection,
    blobs: BlobStore,
    out: Path,
    campaigns: Sequence[str],
    *,
    labels: Labels = "outcomes",
    without: Collection[str] = (),
    seed: int = 0,
    as_of: PlainPosition = 0,
) -> RerankManifest:
    """Train a model on the tasks of campaigns and write it to `out`; `without` are ids of tasks that neither
    train nor judge it. Raises RerankError without examples or without contrast."""
    examples = [one for one in examples_of(tables, blobs, campaigns, labels) if one.task_id not in without]
    if not examples:
        raise RerankError(
            f"{', '.join(campaigns)} has no rollouts with {labels} to train on: `orchard status` lists "
            "campaigns, `orchard values measure` measures"
        )
    tasks = sorted({one.task_id for one in examples})
    kept_out = held_out_tasks(tasks, HELD_OUT, seed)
    trained = [one for one in examples if one.task_id not in kept_out]
    model = train(trained, seed)
    manifest = RerankManifest(
        version=VERSION,
        labels=labels,
        seed=seed,
        campaigns=tuple(campaigns),
        as_of=as_of,
        tasks=tuple(task for task in tasks if task not in kept_out),
        examples=len(trained),
        pairs=sum(map(len, pairs_of(trained).values())),
        held_out=judged(model, [one for one in examples if one.task_id in kept_out]),
        weights_sha256="",
    )
    return save_reranker(model, manifest, out)
