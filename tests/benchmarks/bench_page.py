"""The page on a store of 100,000 rollouts: server time, memory, live updates, and what it costs the writer.

Server time is what the server says it took (`Server-Timing`), over 40 requests of each kind that ask for
other things: campaigns < 50 ms, filtered rollouts < 300 ms, the first page of a search for words < 1 s, a
rollout of 250 turns < 200 ms, one of 2,000 turns and 50 MB < 2 s. Memory is the most that the server's
process ever held (goal 400 MB), here and on a store of a fortieth. A live update is the time from a commit
to the tables until an open page, told by the server, has asked again and shows it (< 2 s). The writer stores
the same stream alone and beside ten open pages, in turns; the ratio of the medians is to be under 1.05.
Prints one JSON line for each figure. Run as `python -m tests.benchmarks.bench_page`; `--store` keeps a store.
"""

import argparse
import asyncio
import json
import random
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from statistics import median, quantiles
from urllib.parse import quote

import aiohttp
import psutil
import uvloop

from orchard.page.report import write_report
from orchard.storage.reader import open_tables, position
from orchard.streams.connection import connect
from orchard.streams.publisher import Publisher
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from tests.benchmarks.bench_million import processor
from tests.benchmarks.million import Plan, fill_store
from tests.orchard.page import big
from tests.trajectory_log import Author

REQUESTS = 40
MEMORY_GOAL_MB = 400.0
PAGES = 10
FOLLOWED = ("/", "/", "/rollouts", "/tasks", "/failures")
"""Pages that are open beside the writer, in turns."""
WRITTEN = 400
"""Rollouts of the stream that the writer stores, of 27 events each."""
ROUNDS = 5
OVERVIEWS = ("/", "/rollouts", "/rollouts?text=git", "/compare", "/failures", "/tasks")
UPDATES = 20
_URL = re.compile(rb"http://127\.0\.0\.1:\d+")
_DURATION = re.compile(r"dur=([\d.]+)")


def figure(name: str, value: float, unit: str, goal: float | None = None) -> None:
    """One line of results."""
    beside = {} if goal is None else {"ceiling": goal, "ratio": value / goal}
    print(json.dumps({"name": name, "value": value, "unit": unit, **beside}), flush=True)  # noqa: T201


class Server:
    """`orchard ui` as a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, http: aiohttp.ClientSession, url: str) -> None:
        self.process, self.http, self.url = process, http, url

    async def get(self, path: str) -> tuple[float, str]:
        """Server time in milliseconds, and the page."""
        async with self.http.get(self.url + path) as reply:
            html = await reply.text()
            assert reply.status == 200, (path, reply.status, html[-500:])
            found = _DURATION.search(reply.headers["Server-Timing"])
            assert found is not None
            return float(found[1]), html

    def processor_seconds(self) -> float:
        """What it has taken of a processor so far."""
        return processor(self.process.pid)

    def peak_mb(self) -> float:
        """The most memory that it ever held."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1000


@asynccontextmanager
async def served(store: Path) -> AsyncIterator[Server]:
    """The page of a store."""
    command = [sys.executable, "-m", "orchard", "--store", str(store), "ui", "--port", "0"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        said = b""
        while not (found := _URL.search(said)):
            line = await process.stdout.readline()
            assert line, "the page ended at once"
            said += line
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(600)) as http:
            yield Server(process, http, found[0].decode())
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def timed(server: Server, name: str, paths: Sequence[str], goal: float | None = None) -> None:
    """Server time of REQUESTS of these."""
    await server.get(paths[0])
    worked = server.processor_seconds()
    took = [(await server.get(paths[number % len(paths)]))[0] for number in range(REQUESTS)]
    figure(f"{name}, p50", median(took), "ms", goal)
    figure(f"{name}, p95", quantiles(took, n=20)[-1], "ms", goal)
    each = 1000 * (server.processor_seconds() - worked) / REQUESTS
    figure(f"{name}, processor time of each on average", each, "ms")


def filters() -> list[str]:
    """Rollouts that people ask for."""
    chance = random.Random(0)
    found = []
    for number in range(REQUESTS):
        asked = [f"campaign=million-{number % 5}"] if number % 3 else []
        asked += [f"model={chance.choice(['small', 'large', 'policy'])}"] if number % 2 else []
        asked += [f"tokens={chance.randrange(50_000)}..", "outcome=unresolved", "sort=seconds"][: number % 4]
        asked += [f"task_id=task-{number}*"] if number % 5 == 0 else []
        found.append("/rollouts?" + "&".join(asked))
    return found


def searches(store: Path) -> list[str]:
    """Words that are common and rare, alone and together, and beginnings."""
    with open_tables(str(store)) as tables:
        said = tables.execute(
            "select content from tables.messages_all using sample 200 rows (reservoir, 7)"
        ).fetchall()
    chance = random.Random(0)
    words = sorted({word for (text,) in said for word in (text or "").split() if len(word) > 2})
    found = [f"/rollouts?text={big.WORD}", "/rollouts?text=git+diff", "/rollouts?tool=bash"]
    while len(found) < REQUESTS:
        pair = chance.sample(words, 2)
        found += [f"/rollouts?text={quote(text)}" for text in (pair[0], " ".join(pair), f"{pair[1][:3]}*")]
    return found[:REQUESTS]


async def indexed(server: Server) -> float:
    """Seconds from the first search until the index of words has all messages."""
    began, worked = time.perf_counter(), server.processor_seconds()
    while "so far" in (await server.get(f"/rollouts?text={big.WORD}"))[1]:
        await asyncio.sleep(0.5)
    figure("index of words, processor time", server.processor_seconds() - worked, "s")
    return time.perf_counter() - began


async def updates(server: Server, store: Path) -> list[float]:
    """Seconds from each commit until an open page shows it."""
    took, author = [], Author("live")
    async with server.http.get(f"{server.url}/live") as reply:
        for number in range(UPDATES):
            made = author.rollout(number, ["ls"], resolved=True)
            last = await asyncio.to_thread(big.append, store, made)
            began = time.perf_counter()
            async with asyncio.timeout(60):
                async for line in reply.content:
                    if line.startswith(b"data: ") and json.loads(line[6:])["position"] >= last:
                        break
                while f"log at {last:,}" not in (await server.get("/"))[1]:
                    pass
            took.append(time.perf_counter() - began)
    return took


async def open_page(server: Server, path: str) -> None:
    """What a browser does that shows a page: it listens, and asks again when something has changed, but waits
    ten times as long as the answer took."""
    async with server.http.get(f"{server.url}/live") as reply:
        changed = asyncio.Event()

        async def ask() -> None:
            while await changed.wait():
                changed.clear()
                began = time.perf_counter()
                await server.get(path)
                await asyncio.sleep(max(10 * (time.perf_counter() - began), 0.2))

        async with asyncio.TaskGroup() as group:
            group.create_task(ask())
            async for line in reply.content:
                if line.startswith(b"data: "):
                    changed.set()


async def writing(place: Path, *, pages: int) -> float:
    """Seconds of the writer, a process of its own, for the stream there, beside so many open pages."""
    settings, store = NatsSettings(), Path(tempfile.mkdtemp(dir=place))
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(EmbeddedServer(place / "nats"))
        connection = await stack.enter_async_context(connect(settings, name="bench", url=server.url))
        last = (await connection.jetstream.stream_info("ORCHARD_EVENTS")).state.last_seq
        if pages:
            page = await stack.enter_async_context(served(store))
            group = await stack.enter_async_context(asyncio.TaskGroup())
            paths = [FOLLOWED[number % len(FOLLOWED)] for number in range(pages)]
            opened = [group.create_task(open_page(page, path)) for path in paths]
            stack.callback(lambda: [each.cancel() for each in opened])
        command = [sys.executable, "-m", "orchard", "--store", str(store), "--nats", server.url, "writer"]
        began = time.perf_counter()
        writer = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
        while await asyncio.to_thread(position, str(store)) < last:
            assert writer.returncode is None, "the writer ended"
            await asyncio.sleep(0.05)
        took = time.perf_counter() - began
        writer.terminate()
        await writer.wait()
    return took


async def slowed(place: Path) -> tuple[float, float]:
    """Medians of the writer's seconds alone and beside open pages, measured in turns."""
    settings = NatsSettings()
    async with (
        EmbeddedServer(place / "nats") as server,
        connect(settings, name="bench", url=server.url) as connection,
    ):
        await declare(connection, settings, [])
        for number in range(WRITTEN):
            made = Author(f"c{number}").rollout(number, ["ls -l"] * 12, resolved=True)
            await Publisher(connection).events(made)
    found: dict[int, list[float]] = {0: [], PAGES: []}
    for number in range(ROUNDS):
        for pages in sorted(found, reverse=bool(number % 2)):
            found[pages].append(await writing(place, pages=pages))
    return median(found[0]), median(found[PAGES])


async def measure(store: Path, rollouts: int, parts: Sequence[str]) -> None:
    """All figures of one store, or some parts of them."""
    if not store.exists():
        began = time.perf_counter()
        await asyncio.to_thread(big.fill, store, rollouts)
        figure("rollouts in the store", rollouts, "rollouts")
        figure("store made in", time.perf_counter() - began, "s")
    with open_tables(str(store)) as tables:
        asked = "select rollout_id from rollouts where campaign = 'long' and turns = ? limit 1"
        long = [f"/rollouts/{(tables.execute(asked, [turns]).fetchone() or [''])[0]}" for turns in big.LONG]
    if "pages" in parts:
        async with served(store) as server:
            figure("first page of a new server", (await server.get("/"))[0], "ms")
            await timed(server, "campaigns", ["/"], 50)
            await timed(server, "filtered rollouts", filters(), 300)
            figure("index of words made in", await indexed(server), "s")
            await timed(server, "search for words, first page", searches(store), 1000)
            windows = [f"{long[0]}?turn={n}" for n in range(0, 250, 40)]
            await timed(server, "rollout of 250 turns and 1 MB", windows, 200)
            windows = [f"{long[1]}?turn={n}" for n in range(0, 2000, 240)]
            await timed(server, "rollout of 2,000 turns and 50 MB", windows, 2000)
            for name in ("tasks", "compare", "failures", "runs", "status", "evaluations"):
                await timed(server, f"/{name}", [f"/{name}"])
            figure("server's memory, the most", server.peak_mb(), "MB", MEMORY_GOAL_MB)
            took = await updates(server, store)
            figure("live update after its commit, p50", 1000 * median(took), "ms", 2000)
            figure("live update after its commit, p95", 1000 * quantiles(took, n=20)[-1], "ms", 2000)
    with tempfile.TemporaryDirectory() as name:
        if "memory" in parts:
            small = Path(name, "small")
            await asyncio.to_thread(big.fill, small, rollouts // 40)
            async with served(small) as server:
                for path in OVERVIEWS:
                    await server.get(path)
                await indexed(server)
                figure("the same on a fortieth of the rollouts", server.peak_mb(), "MB", MEMORY_GOAL_MB)
        if "report" in parts:
            mailed = Path(name, "mailed")
            plan = Plan(rollouts=1_000, campaigns=1, turns=20, text=1_000, open_share=0.0)
            fill_store(plan, str(mailed))
            began, worked = time.perf_counter(), time.process_time()
            made = await asyncio.to_thread(write_report, str(mailed), "million-0", Path(name, "out"))
            figure("report of 1,000 rollouts", time.perf_counter() - began, "s", 60)
            figure("report of 1,000 rollouts, processor time", time.process_time() - worked, "s")
            figure("report of 1,000 rollouts", made.bytes / 1e6, "MB", 50)
        if "writer" in parts:
            alone, beside = await slowed(Path(name))
            figure("writer alone", alone, "s")
            figure(f"writer beside {PAGES} open pages", beside, "s")
            figure("ratio of the two", beside / alone, "", 1.05)


PARTS = ("pages", "memory", "report", "writer")


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--store", type=Path, help="kept; made where there is none")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    given = parser.parse_args()
    figure("load of the machine before", psutil.getloadavg()[0], "processes")
    with tempfile.TemporaryDirectory() as name:
        uvloop.run(measure(given.store or Path(name, "store"), given.rollouts, given.parts))
    figure("load of the machine after", psutil.getloadavg()[0], "processes")


if __name__ == "__main__":
    main()
