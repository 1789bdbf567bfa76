"""What waits for an endpoint is released when its rest is over, however short the rest was."""

from collections.abc import Callable

import msgspec

from orchard.schemas.campaigns import RolloutRequest
from orchard.schemas.rests import Rest
from orchard.streams.awaiting import Releases
from orchard.streams.connection import Connection
from orchard.streams.endpoints import EndpointBook
from orchard.streams.enqueue import enqueue_later
from orchard.streams.entries import FIRST, rollout_entry

REST = Rest(endpoint="e", model="m", reason="answered 429", seconds=3600.0, prober="test")


async def test_a_rest_between_two_looks_is_seen(
    connection: Connection, make_request: Callable[[int], RolloutRequest]
) -> None:
    book, releases = EndpointBook(connection), Releases(connection)
    await releases.look()

    assert await book.put_rest("key", REST, 0)
    await enqueue_later(connection, rollout_entry(make_request(0), FIRST), 3600.0, awaits="key")
    (stored,) = (await book.rests()).values()
    assert await book.put_rest("key", msgspec.structs.replace(REST, over=True), stored.revision)

    assert await releases.look() == 1
