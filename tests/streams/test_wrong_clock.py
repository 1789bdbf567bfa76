"""Retry times are the server's: a worker whose own clock is wrong neither waits for hours nor not at all."""

import asyncio
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import libfaketime
import pytest

from orchard.schemas.queues import Queue
from orchard.streams import names
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher
from orchard.streams.reading import next_message
from orchard.streams.server import EmbeddedServer
from tests.entries import named
from tests.streams.wrong_clock import DELAY

ROOT = Path(__file__).parents[2]
LIBRARY = Path(libfaketime.__file__).parent / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"
HOURS = timedelta(hours=2)


@pytest.mark.parametrize("wrong", ["+2h", "-2h"])
async def test_a_wrong_clock_does_not_move_a_retry(
    server: EmbeddedServer, connection: Connection, queue: Queue, wrong: str
) -> None:
    await Publisher(connection).offer(named(queue, "r1", b"body"))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.streams.wrong_clock", server.url),
        cwd=ROOT,
        env={
            **os.environ,
            "LD_PRELOAD": str(LIBRARY),
            "FAKETIME": wrong,
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        },
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()

    assert process.returncode == 0
    its_time = datetime.fromisoformat(said.decode().strip())
    assert abs(its_time - datetime.now(UTC)) > HOURS / 2, "the clock of the process was not wrong"
    delayed = await next_message(connection, names.LATER, 1, names.LATER_SUBJECTS)
    assert delayed is not None
    due = datetime.fromisoformat(delayed.headers[names.SCHEDULE].removeprefix("@at "))
    assert abs(due - delayed.time - timedelta(seconds=DELAY)) < timedelta(seconds=DELAY / 2)
