"""Steps of the distillation example: a teacher's lessons of a given size, and a run that it scores."""

import asyncio
import random
from pathlib import Path
from typing import Any

import msgspec

from examples import steps
from examples.example import Example
from orchard.pipelines.datasets.manifest import MANIFEST, Shard, read_manifest, write_manifest
from orchard.pipelines.datasets.rows import read_rows, row_digest, rows_sha256, write_rows
from orchard.storage.reader import open_tables

TEACHER = "teacher"
"""Name of the served teacher's model and endpoint."""
_ROWS = "rows-00000.parquet"
_SPENT = "select sum(trained_tokens), sum(teacher_tokens) from policy_steps where run = ?"


async def lesson(example: Example, *, dataset: str, out: str, tokens: int, seed: int) -> tuple[int, int]:
    """Draws examples of a dataset, by the seed, until at least so many of their tokens train, and returns
    these tokens and the number of examples. A dataset that has fewer is taken whole."""
    del example
    place = Path(out)
    if not (place / MANIFEST).exists():
        await asyncio.to_thread(_draw, Path(dataset), place, tokens, seed)
    made = read_manifest(place)
    return made.trained_tokens, made.rows


def _draw(dataset: Path, out: Path, tokens: int, seed: int) -> None:
    rows = list(read_rows(dataset))
    random.Random(seed).shuffle(rows)
    taken, trained = 0, 0
    while taken < len(rows) and trained < tokens:
        trained += rows[taken].trained_tokens
        taken += 1
    rows = rows[:taken]
    out.mkdir(parents=True, exist_ok=True)
    write_rows(out / _ROWS, rows)
    whole, sha256 = read_manifest(dataset), rows_sha256(map(row_digest, rows))
    size = sum(row.tokens for row in rows)
    made = msgspec.structs.replace(
        whole,
        name=f"{whole.name}-{seed}",
        sha256=sha256,
        rows=len(rows),
        tokens=size,
        trained_tokens=trained,
        resolved=sum(row.resolved for row in rows),
        counts={"drawn": len(rows), "of": whole.rows},
        shards=(Shard(file=_ROWS, rows=len(rows), tokens=size, sha256=sha256),),
    )
    write_manifest(out, made)


async def distilled(example: Example, *, teacher: str, **settings: Any) -> None:
    """Runs `orchard rl` with a teacher."""
    scored_by = {"teacher": TEACHER, "endpoint": TEACHER}
    async with example.serving(teacher, TEACHER, TEACHER):
        await steps.rl(example, objective="distill", distill=scored_by, **settings)


async def spent(example: Example, *, run: str) -> tuple[int, int]:
    """Tokens of a run that its teacher scored and that trained, and all that it read for that."""
    with open_tables(example.config.store) as tables:
        ((scored, read),) = tables.execute(_SPENT, [run]).fetchall()
    return int(scored), int(read)
