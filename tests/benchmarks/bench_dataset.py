"""Dataset builds at the released set's size: 107,000 trajectories of 47 turns and 22 KB, all filters on.

`python -m tests.benchmarks.bench_dataset [--trajectories N] [--store DIR]` makes a store (not timed; one in
DIR is used again), builds a dataset of it with all cores, and prints figures as JSON lines. Goals: 5 minutes,
4 GiB over all processes.
"""

import argparse
import json
import os
import random
import resource
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from orchard.pipelines.datasets.build import build
from orchard.pipelines.datasets.settings import DatasetSettings, Values
from orchard.pipelines.datasets.tokenizer import train_tokenizer
from orchard.workers.domains.swe.harnesses.orchard_bash_prompts import TASK
from tests.benchmarks.dataset_store import ANNOTATOR, Texts, make_store

TRAJECTORIES = 107_000
GOAL_SECONDS = 300.0
GOAL_GIB = 4.0
_INTERVAL = 2.0
"""Seconds between looks at the memory, which take processor time of their own."""


def samples_of(texts: Texts) -> Iterator[str]:
    """What the tokenizer learns from."""
    dice = random.Random(0)
    yield TASK
    for _ in range(4000):
        yield texts.slice(dice, 2000)


class Memory(threading.Thread):
    """The most memory that this process and its children held together, shared pages counted once."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(_INTERVAL):
            total = 0
            me = psutil.Process()
            for process in (me, *me.children(recursive=True)):
                try:
                    total += process.memory_full_info().pss
                except psutil.Error:
                    continue
            self.peak = max(self.peak, total)

    def stop(self) -> int:
        self._ended.set()
        self.join()
        return self.peak


def figure(name: str, value: float, unit: str, goal: float | None = None) -> None:
    """One figure as a JSON line; `ratio` over 1 means the goal is kept."""
    row: dict[str, Any] = {"name": name, "value": value, "unit": unit}
    if goal is not None:
        row |= {"ceiling": goal, "ratio": goal / value}
    print(json.dumps(row), flush=True)  # noqa: T201


def processor_seconds() -> float:
    """Of this process and its children that have ended."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def main() -> None:
    """Make the store where it is missing, build, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trajectories", type=int, default=TRAJECTORIES)
    parser.add_argument("--store", type=Path, help="kept, and used again when it is there")
    parser.add_argument("--vocabulary", type=int, default=16_000)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    place = options.store or Path(tempfile.mkdtemp(prefix="orchard-bench-"))
    store, tokenizer, out = place / "store", place / "tokenizer", place / "dataset"
    if not (place / "made").exists():
        before, began = processor_seconds(), time.monotonic()
        size = make_store(store, options.trajectories, options.processes)
        train_tokenizer(samples_of(Texts()), options.vocabulary, tokenizer)
        (place / "made").write_text(str(size))
        figure("making the store and a tokenizer", time.monotonic() - began, "s")
        figure("making the store and a tokenizer", processor_seconds() - before, "CPU-s")
    size = int((place / "made").read_text())
    shutil.rmtree(out, ignore_errors=True)
    settings = DatasetSettings(name="bench", tokenizer=str(tokenizer), values=Values(annotator=ANNOTATOR))
    memory = Memory()
    memory.start()
    before, began = processor_seconds(), time.monotonic()
    manifest = build(str(store), settings, out, processes=options.processes)
    seconds, used = time.monotonic() - began, processor_seconds() - before
    peak = memory.stop()
    goal = GOAL_SECONDS * options.trajectories / TRAJECTORIES
    figure(f"build of {options.trajectories:,} trajectories, {size / 1e9:.2f} GB", seconds, "s", goal)
    figure("processor time of a trajectory", 1000 * used / options.trajectories, "CPU-ms")
    figure("memory of all processes, peak", peak / 2**30, "GiB", GOAL_GIB)
    figure("trajectories a second", options.trajectories / seconds, "1/s")
    figure("tokens a second", manifest.tokens / seconds, "1/s")
    figure("examples", manifest.rows, "rows")
    figure("load of the machine, mean of the last 5 minutes", os.getloadavg()[1], "processes")
    if options.store is None:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
