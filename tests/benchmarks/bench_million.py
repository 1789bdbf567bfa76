"""What users do on a store and a stream of a million rollouts: time, processor time and memory of each.

`python -m tests.benchmarks.bench_million [ROLLOUTS]`. The history is that of `million`, on a real server; the
commands are processes of the real command line, as a user starts them, and nothing else of the pipeline runs.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from orchard.pipelines.campaigns.commands import Campaigns
from orchard.pipelines.campaigns.reconciling import Reconciler
from orchard.schemas.campaigns import CampaignSpec
from orchard.schemas.queues import Queue
from orchard.storage.blobs import BlobStore
from orchard.streams.connection import connect
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from tests.benchmarks.million import Plan, fill_store, fill_stream

QUERIES = {
    "resolved by model": "select model, avg(resolved::int), count(*) from rollouts group by 1 order by 1",
    "cost by campaign": "select campaign, sum(cost_usd), sum(prompt_tokens) from llm_calls group by 1",
    "messages of one rollout": "select role, content from messages where rollout_id = "
    "(select rollout_id from rollouts order by rollout_id limit 1)",
}

COMMAND = """
import pathlib, sys
from orchard.__main__ import main
try:
    main()
finally:
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    pathlib.Path(sys.stdin.readline()).write_text(next(x.split()[1] for x in lines if x.startswith("VmHWM:")))
"""
"""The command line, which then says its peak memory: `ru_maxrss` is at least what the parent had."""


class Cost(NamedTuple):
    """Of one command."""

    seconds: float
    processor: float
    """Seconds, of the command alone."""
    peak: float
    """MiB of resident memory."""


def tell(name: str, value: float, unit: str, **more: object) -> None:
    """One figure, as a line of JSON."""
    sys.stdout.write(json.dumps({"name": name, "value": round(value, 2), "unit": unit, **more}) + "\n")
    sys.stdout.flush()


def orchard(environment: dict[str, str], *words: str) -> Cost:
    """One command of the command line. Raises RuntimeError with what it said where it fails."""
    began = time.perf_counter()
    with tempfile.TemporaryFile() as said, tempfile.NamedTemporaryFile() as peak:
        command = [sys.executable, "-c", COMMAND, *words]
        process = subprocess.Popen(
            command, env=os.environ | environment, stdin=subprocess.PIPE, stdout=said, stderr=said
        )
        assert process.stdin is not None
        process.stdin.write(peak.name.encode())
        process.stdin.close()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        took = time.perf_counter() - began
        if status:
            said.seek(0)
            raise RuntimeError(f"orchard {' '.join(words)}: {said.read().decode()[-2000:]}")
        return Cost(took, used.ru_utime + used.ru_stime, int(Path(peak.name).read_text()) / 1024)


def processor(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    return time.clock_gettime(~pid << 3 | 2)  # its clock on Linux; /proc counts in hundredths of a second


class Bench:
    """Tells what a command, or work of this process, costs: beside wall clock the two sides' processor time,
    which says whether the work or only the machine's load has grown."""

    def __init__(self, server: EmbeddedServer, environment: dict[str, str]) -> None:
        self._server, self._environment = server, environment

    async def command(self, name: str, *words: str) -> None:
        """A process of the command line."""
        before = processor(self._server.pid)
        cost = await asyncio.to_thread(orchard, self._environment, *words)
        server = processor(self._server.pid) - before
        figures = {"processor_seconds": round(cost.processor, 2), "server_seconds": round(server, 2)}
        tell(name, cost.seconds, "s", **figures, peak_mib=round(cost.peak), load=os.getloadavg()[0])

    async def work(self, name: str, work: Coroutine[Any, Any, int]) -> None:
        """Awaits `work`, which gives how much it did."""
        began, own, before = time.perf_counter(), time.process_time(), processor(self._server.pid)
        done = await work
        took, own = time.perf_counter() - began, time.process_time() - own
        server = processor(self._server.pid) - before
        figures = {"processor_seconds": round(own, 2), "server_seconds": round(server, 2)}
        tell(name, took, "s", **figures, done=done, load=os.getloadavg()[0])


async def submitted(campaigns: Campaigns, spec: CampaignSpec) -> int:
    """Submits a campaign; how many rollouts."""
    async for _ in campaigns.submit(spec):
        pass
    return spec.size


async def main(rollouts: int) -> None:
    """Tells every figure."""
    plan = Plan(rollouts=rollouts)
    with tempfile.TemporaryDirectory() as directory:
        store = f"{directory}/store"
        settings = NatsSettings(work_max_messages=3 * rollouts)
        async with (
            EmbeddedServer(Path(directory) / "nats") as server,
            connect(settings, name="bench", url=server.url) as connection,
        ):
            await declare(connection, settings, [Queue()])
            bench = Bench(server, {"ORCHARD_NATS__URL": server.url, "ORCHARD_STORE": store})
            await bench.work("filling the stream", fill_stream(plan, connection, store))
            await asyncio.to_thread(fill_store, plan, store)
            last = f"million-{plan.campaigns - 1}"
            await bench.command("status", "status")
            for name, query in QUERIES.items():
                await bench.command(f"sql: {name}", "sql", query)
            await bench.command("resume with nothing to offer", "resume", last)
            reconciler = Reconciler(connection, BlobStore(store))
            for name in ("reconcile, first pass", "reconcile, second pass"):
                await bench.work(name, reconciler.look())
            await bench.command(f"archive of {plan.size(0):,} rollouts", "log", "archive", "million-0")
            spec = msgspec.structs.replace(
                plan.spec(0), name="submitted", samples=plan.samples * plan.campaigns
            )
            campaigns = Campaigns(connection, BlobStore(store))
            await bench.work(f"submit of {spec.size:,}", submitted(campaigns, spec))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))
