"""What KEDA and the exporter read of a server with many workers: consumers are of queues, not of workers."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest

from orchard.schemas.queues import Queue
from orchard.streams.campaigns import CampaignBook
from orchard.streams.claims import Claims
from orchard.streams.connection import Connection, connect
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from tests.infra.scaling import Trigger

QUEUES = [Queue(), Queue(priority="high")]
SETTINGS = NatsSettings(max_waiting=20_000, max_ack_pending=20_000, connect_timeout=60.0)


@asynccontextmanager
async def fleet(url: str, workers: int, slots_each: int) -> AsyncIterator[None]:
    """So many workers, each with connections of its own, and all its slots waiting on its queue and one that
    it lends them to."""
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as slots:
        idle = []
        for number in range(workers):
            connection = await stack.enter_async_context(connect(SETTINGS, name=f"worker {number}", url=url))
            claims = await stack.enter_async_context(Claims(connection, QUEUES[0], lends=QUEUES[1:]))
            await CampaignBook(connection).get("none")  # as it looks for cancellations
            idle += [slots.create_task(claims.next(timeout=600.0)) for _ in range(slots_each)]
        yield
        for slot in idle:
            slot.cancel()


async def answered(http: aiohttp.ClientSession, server: EmbeddedServer) -> tuple[bytes, float]:
    """KEDA's question; the answer, and the seconds it took."""
    endpoint = f"127.0.0.1:{server.monitoring_port}"
    trigger = Trigger(endpoint=endpoint, account="$G", stream="ORCHARD_WORK", consumer=QUEUES[0].consumer)
    began = time.perf_counter()
    async with http.get(trigger.url) as reply:
        return await reply.read(), time.perf_counter() - began


def consumers(answer: bytes) -> list[tuple[str, str]]:
    """(stream, consumer) of all: the exporter has a fixed number of series for each."""
    [account] = msgspec.json.decode(answer)["account_details"]
    return sorted(
        (stream["name"], each["name"])
        for stream in account["stream_detail"]
        for each in stream.get("consumer_detail") or ()
    )


async def waiting(connection: Connection) -> int:
    """Slots that wait on the queue of all."""
    info = await connection.jetstream.consumer_info("ORCHARD_WORK", QUEUES[0].consumer)
    return info.num_waiting or 0


@pytest.mark.parametrize(
    ("workers", "slots"),
    [(20, 16), pytest.param(1000, 1, marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
)
async def test_workers_add_no_consumer_and_hardly_a_byte(tmp_path: Path, workers: int, slots: int) -> None:
    async with (
        EmbeddedServer(tmp_path / "nats", monitoring=True) as server,
        connect(SETTINGS, name="test", url=server.url) as connection,
        aiohttp.ClientSession() as http,
    ):
        await declare(connection, SETTINGS, QUEUES)
        before, _ = await answered(http, server)
        async with fleet(server.url, workers, slots):
            async with asyncio.timeout(300):
                while await waiting(connection) < workers * slots:
                    await asyncio.sleep(0.05)
            with_fleet, seconds = await answered(http, server)
    sys.stderr.write(f"{workers} workers: {len(with_fleet)} bytes in {1000 * seconds:.1f} ms\n")

    assert consumers(with_fleet) == consumers(before)
    assert {name for _, name in consumers(before)} >= {queue.consumer for queue in QUEUES}
    assert len(with_fleet) < len(before) + 500
