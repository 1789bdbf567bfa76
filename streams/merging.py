"""Follows all streams of events at once, also those that are made meanwhile."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import TypeVar

from orchard.streams.connection import Connection
from orchard.streams.event_streams import stream_count
from orchard.streams.tasks import end, waited

T = TypeVar("T")

LOOK_SECONDS = 5.0
"""Seconds after which a reader without a guard asks whether there are more streams."""

Follow = Callable[[int, float | None], AsyncGenerator[list[T], None]]
"""Follows one stream, by its number, without end; yields an empty list after so many seconds without any."""


async def merged(
    connection: Connection, follow: Follow[T], idle: float | None = None
) -> AsyncGenerator[list[T], None]:
    """Yields what all streams give, as it comes: of each stream everything in its order.

    With `idle`, yields an empty list whenever nothing came for so many seconds.
    """
    growth = _Growth(connection)
    streams = [follow(0, idle)]
    pumps: list[asyncio.Task[None]] = []
    try:
        while idle is not None and await growth.count() == 1:
            yield await anext(streams[0])
        arrived: asyncio.Queue[list[T]] = asyncio.Queue(1)
        while True:
            streams += [follow(stream, idle) for stream in range(len(streams), await growth.count())]
            pumps += [asyncio.create_task(_pump(stream, arrived)) for stream in streams[len(pumps) :]]
            batch = await _next(arrived, pumps, LOOK_SECONDS if idle is None else idle)
            if batch or idle is not None:
                yield batch
    finally:
        for pump in pumps:
            await end(pump)
        for stream in streams:
            await stream.aclose()


class _Growth:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._count = 0
        self._looked = 0.0

    async def count(self) -> int:
        """Number of streams now; the guard of a connection knows it, others ask each LOOK_SECONDS."""
        now = asyncio.get_running_loop().time()
        if self._count and self._connection.guarded:
            self._count = max(self._count, self._connection.event_streams)
        elif not self._count or now - self._looked >= LOOK_SECONDS:
            self._looked, self._count = now, max(self._count, await stream_count(self._connection))
        return self._count


async def _pump(stream: AsyncGenerator[list[T], None], arrived: "asyncio.Queue[list[T]]") -> None:
    async for batch in stream:
        if batch:
            await arrived.put(batch)


async def _next(
    arrived: "asyncio.Queue[list[T]]", pumps: list[asyncio.Task[None]], seconds: float
) -> list[T]:
    """The next batch, empty after so many seconds; raises what has ended a pump."""
    coming = asyncio.create_task(waited(arrived.get(), seconds))
    try:
        await asyncio.wait([coming, *pumps], return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            if pump.done() and not coming.done():
                pump.result()
        return await coming
    except TimeoutError:
        return []
    finally:
        coming.cancel()
