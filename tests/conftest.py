"""Fixtures that several rooms' tests share."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from streams.server import EmbeddedServer

collect_ignore = ["kubernetes"]
"""These need a cluster: `make test-kubernetes` names them."""


@pytest.fixture
async def nats_server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    """A real NATS server of this test's own."""
    async with EmbeddedServer(tmp_path / "nats") as server:
        yield server
