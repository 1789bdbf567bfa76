"""A drill: NATS is gone, and its stream is restored from the tables, beside pipelined publishing (a script).

`python -m tests.benchmarks.bench_restore [ROLLOUTS [ROUNDS]]` fills a store with the history of `million`, of
7.4 events to a rollout. It publishes some of its events, encoded beforehand, to an empty stream, and restores
all to another empty one of the same server, in turns. Prints one JSON line for each figure; the ratio is that
of events a second.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from statistics import median

import uvloop

from orchard.schemas.positions import START
from orchard.storage.delta import StoreTable
from orchard.storage.derived import read_events
from orchard.storage.location import Location
from orchard.storage.log import originals
from orchard.storage.tables import EVENTS
from orchard.storage.upkeep.restore import restore_stream
from orchard.streams import names
from orchard.streams.connection import Connection, connect
from orchard.streams.publish import OutgoingMessage, store_all
from orchard.streams.reading import bounds
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare_events
from tests.benchmarks.million import Plan, fill_store

PUBLISHED = 50_000
"""Events published for comparison in a round, at most."""
SETTINGS = NatsSettings()


def tell(name: str, value: float, unit: str, **more: object) -> None:
    """One figure, as a line of JSON."""
    sys.stdout.write(json.dumps({"name": name, "value": round(value, 3), "unit": unit, **more}) + "\n")
    sys.stdout.flush()


def logged(store: str) -> Iterator[OutgoingMessage]:
    """The store's events, as they are published."""
    location = Location.parse(store)
    for rows in read_events(location, StoreTable(location, EVENTS).files(), START):
        for one in originals(rows):
            yield OutgoingMessage(subject=one.subject, payload=one.raw, id=str(one.sequence))


async def emptied(connection: Connection) -> None:
    """Has an empty stream, as after NATS was installed anew."""
    await connection.jetstream.delete_stream(names.EVENTS)
    await declare_events(connection, SETTINGS)


async def published(connection: Connection, messages: list[OutgoingMessage]) -> float:
    """Seconds."""
    began = time.perf_counter()
    await store_all(connection, messages)
    return time.perf_counter() - began


async def restored(connection: Connection, store: str, work: Path, count: int) -> float:
    """Seconds."""
    began = time.perf_counter()
    result = await restore_stream(store, connection, SETTINGS, work)
    seconds = time.perf_counter() - began
    assert (result.put_back, result.last, result.lost) == (count, count, 0)
    assert (await bounds(connection, names.EVENTS)).messages == count
    return seconds


async def main(rollouts: int = 115_000, rounds: int = 3) -> None:
    """Fills the store and measures."""
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        store = str(directory / "store")
        began = time.perf_counter()
        count = fill_store(Plan(rollouts=rollouts), store)
        tell("store filled", time.perf_counter() - began, "s", events=count)
        batch = list(islice(logged(store), PUBLISHED))
        ratios = []
        async with (
            EmbeddedServer(directory / "nats") as server,
            connect(SETTINGS, name="drill", url=server.url) as connection,
        ):
            await declare_events(connection, SETTINGS)
            for _ in range(rounds):
                await emptied(connection)
                pipelined = len(batch) / await published(connection, batch)
                await emptied(connection)
                seconds = await restored(connection, store, directory / "work", count)
                ratios.append(count / seconds / pipelined)
                tell(
                    "publish pipelined",
                    pipelined,
                    "events/s",
                    bytes=sum(len(one.payload) for one in batch) / len(batch),
                )
                tell(
                    "restore-stream", count / seconds, "events/s", seconds=seconds, ratio=round(ratios[-1], 3)
                )
        tell("restore-stream / pipelined publishing", median(ratios), "")


if __name__ == "__main__":
    uvloop.run(main(*map(int, sys.argv[1:])))
