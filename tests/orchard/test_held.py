"""`orchard up` on a stream that has lost events: it holds and says so, and goes on when it is restored."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from orchard.configuration.run_files import running
from orchard.schemas.events import Event, SandboxDeleted, make_event
from orchard.schemas.positions import Position
from orchard.storage.reader import log_position
from orchard.streams import names
from orchard.streams.connection import connect
from orchard.streams.publisher import Publisher
from orchard.streams.settings import NatsSettings
from tests.orchard.conftest import Command

pytestmark = pytest.mark.long

PAGE = (Path(__file__).parents[2] / "docs" / "runbooks" / "lost-stream-data.md").read_text()
EVENTS = 100
LEAN = {
    "ORCHARD_UP__ORACLE": "false",
    "ORCHARD_SANDBOX__URL": "http://127.0.0.1:9",
    "ORCHARD_NATS__EVENT_MAX_BYTES": "120000",  # so small that the server makes files of 32 KB
    "COLUMNS": "400",
}


@asynccontextmanager
async def up(store: Path, output: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """`orchard up` without workers, its words in a file; killed with its whole tree at the end."""
    with output.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "orchard", "--store", str(store), "up", "--workers", "0"),
            env={**os.environ, **LEAN},
            stdout=file,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            yield process
        finally:
            process.kill()
            await process.wait()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.1)


def event(number: int) -> Event:
    data = SandboxDeleted(sandbox_id=f"s{number}" + "x" * 500)
    return make_event(data, id=f"e{number}", source="orchard/test", campaign="demo", rollout_id="ab12")


def cut(blocks: list[Path]) -> None:
    os.truncate(blocks[-1], 5_000)


def flip(blocks: list[Path]) -> None:
    with blocks[0].open("r+b") as file:
        file.seek(15_000)
        file.write(b"\xff" * 8)


@pytest.mark.parametrize(
    ("damage", "found"), [(cut, "ends at"), pytest.param(flip, "has no longer", marks=pytest.mark.slow)]
)
async def test_up_holds_on_a_damaged_stream_until_it_is_restored(
    tmp_path: Path, orchard: Command, damage: Callable[[list[Path]], None], found: str
) -> None:
    store, output = tmp_path / "store", tmp_path / "output"
    async with up(store, output):
        await until(lambda: (record := running(store)) and record.children.get("writer"))
        url = running(store).nats_url
        async with connect(NatsSettings(), name="test", url=url) as connection:
            await Publisher(connection).events([event(number) for number in range(EVENTS)])
        await until(lambda: log_position(str(store)) == Position.of(EVENTS))
    await until(lambda: running(store) is None)

    blocks = store.glob(f"nats/jetstream/*/streams/{names.EVENTS}/msgs/*.blk")
    damage(sorted(blocks, key=lambda block: int(block.stem)))

    async with up(store, output):
        await until(lambda: "orchard store restore-stream" in output.read_text())
        status = await asyncio.to_thread(orchard, "status", store=store, **LEAN)
        assert f"held the stream of events {found}" in status.stdout
        resume = await asyncio.to_thread(orchard, "resume", "demo", store=store, **LEAN)
        assert resume.returncode == 1
        assert f"the stream of events {found}" in resume.stderr

        for command in PAGE.partition("<!-- runs: restore -->\n```\n")[2].partition("```")[0].splitlines():
            words = command.removeprefix("orchard ").split()
            restored = await asyncio.to_thread(orchard, *words, store=store, **LEAN)
            assert restored.returncode == 0, restored.stdout + restored.stderr

        assert f"events from the tables; the stream ends at {EVENTS}" in restored.stdout, restored.stderr
        await until(lambda: "well again" in output.read_text())
        resume = await asyncio.to_thread(orchard, "resume", "demo", store=store, **LEAN)
        assert "there is no campaign 'demo'" in resume.stderr
