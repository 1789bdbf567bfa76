"""The writer beside a bare loop over the same stream, and the pass-rate query over 100,000 rollouts.

The bare loop does the least that could be called storing a stream: fetch, one Parquet file for 2,000
messages, fsync. It decodes nothing, commits nothing and cannot be resumed. Both run in processes of their
own, one after the other, several times; the best run of each counts.
Run as `python -m tests.benchmarks.bench_storage`.
"""

import asyncio
import json
import os
import random
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import nats
import pyarrow as pa
import pyarrow.parquet as pq
import uvloop
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig

from orchard.schemas import events as e
from orchard.schemas.identity import rollout_id
from orchard.schemas.llm_calls import LLMCall, ModelKind, Usage
from orchard.schemas.messages import MessageNode, Role, ToolCall, ToolResult
from orchard.schemas.outcomes import AbortCause, ExitStatus, RolloutStatus
from orchard.schemas.positions import Position
from orchard.schemas.subjects import done_subject
from orchard.storage.allocation import ARROW_ALLOCATOR, save_memory
from orchard.storage.delta import StoreTable
from orchard.storage.derive import derive_tables
from orchard.storage.location import Location
from orchard.storage.log import Fact
from orchard.storage.reader import open_tables
from orchard.storage.tables import PROGRESS, SCHEMAS
from orchard.storage.writing.writer import Writer
from orchard.streams import names
from orchard.streams.connection import connect
from orchard.streams.publisher import Publisher
from orchard.streams.reading import bounds
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare

EVENTS = 20_000
ROUNDS = 3
TEXT_BYTES = 24_000
ROLLOUTS = 100_000
RESIDENT_GOAL_MB = 400.0
QUERY_GOAL_MS = 50.0


def texts() -> str:
    """Some megabytes of real text: the standard library's sources."""
    root = Path(sysconfig.get_path("stdlib"))
    parts = [path.read_text(encoding="utf-8", errors="replace") for path in sorted(root.glob("*.py"))]
    return "".join(parts)


def campaign_events(count: int) -> Iterator[e.Event]:
    """What rollouts publish, about 22 KB on average: nine messages of long text to one model call."""
    source = texts()
    chance = random.Random(0)
    for number in range(count):
        rollout = rollout_id("bench", "task", "mini-swe-agent", "model", number // 60)
        data: Any
        if number % 10 == 9:
            data = LLMCall(
                parent=f"{number:024x}",
                node=f"{number + 1:024x}",
                turn=number % 60,
                endpoint="default",
                model="model",
                served_model="model",
                model_kind=ModelKind.MODEL,
                finish_reason="tool_calls",
                usage=Usage(prompt_tokens=chance.randrange(50_000), completion_tokens=500),
                cost_usd=0.01,
                seconds=3.5,
            )
        else:
            at = chance.randrange(len(source) - TEXT_BYTES)
            thinking = number % 2 == 0
            data = MessageNode(
                node_id=f"{number:024x}",
                parent=f"{number - 1:024x}",
                role=Role.ASSISTANT if thinking else Role.TOOL,
                turn=number % 60,
                content=source[at : at + TEXT_BYTES],
                tool_calls=(ToolCall(id="c", name="bash", arguments="{}"),) if thinking else (),
                result=None if thinking else ToolResult(returncode=0, seconds=0.3),
            )
        yield e.make_event(
            data,
            id=f"{rollout}-{number}",
            source="orchard/worker/bench",
            campaign="bench",
            rollout_id=rollout,
            attempt=1,
        )


async def run_writer(url: str, store: str) -> dict[str, float]:
    """Seconds until `events` had everything, and until all tables had."""
    save_memory()
    stop = asyncio.Event()
    stop.set()
    async with connect(NatsSettings(), name="bench", url=url) as connection:
        last = (await bounds(connection, names.EVENTS)).last
        for table in SCHEMAS:
            StoreTable(Location.parse(store), table)  # the store exists already, as on any day but the first
        writer = Writer(store, connection)
        started, idle = time.perf_counter(), time.process_time()
        run = asyncio.create_task(writer.run(stop))
        while not writer.position.covers(last) and not run.done():
            await asyncio.sleep(0.002)
        events, logged = time.perf_counter() - started, time.process_time() - idle
        await run
        everything = time.perf_counter() - started
        return {"events": events, "all": everything, "log cpu": logged, "cpu": time.process_time() - idle}


async def run_bare(url: str, store: str) -> dict[str, float]:
    """Seconds for messages to fsynced Parquet with nothing else; writes while the next batch is fetched."""
    place = Path(store)
    place.mkdir()
    loop = asyncio.get_running_loop()
    async with await nats.connect(url) as client:
        jetstream = client.jetstream()
        last = (await jetstream.stream_info(names.EVENTS)).state.last_seq
        started, idle = time.perf_counter(), time.process_time()
        consumer = ConsumerConfig(ack_policy=AckPolicy.NONE, mem_storage=True, inactive_threshold=60)
        subscription = await jetstream.pull_subscribe("", stream=names.EVENTS, config=consumer)
        received, batch = 0, []
        writing: asyncio.Future[None] = loop.create_future()
        writing.set_result(None)
        while received < last:
            messages = await subscription.fetch(min(500, last - received))
            received += len(messages)
            batch += messages
            if len(batch) >= 2000 or received == last:
                await writing
                path = place / f"{received}.parquet"
                writing = loop.run_in_executor(None, partial(write_bare, path, batch))
                batch = []
        await writing
        return {"events": time.perf_counter() - started, "cpu": time.process_time() - idle}


def write_bare(path: Path, messages: list[Msg]) -> None:
    """One durable Parquet file, zstd 3."""
    rows = pa.table(
        {
            "sequence": pa.array([message.metadata.sequence.stream for message in messages], pa.int64()),
            "subject": [message.subject for message in messages],
            "payload": [message.data for message in messages],
        }
    )
    pq.write_table(rows, path, compression="zstd", compression_level=3, use_dictionary=["subject"])
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def child(what: str, url: str, store: str) -> None:
    """A measurement in its own process: its seconds and its peak resident memory."""
    run = {"writer": run_writer, "bare": run_bare}[what]
    figures = uvloop.run(run(url, store))
    figures["rss"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(figures))  # noqa: T201


async def measure_stream(place: Path) -> None:
    """Fill a stream, then let each contender store all of it."""
    async with EmbeddedServer(place / "nats") as server:
        settings = NatsSettings()
        async with connect(settings, name="bench", url=server.url) as connection:
            await declare(connection, settings, [])
            publisher = Publisher(connection)
            pending: list[e.Event] = []
            for event in campaign_events(EVENTS):
                pending.append(event)
                if len(pending) == 500:
                    await publisher.events(pending)
                    pending.clear()
            info = await connection.jetstream.stream_info(names.EVENTS)
        megabytes = info.state.bytes / 1e6
        best: dict[str, dict[str, float]] = {}
        for number in range(ROUNDS):
            for what in ("bare", "writer"):
                figures = await measure_child(what, server.url, str(place / f"{what}-{number}"))
                known = best.setdefault(what, figures)
                best[what] = {
                    key: max(known[key], value) if key == "rss" else min(known[key], value)
                    for key, value in figures.items()
                }
    ceiling = megabytes / best["bare"]["events"]
    for name, key in (("stream to committed events", "events"), ("stream to all tables", "all")):
        emit(name, megabytes / best["writer"][key], "MB/s", ceiling)
    emit("stream to all tables, CPU", best["writer"]["cpu"] * 1e3 / megabytes, "ms/MB")
    emit("bare loop, CPU", best["bare"]["cpu"] * 1e3 / megabytes, "ms/MB")
    emit("writer, peak resident", best["writer"]["rss"], "MiB", RESIDENT_GOAL_MB)


async def measure_child(what: str, url: str, store: str) -> dict[str, float]:
    """Run one contender in a fresh process."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.benchmarks.bench_storage", what, url, store),
        env=os.environ | (ARROW_ALLOCATOR if what == "writer" else {}),
        stdout=subprocess.PIPE,
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, what)
    figures: dict[str, float] = json.loads(output)
    return figures


def outcomes(count: int) -> Iterator[Fact]:
    """Terminal events of rollouts over 4 harnesses, 5 models and 8 sources."""
    chance = random.Random(1)
    now = datetime.now(UTC)
    for number in range(count):
        harness, model = f"harness-{chance.randrange(4)}", f"model-{chance.randrange(5)}"
        rollout = rollout_id("bench", f"task-{number}", harness, model, 0)
        facts = {
            "task_id": f"task-{number}",
            "task_source": f"source-{chance.randrange(8)}",
            "repo": f"owner/repo-{chance.randrange(300)}",
            "harness": harness,
            "model": model,
            "model_kind": ModelKind.MODEL,
            "sample": 0,
            "worker": f"worker-{chance.randrange(64)}",
            "started_at": now,
            "seconds": chance.random() * 900,
            "turns": chance.randrange(100),
        }
        resolved = chance.random() < 0.4
        data: Any = (
            e.RolloutAborted(**facts, cause=AbortCause.SANDBOX_DIED)
            if chance.random() < 0.05
            else e.RolloutFinished(
                **facts,
                status=RolloutStatus.COMPLETED,
                exit_status=ExitStatus.SUBMITTED,
                reward=1.0 if resolved else -1.0,
                resolved=resolved,
                submission="diff --git a/x b/x\n" * chance.randrange(200),
            )
        )
        event = e.make_event(
            data, id=f"{rollout}-end", source="bench", campaign="bench", rollout_id=rollout, attempt=1
        )
        yield Fact(number + 1, done_subject(rollout), event)


def measure_query(place: Path) -> None:
    """Pass rates through the real view over 50 files, beside the same numbers from one bare file."""
    store = str(place / "rollouts")
    location = Location.parse(store)
    table, progress = StoreTable(location, "rollouts_all"), StoreTable(location, PROGRESS)
    pending: list[Fact] = []
    everything: list[pa.Table] = []
    for fact in outcomes(ROLLOUTS):
        pending.append(fact)
        if len(pending) == 2000:
            rows = derive_tables(pending)["rollouts_all"]
            table.append(rows, Position.of(fact.sequence))
            everything.append(rows)
            pending.clear()
    progress.append(progress.schema.empty_table(), Position.of(ROLLOUTS))
    single = place / "single.parquet"
    pq.write_table(pa.concat_tables(everything), single, compression="zstd")
    query = "select harness, model, task_source, resolved, graded, aborted, pass_rate from pass_rates"
    bare = f"""select harness, model, task_source, count(*) filter (resolved), count(resolved),
               count(*) filter (status = 'aborted') from '{single}' group by all"""
    opened = timed(lambda: open_tables(store).close())
    with open_tables(store) as tables, duckdb.connect() as connection:
        assert len(tables.execute(query).fetchall()) == 160
        through_view = timed(lambda: tables.execute(query).fetchall())
        floor = timed(lambda: connection.execute(bare).fetchall())
    emit(f"pass rates over {ROLLOUTS:,} rollouts", through_view, "ms", QUERY_GOAL_MS)
    emit("the same from one bare file", floor, "ms")
    emit("open the tables", opened, "ms")


def timed(work: Any) -> float:
    """Median milliseconds of 15 runs."""
    seconds = []
    for _ in range(15):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return median(seconds) * 1e3


def emit(name: str, value: float, unit: str, ceiling: float | None = None) -> None:
    """One figure as a JSON line."""
    ratio = None if ceiling is None else value / ceiling
    print(json.dumps({"name": name, "value": value, "unit": unit, "ceiling": ceiling, "ratio": ratio}))  # noqa: T201


def main() -> None:
    """Everything, in a directory of its own."""
    if len(sys.argv) > 1:
        child(*sys.argv[1:])
        return
    with tempfile.TemporaryDirectory() as place:
        uvloop.run(measure_stream(Path(place)))
        measure_query(Path(place))


if __name__ == "__main__":
    main()
