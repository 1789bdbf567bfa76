"""Writes what the stream holds, as `orchard writer` would: `drain_process.py STORE NATS_URL`.

Prints the peak of its resident memory in MiB.
"""

import asyncio
import sys
from pathlib import Path

from orchard.storage.allocation import save_memory
from orchard.storage.writing.writer import Writer
from orchard.streams.connection import connect
from orchard.streams.settings import NatsSettings


async def main(store: str, url: str) -> None:
    save_memory()
    stop = asyncio.Event()
    stop.set()
    async with connect(NatsSettings(), name="writer", url=url) as connection:
        await Writer(store, connection).run(stop)


asyncio.run(main(sys.argv[1], sys.argv[2]))
# Not `ru_maxrss`: that is at least what the parent had when it started this process.
[peak] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
sys.stdout.write(f"{int(peak.split()[1]) // 1024}\n")
