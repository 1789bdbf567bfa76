"""A stream of a limited size carries any number of campaigns, when the closed ones are archived."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from nats.js import api

from orchard.pipelines.campaigns.archiving import Archiving
from orchard.storage.archive.verify import verify_archive
from orchard.storage.blobs import BlobStore
from orchard.storage.digest import store_digests
from orchard.storage.reader import open_tables
from orchard.storage.settings import ArchiveSettings
from orchard.storage.upkeep.maintenance import rebuild_derived, rebuild_events
from orchard.streams import names
from orchard.streams.connection import Connection, connect
from orchard.streams.disk_space import event_capacity
from orchard.streams.errors import StreamsError
from orchard.streams.publisher import Publisher
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare

LIMIT = 1_500_000
TIMES = 3


@pytest.fixture
async def connection(nats_server: EmbeddedServer) -> AsyncIterator[Connection]:
    """A connection to a server whose event stream refuses what is beyond the limit."""
    settings = NatsSettings(event_max_bytes=LIMIT)
    async with connect(settings, name="test", url=nats_server.url) as opened:
        await declare(opened, settings, [])
        config = (await opened.jetstream.stream_info(names.EVENTS)).config
        await opened.jetstream.update_stream(config.evolve(discard=api.DiscardPolicy.NEW))
        yield opened


@pytest.mark.slow
async def test_a_full_stream_is_archived_and_carries_many_times_its_size(
    connection: Connection,
    publisher: Publisher,
    store: str,
    write: Callable[[], Awaitable[None]],
    log,
    prose: Callable[[int], str],
) -> None:
    archiving = Archiving(connection, store, BlobStore(store), ArchiveSettings())
    carried = refused = number = 0
    while carried < TIMES * LIMIT:
        number += 1
        campaign = log.__class__(f"c{number}")
        for event in (
            event for sample in range(5) for event in campaign.whole_rollout(sample, prose(100_000))
        ):
            try:
                await publisher.event(event)
            except StreamsError:
                refused += 1
                await write()
                for closed in await archiving.closed():
                    async for _ in archiving.archive(closed):
                        pass
                await publisher.event(event)
            carried += len(event.data)
        assert (await event_capacity(connection)).bytes <= LIMIT
    await write()
    live = store_digests(store)
    assert refused >= TIMES - 1
    assert verify_archive(archiving.shelf, store).findings == []
    await rebuild_events(store, connection)
    rebuild_derived(store)
    assert store_digests(store) == live
    with open_tables(store) as tables:
        assert tables.execute("select count(*) from rollouts").fetchall() == [(5 * number,)]
