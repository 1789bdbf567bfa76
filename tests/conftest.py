"""Fixtures that several rooms' tests share."""

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchard.streams.server import EmbeddedServer

# A shell's background job ignores these, and so would every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

collect_ignore = ["kubernetes"]
"""These need a cluster: `make test-kubernetes` names them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes minutes comes first, so that in the end no process waits for another's."""
    items.sort(key=lambda item: item.path.parent.name != "learning")


@pytest.fixture
async def nats_server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    """A real NATS server of this test's own."""
    async with EmbeddedServer(tmp_path / "nats") as server:
        yield server
