"""`orchard log` and `orchard store check` as a user runs them, where nothing else runs."""

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from orchard.cli.app import app
from orchard.storage.writing.writer import Writer
from orchard.streams.connection import connect
from orchard.streams.publisher import Publisher
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from tests.orchard.test_facts import check, jq
from tests.storage.conftest import Log

pytestmark = pytest.mark.long


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


def test_a_closed_campaign_is_archived_verified_and_told(tmp_path: Path) -> None:
    store = tmp_path / "store"
    asyncio.run(_store_with_rollouts(store))

    def orchard(*arguments: str) -> tuple[Result, str]:
        result = CliRunner().invoke(app, ["--store", str(store), *arguments])
        return result, " ".join(result.stdout.split())

    checked, text = orchard("store", "check")
    assert checked.exit_code == 0, text
    assert "the queues were not looked at" in text
    facts = orchard("store", "check", "--json")[0].stdout
    check("store check", facts)
    assert jq('.campaigns[] | select(.campaign == "first") | .accepted', facts) == "3\n"
    check("store digest", orchard("store", "digest", "--json")[0].stdout)

    refused, _ = orchard("log", "archive", "second")
    assert refused.exit_code == 1
    assert "it has 0 outcomes for 1 rollouts" in str(refused.exception)

    archived, text = orchard("log", "archive", "--closed")
    assert archived.exit_code == 0, archived.exception
    assert "archived first" in text

    status, text = orchard("log", "status")
    assert status.exit_code == 0, status.exception
    assert "1 parts" in text
    facts = orchard("log", "status", "--json")[0].stdout
    check("log status", facts)
    assert jq(".archive_parts, .campaigns[0].campaign", facts) == "1\nfirst\n"

    verified, text = orchard("log", "verify")
    assert verified.exit_code == 0, text
    check("log verify", orchard("log", "verify", "--json")[0].stdout)
    (segment,) = (store / "archive" / "first").glob("segment-*")
    flipped = bytearray(segment.read_bytes())
    flipped[len(flipped) // 2] ^= 1
    segment.write_bytes(flipped)
    damaged, text = orchard("log", "verify")
    assert damaged.exit_code == 1
    assert "does not have the SHA-256" in text
    facts = orchard("log", "verify", "--json")[0]
    assert facts.exit_code == 1 and "does not have the SHA-256" in jq(".findings[0]", facts.stdout)


def test_a_campaign_that_cannot_be_archived_keeps_no_other_back(tmp_path: Path) -> None:
    store = tmp_path / "store"
    asyncio.run(_store_with_rollouts(store))

    result = CliRunner().invoke(app, ["--store", str(store), "log", "archive", "second", "first"])

    assert result.exit_code == 1
    assert "archived first" in " ".join(result.stdout.split())
    assert "not archived: second: campaign 'second' is not closed" in str(result.exception)
