"""The watch over costs, which kills itself when it has paused: `spending_process.py STORE NATS_URL`."""

import asyncio
import os
import signal
import sys

from orchard.pipelines.campaigns.spending import CostWatch
from orchard.schemas.campaigns import CampaignRecord
from orchard.streams.campaigns import CampaignBook
from orchard.streams.connection import connect
from orchard.streams.settings import NatsSettings

update = CampaignBook.update


async def last_update(book: CampaignBook, name: str, record: CampaignRecord, revision: int) -> int:
    """The book has the pause, and nobody was told."""
    await update(book, name, record, revision)
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


async def main(store: str, url: str) -> None:
    async with connect(NatsSettings(), name="steward", url=url) as connection:
        await CostWatch(connection, store).run(pause=0.05)


CampaignBook.update = last_update  # type: ignore[method-assign]
asyncio.run(main(sys.argv[1], sys.argv[2]))
