"""`python -m tests.pipelines.rl.killed_coordinator`: a coordinator that kills itself with SIGKILL."""

import asyncio
import sys

from orchard.pipelines.rl.coordinator import Coordinator
from orchard.pipelines.rl.runs import planned
from orchard.storage.blobs import BlobStore
from orchard.streams.connection import connect
from orchard.streams.settings import NatsSettings
from tests.pipelines.rl.killing import kill_at


async def main(url: str, store: str, run: str, place: str) -> None:
    kill_at(place)
    blobs = BlobStore(store)
    async with connect(NatsSettings(), name="coordinator", url=url) as connection:
        known = await planned(connection, blobs, run)
        assert known is not None
        plan, start = known
        await Coordinator(connection, plan, blobs=blobs).run(start)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
