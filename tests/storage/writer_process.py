"""A writer as a process of its own, for tests that kill it: `writer_process.py STORE NATS_URL ROWS`."""

import asyncio
import signal
import sys

from orchard.storage.errors import StorageError
from orchard.storage.writing.writer import Writer, WriterSettings
from orchard.streams.connection import connect
from orchard.streams.settings import NatsSettings


async def main(store: str, url: str, rows: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    settings = WriterSettings(commit_rows=rows, commit_seconds=0.05, compact_above=10, compact_seconds=0.05)
    async with connect(NatsSettings(), name="writer", url=url) as connection:
        await Writer(store, connection, settings).run(stop)


try:
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
except StorageError as error:
    sys.exit(str(error))
