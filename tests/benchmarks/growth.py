"""What a rollout costs on small and on large stores: processor time by part of the pipeline (a script).

For each size a seeded history (`million`) fills a real stream, and then everything that users and processes
do with it is measured on it, in milliseconds of processor time of a rollout, an attempt or a request, the
NATS server's included. What costs more than 20 % more for ten times the rollouts is marked. A figure is the
median of `--repeats` runs, the sizes in turns, each on a history of its own. Each figure is written when it
is known, into docs/benchmarks/growth.json and the page beside it. Run as
`python -m tests.benchmarks.growth`.
"""

import argparse
import asyncio
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec
import psutil
import uvloop

from orchard.pipelines.campaigns.commands import Campaigns
from orchard.pipelines.datasets.build import build
from orchard.pipelines.datasets.settings import DatasetSettings, Values
from orchard.pipelines.datasets.tokenizer import train_tokenizer
from orchard.schemas.positions import Position
from orchard.schemas.queues import Queue
from orchard.schemas.replay_pointers import ReplayPointer
from orchard.storage.allocation import ARROW_ALLOCATOR
from orchard.storage.blobs import BlobStore
from orchard.storage.upkeep.maintenance import check, rebuild_derived, rebuild_events
from orchard.streams import names
from orchard.streams.claims import Claims
from orchard.streams.connection import Connection, connect
from orchard.streams.publisher import Publisher
from orchard.streams.reading import bounds
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from tests.benchmarks.bench_dataset import processor_seconds, samples_of
from tests.benchmarks.bench_million import processor
from tests.benchmarks.bench_page import Server, filters, searches, served
from tests.benchmarks.dataset_store import ANNOTATOR, Texts, make_store
from tests.benchmarks.million import Plan, fill_store, fill_stream
from tests.benchmarks.run import PAGES, number
from tests.orchard.page import big
from tests.trajectory_log import Author

SIZES = (1_000, 10_000, 100_000)
RISE = 0.2
"""Share by which a cost may be higher for ten times the rollouts."""
REQUESTS = 20
CLAIMED = 1_000
"""Requests that are claimed, at most."""
POINTERS = 500
VOCABULARY = 4_000
RUNNING = "million-4"
"""Campaign of the history with open rollouts: the last of five."""
LARGEST_DATASET = 100_000
"""Trajectories; ten times as many are 23 GB."""
VIEWS = {"campaigns": "/", "tasks": "/tasks", "failures": "/failures"}
PARTS = ("log", "page", "dataset")
_WRITER = "See [ingest](ingest.md#from-10000-to-100000-rollouts) for the writer's functions at both sizes."
_COUNTED = (
    "By processor time of its steps at the three sizes, least of nine: the rows of the campaign with news "
    "are counted over all of its rollouts in 35, 37 and 100 ms"
)
_SPARED = "; see decision 144 for what does not rise any more"
EXPLAINED: dict[str, str] = {
    "writer, stream to all tables": _WRITER,
    "writer, with its start and the server": _WRITER,
    "trail: a pointer left and its events found": (
        "The attempts are spread over the whole stream, and for the first event of a block nats-server "
        "reads all of it, up to 8 MB (`loadMsgsWithLock`, 64 % of its samples). An attempt that replays "
        "another one reads new events: of the newest 1 % of 100,000 rollouts the server takes 0.7 ms for "
        "one, of 10,000 rollouts 0.4."
    ),
    "claim and completion alone, in the NATS server": (
        "When the request that it hands out is the oldest of the stream, which is so while no claim is "
        "open, nats-server compares all waiting subjects with the consumer's filters "
        "(`LoadNextMsgMulti`, 89 % of its time by its own profile). A process with one slot pays it once "
        "for each of its jobs; beside one open claim, as in a fleet, nobody does."
    ),
    "search for words": "Its queries read the lists of all messages; see [the page](page.md) for its goal.",
    "view: filtered rollouts": "Its query reads all rollouts; see [the page](page.md) for its goal.",
    "view: campaigns, after a commit": f"{_COUNTED}{_SPARED}.",
    "view: tasks, after a commit": f"{_COUNTED}, and the tasks in 5, 6 and 10{_SPARED}.",
    "view: failures, after a commit": (
        "By processor time of its steps at the three sizes, least of seven: the newest 2,000 failed rollouts "
        "(of 1,000 only 589 have failed) are chosen of all outcomes in 4, 9 and 25 ms, and their grades and "
        "messages read from larger files in 25, 22 and 44."
    ),
}
"""Why a cost rises, by measure."""
UNEXPLAINED = "Not explained yet."
NOISE = "The runs overlap: it may be noise."
UNMEASURED = {
    "dataset build": "at 39 ms each, 10,000 trajectories take 7 minutes of processor time and 100,000 more "
    "than an hour, beside making them: too long for a machine that others share."
}
"""Why a cost has no figure at some size, by measure."""


class Run(msgspec.Struct, frozen=True):
    """One measurement of a cost."""

    milliseconds: float
    load: float
    """Load average over a minute when it was known."""


class Measured(msgspec.Struct, frozen=True):
    """One cost at one size."""

    measure: str
    of: str
    """What the cost is of: a rollout, a request."""
    rollouts: int
    runs: tuple[Run, ...]
    measured: str
    """Date."""
    machine: str

    @property
    def milliseconds(self) -> float:
        """Median of the runs."""
        return median(run.milliseconds for run in self.runs)

    @property
    def told(self) -> str:
        """The median, and the runs between which it lies."""
        costs = sorted(run.milliseconds for run in self.runs)
        between = f" ({number(costs[0])} to {number(costs[-1])})" if len(costs) > 1 else " (one run)"
        return number(self.milliseconds) + between


class Rise(NamedTuple):
    smaller: Measured
    larger: Measured
    share: float
    """For ten times the rollouts."""

    @property
    def apart(self) -> bool:
        """Whether each run at the larger size cost more than each at the smaller one."""
        return max(run.milliseconds for run in self.smaller.runs) < min(
            run.milliseconds for run in self.larger.runs
        )


class Meter:
    """Processor time of this process, of its children that ended, and of others that it is told."""

    def __init__(self, *pids: int) -> None:
        self._pids = pids
        self._before = self._now()

    def _now(self) -> float:
        return processor_seconds() + sum(map(processor, self._pids))

    def milliseconds(self) -> float:
        """Since it was made, or asked last."""
        now = self._now()
        spent, self._before = now - self._before, now
        return 1e3 * spent


Costs = AsyncIterator[tuple[str, str, float]]
"""Measure, what it is of, and milliseconds."""


async def log_costs(place: Path, rollouts: int) -> Costs:
    """Costs of the stream, the queue and the tables."""
    plan, store = Plan(rollouts=rollouts), str(place / "store")
    settings = NatsSettings(work_max_messages=3 * rollouts + 1_000)
    async with (
        EmbeddedServer(place / "nats") as server,
        connect(settings, name="growth", url=server.url) as connection,
    ):
        await declare(connection, settings, [Queue()])
        last = await fill_stream(plan, connection, store)
        meter = Meter(server.pid)
        command = [sys.executable, "-m", "tests.benchmarks.bench_ingest", "--writer", server.url, store]
        written = await asyncio.to_thread(subprocess.check_output, command, env=os.environ | ARROW_ALLOCATOR)
        both = meter.milliseconds()
        yield "writer, stream to all tables", "rollout", 1e3 * json.loads(written)["cpu"] / rollouts
        yield "writer, with its start and the server", "rollout", both / rollouts
        meter.milliseconds()
        assert await asyncio.to_thread(check, store, read=True) == []
        yield "check of every byte", "rollout", meter.milliseconds() / rollouts
        await asyncio.to_thread(rebuild_derived, store)
        yield "derived tables, made anew", "rollout", meter.milliseconds() / rollouts
        assert await rebuild_events(store, connection) == Position.of(last)
        yield "rebuild of the log from the stream", "rollout", meter.milliseconds() / rollouts
        yield "trail: a pointer left and its events found", "attempt", await _trail(connection, meter)
        spec = msgspec.structs.replace(plan.spec(0), name="submitted", samples=plan.samples * plan.campaigns)
        meter.milliseconds()
        async for _ in Campaigns(connection, BlobStore(store)).submit(spec):
            pass
        yield "submit", "rollout", meter.milliseconds() / spec.size
        async with Claims(connection, Queue()) as claims:
            _, served = await _claim(claims, min(spec.size // 2, CLAIMED // 5), server.pid)
            yield "claim and completion alone, in the NATS server", "request", served
            still_open = await claims.next(60.0)
            own, served = await _claim(claims, min(spec.size // 2 - 1, CLAIMED), server.pid)
            yield "claim and completion, here", "request", own
            yield "claim and completion, in the NATS server", "request", served
            assert still_open is not None
            await still_open.complete()


async def _trail(connection: Connection, meter: Meter) -> float:
    """Milliseconds of an attempt: it leaves a pointer, and the one after it reads what that points to."""
    pointers, held = Publisher(connection).replay_pointers, await bounds(connection, names.EVENTS)
    starts = [held.first + at * (held.last - held.first) // POINTERS for at in range(POINTERS)]
    left = {
        f"{start:024x}": ReplayPointer(
            attempt=1, replay_key="k", events=tuple(range(start, min(start + 8, held.last)))
        )
        for start in starts
    }
    meter.milliseconds()
    for rollout, pointer in left.items():
        await pointers.leave(rollout, pointer)
    while (await bounds(connection, names.TRAILS)).messages < len(left):
        await asyncio.sleep(0.01)  # leaving one is not confirmed
    for rollout, pointer in left.items():
        assert await pointers.find(rollout) == pointer
        assert len(await pointers.events(pointer.events)) == len(pointer.events)
    return meter.milliseconds() / len(left)


async def _claim(claims: Claims, count: int, server: int) -> tuple[float, float]:
    """Milliseconds of a request, of this process and of the server's, which has a longer queue on larger
    stores."""
    both, own = Meter(server), Meter()
    for _ in range(count):
        claim = await claims.next(60.0)
        assert claim is not None
        await claim.complete()
    here = own.milliseconds()
    return here / count, (both.milliseconds() - here) / count


async def page_costs(place: Path, rollouts: int) -> Costs:
    """Costs of the page's server; each view is asked for after a commit to the campaign that still runs, so
    that it is made anew."""
    store, author = place / "store", Author(RUNNING)
    if not store.exists():
        await asyncio.to_thread(fill_store, Plan(rollouts=rollouts), str(store))
    async with served(store) as server:
        for name, path in VIEWS.items():
            await server.get(path)
            spent = 0.0
            for sample in range(REQUESTS):
                made = author.rollout(f"{name}-{sample}", ["ls"], resolved=True)
                await asyncio.to_thread(big.append, store, made)
                before = server.processor_seconds()
                await server.get(path)
                spent += server.processor_seconds() - before
            yield f"view: {name}, after a commit", "request", 1e3 * spent / REQUESTS
        yield "view: filtered rollouts", "request", await _requests(server, filters())
        before = server.processor_seconds()
        while "so far" in (await server.get(f"/rollouts?text={big.WORD}"))[1]:
            await asyncio.sleep(0.2)
        yield "index of words", "rollout", 1e3 * (server.processor_seconds() - before) / rollouts
        yield "search for words", "request", await _requests(server, searches(store))


async def _requests(server: Server, paths: Sequence[str]) -> float:
    await server.get(paths[-1])
    before = server.processor_seconds()
    for path in paths[:REQUESTS]:
        await server.get(path)
    return 1e3 * (server.processor_seconds() - before) / REQUESTS


async def dataset_costs(place: Path, rollouts: int) -> Costs:
    """Costs of a dataset, of trajectories of 47 turns."""
    if rollouts > LARGEST_DATASET:
        return
    store, tokenizer, processes = place / "trajectories", place / "tokenizer", os.cpu_count() or 1
    make_store(store, rollouts, processes)
    train_tokenizer(samples_of(Texts()), VOCABULARY, tokenizer)
    meter = Meter()
    settings = DatasetSettings(name="growth", tokenizer=str(tokenizer), values=Values(annotator=ANNOTATOR))
    await asyncio.to_thread(build, str(store), settings, place / "dataset", processes=processes)
    yield "dataset build", "trajectory", meter.milliseconds() / rollouts


COSTS = {"log": log_costs, "page": page_costs, "dataset": dataset_costs}


def rises(found: Sequence[Measured]) -> Iterator[Rise]:
    """Yields each cost that grows by more than RISE for ten times the rollouts, between two sizes."""
    for measure in dict.fromkeys(each.measure for each in found):
        points = sorted((each for each in found if each.measure == measure), key=lambda each: each.rollouts)
        for smaller, larger in pairwise(points):
            if smaller.milliseconds > 0 and larger.milliseconds > 0:
                decades = math.log10(larger.rollouts / smaller.rollouts)
                share = (larger.milliseconds / smaller.milliseconds) ** (1 / decades) - 1
                if share > RISE:
                    yield Rise(smaller, larger, share)


PAGE_TEXT = """\
# Growth

Read here what each part of the pipeline costs on small and on large stores, in milliseconds of processor
time, the NATS server's included. `python -m tests.benchmarks.growth` measures it again: a seeded history
fills a real stream, a writer makes its tables, and then everything is done on them. A rollout of the history
has 7.4 events, a trajectory of the dataset 47 turns and 22 KB. A view is asked for after a commit to the
campaign that still runs, which has a fifth of the rollouts. Figures are medians where there are several runs,
the sizes in turns. Bold is what rises by more than {rise:.0%} for ten times the rollouts.

{table}

## What rises

{rises}

## Why

{why}

## What has no figure

{missing}

## Measured

{measured}
"""


def render(found: Sequence[Measured]) -> str:
    """The page."""
    sizes = sorted({each.rollouts for each in found})
    rising = list(rises(found))
    risen = {(rise.larger.measure, rise.larger.rollouts) for rise in rising}
    costs = {(each.measure, each.rollouts): each for each in found}
    lines = [
        "| cost | of a | " + " | ".join(f"{size:,} rollouts" for size in sizes) + " |",
        "|---|---|" + "---:|" * len(sizes),
    ]
    for measure, of in dict.fromkeys((each.measure, each.of) for each in found):
        cells = []
        for size in sizes:
            cost = costs.get((measure, size))
            text = "" if cost is None else number(cost.milliseconds)
            cells.append(f"**{text}**" if (measure, size) in risen else text)
        lines.append(f"| {measure} | {of} | " + " | ".join(cells) + " |")
    told = [
        f"- {rise.larger.measure}: {rise.share:+.0%} for ten times the rollouts, from {rise.smaller.told} at "
        f"{rise.smaller.rollouts:,} to {rise.larger.told} at {rise.larger.rollouts:,}."
        + ("" if rise.apart else " The runs overlap.")
        for rise in rising
    ]
    why = [
        f"- {measure}. {EXPLAINED.get(measure, UNEXPLAINED if some else NOISE)}"
        for measure in dict.fromkeys(rise.larger.measure for rise in rising)
        for some in [any(rise.apart for rise in rising if rise.larger.measure == measure)]
    ]
    return PAGE_TEXT.format(
        rise=RISE,
        table="\n".join(lines),
        rises="\n".join(told) or "Nothing.",
        why="\n".join(why) or "Nothing rises.",
        missing="\n".join(_missing(sizes, found)) or "Nothing.",
        measured="\n".join(_circumstances(size, found) for size in sizes),
    )


def _missing(sizes: Sequence[int], found: Sequence[Measured]) -> Iterator[str]:
    """Yields a line for each measure that has no figure at some size."""
    known = {(each.measure, each.rollouts) for each in found}
    for measure in dict.fromkeys(each.measure for each in found):
        if left := [f"{size:,}" for size in sizes if (measure, size) not in known]:
            yield f"- {measure}, at {' and '.join(left)}: {UNMEASURED.get(measure, 'not measured yet.')}"


def _circumstances(size: int, found: Sequence[Measured]) -> str:
    these = [each for each in found if each.rollouts == size]
    days, machines = sorted({each.measured for each in these}), sorted({each.machine for each in these})
    loads = [run.load for each in these for run in each.runs]
    runs = sorted({len(each.runs) for each in these})
    return (
        f"- {size:,} rollouts: {', '.join([*days, *machines])}, load {min(loads):.0f} to {max(loads):.0f}, "
        f"runs of each cost: {' to '.join(map(str, dict.fromkeys((runs[0], runs[-1]))))}"
    )


def write(pages: Path, new: Measured) -> None:
    """Puts a figure in the place of an older one of the same measure and size, and writes the page anew."""
    file = pages / "growth.json"
    known = msgspec.json.decode(file.read_bytes(), type=list[Measured]) if file.exists() else []
    places = {(each.measure, each.rollouts): each for each in known} | {(new.measure, new.rollouts): new}
    found = list(places.values())
    for path, text in (
        (file, json.dumps(msgspec.to_builtins(found), indent=1) + "\n"),
        (pages / "growth.md", render(found)),
    ):
        part = path.with_suffix(".part")
        part.write_text(text)
        part.replace(path)


def _machine() -> str:
    memory = psutil.virtual_memory().total / 2**30
    return f"{psutil.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}"


Runs = dict[tuple[str, int], list[Run]]
"""Runs so far, by measure and rollouts."""


async def measure(rollouts: int, parts: Sequence[str], pages: Path, runs: Runs) -> None:
    """Measures one size once more, in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="orchard-growth-") as directory:
        for part in parts:
            async for name, of, milliseconds in COSTS[part](Path(directory), rollouts):
                known = runs.setdefault((name, rollouts), [])
                known.append(Run(milliseconds, os.getloadavg()[0]))
                today = datetime.now(UTC).strftime("%Y-%m-%d")
                write(pages, Measured(name, of, rollouts, tuple(known), today, _machine()))
                line = {"name": name, "value": milliseconds, "unit": f"ms/{of}", "rollouts": rollouts}
                print(json.dumps(line), flush=True)  # noqa: T201


def main() -> None:
    """Measures each size."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.growth", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="rollouts; also 1000000")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each size, in turns")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument(
        "--pages", type=Path, default=PAGES, help="where growth.json and growth.md are written"
    )
    given = parser.parse_args()
    runs: Runs = {}
    for _ in range(given.repeats):
        for rollouts in given.sizes:
            uvloop.run(measure(rollouts, given.parts, given.pages, runs))


if __name__ == "__main__":
    main()
