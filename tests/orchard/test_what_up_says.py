"""What `orchard up` says of the work that it finds, and when it is told to stop."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchard.pipelines.campaigns.commands import Campaigns
from orchard.schemas.queues import Queue
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from tests.chaos.world import session_for
from tests.orchard.test_submission import plan

pytestmark = pytest.mark.long


async def test_up_names_the_campaigns_that_it_continues_and_says_that_it_stops(tmp_path: Path) -> None:
    store = tmp_path / "store"
    session = session_for(store)
    async with session.connection_or_server("test") as connection:
        await declare(connection, NatsSettings(), [Queue()])
        campaigns = Campaigns(connection, session.blobs)
        for name, samples in (("first", 3), ("held", 1)):
            async for _ in campaigns.submit(plan(name=name, samples=samples)):
                pass
        await campaigns.pause("held")

    command = [sys.executable, "-m", "orchard", "--store", str(store), "up", "--workers", "0"]
    process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert process.stdout is not None
    said = []
    async with asyncio.timeout(120):
        while not (said and said[-1].startswith("continues")):
            said.append((await process.stdout.readline()).decode())
            assert said[-1], f"orchard up ended: {said}"
    assert said[-1] == "continues first: 3 rollouts left\n"

    process.send_signal(signal.SIGINT)
    stopping, stopped = (await process.communicate())[0].decode().splitlines()
    assert process.returncode == 0
    assert stopping == "stopping: running work ends or goes back to the queue"
    assert stopped == "stopped: unfinished work is on the queue and continues at the next `orchard up`"
