"""10,000 sandboxes at once and a million rollouts a day: what is asked of each part, and what one can do.

`python -m tests.benchmarks.capacity` prints the tables of docs/scale.md; `--write` puts them there,
after a new `make bench`. The part with the highest share is simulated: rollouts wait for each other
at it.
"""

import argparse
import heapq
import json
import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from orchard.pipelines.campaigns.costs import PAPER_RATES, price, read_rates
from tests.benchmarks.run import PAGES, read_results

PAGE = PAGES.parent / "scale.md"
DAY = 86_400.0

SANDBOXES = 10_000
ROLLOUTS_A_DAY = 1_000_000
TURNS = 47
"""Of a rollout; with EVENTS and BYTES as in docs/benchmarks/replayed-attempts.md."""
EVENTS = 141
BYTES = 250_000
SIZES = {"short, 22 KB": 22_000, "as above, 250 KB": BYTES, "long, 1 MB": 1_000_000}
MACHINES_A_ROLLOUT = 2
"""Sandboxes that a rollout makes: one to work in and one to be graded in."""

FENCE_BYTES, FENCE_MEMORY = 3_120, 1_100
"""That stay for each rollout: on the disk, and at most in the server's memory (decision 13)."""
ARCHIVE_SHARE, ARCHIVE_SECONDS_A_MB = 24 / 71, 0.05
"""Of the stream's bytes, and processor time (decision 16)."""
STORE, MEMORY = 45e9, 4 * 2**30
"""What infra/chart gives NATS."""
FAST_DISK = 4_000.0
"""Events a second of a disk with a fast fsync: what the design notes had, and no benchmark here."""

ARRIVALS = ROLLOUTS_A_DAY / DAY
HOLD = SANDBOXES / ARRIVALS
"""Seconds that a rollout may hold its sandbox, so that both goals are one (Little's law)."""


class Part(NamedTuple):
    """One kind of process or disk: what is asked of all together, and what one was measured to do."""

    name: str
    unit: str
    load: float
    one: float
    source: str

    @property
    def share(self) -> float:
        """Of one; above 1 it takes several, or is what ends the growth."""
        return self.load / self.one


class Figures:
    """The figures under docs/benchmarks."""

    def __init__(self) -> None:
        self._all: dict[tuple[str, str], float] = {}
        for row in json.loads((PAGES / "sandboxes.json").read_text())["figures"]:
            # where a figure was taken in several ways, the first one is of the SDK
            self._all["sandboxes of the service", f"{row['part']}: {row['figure']}"] = row["value"]
        for result in read_results():
            for figure in result.figures:
                self._all[result.benchmark, figure.name] = figure.value

    def of(self, benchmark: str, figure: str) -> float:
        """Raises KeyError for one that is not there."""
        return self._all[benchmark, figure]

    def stored(self, interval: str) -> float:
        """Events of the model's size that one stream stores in a second: time grows linearly with bytes."""
        small, large = (
            1 / self.of("sync", f"events of {size} KB, pipelined, sync_interval {interval}")
            for size in (1, 22)
        )
        return 1 / (small + (large - small) * (BYTES / EVENTS - 1000) / 21_000)


def parts(figures: Figures) -> list[Part]:
    """Every part, the highest share first."""
    thousand = "1,000 at once, four commands each (programs), SDK"
    events, turns = ARRIVALS * EVENTS, ARRIVALS * TURNS
    writer = figures.of("storage", "stream to all tables")
    found = [
        Part("event stream, fsync before each answer", "events/s", events, figures.stored("always"), "sync"),
        Part("event stream, fsync every second", "events/s", events, figures.stored("1s"), "sync"),
        Part("writer, as if all events had 22 KB", "events/s", events, writer * 1e6 / 22_000, "storage"),
        Part("writer, by bytes", "MB/s", ARRIVALS * BYTES / 1e6, writer, "storage"),
        Part(
            "work queue, fsync before each answer",
            "requests/s",
            ARRIVALS,
            figures.of("sync", "requests of 1 KB, pipelined, sync_interval always"),
            "sync",
        ),
        Part(
            "orchestrator and agent on 2 cores: commands",
            "1/s",
            turns,
            4_000 / figures.of("sandboxes of the service", f"{thousand}: exec all"),
            "sandboxes",
        ),
        Part(
            "orchestrator and agent on 2 cores: creations",
            "1/s",
            ARRIVALS * MACHINES_A_ROLLOUT,
            1_000 / figures.of("sandboxes of the service", f"{thousand}: create all"),
            "sandboxes",
        ),
        Part(
            "workers: cores",
            "cores",
            turns * figures.of("harness", "processor time of a turn") / 1e3,
            1.0,
            "harness",
        ),
        Part("archiver: cores", "cores", ARRIVALS * BYTES / 1e6 * ARCHIVE_SECONDS_A_MB, 1.0, "decision 16"),
    ]
    return sorted(found, key=lambda part: -part.share)


class Simulated(NamedTuple):
    """What a simulation of the event stream came to."""

    rollouts_a_day: float
    wait: float
    """Seconds that a turn waits for its events to be stored, on average."""
    worst: float


def simulate(
    events_a_second: float, *, customers: int = SANDBOXES, seconds: float = 1_200.0, seed: int = 1
) -> Simulated:
    """Rollouts that each think for a while, publish the events of a turn and wait until they are stored.

    One server stores one event after another. Model and command together take an exponential time, with the
    mean that makes a rollout last HOLD. The first half is not counted.
    """
    chance = random.Random(seed)
    think, service = HOLD / TURNS, EVENTS / TURNS / events_a_second
    coming = [chance.expovariate(1 / think) for _ in range(customers)]
    heapq.heapify(coming)
    free, turns, waits, worst = 0.0, 0, 0.0, 0.0
    while coming[0] < seconds:
        begun = coming[0]
        free = max(free, begun) + service
        if begun >= seconds / 2:
            turns, waits, worst = turns + 1, waits + free - begun, max(worst, free - begun)
        heapq.heapreplace(coming, free + chance.expovariate(1 / think))
    return Simulated(turns / (seconds / 2) / TURNS * DAY, waits / max(turns, 1), worst)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown; all columns but the first are numbers or short."""
    lines = [head, ["---", *(["---:"] * (len(head) - 1))], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value: float) -> str:
    """With the digits that a model deserves."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def goals() -> str:
    rows = {
        "rollouts begun and ended, 1/s": ARRIVALS,
        "seconds that a rollout holds its sandbox": HOLD,
        "turns: model calls and commands, 1/s": ARRIVALS * TURNS,
        "events, 1/s": ARRIVALS * EVENTS,
        "events, MB/s": ARRIVALS * BYTES / 1e6,
        "sandboxes made, 1/s": ARRIVALS * MACHINES_A_ROLLOUT,
    }
    return table(("", "all together"), ([name, number(value)] for name, value in rows.items()))


def loads(found: Sequence[Part]) -> str:
    rows = (
        [
            f"**{part.name}**" if part is found[0] else part.name,
            f"{number(part.load)} {part.unit}",
            number(part.one),
            f"{part.share:.2g}",
            part.source,
        ]
        for part in found
    )
    return table(("part", "asked of it", "one does", "share", "figure from"), rows)


def growth() -> str:
    rows = []
    for name, size in SIZES.items():
        day = ROLLOUTS_A_DAY * size
        hours = STORE / day * 24
        archive = day * ARCHIVE_SHARE
        rows.append([name, number(day / 1e9), number(hours), number(archive / 1e9)])
    return table(
        ("rollouts", "GB a day into the stream", "hours until 45 GB are full", "GB a day into the archive"),
        rows,
    )


def fences() -> str:
    rows = (
        [
            f"{days}",
            number(days * ROLLOUTS_A_DAY * FENCE_BYTES / 1e9),
            number(days * ROLLOUTS_A_DAY * FENCE_MEMORY / 1e9),
        ]
        for days in (1, 3, 7, 30)
    )
    limit = MEMORY / (ROLLOUTS_A_DAY * FENCE_MEMORY)
    text = table(("days", "GB on the disk", "GB of the server's memory, at most"), rows)
    return f"{text}\n\nThe 4 GiB of the manifest last {limit:.1f} days."


def queueing(figures: Figures) -> str:
    settings = {
        "fsync before each answer, as measured": figures.stored("always"),
        "the same on a disk of 4,000 events/s (not measured here)": FAST_DISK,
        "fsync every second, as measured": figures.stored("1s"),
    }
    rows = []
    for name, capacity in settings.items():
        found = simulate(capacity)
        rows.append(
            [name, number(capacity), number(found.rollouts_a_day), number(found.wait), number(found.worst)]
        )
    return table(("event stream", "events/s", "rollouts a day", "s a turn waits", "longest"), rows)


def costs() -> str:
    card = PAPER_RATES.replace("sandboxes = 128", f"sandboxes = {SANDBOXES}").replace(
        "hours = 240", "hours = 24"
    )
    lines = [line for line in price(read_rates(card)) if "Orchard" in line.name]
    rows = ([line.name, number(line.total), f"{line.total / ROLLOUTS_A_DAY * 1e3:.2f}"] for line in lines)
    return table(("sandboxes' nodes", "USD a day", "USD for 1,000 rollouts"), rows)


def tables() -> dict[str, str]:
    """Every table of the page, by its name there."""
    figures = Figures()
    return {
        "goals": goals(),
        "loads": loads(parts(figures)),
        "queueing": queueing(figures),
        "growth": growth(),
        "fences": fences(),
        "costs": costs(),
    }


def filled(page: str, found: dict[str, str]) -> str:
    """The page with the tables of now. Raises ValueError when it has no place for one."""
    for name, text in found.items():
        before, begin, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- end of {name} -->")
        if not begin or not end:
            raise ValueError(f"{PAGE} has no place for the table {name}")
        page = f"{before}{begin}{text}\n{end}{after}"
    return page


def main() -> None:
    """Print the tables, or write them into the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.capacity", description=__doc__)
    parser.add_argument("--write", action="store_true", help="put them into docs/scale.md")
    found = tables()
    if parser.parse_args().write:
        PAGE.write_text(filled(PAGE.read_text(), found))
    else:
        print("\n\n".join(found.values()))  # noqa: T201


if __name__ == "__main__":
    main()
