"""`orchard log` and `orchard store check` as a user runs them, where nothing else runs."""

import asyncio
from pathlib import Path

from orchard.storage.writer import Writer
from orchard.streams.connection import connect
from orchard.streams.publisher import Publisher
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from tests.orchard.conftest import Command
from tests.storage.conftest import Log


async def _store_with_rollouts(store: Path) -> None:
    """Three rollouts of a campaign that is over, and one of another that is open."""
    async with (
        EmbeddedServer(store / "nats") as server,
        connect(NatsSettings(), name="test", url=server.url) as connection,
    ):
        await declare(connection, NatsSettings(), [])
        publisher, first, second = Publisher(connection), Log("first"), Log("second")
        for sample in range(3):
            await publisher.events(first.whole_rollout(sample))
        await publisher.event(second.requested(0))
        stop = asyncio.Event()
        stop.set()
        await Writer(str(store), connection).run(stop)


def test_a_closed_campaign_is_archived_verified_and_told(orchard: Command, tmp_path: Path) -> None:
    store = tmp_path / "store"
    asyncio.run(_store_with_rollouts(store))

    refused = orchard("log", "archive", "second", store=store)
    assert refused.returncode == 1
    assert "it has 0 outcomes for 1 rollouts" in " ".join(refused.stderr.split())

    archived = orchard("log", "archive", "--closed", store=store)
    assert archived.returncode == 0, archived.stderr
    assert "archived first" in archived.stdout

    status = orchard("log", "status", store=store)
    assert status.returncode == 0, status.stderr
    assert "first" in status.stdout
    assert "1 parts" in status.stdout

    assert orchard("log", "verify", store=store).returncode == 0
    (segment,) = (store / "archive" / "first").glob("segment-*")
    flipped = bytearray(segment.read_bytes())
    flipped[len(flipped) // 2] ^= 1
    segment.write_bytes(flipped)
    damaged = orchard("log", "verify", store=store)
    assert damaged.returncode == 1
    assert "does not have the SHA-256" in " ".join(damaged.stdout.split())


def test_check_counts_rollouts_and_says_that_no_queue_was_looked_at(orchard: Command, tmp_path: Path) -> None:
    store = tmp_path / "store"
    asyncio.run(_store_with_rollouts(store))
    checked = orchard("store", "check", store=store)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "the queues were not looked at" in checked.stdout
