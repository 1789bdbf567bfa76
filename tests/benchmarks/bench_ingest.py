"""A whole campaign's events from the stream to all tables, by a writer in a process of its own (a script).

107,000 rollouts of about 22 KB by default. Prints one JSON line for each figure. Filling the stream takes
longer than emptying it. Run as `python -m tests.benchmarks.bench_ingest [--rollouts N] [--text N]`.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from orchard.schemas.queues import Queue
from orchard.storage.allocation import ARROW_ALLOCATOR, save_memory
from orchard.storage.reader import open_tables
from orchard.storage.upkeep.maintenance import check
from orchard.storage.writing.writer import Writer
from orchard.streams import names
from orchard.streams.connection import connect
from orchard.streams.reading import bounds
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from tests.benchmarks.million import Plan, fill_stream

RESIDENT_GOAL_MB = 400.0
TEXT = 7_400
"""Characters of each of a rollout's messages: with the other events it has about 22 KB."""


async def write(url: str, store: str) -> dict[str, float]:
    """The writer until everything is in the tables; its seconds, CPU and peak memory."""
    save_memory()
    stop = asyncio.Event()
    stop.set()
    async with connect(NatsSettings(), name="ingest", url=url) as connection:
        last = (await bounds(connection, names.EVENTS)).last
        writer = Writer(store, connection)
        started, idle = time.perf_counter(), time.process_time()
        run = asyncio.create_task(writer.run(stop))
        while not writer.position.covers(last) and not run.done():
            await asyncio.sleep(0.01)
        logged = time.perf_counter() - started
        await run
        now = (await bounds(connection, names.EVENTS)).last
    if not writer.position.last(0) == last == now:
        raise RuntimeError(
            f"the writer ended at event {writer.position}; the stream had {last} when it began, {now} now"
        )
    return {
        "events": logged,
        "all": time.perf_counter() - started,
        "cpu": time.process_time() - idle,
        "rss": _peak_mib(),
    }


def _peak_mib() -> float:
    """This process's peak. Not `ru_maxrss`: that is at least what the parent had when it started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


async def measure(place: Path, plan: Plan) -> None:
    """Fill a stream, and let a writer store all of it."""
    store = str(place / "store")
    async with EmbeddedServer(place / "nats") as server:
        settings = NatsSettings()
        async with connect(settings, name="ingest", url=server.url) as connection:
            await declare(connection, settings, [Queue()])
            events = await fill_stream(plan, connection, store)
            megabytes = (await connection.jetstream.stream_info(names.EVENTS)).state.bytes / 1e6
        command = [sys.executable, "-m", "tests.benchmarks.bench_ingest", "--writer", server.url, store]
        process = await asyncio.create_subprocess_exec(
            *command, env=os.environ | ARROW_ALLOCATOR, stdout=subprocess.PIPE
        )
        output, _ = await process.communicate()
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)
    figures: dict[str, float] = json.loads(output)
    emit("rollouts", plan.rollouts, "")
    emit("events", events, "")
    emit("a rollout", megabytes * 1e3 / plan.rollouts, "KB")
    emit("stream to committed events", figures["events"], "s")
    emit("stream to all tables", figures["all"], "s")
    emit("stream to all tables", megabytes / figures["all"], "MB/s")
    emit("CPU", figures["cpu"] * 1e3 / megabytes, "ms/MB")
    emit("writer, peak resident", figures["rss"], "MiB", RESIDENT_GOAL_MB)
    findings = check(store)
    with open_tables(store) as tables:
        [(rollouts, messages)] = tables.execute(
            "select (select count(*) from rollouts), (select count(*) from tables.messages_all)"
        ).fetchall()
    emit("rollouts in the tables", rollouts, "")
    emit("messages in the tables", messages, "")
    emit("findings of the check", len(findings), "", 0.0)


def emit(name: str, value: float, unit: str, ceiling: float | None = None) -> None:
    """One figure as a JSON line."""
    ratio = value / ceiling if ceiling else None
    line = {"name": name, "value": value, "unit": unit, "ceiling": ceiling, "ratio": ratio}
    print(json.dumps(line), flush=True)  # noqa: T201


def main() -> None:
    """The measurement, or the writer of one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=107_000)
    parser.add_argument("--text", type=int, default=TEXT, help="characters of a message")
    parser.add_argument("--writer", nargs=2, metavar=("URL", "STORE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.writer:
        print(json.dumps(uvloop.run(write(*options.writer))))  # noqa: T201
        return
    plan = Plan(rollouts=options.rollouts, campaigns=1, text=options.text, open_share=0.0)
    with tempfile.TemporaryDirectory() as place:
        uvloop.run(measure(Path(place), plan))


if __name__ == "__main__":
    main()
