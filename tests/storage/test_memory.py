"""The writer's process stays under 400 MiB, whatever waits in the stream."""

import asyncio
import os
import random
import string
import subprocess
import sys
from pathlib import Path

import pytest

from orchard.schemas.queues import Queue
from orchard.storage.allocation import ARROW_ALLOCATOR
from orchard.storage.reader import open_tables
from orchard.storage.upkeep.maintenance import check
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from tests.benchmarks.million import Plan, fill_stream

LIMIT = 400
"""MiB."""


async def _drained(store: str, server: EmbeddedServer) -> tuple[int, int]:
    """Peak MiB of a process that writes everything, and the events it wrote."""
    script = Path(__file__).with_name("drain_process.py")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, script, store, server.url),
        env=os.environ | ARROW_ALLOCATOR,
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    assert check(store) == []
    with open_tables(store) as tables:
        [(count,)] = tables.sql("select count(*) from events").fetchall()
    return int(output), count


def test_the_command_line_leaves_all_of_arrows_memory_to_the_c_library() -> None:
    command = """
import contextlib, sys
from orchard.__main__ import main
with contextlib.suppress(SystemExit):
    main()
import pyarrow
sys.stderr.write(pyarrow.default_memory_pool().backend_name)
"""
    done = subprocess.run(
        [sys.executable, "-c", command, "--help"], capture_output=True, text=True, check=True
    )
    assert done.stderr == "system"


@pytest.mark.slow
async def test_events_of_seven_megabytes(
    publisher: Publisher, nats_server: EmbeddedServer, store: str, log
) -> None:
    letters = "".join(random.Random(0).choices(string.ascii_letters + " \n", k=7_100_000))
    for number in range(40):
        text = letters[number * 1000 : number * 1000 + 7_000_000]
        await publisher.event(log.message(log.rollout(0), text=text))
    peak, count = await _drained(store, nats_server)
    assert count == 40
    assert peak < LIMIT, peak


@pytest.mark.slow
async def test_two_hundred_thousand_events_in_the_queue(
    connection: Connection, nats_server: EmbeddedServer, store: str
) -> None:
    await declare(connection, NatsSettings(), [Queue()])
    last = await fill_stream(Plan(rollouts=29_000, campaigns=1), connection, store)
    peak, count = await _drained(store, nats_server)
    assert count == last > 200_000
    assert peak < LIMIT, peak
