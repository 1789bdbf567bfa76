"""A synthetic store for the dataset benchmark, written in bulk: columns that several processes make.

Texts are lines of the Python standard library behind mini-swe-agent's prompts, thoughts are random words,
common ones more often. Five trajectories share a task, and are far apart in the log, as a campaign has them.
"""

import json
import multiprocessing
import random
import re
import sysconfig
from bisect import bisect_left
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from orchard.pipelines.values.curves import interpolate
from orchard.schemas.identity import digest
from orchard.schemas.positions import Position
from orchard.storage.delta import StoreTable
from orchard.storage.location import Location
from orchard.storage.tables import PROGRESS, SCHEMAS
from orchard.workers.domains.swe.harnesses.orchard_bash_prompts import SYSTEM, TASK

TURNS = 47
BYTES = 22_000
UNRESOLVED = 0.304
"""32,536 of 107,185."""
SAMPLES = 5
BATCH = 500
ANNOTATOR = "teacher"

_TIME = datetime(2026, 1, 1, tzinfo=UTC)
_CAMPAIGN = "bench"
_WINDOW = 200
"""Lines of source that one observation comes from at most."""


class Texts:
    """What trajectories say, from one seed."""

    def __init__(self) -> None:
        root = Path(sysconfig.get_paths()["stdlib"])
        files = sorted(path for path in root.glob("*.py"))
        self.source = "".join(path.read_text(encoding="utf-8", errors="replace") for path in files)
        self._starts = [0, *accumulate(map(len, self.source.splitlines(keepends=True)))]
        spoken = Counter(re.findall(r"\b[A-Za-z]{2,12}\b", self.source))
        self.words = [word for word, _ in spoken.most_common(8000)]
        self._weights = list(accumulate(1 / (rank + 3) for rank in range(len(self.words))))

    def slice(self, dice: random.Random, size: int) -> str:
        """About `size` characters of whole lines."""
        first = dice.randrange(len(self._starts) - 1 - _WINDOW)
        start = self._starts[first]
        last = bisect_left(self._starts, start + size, first, first + _WINDOW)
        return self.source[start : self._starts[last]]

    def thought(self, dice: random.Random, words: int) -> str:
        """A sentence that nobody has said before."""
        return " ".join(dice.choices(self.words, cum_weights=self._weights, k=words))


@dataclass(frozen=True)
class Batch:
    """Rows of some trajectories, by table; sequences count from 1 within the batch."""

    tables: dict[str, pa.Table]
    rows: int
    characters: int
    """Of the messages' texts."""


class _Rows:
    """Rows of one batch in the order of the log: messages as columns, all else as rows."""

    def __init__(self, texts: Texts, count: int) -> None:
        self._texts, self._count = texts, count
        self._sequence = 0
        self._few: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._messages: dict[str, list[Any]] = defaultdict(list)

    def add(self, number: int) -> None:
        """Trajectory `number` of `count`."""
        dice = random.Random(number)
        task = number % max(self._count // SAMPLES, 1)
        rollout = digest(["bench", number])
        unresolved = dice.random() < UNRESOLVED
        facts = {
            "task_id": f"task-{task}",
            "task_source": "bench",
            "repo": f"repo-{task % 1400}",
            "harness": "mini-swe-agent",
            "model": "teacher",
            "model_kind": "model",
            "sample": number,
        }
        self._row("requests_all", rollout, "q", attempt=None, **facts)
        self._row("attempts_all", rollout, "s", kind="started")
        leaf = self._talk(dice, rollout, task)
        self._row(
            "rollouts_all",
            rollout,
            "d",
            **facts,
            status="completed",
            exit_status="submitted",
            reward=-1.0 if unresolved else 1.0,
            resolved=not unresolved,
            turns=TURNS,
            leaf=leaf,
        )
        if unresolved:
            at = sorted(dice.sample(range(TURNS - 1), 5))
            keys = dict(zip([*at, TURNS - 1], [0.45, 0.55, 0.7, 0.4, 0.3, 0.1], strict=True))
            curve = interpolate(0.4, keys, TURNS)
            value = {"kind": "annotated", "annotator": ANNOTATOR, "steps": TURNS, "base": 0.4}
            self._row("values_all", rollout, "v", **value, curve=curve)

    def _row(self, table: str, rollout: str, mark: str, **columns: Any) -> None:
        self._sequence += 1
        place = {"sequence": self._sequence, "time": _TIME, "campaign": _CAMPAIGN, "rollout_id": rollout}
        self._few[table].append({**place, "attempt": 1, "event_id": f"{rollout}{mark}", **columns})

    def _talk(self, dice: random.Random, rollout: str, task: int) -> str:
        """The messages of one trajectory; the node id of the last."""
        texts, columns = self._texts, self._messages
        prompt = TASK.format(statement=texts.slice(random.Random(f"task {task}"), 900), workdir="/testbed")
        left = max(BYTES - len(prompt) - len(SYSTEM), 1000) // TURNS
        said: list[tuple[str, int, str, str, list[dict[str, str]] | None, int | None]] = [
            ("system", 0, SYSTEM, "", None, None),
            ("user", 0, prompt, "", None, None),
        ]
        for turn in range(1, TURNS + 1):
            place = f"{dice.randrange(900)},{dice.randrange(999)}p"
            command = f"sed -n '{place}' src/{dice.choice(texts.words)[:20]}.py"
            call = {"id": f"c{turn}", "name": "bash", "arguments": json.dumps({"command": command})}
            said.append(("assistant", turn, texts.thought(dice, 24), "", [call], None))
            seen = texts.slice(dice, max(left - 215, 60))
            observation = f"<returncode>0</returncode>\n<output>\n{seen}</output>"
            said.append(("tool", turn, observation, call["id"], None, 0))
        nodes = [f"{rollout[:12]}{index:012}" for index in range(len(said))]
        roles, turns, contents, call_ids, calls, codes = zip(*said, strict=True)
        columns["sequence"] += range(self._sequence + 1, self._sequence + 1 + len(said))
        self._sequence += len(said)
        columns["event_id"] += [f"{node}m" for node in nodes]
        columns["rollout_id"] += [rollout] * len(said)
        columns["node_id"] += nodes
        columns["parent"] += [None, *nodes[:-1]]
        columns["role"] += roles
        columns["turn"] += turns
        columns["content"] += contents
        columns["tool_call_id"] += call_ids
        columns["tool_calls"] += calls
        columns["returncode"] += codes
        return nodes[-1]

    def batch(self) -> Batch:
        """All that was added."""
        messages = self._messages
        count = len(messages["sequence"])
        constant = {"time": _TIME, "campaign": _CAMPAIGN, "attempt": 1, "reasoning": ""}
        schema = SCHEMAS["messages_all"]
        arrays = [
            pa.array(messages[field.name], field.type)
            if field.name in messages
            else pa.repeat(pa.scalar(constant.get(field.name), field.type), count)
            for field in schema
        ]
        tables = {
            name: pa.Table.from_pylist(self._few[name], schema=SCHEMAS[name])
            for name in ("requests_all", "attempts_all", "rollouts_all", "values_all")
        }
        tables["messages_all"] = pa.Table.from_arrays(arrays, schema=schema)
        return Batch(tables, self._sequence, sum(map(len, messages["content"])))


_texts: Texts | None = None


def _make(first: int, end: int, count: int) -> Batch:
    """In a process of the pool: trajectories `first` to `end` - 1 of `count`."""
    global _texts
    _texts = _texts or Texts()
    rows = _Rows(_texts, count)
    for number in range(first, end):
        rows.add(number)
    return rows.batch()


def make_store(store: Path, count: int, processes: int) -> int:
    """Write the tables of `count` trajectories; characters of text in them."""
    location = Location.parse(str(store))
    tables: dict[str, StoreTable] = {}
    sequence = characters = 0
    starts = range(0, count, BATCH)
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        ends = [min(start + BATCH, count) for start in starts]
        # Some batches ahead, so that finished ones do not pile up in memory.
        for ahead in range(0, len(starts), 2 * processes):
            window = slice(ahead, ahead + 2 * processes)
            for batch in pool.map(_make, starts[window], ends[window], [count] * 2 * processes):
                last = sequence + batch.rows
                for name, rows in batch.tables.items():
                    table = tables.setdefault(name, StoreTable(location, name))
                    shifted = pc.add(rows["sequence"], sequence)
                    table.append(rows.set_column(0, rows.schema.field("sequence"), shifted), last)
                sequence, characters = last, characters + batch.characters
    progress = StoreTable(location, PROGRESS)
    progress.append(progress.schema.empty_table(), Position.of(sequence))
    return characters
