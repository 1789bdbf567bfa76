"""What a slot of a worker costs: memory and processor time of one process with 1, 16 and 32 slots at work.

`python -m tests.benchmarks.slots`: campaigns of the oracle over tiny tasks, real sandboxes and graders. Bytes
and seconds of the processor, which a busy machine changes little.
"""

import asyncio
import os
import random
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil

from orchard.pipelines.campaigns.commands import Campaigns
from orchard.pipelines.tasks.registry import TaskRegistry
from orchard.storage.reader import open_tables
from orchard.streams.publisher import Publisher
from tests.chaos.run import spec_of
from tests.chaos.world import World, pipeline, session_for
from tests.tiny_tasks import build_tiny_image, tiny_task

SLOTS = (1, 16, 32)
TASKS = 4
MIB = 1 << 20


async def measured(store: Path, slots: int) -> str:
    """A row of the table."""
    rollouts = max(8, 2 * slots) // TASKS * TASKS
    session = session_for(store)
    async with pipeline(store, workers=1, slots=slots):
        async with session.sandboxes() as client:
            await build_tiny_image(client, TASKS)
        async with session.connection("slots", hold=True) as connection:
            registry = TaskRegistry(Publisher(connection), session.blobs)
            refs = await registry.register(tiny_task(number) for number in range(TASKS))
            await session.committed(connection)
            world = World(store, session, rollouts, random.Random(0))
            worker = psutil.Process(world.record().children["worker-1"])
            idle, before = worker.memory_info().rss, worker.cpu_times()
            async for _ in Campaigns(connection, session.blobs).submit(spec_of(refs, rollouts)):
                pass
            await world.follow()
            peak = 0
            while world.outcomes.settled < rollouts:
                with suppress(psutil.NoSuchProcess):
                    peak = max(peak, worker.memory_info().rss)
                await asyncio.sleep(0.2)
            await world.unfollow()
            after = worker.cpu_times()
            await session.committed(connection)
    seconds = after.user + after.system - before.user - before.system
    with open_tables(str(store)) as tables:
        turns = tables.sql("select count(*) from events where type = 'llm.called'").fetchall()[0][0]
    return (
        f"| {slots} | {rollouts} | {turns} | {idle / MIB:.0f} | {peak / MIB:.0f} | {seconds / rollouts:.2f} "
        f"| {1000 * seconds / turns:.0f} |"
    )


def main() -> None:
    """The table, and how busy the machine was."""
    say("| slots | rollouts | turns | MiB idle | MiB at most | s a rollout | ms a turn |")
    for slots in SLOTS:
        with tempfile.TemporaryDirectory(prefix="orchard-slots-") as place:
            say(asyncio.run(measured(Path(place) / "store", slots)))
    say(f"load {os.getloadavg()}")


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
