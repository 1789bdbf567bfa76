"""Fixtures of the datasets: a campaign's log in a real store, and a tokenizer trained on its words."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from orchard.pipelines.datasets.tokenizer import train_tokenizer
from orchard.schemas import events as e
from orchard.storage.writing.writer import Writer
from orchard.streams.connection import Connection, connect
from orchard.streams.publisher import Publisher
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from tests.gui_log import SCREEN
from tests.trajectory_log import Author


@pytest.fixture
def author() -> Author:
    return Author()


@pytest.fixture
async def connection(nats_server: EmbeddedServer) -> AsyncIterator[Connection]:
    settings = NatsSettings()
    async with connect(settings, name="test", url=nats_server.url) as opened:
        await declare(opened, settings, [])
        yield opened


Keep = Callable[..., Awaitable[str]]


@pytest.fixture
def keep(connection: Connection, tmp_path: Path) -> Keep:
    """Publish events and write what the stream holds into a store; its path."""

    async def write(events: Sequence[e.Event] = (), store: str = "store") -> str:
        if events:
            await Publisher(connection).events(events)
        stop = asyncio.Event()
        stop.set()
        await Writer(str(tmp_path / store), connection).run(stop)
        return str(tmp_path / store)

    return write


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The directory of a tokenizer trained on a few words."""
    out = tmp_path_factory.mktemp("tokenizer")
    texts = [
        "You repair programs. Repair t1 of a/b, please.",
        "<returncode>0</returncode>\nls: ok",
        '{"command": "ls"}',
        "Step 0.",
    ]
    train_tokenizer(texts * 5, 400, out)
    return str(out)


@pytest.fixture(scope="session")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The directory of a tokenizer with tokens for pictures, and an image processor."""
    out = tmp_path_factory.mktemp("seeing")
    train_tokenizer(
        ["You see a browser.", "<observation>\nscreen size", '{"point_2d": [1]}'] * 5, 400, out, pictures=True
    )
    processor = Qwen2VLImageProcessorPil(
        patch_size=4, merge_size=2, size={"shortest_edge": 64, "longest_edge": SCREEN[0] * SCREEN[1]}
    )
    processor.save_pretrained(out)
    return str(out)
