"""Publishing, claiming and replaying beside bare nats-py in the same run (a script).

Bare is a client of nats-py's own. The two sides do not do equal work: ours also makes and decodes events,
keeps claims alive by heartbeats, and waits until a completion is confirmed.

Prints two JSON lines for each comparison, of the wall clock and of the client's processor time: name, value,
unit, ceiling (the bare loop's figure) and ratio. Rounds of ours and bare alternate and medians count, because
the machine is rarely alone.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

import nats
import uvloop
from nats.aio.msg import Msg
from nats.js import api

from orchard.schemas.events import Event, encode_event, make_event
from orchard.schemas.messages import MessageNode, Role
from orchard.schemas.queues import Queue
from orchard.schemas.subjects import event_subject
from orchard.streams import names
from orchard.streams.claims import Claims
from orchard.streams.connection import Connection, connect
from orchard.streams.publisher import Publisher
from orchard.streams.reading import bounds
from orchard.streams.replay import replay_batches
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from tests.entries import named

ROUNDS = 7
EVENTS = 20_000
REQUESTS = 4_000
REPLAYED = 50_000
SLOTS = 64
PAYLOAD = 1024
"""Bytes of an encoded event and of a request."""


class Rate(NamedTuple):
    """Things a second: by the wall clock, and of this process's own processor time."""

    wall: float
    own: float


class Stopwatch:
    """Runs from when it is made."""

    def __init__(self) -> None:
        self._wall, self._own = time.perf_counter(), time.process_time()

    def rate(self, count: int) -> Rate:
        return Rate(count / (time.perf_counter() - self._wall), count / (time.process_time() - self._own))


Side = Callable[[Connection, int], Awaitable[Rate]]


def events(round_: int, side: str) -> list[Event]:
    """Events whose encoding is about PAYLOAD bytes, with ids of this round's own."""
    node = MessageNode(node_id="n" * 24, parent=None, role=Role.TOOL, turn=1, content="x" * (PAYLOAD - 390))
    return [
        make_event(
            node,
            id=f"{side}-{round_}-{number:06d}",
            source="orchard/bench",
            campaign="bench",
            rollout_id="ab" + "0" * 22,
            attempt=1,
        )
        for number in range(EVENTS)
    ]


async def publish_ours(connection: Connection, round_: int) -> Rate:
    """Events a second through `Publisher.events`, encoding included."""
    publisher, batch = Publisher(connection), events(round_, "ours")
    watch = Stopwatch()
    await publisher.events(batch)
    return watch.rate(EVENTS)


async def publish_bare(connection: Connection, round_: int) -> Rate:
    """Messages a second through `publish_async`, all confirmed; bytes and ids made beforehand."""
    batch = [
        (event_subject(one), encode_event(one), {"Nats-Msg-Id": one.id}) for one in events(round_, "bare")
    ]
    async with await nats.connect(connection.url) as client:
        jetstream, watch = client.jetstream(), Stopwatch()
        futures = [
            await jetstream.publish_async(subject, raw, headers=headers) for subject, raw, headers in batch
        ]
        await asyncio.gather(*futures)
        return watch.rate(EVENTS)


async def one_by_one_ours(connection: Connection, round_: int) -> Rate:
    """Events a second by SLOTS tasks that each wait for every event, as harnesses do."""
    publisher, batch = Publisher(connection), iter(events(round_, "ours-single"))

    async def slot() -> None:
        for event in batch:
            await publisher.event(event)

    return await timed(slot, EVENTS)


async def one_by_one_bare(connection: Connection, round_: int) -> Rate:
    """Messages a second by SLOTS tasks that each wait for every `publish`."""
    made = [
        (event_subject(one), encode_event(one), {"Nats-Msg-Id": one.id})
        for one in events(round_, "bare-single")
    ]
    batch = iter(made)
    async with await nats.connect(connection.url) as client:
        jetstream = client.jetstream()

        async def slot() -> None:
            for subject, raw, headers in batch:
                await jetstream.publish(subject, raw, headers=headers)

        return await timed(slot, EVENTS)


async def timed(slot: Callable[[], Awaitable[None]], count: int) -> Rate:
    """Things a second that SLOTS tasks get done."""
    watch = Stopwatch()
    await asyncio.gather(*(slot() for _ in range(SLOTS)))
    return watch.rate(count)


async def fill(connection: Connection, prefix: str) -> None:
    """Put REQUESTS requests of PAYLOAD bytes on the queue."""
    entries = [named(Queue(), f"{prefix}-{number}", b"x" * PAYLOAD) for number in range(REQUESTS)]
    await Publisher(connection).offer_all(entries)


async def claim_ours(connection: Connection, round_: int) -> Rate:
    """Requests a second that SLOTS slots claim, with heartbeats, and complete, confirmed."""
    await fill(connection, f"ours-{round_}")
    done = 0
    async with Claims(connection, Queue()) as claims:

        async def slot() -> None:
            nonlocal done
            while done < REQUESTS:
                claim = await claims.next(1.0)
                if claim is not None:
                    await claim.complete()
                    done += 1

        return await until_empty(connection, slot, lambda: done)


async def claim_bare(connection: Connection, round_: int, settle: Callable[[Msg], Awaitable[object]]) -> Rate:
    """Requests a second that SLOTS tasks `fetch(1)` and settle."""
    await fill(connection, f"bare-{round_}-{id(settle)}")
    done = 0
    async with await nats.connect(connection.url) as client:
        jetstream = client.jetstream()

        async def slot() -> None:
            nonlocal done
            pull = await jetstream.pull_subscribe_bind(Queue().consumer, names.WORK)
            while done < REQUESTS:
                try:
                    [message] = await pull.fetch(1, timeout=1.0)
                except TimeoutError:
                    continue
                await settle(message)
                done += 1
            await pull.unsubscribe()

        return await until_empty(connection, slot, lambda: done)


async def until_empty(
    connection: Connection, slot: Callable[[], Awaitable[None]], done: Callable[[], int]
) -> Rate:
    """Requests a second until the last is settled; slots that still wait then do not count."""
    watch = Stopwatch()
    tasks = [asyncio.ensure_future(slot()) for _ in range(SLOTS)]
    while done() < REQUESTS:
        await asyncio.wait(tasks, timeout=0.002, return_when=asyncio.FIRST_COMPLETED)
    rate = watch.rate(REQUESTS)
    await asyncio.gather(*tasks)
    assert (await bounds(connection, names.WORK)).messages == 0
    return rate


async def replay_start(connection: Connection) -> int:
    """Where the last REPLAYED events begin."""
    return (await bounds(connection, names.EVENTS)).last - REPLAYED + 1


async def replay_ours(connection: Connection, round_: int) -> Rate:
    """Events a second, decoded, of the last REPLAYED."""
    count, watch = 0, Stopwatch()
    async for batch in replay_batches(connection, await replay_start(connection)):
        count += len(batch)
    assert round_ < ROUNDS
    return watch.rate(count)


async def replay_bare(connection: Connection, round_: int) -> Rate:
    """Messages a second, as bytes, through an ordered consumer with a callback of nats-py's own client."""
    finished, count = asyncio.Event(), 0
    client = await nats.connect(connection.url)

    async def on_message(_: Msg) -> None:
        nonlocal count
        count += 1
        if count == REPLAYED:
            finished.set()

    watch = Stopwatch()
    await client.jetstream().subscribe(
        names.EVENT_SUBJECTS,
        stream=names.EVENTS,
        cb=on_message,
        ordered_consumer=True,
        config=api.ConsumerConfig(
            deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=await replay_start(connection)
        ),
    )
    await finished.wait()
    rate = watch.rate(count)
    await client.close()
    assert round_ < ROUNDS
    return rate


async def compare(name: str, connection: Connection, ours: Side, bare: Side) -> None:
    """Prints the figures of one comparison: medians, and the median of the rounds' own ratios."""
    pairs = [(await ours(connection, number), await bare(connection, number)) for number in range(ROUNDS)]
    show(name, "1/s", [(one.wall, other.wall) for one, other in pairs])
    show(f"{name}, by the client's processor time", "1/CPU-s", [(one.own, other.own) for one, other in pairs])


def show(name: str, unit: str, pairs: list[tuple[float, float]]) -> None:
    line = {
        "name": name,
        "value": round(median(pair[0] for pair in pairs)),
        "unit": unit,
        "ceiling": round(median(pair[1] for pair in pairs)),
        "ratio": round(median(pair[0] / pair[1] for pair in pairs), 2),
    }
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


async def run() -> None:
    """Every comparison, on a server with an empty store."""
    settings = NatsSettings()
    with tempfile.TemporaryDirectory() as directory:
        async with (
            EmbeddedServer(Path(directory) / "nats") as server,
            connect(settings, name="bench", url=server.url) as connection,
        ):
            await declare(connection, settings, [Queue()])
            await compare("publish, pipelined", connection, publish_ours, publish_bare)
            await compare("publish, one by one", connection, one_by_one_ours, one_by_one_bare)
            await compare(
                "claim and confirmed complete, beside fetch(1) and unconfirmed ack",
                connection,
                claim_ours,
                lambda one, number: claim_bare(one, number, Msg.ack),
            )
            await compare(
                "claim and confirmed complete, beside fetch(1) and ack_sync",
                connection,
                lambda one, number: claim_ours(one, number + ROUNDS),
                lambda one, number: claim_bare(one, number, Msg.ack_sync),
            )
            await compare("replay", connection, replay_ours, replay_bare)


def main() -> None:
    """Run under uvloop."""
    uvloop.run(run())


if __name__ == "__main__":
    main()
