"""The funnel over a pool, resumable: vectors and decisions are kept in a folder as they are made."""

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import msgspec
import numpy as np

from orchard.pipelines.domains.gui.funnel.encoders import Encoder
from orchard.pipelines.domains.gui.funnel.nearest import Floats, Greedy
from orchard.pipelines.domains.gui.funnel.stages import DroppedIntent, Intent, Rules, Stage, screened
from orchard.schemas.identity import digest

THRESHOLDS: Mapping[str, float] = MappingProxyType({"sft": 0.99, "rl": 0.95})
"""Cosine above which an intent is dropped, for tasks to imitate on and for tasks to train by rewards on."""
BLOCK = 2048
"""Intents that are embedded, and decided on, at once."""
_CHECKPOINT_BLOCKS = 8
_PROGRESS = "progress"


class StageCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one stage."""

    stage: Stage
    before: int
    dropped: int

    @property
    def after(self) -> int:
        return self.before - self.dropped


class Passed(msgspec.Struct, frozen=True, kw_only=True):
    """The funnel's result for one purpose."""

    purpose: str
    threshold: float
    encoder: str
    steps: tuple[StageCounts, ...]
    kept: tuple[str, ...]
    """Ids, in the order of the pool."""
    dropped: tuple[DroppedIntent, ...]
    """The others, in the order of the pool."""


@dataclass(frozen=True)
class Funnel:
    """A funnel over a pool, with the directory that keeps its progress."""

    rules: Rules
    encoder: Encoder
    folder: Path
    thresholds: Mapping[str, float] = field(default_factory=lambda: THRESHOLDS)
    told: Callable[[str, int, int], None] = lambda _what, _done, _total: None
    """Called with the current work, and how much of it is done and in all."""

    async def run(self, pool: Sequence[Intent]) -> list[Passed]:
        """Filter the pool; the results, one for each purpose. Raises TaskError where an encoder fails;
        the same call resumes."""
        verdicts = dict(enumerate(cause for _, cause in screened(pool, self.rules)))
        left = [place for place, cause in verdicts.items() if cause is None]
        (self.folder / _PROGRESS).mkdir(parents=True, exist_ok=True)
        blocks = [left[begin : begin + BLOCK] for begin in range(0, len(left), BLOCK)]
        files = []
        for number, block in enumerate(blocks):
            files.append(await self._vectors([pool[place].text for place in block]))
            self.told("embedding", min((number + 1) * BLOCK, len(left)), len(left))
        found = []
        for purpose, threshold in self.thresholds.items():
            greedy = await asyncio.to_thread(self._deduplicated, purpose, threshold, files)
            found.append(self._passed(pool, left, verdicts, greedy, purpose))
        return found

    async def _vectors(self, texts: list[str]) -> Path:
        """The file with the vectors of a block, computed unless it exists."""
        file = self.folder / _PROGRESS / f"vectors-{digest([self.encoder.name, texts], 24)}.npy"
        if not file.exists():
            _write(file, await self.encoder.encode(texts))
        return file

    def _deduplicated(self, purpose: str, threshold: float, files: Sequence[Path]) -> Greedy | None:
        """The decisions on the vectors of all files; None without any file."""
        if not files:
            return None
        greedy = Greedy(threshold, np.load(files[0], mmap_mode="r").shape[1])
        name = digest([threshold, [file.name for file in files]], 24)
        saved = self.folder / _PROGRESS / f"decisions-{name}.npy"
        done = 0
        if saved.exists():
            like, similarity = np.load(saved)
            done = -(-len(like) // BLOCK)
            greedy.restore(
                [int(each) for each in like], [float(each) for each in similarity], _loaded(files[:done])
            )
        for number, vectors in enumerate(_loaded(files[done:]), start=done + 1):
            greedy.step(vectors)
            if number % _CHECKPOINT_BLOCKS == 0 or number == len(files):
                _write(saved, np.array([greedy.like, greedy.similarity]))
            self.told(f"deduplicating for {purpose}", number, len(files))
        return greedy

    def _passed(
        self,
        pool: Sequence[Intent],
        left: Sequence[int],
        screened_: Mapping[int, DroppedIntent | None],
        greedy: Greedy | None,
        purpose: str,
    ) -> Passed:
        verdicts = dict(screened_)
        for at, place in enumerate(left):
            if greedy is not None and (like := greedy.like[at]) >= 0:
                kept, similarity = pool[left[like]].id, round(greedy.similarity[at], 6)
                verdicts[place] = DroppedIntent(
                    id=pool[place].id,
                    stage=Stage.DUPLICATES,
                    reason=f"nearly the same as {kept}",
                    like=kept,
                    similarity=similarity,
                )
        dropped = tuple(cause for cause in verdicts.values() if cause is not None)
        counts = Counter(each.stage for each in dropped)
        steps, before = [], len(pool)
        for stage in Stage:
            steps.append(StageCounts(stage=stage, before=before, dropped=counts[stage]))
            before -= counts[stage]
        return Passed(
            purpose=purpose,
            threshold=self.thresholds[purpose],
            encoder=self.encoder.name,
            steps=tuple(steps),
            kept=tuple(pool[place].id for place, cause in verdicts.items() if cause is None),
            dropped=dropped,
        )


def write_passed(folder: Path, passed: Passed) -> None:
    """`dropped-PURPOSE.jsonl`, a line for each dropped task with its reason, and `report-PURPOSE.json`."""
    lines = b"".join(msgspec.json.encode(each) + b"\n" for each in passed.dropped)
    (folder / f"dropped-{passed.purpose}.jsonl").write_bytes(lines)
    report = {
        "purpose": passed.purpose,
        "threshold": passed.threshold,
        "encoder": passed.encoder,
        "stages": [{**msgspec.to_builtins(step), "after": step.after} for step in passed.steps],
        "kept": len(passed.kept),
    }
    (folder / f"report-{passed.purpose}.json").write_text(
        json.dumps(report, indent=2) + "\n", encoding="utf-8"
    )


def _loaded(files: Sequence[Path]) -> Iterator[Floats]:
    for file in files:
        yield np.load(file)


def _write(file: Path, array: np.ndarray[tuple[int, ...], np.dtype[np.floating]]) -> None:
    """Write the file atomically."""
    part = file.with_suffix(f".{os.getpid()}.part")
    with part.open("wb") as out:
        np.save(out, array)
    part.replace(file)
