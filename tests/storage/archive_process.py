"""Archives campaigns and kills itself: `archive_process.py STORE NATS_URL`.

Reads lines of a campaign and a number from stdin. A child process archives the campaign and, if the number is
not 0, is killed by SIGKILL at its effect of that number: a file's rename, an event, a purge, a change of the
campaign book. Writes `done` or `killed` to stdout when the child has ended.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchard.pipelines.campaigns.archiving import Archiving
from orchard.storage.archive import archiving
from orchard.storage.blobs import BlobStore
from orchard.storage.settings import ArchiveSettings
from orchard.streams.campaigns import CampaignBook
from orchard.streams.connection import connect
from orchard.streams.publisher import Publisher
from orchard.streams.settings import NatsSettings


def count_down(number: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator of effects that kills this process when the effect of that number is to begin."""
    left = number

    def killing(effect: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return effect(*arguments, **named)

        return counted

    return killing


async def archive(store: str, url: str, campaign: str, kill_at: int) -> None:
    killing = count_down(kill_at)
    Path.rename = killing(Path.rename)
    Publisher.event = killing(Publisher.event)
    CampaignBook.update = killing(CampaignBook.update)
    archiving.purge = killing(archiving.purge)
    async with connect(NatsSettings(), name="archive", url=url) as connection:
        async for _ in Archiving(connection, store, BlobStore(store), ArchiveSettings()).archive(campaign):
            pass


for line in sys.stdin:
    campaign, number = line.split()
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(archive(sys.argv[1], sys.argv[2], campaign, int(number)))
        except BaseException as error:
            sys.stderr.write(f"{error!r}\n")
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    sys.stdout.write({0: "done", -signal.SIGKILL: "killed"}.get(status, f"exit code {status}") + "\n")
    sys.stdout.flush()
