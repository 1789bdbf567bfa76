"""Fixtures that several rooms' tests share."""

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from streams.server import EmbeddedServer

# A shell's background job ignores these, and so would every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

collect_ignore = ["kubernetes", "learning"]
"""These need a cluster, or minutes of training: `make test-kubernetes` and `make test-learning` name them."""


@pytest.fixture
async def nats_server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    """A real NATS server of this test's own."""
    async with EmbeddedServer(tmp_path / "nats") as server:
        yield server
