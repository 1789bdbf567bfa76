"""A pass of the reconciler over a large campaign that is all queued: time and memory.

`python -m tests.benchmarks.bench_reconcile [ROLLOUTS]`, a million by default. The requests are real entries
of a real server, put there without the log; the first pass builds the ledger, the others are what a steward
does for ever. In the last ones outcomes are looked up and rollouts offered, because the queue is gone.
"""

import asyncio
import resource
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

import msgspec
import psutil

from orchard.pipelines.campaigns.reconciling import Reconciler
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import CampaignRecord, CampaignSpec, ModelSpec, TaskRef, rollout_requests
from orchard.schemas.queues import Queue
from orchard.storage.blobs import BlobStore
from orchard.streams import names
from orchard.streams.campaigns import CampaignBook
from orchard.streams.connection import connect
from orchard.streams.entries import FIRST, rollout_entry
from orchard.streams.publisher import Publisher
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare

TASKS = 1000


def memory() -> float:
    """Peak of this process, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def main(rollouts: int) -> None:
    """Print what each step took."""
    spec = CampaignSpec(
        name="million",
        tasks=tuple(
            TaskRef(task_id=f"t{number}", source="s", repo="a/b", blob=BlobRef(sha256="0" * 64, size=1))
            for number in range(TASKS)
        ),
        harnesses=("orchard-bash",),
        models=(ModelSpec(name="m"),),
        samples=rollouts // TASKS,
    )
    with tempfile.TemporaryDirectory() as directory:
        settings, blobs = NatsSettings(work_max_messages=2 * rollouts), BlobStore(f"{directory}/store")
        async with (
            EmbeddedServer(Path(directory) / "nats") as server,
            connect(settings, name="bench", url=server.url) as connection,
        ):
            await declare(connection, settings, [Queue()])
            requests = rollout_requests(spec)
            print(f"before: peak {memory():.0f} MB")  # noqa: T201
            while batch := [rollout_entry(request, FIRST) for request in islice(requests, 1000)]:
                await Publisher(connection).offer_all(batch)
            blob = blobs.put(msgspec.json.encode(spec), "application/json")
            record = CampaignRecord(spec=blob, spec_hash="h", size=spec.size, offered=spec.size)
            await CampaignBook(connection).create(spec.name, record)
            server_process = psutil.Process(server.pid)
            reconciler = Reconciler(connection, blobs)
            for step in ("first pass", "second pass", "third pass"):
                await look(step, reconciler, server_process)
            await connection.jetstream.purge_stream(names.WORK)
            for step in ("all lost, first look", "all lost, second look"):
                await look(step, reconciler, server_process)


async def look(what: str, reconciler: Reconciler, server: psutil.Process) -> None:
    """One pass, and what it cost."""
    began, own, there = time.perf_counter(), time.process_time(), sum(server.cpu_times()[:2])
    offered = await reconciler.look()
    own, there = time.process_time() - own, sum(server.cpu_times()[:2]) - there
    took = time.perf_counter() - began
    print(  # noqa: T201
        f"{what}: {took:.1f} s, CPU {own:.1f} s here and {there:.1f} s in the server, "
        f"peak {memory():.0f} MB, offered {offered}"
    )


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))
