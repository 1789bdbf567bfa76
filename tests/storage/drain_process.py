"""Writes what the stream holds, as `orchard writer` would: `drain_process.py STORE NATS_URL`.

Prints the peak of its resident memory in MiB.
"""

import asyncio
import resource
import sys

from orchard.storage.allocation import save_memory
from orchard.storage.writer import Writer
from orchard.streams.connection import connect
from orchard.streams.settings import NatsSettings


async def main(store: str, url: str) -> None:
    save_memory()
    stop = asyncio.Event()
    stop.set()
    async with connect(NatsSettings(), name="writer", url=url) as connection:
        await Writer(store, connection).run(stop)


asyncio.run(main(sys.argv[1], sys.argv[2]))
sys.stdout.write(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}\n")
