"""Shards made through the queue are those of a local build, whoever is killed meanwhile."""

import asyncio
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest
from transformers import AutoTokenizer

from orchard.pipelines.datasets.build import build
from orchard.pipelines.datasets.errors import DatasetError
from orchard.pipelines.datasets.manifest import Manifest
from orchard.pipelines.datasets.queueing import QUEUE, shard_consumer, through_queue
from orchard.pipelines.datasets.settings import DatasetSettings
from orchard.streams.claims import Claims
from orchard.streams.connection import Connection, connect
from orchard.streams.entries import QueueEntry
from orchard.streams.publisher import Publisher
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from tests.pipelines.datasets.test_build import a_campaign, settings

QUICK = NatsSettings(ack_wait=2.0, heartbeat=0.25)

PROCESS = """
import asyncio, sys, time
from pathlib import Path
import msgspec
from orchard.pipelines.datasets import shards
from orchard.pipelines.datasets.settings import DatasetSettings
from tests.pipelines.datasets import test_queueing as told

role, url, store, out, config = sys.argv[1:]

def hang(*_):
    print("begun", flush=True)
    time.sleep(3600)

async def main():
    async with told.connected(url) as connection:
        if role == "worker":
            shards.ShardMaker.make = hang
            await told.work(connection, store)
        else:
            settings = msgspec.json.decode(config, type=DatasetSettings)
            await told.built(connection, store, settings, Path(out))

asyncio.run(main())
"""


@asynccontextmanager
async def connected(url: str):
    async with connect(QUICK, name="shards", url=url) as connection:
        await declare(connection, QUICK, [QUEUE])
        yield connection


async def work(connection: Connection, store: str, stop: asyncio.Event | None = None) -> None:
    async with Claims(connection, QUEUE) as claims, asyncio.TaskGroup() as group:
        with shard_consumer(store, claims) as consumer:
            working = group.create_task(consumer.run())
            await (stop or asyncio.Event()).wait()
            consumer.drain()
            await working


async def built(
    connection: Connection, store: str, config: DatasetSettings, out: Path, killed: bool = False
) -> Manifest:
    """A build through the queue, three to a shard; `killed` after its first, which alone is offered."""
    loop = asyncio.get_running_loop()

    def offer(entries: Sequence[QueueEntry]) -> None:
        wanted = entries[:1] if killed else entries
        asyncio.run_coroutine_threadsafe(Publisher(connection).offer_absent(wanted), loop).result()

    make = partial(build, store, config, out, shard_trajectories=3, shards_by=through_queue(offer))
    return await asyncio.to_thread(make, progress=end if killed else None)


class Killed(Exception):
    """Stands for SIGKILL."""


def end(_done: int, _total: int) -> None:
    raise Killed


def everything(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@pytest.mark.slow
async def test_workers_and_a_coordinator_that_are_killed_change_no_byte(
    keep, author, tokenizer: str, tmp_path: Path, nats_server: EmbeddedServer
) -> None:
    store = await keep(a_campaign(author))
    config = settings(tokenizer)
    local = build(store, config, tmp_path / "local", shard_trajectories=3)
    script = tmp_path / "process.py"
    script.write_text(PROCESS)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    told = (nats_server.url, store, str(tmp_path / "out"), msgspec.json.encode(config).decode())

    async def process(role: str) -> asyncio.subprocess.Process:
        command = (sys.executable, str(script), role, *told)
        return await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.PIPE)

    coordinator, worker = await process("coordinator"), await process("worker")
    assert worker.stdout is not None
    assert await worker.stdout.readline() == b"begun\n"
    for each in (coordinator, worker):
        each.kill()
        await each.wait()
    assert not (tmp_path / "out" / "manifest.json").exists()

    stop = asyncio.Event()
    async with connected(nats_server.url) as connection, asyncio.TaskGroup() as group:
        group.create_task(work(connection, store, stop))
        through = await built(connection, store, config, tmp_path / "out")
        stop.set()
    assert through == local and len(through.shards) == 4
    assert everything(tmp_path / "out") == everything(tmp_path / "local")
    assert not list(Path(store, "builds").iterdir()), "nothing of the build is left in the store"


@pytest.mark.long
async def test_a_shard_that_cannot_be_made_ends_the_build_with_what_the_worker_said(
    keep, author, tokenizer: str, tmp_path: Path, nats_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await keep(a_campaign(author, 3))
    stop = asyncio.Event()

    def refuse(_work: object) -> None:
        raise DatasetError("no such tokenizer")

    monkeypatch.setattr("orchard.pipelines.datasets.queueing.ShardMaker", refuse)
    async with connected(nats_server.url) as connection, asyncio.TaskGroup() as group:
        group.create_task(work(connection, store, stop))
        with pytest.raises(DatasetError, match="shard 0 cannot be made: no such tokenizer"):
            await built(connection, store, settings(tokenizer), tmp_path / "out")
        stop.set()


@pytest.mark.long
async def test_an_error_that_nobody_expected_ends_the_build_and_not_the_worker(
    keep, author, tokenizer: str, tmp_path: Path, nats_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both shards fail. Once the cause is gone, one more command is enough."""
    store = await keep(a_campaign(author, 6))
    stop = asyncio.Event()
    key = f"hf_{'k' * 34}"

    def broken(_work: object) -> None:
        raise ValueError(f"Can't sanitize\n'</s>' for {key}")

    async with connected(nats_server.url) as connection, asyncio.TaskGroup() as group:
        group.create_task(work(connection, store, stop))
        with monkeypatch.context() as patch:
            patch.setattr("orchard.pipelines.datasets.queueing.ShardMaker", broken)
            with pytest.raises(
                DatasetError, match="cannot be made: ValueError: Can't sanitize '</s>'"
            ) as told:
                await built(connection, store, settings(tokenizer), tmp_path / "out")
            assert key not in str(told.value)
            faults = Path(store, "builds")
            while len(list(faults.rglob("made-*"))) < 2:
                await asyncio.sleep(0.05)
        assert (await built(connection, store, settings(tokenizer), tmp_path / "out")).rows == 6
        stop.set()


@pytest.mark.long
async def test_another_tokenizer_at_the_same_path_gets_shards_of_its_own(
    keep, author, tokenizer: str, tmp_path: Path, nats_server: EmbeddedServer
) -> None:
    """A build is killed between its shards; the worker that made the first goes on."""
    store = await keep(a_campaign(author, 6))
    path = tmp_path / "tokenizer"
    shutil.copytree(tokenizer, path)
    config, stop = settings(str(path)), asyncio.Event()
    async with connected(nats_server.url) as connection, asyncio.TaskGroup() as group:
        group.create_task(work(connection, store, stop))
        with pytest.raises(Killed):
            await built(connection, store, config, tmp_path / "one", killed=True)
        again = AutoTokenizer.from_pretrained(path)
        again.chat_template = "{{- 'A chat.\\n' -}}" + again.chat_template
        again.save_pretrained(path)
        through = await built(connection, store, config, tmp_path / "two")
        stop.set()
    assert through == build(store, config, tmp_path / "local", shard_trajectories=3)
    assert everything(tmp_path / "two") == everything(tmp_path / "local")


@pytest.mark.long
async def test_a_coordinator_that_was_killed_after_its_last_shard_leaves_nothing_in_the_store(
    keep, author, tokenizer: str, tmp_path: Path, nats_server: EmbeddedServer
) -> None:
    store = await keep(a_campaign(author, 3))
    config, stop = settings(tokenizer), asyncio.Event()
    async with connected(nats_server.url) as connection, asyncio.TaskGroup() as group:
        group.create_task(work(connection, store, stop))
        with pytest.raises(Killed):
            await built(connection, store, config, tmp_path / "out", killed=True)
        assert list(Path(store, "builds").iterdir())
        await built(connection, store, config, tmp_path / "out")
        assert not list(Path(store, "builds").iterdir())
        with pytest.raises(Killed):
            build(store, config, tmp_path / "local", shard_trajectories=3, progress=end)
        await built(connection, store, config, tmp_path / "local")  # what others made needs no removal
        stop.set()
