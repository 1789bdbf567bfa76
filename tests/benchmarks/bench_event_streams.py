"""What several event streams give where each event is synced to the disk before it is confirmed.

Publishes events of 1 KB, one by one in many tasks over many connections, with K = 1, 2 and 4 streams in one
server, and to as many servers with a stream each, in the same run; rounds alternate. Prints one JSON line for
each figure. Its ceiling is as many times what one stream takes. Beside them, what the disk itself does with
as many files, where a thread each writes 1 KB and syncs.
"""

import asyncio
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median

import uvloop

from orchard.schemas.events import Event, make_event
from orchard.schemas.identity import rollout_id
from orchard.schemas.messages import MessageNode, Role
from orchard.streams.connection import Connection, connect
from orchard.streams.publisher import Publisher
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare

STREAMS = (1, 2, 4)
CONNECTIONS, TASKS = 8, 16
"""Connections to each server of all, and tasks on each: 128 rollouts that wait for each of their events."""
ROUNDS, EVENTS = 7, 2000
ENVELOPE = 390
_names = itertools.count()


def events(count: int, streams: int) -> list[Event]:
    """Events of 1 KB of as many rollouts as there are tasks."""
    node = MessageNode(node_id="n" * 24, parent=None, role=Role.TOOL, turn=1, content="x" * (1024 - ENVELOPE))
    return [
        make_event(
            node,
            id=f"e{next(_names)}",
            source="orchard/bench",
            campaign="bench",
            rollout_id=rollout_id("bench", "t", "h", "m", number % (CONNECTIONS * TASKS), streams),
            attempt=1,
        )
        for number in range(count)
    ]


async def published(connections: Sequence[Connection], streams: int) -> float:
    """Events per second."""
    batch = iter(events(EVENTS, streams))

    async def task(publisher: Publisher) -> None:
        for event in batch:
            await publisher.event(event)

    publishers = [Publisher(connection) for connection in connections]
    started = time.perf_counter()
    await asyncio.gather(*(task(publisher) for publisher in publishers for _ in range(TASKS)))
    return EVENTS / (time.perf_counter() - started)


def synced(directory: Path, files: int) -> float:
    """Writes of 1 KB per second, each synced, to so many files at once."""

    def write(number: int) -> None:
        with (directory / f"ceiling-{number}").open("wb", buffering=0) as file:
            for _ in range(EVENTS // 2 // files):
                file.write(b"x" * 1024)
                os.fsync(file.fileno())

    started = time.perf_counter()
    with ThreadPoolExecutor(files) as threads:
        list(threads.map(write, range(files)))
    return EVENTS // 2 / (time.perf_counter() - started)


async def run() -> None:
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))

        async def opened(name: str, streams: int, connections: int) -> list[Connection]:
            server = await stack.enter_async_context(EmbeddedServer(directory / name, sync="always"))
            settings = NatsSettings(event_streams=streams)
            made = [
                await stack.enter_async_context(connect(settings, name=f"bench-{number}", url=server.url))
                for number in range(connections)
            ]
            await declare(made[0], settings, [])
            return made

        together = {streams: await opened(f"one-{streams}", streams, CONNECTIONS) for streams in STREAMS}
        apart = [
            connection for number in range(STREAMS[-1]) for connection in await opened(f"of-{number}", 1, 2)
        ]
        rates: dict[tuple[str, int], list[float]] = {}
        for _ in range(ROUNDS):
            for streams in STREAMS:
                found = {
                    "streams in one server": await published(together[streams], streams),
                    "files, a thread each, no server": await asyncio.to_thread(synced, directory, streams),
                }
                if streams == STREAMS[-1]:
                    found["streams, a server each"] = await published(apart, 1)
                for kind, rate in found.items():
                    rates.setdefault((kind, streams), []).append(rate)
    one = median(rates["streams in one server", 1])
    for (kind, streams), seen in rates.items():
        line: dict[str, object] = {
            "name": f"events of 1 KB, {streams} {kind}",
            "value": round(median(seen)),
            "unit": "1/s",
        }
        if "streams" in kind:
            line |= {"ceiling": round(one * streams), "ratio": round(median(seen) / one / streams, 3)}
        sys.stdout.write(json.dumps(line) + "\n")


def main() -> None:
    """Run under uvloop."""
    uvloop.run(run())


if __name__ == "__main__":
    main()
