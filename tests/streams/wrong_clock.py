"""A worker on a machine whose clock is wrong: claims one request and puts it off by DELAY seconds.

`python -m tests.streams.wrong_clock URL`, started with libfaketime before the C library. Prints its own time.
"""

import asyncio
import sys
from datetime import UTC, datetime

from orchard.schemas.queues import Queue
from orchard.streams.claims import Claims
from orchard.streams.connection import connect
from orchard.streams.settings import NatsSettings
from tests.entries import named

DELAY = 30.0


async def main(url: str) -> None:
    """One claim."""
    queue = Queue()
    async with (
        connect(NatsSettings(), name="wrong clock", url=url) as connection,
        Claims(connection, queue) as claims,
    ):
        claim = await claims.next(10)
        assert claim is not None
        await claim.retry_later(named(queue, "again", b"body"), DELAY, "test")
    print(datetime.now(UTC).isoformat())  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
