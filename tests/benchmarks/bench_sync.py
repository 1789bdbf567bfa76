"""What durability costs: publishing to servers that differ in `nats.sync_interval` alone, in the same run.

Prints one JSON line for each figure. The ceiling of `always` and `1s` is the figure of `2m`, the server's own
default, which may lose two minutes of acknowledged messages when the machine loses power. Rounds alternate.
"""

import asyncio
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median

import uvloop

from orchard.schemas.events import Event, make_event
from orchard.schemas.messages import MessageNode, Role
from orchard.schemas.queues import Queue
from orchard.streams.connection import Connection, connect
from orchard.streams.publisher import Publisher
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from tests.entries import named

INTERVALS = ("always", "1s", "2m")
ROUNDS = 3
SLOTS = 64
ENVELOPE = 390
_names = itertools.count()


def events(count: int, size: int) -> list[Event]:
    """Events of about `size` bytes, with ids of their own."""
    node = MessageNode(node_id="n" * 24, parent=None, role=Role.TOOL, turn=1, content="x" * (size - ENVELOPE))
    return [
        make_event(
            node,
            id=f"e{next(_names)}",
            source="orchard/bench",
            campaign="bench",
            rollout_id="ab" + "0" * 22,
            attempt=1,
        )
        for _ in range(count)
    ]


async def pipelined(connection: Connection, count: int, size: int) -> None:
    """As the log of a campaign is published."""
    await Publisher(connection).events(events(count, size))


async def one_by_one(connection: Connection, count: int, size: int) -> None:
    """As SLOTS attempts publish, each of which waits for every event."""
    publisher, batch = Publisher(connection), iter(events(count, size))

    async def slot() -> None:
        for event in batch:
            await publisher.event(event)

    await asyncio.gather(*(slot() for _ in range(SLOTS)))


async def requests(connection: Connection, count: int, size: int) -> None:
    """As `submit` fills the queue."""
    entries = [named(Queue(), f"r{next(_names)}", b"x" * size) for _ in range(count)]
    await Publisher(connection).offer_all(entries)


FIGURES: list[tuple[str, Callable[[Connection, int, int], Awaitable[None]], int, int]] = [
    ("events of 1 KB, pipelined", pipelined, 5000, 1024),
    ("events of 22 KB, pipelined", pipelined, 2000, 22 * 1024),
    ("events of 1 KB, one by one in 64 tasks", one_by_one, 5000, 1024),
    ("requests of 1 KB, pipelined", requests, 5000, 1024),
]


async def run() -> None:
    """Every figure on three servers."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        connections = []
        for interval in INTERVALS:
            server = await stack.enter_async_context(EmbeddedServer(directory / interval, sync=interval))
            connection = await stack.enter_async_context(
                connect(NatsSettings(), name="bench", url=server.url)
            )
            await declare(connection, NatsSettings(), [Queue()])
            connections.append(connection)
        for name, publish, count, size in FIGURES:
            rates: dict[str, list[float]] = {interval: [] for interval in INTERVALS}
            for _ in range(ROUNDS):
                for interval, connection in zip(INTERVALS, connections, strict=True):
                    started = time.perf_counter()
                    await publish(connection, count, size)
                    rates[interval].append(count / (time.perf_counter() - started))
            ceiling = median(rates["2m"])
            for interval in INTERVALS:
                value = median(rates[interval])
                line = {
                    "name": f"{name}, sync_interval {interval}",
                    "value": round(value),
                    "unit": "1/s",
                    "ceiling": round(ceiling),
                    "ratio": round(value / ceiling, 3),
                }
                sys.stdout.write(json.dumps(line) + "\n")
                sys.stdout.flush()


def main() -> None:
    """Run under uvloop."""
    uvloop.run(run())


if __name__ == "__main__":
    main()
