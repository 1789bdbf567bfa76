"""A backup as docs/several-hosts.md has it: a copy of the store, and later one of NATS's directory."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from orchard.schemas.queues import Queue
from orchard.storage.digest import store_digests
from orchard.storage.upkeep.maintenance import check
from orchard.storage.writing.writer import Writer
from orchard.streams.connection import connect
from orchard.streams.publisher import Publisher
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare

pytestmark = pytest.mark.long


async def _write(directory: Path, server: EmbeddedServer) -> None:
    """All that the server's stream has."""
    stop = asyncio.Event()
    stop.set()
    async with connect(NatsSettings(), name="backup", url=server.url) as connection:
        await Writer(str(directory / "store"), connection).run(stop)


async def test_an_older_copy_of_the_store_and_a_later_one_of_the_stream_give_equal_tables(
    tmp_path: Path, log, prose: Callable[[int], str]
) -> None:
    live, restored = tmp_path / "live", tmp_path / "restored"
    async with EmbeddedServer(live / "nats") as server:
        async with connect(NatsSettings(), name="backup", url=server.url) as connection:
            await declare(connection, NatsSettings(), [Queue()])
            publisher = Publisher(connection)
            await publisher.events(log.whole_rollout(0, prose(3_000)))
            await _write(live, server)
            shutil.copytree(live / "store", restored / "store")
            await publisher.events(log.whole_rollout(1, prose(3_000)))
        await _write(live, server)
    shutil.copytree(live / "nats", restored / "nats")
    older = store_digests(str(restored / "store"))

    async with EmbeddedServer(restored / "nats") as server:
        await _write(restored, server)

    digests = store_digests(str(restored / "store"))
    assert digests == store_digests(str(live / "store"))
    assert digests != older
    assert check(str(restored / "store")) == []
