"""A server that one import has to itself syncs once a second, as configured servers do what they are told."""

from pathlib import Path

import pytest

from orchard.actions.session import Session
from orchard.configuration.config import Config
from orchard.streams.settings import NatsSettings


@pytest.mark.parametrize(
    ("configured", "bulk", "synced"),
    [("always", True, "1s"), ("always", False, "always"), ("2m", True, "2m")],
)
async def test_how_often_a_server_syncs(tmp_path: Path, configured: str, bulk: bool, synced: str) -> None:
    session = Session(Config(store=str(tmp_path), nats=NatsSettings(sync_interval=configured)))
    async with session.connection_or_server("import", bulk=bulk):
        config = (tmp_path / "nats" / "nats.conf").read_text()
    assert f"sync_interval: {synced}," in config
