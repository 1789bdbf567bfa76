"""Dataset builds at the released set's size: 107,000 trajectories of 47 turns and 22 KB, all filters on.

`python -m tests.benchmarks.bench_dataset [--trajectories N] [--store DIR]` makes a store (not timed; one in
DIR is used again), builds a dataset of it with all cores, and prints figures as JSON lines. Goals: 5 minutes,
4 GiB over all processes.

Texts are lines of the Python standard library behind mini-swe-agent's prompts, thoughts are random words,
common ones more often. Five trajectories share a task, and are far apart in the log, as a campaign has them.
"""

import argparse
import json
import os
import random
import re
import shutil
import sys
import sysconfig
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from pipelines.datasets.build import build
from pipelines.datasets.settings import DatasetSettings, Values
from pipelines.datasets.tokenizer import train_tokenizer
from pipelines.values.curves import interpolate
from schemas.identity import digest
from storage.delta import Table
from storage.location import Location
from storage.tables import PROGRESS, SCHEMAS
from workers.harnesses.mini_swe_agent_prompts import SYSTEM, TASK

TRAJECTORIES = 107_000
TURNS = 47
BYTES = 22_000
UNRESOLVED = 0.304
"""32,536 of 107,185."""
SAMPLES = 5
BATCH = 500
GOAL_SECONDS = 300.0
GOAL_GIB = 4.0
TIME = datetime(2026, 1, 1, tzinfo=UTC)
CAMPAIGN = "bench"


class Texts:
    """What trajectories say, from one seed."""

    def __init__(self) -> None:
        root = Path(sysconfig.get_paths()["stdlib"])
        files = sorted(path for path in root.glob("*.py"))
        self.source = "".join(path.read_text(encoding="utf-8", errors="replace") for path in files)
        self._lines = self.source.splitlines(keepends=True)
        spoken = Counter(re.findall(r"\b[A-Za-z]{2,12}\b", self.source))
        self.words = [word for word, _ in spoken.most_common(8000)]
        self._weights = [1 / (rank + 3) for rank in range(len(self.words))]

    def slice(self, dice: random.Random, size: int) -> str:
        """About `size` characters of whole lines."""
        start = dice.randrange(len(self._lines) - 200)
        found, length = [], 0
        for line in self._lines[start : start + 200]:
            if length >= size:
                break
            found.append(line)
            length += len(line)
        return "".join(found)

    def thought(self, dice: random.Random, words: int) -> str:
        """A sentence that nobody has said before."""
        return " ".join(dice.choices(self.words, self._weights, k=words))


def rows_of(number: int, texts: Texts, count: int) -> dict[str, list[dict[str, Any]]]:
    """The rows of all tables for one trajectory; its messages come without `sequence`."""
    dice = random.Random(number)
    task = number % max(count // SAMPLES, 1)
    rollout = digest(["bench", number])
    unresolved = dice.random() < UNRESOLVED
    place = {"time": TIME, "campaign": CAMPAIGN, "rollout_id": rollout, "attempt": 1}
    statement = texts.slice(random.Random(f"task {task}"), 900)
    prompt = TASK.format(statement=statement, workdir="/testbed")
    left = max(BYTES - len(prompt) - len(SYSTEM), 1000) // TURNS
    messages: list[dict[str, Any]] = []

    def say(role: str, turn: int, content: str, **more: Any) -> None:
        parent = messages[-1]["node_id"] if messages else None
        name = f"{rollout[:12]}{len(messages):012}"
        base = {"node_id": name, "parent": parent, "role": role, "turn": turn, "content": content}
        messages.append(
            {**place, "event_id": f"{name}m", **base, "reasoning": "", "tool_call_id": "", **more}
        )

    say("system", 0, SYSTEM)
    say("user", 0, prompt)
    for turn in range(1, TURNS + 1):
        command = (
            f"sed -n '{dice.randrange(900)},{dice.randrange(999)}p' src/{dice.choice(texts.words)[:20]}.py"
        )
        arguments = json.dumps({"command": command})
        call = {"id": f"c{turn}", "name": "bash", "arguments": arguments}
        say("assistant", turn, texts.thought(dice, 24), tool_calls=[call])
        seen = texts.slice(dice, max(left - 215, 60))
        observation = f"<returncode>0</returncode>\n<output>\n{seen}</output>"
        say("tool", turn, observation, tool_call_id=call["id"], returncode=0)
    facts = {
        "task_id": f"task-{task}",
        "task_source": "bench",
        "repo": f"repo-{task % 1400}",
        "harness": "mini-swe-agent",
        "model": "teacher",
        "model_kind": "model",
        "sample": number,
    }
    outcome = {
        **place,
        **facts,
        "event_id": f"{rollout}d",
        "status": "completed",
        "exit_status": "submitted",
        "reward": -1.0 if unresolved else 1.0,
        "resolved": not unresolved,
        "turns": TURNS,
        "leaf": messages[-1]["node_id"],
    }
    found = {
        "requests_all": [{**place, **facts, "attempt": None, "event_id": f"{rollout}q"}],
        "attempts_all": [{**place, "event_id": f"{rollout}s", "kind": "started"}],
        "messages_all": messages,
        "rollouts_all": [outcome],
        "values_all": [],
    }
    if unresolved:
        at = sorted(dice.sample(range(TURNS - 1), 5))
        keys = dict(zip([*at, TURNS - 1], [0.45, 0.55, 0.7, 0.4, 0.3, 0.1], strict=True))
        curve = interpolate(0.4, keys, TURNS)
        value = {"kind": "annotated", "annotator": "teacher", "steps": TURNS, "base": 0.4, "curve": curve}
        found["values_all"].append({**place, **value, "event_id": f"{rollout}v"})
    return found


def make_store(store: Path, count: int, texts: Texts) -> int:
    """Write the tables of `count` trajectories; bytes of text in them."""
    location = Location.parse(str(store))
    tables = {name: Table(location, name) for name in rows_of(0, texts, count)}
    sequence, size = 0, 0
    for start in range(0, count, BATCH):
        batch: dict[str, list[dict[str, Any]]] = {name: [] for name in tables}
        for number in range(start, min(start + BATCH, count)):
            for name, rows in rows_of(number, texts, count).items():
                for row in rows:
                    sequence += 1
                    row["sequence"] = sequence
                    size += len(row.get("content", ""))
                batch[name] += rows
        for name, rows in batch.items():
            tables[name].append(pa.Table.from_pylist(rows, schema=SCHEMAS[name]), sequence)
        print(f"store: {start + BATCH} trajectories", file=sys.stderr)  # noqa: T201
    progress = Table(location, PROGRESS)
    progress.append(progress.schema.empty_table(), sequence)
    return size


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
        while not self._ended.wait(0.5):
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


def main() -> None:
    """Make the store where it is missing, build, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trajectories", type=int, default=TRAJECTORIES)
    parser.add_argument("--store", type=Path, help="kept, and used again when it is there")
    parser.add_argument("--vocabulary", type=int, default=16_000)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    texts = Texts()
    place = options.store or Path(tempfile.mkdtemp(prefix="orchard-bench-"))
    store, tokenizer, out = place / "store", place / "tokenizer", place / "dataset"
    if not (place / "made").exists():
        size = make_store(store, options.trajectories, texts)
        train_tokenizer(samples_of(texts), options.vocabulary, tokenizer)
        (place / "made").write_text(str(size))
    size = int((place / "made").read_text())
    shutil.rmtree(out, ignore_errors=True)
    settings = DatasetSettings(name="bench", tokenizer=str(tokenizer), values=Values(annotator="teacher"))
    memory = Memory()
    memory.start()
    started = time.monotonic()
    manifest = build(str(store), settings, out, processes=options.processes)
    seconds = time.monotonic() - started
    peak = memory.stop()
    share = options.trajectories / TRAJECTORIES
    figure(
        f"build of {options.trajectories:,} trajectories, {size / 1e9:.2f} GB",
        seconds,
        "s",
        GOAL_SECONDS * share,
    )
    figure("memory of all processes, peak", peak / 2**30, "GiB", GOAL_GIB)
    figure("trajectories a second", options.trajectories / seconds, "1/s")
    figure("tokens a second", manifest.tokens / seconds, "1/s")
    figure("examples", manifest.rows, "rows")
    if options.store is None:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
