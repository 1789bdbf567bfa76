"""A start that fails, or is interrupted, ends at once with everything it began."""

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from orchard.configuration.run_files import RunFiles, UpRecord
from orchard.pipelines.campaigns.commands import Campaigns
from orchard.pipelines.tasks.registry import TaskRegistry
from orchard.processes.pipeline import pipeline
from orchard.streams.publisher import Publisher
from orchard.streams.replay import replay
from tests.chaos.run import spec_of
from tests.chaos.world import session_for, until
from tests.orchard.conftest import Command
from tests.tiny_tasks import build_tiny_image, tiny_task


def left_of(store: Path) -> list[str]:
    """Processes that have the store in their environment or command line."""
    found = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), process.environ().get("ORCHARD_STORE", "")]
        except psutil.Error:
            continue
        if process.pid != os.getpid() and any(str(store) in word for word in words):
            found.append(" ".join(process.cmdline()))
    return found


def up(store: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "orchard", "--store", str(store), "up", "--workers", "2"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def errors(stderr: str) -> list[str]:
    assert "Traceback" not in stderr
    return [line for line in stderr.splitlines() if line.startswith("error: ")]


@pytest.mark.long
def test_an_agent_that_cannot_start(tmp_path: Path) -> None:
    """Another one holds its directory."""
    store = tmp_path / "store"
    (store / "sandboxes").mkdir(parents=True)
    with (store / "sandboxes" / "agent.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = up(store)
        out, err = process.communicate()
    (error,) = errors(err)
    assert process.returncode == 1
    assert "agent could not start (another agent runs in" in error
    assert "killed" not in out
    assert left_of(store) == []
    assert not RunFiles(store).record.exists()


@pytest.mark.long
def test_a_nats_store_that_cannot_be_used(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    (store / "nats").write_text("a file")
    process = up(store)
    _, err = process.communicate()
    (error,) = errors(err)
    assert process.returncode == 1
    assert f"the NATS store {store}/nats cannot be used" in error
    assert left_of(store) == []


@pytest.mark.long
async def test_ctrl_c_while_a_service_is_not_ready(tmp_path: Path) -> None:
    store = tmp_path / "store"
    process = up(store)

    def oracle() -> int:
        try:
            record = msgspec.json.decode(RunFiles(store).record.read_bytes(), type=UpRecord)
        except FileNotFoundError:
            return 0
        return record.children.get("oracle", 0)

    await until(lambda: oracle() > 0, "the oracle's process")
    os.kill(oracle(), signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    _, err = await asyncio.to_thread(process.communicate)
    assert (process.returncode, errors(err)) == (0, [])
    assert left_of(store) == []


@pytest.mark.slow
async def test_what_fails_beside_the_pipeline_hands_back_what_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, however long a drain may take."""
    monkeypatch.setenv("ORCHARD_UP__SHUTDOWN_SECONDS", "3000")
    monkeypatch.setenv("ORCHARD_UP__WORKERS", "2")
    store = tmp_path / "store"
    session = session_for(store)
    with pytest.raises(RuntimeError, match="in the middle"):
        async with pipeline(session.config, print):
            async with session.sandboxes() as client:
                await build_tiny_image(client, 2)
            async with session.connection("test") as connection:
                registry = TaskRegistry(Publisher(connection), session.blobs)
                refs = await registry.register([tiny_task(0), tiny_task(1)])
                await session.committed(connection)
                async for _ in Campaigns(connection, session.blobs).submit(spec_of(refs, 6)):
                    pass
                async for stored in replay(connection, follow=True):
                    if stored.event is not None and stored.event.type == "message.appended":
                        raise RuntimeError("in the middle")
    assert left_of(store) == []
    async with session.connection_or_server("test") as connection:
        types = [stored.event.type async for stored in replay(connection) if stored.event is not None]
    assert "attempt.released" in types


def test_the_page_that_up_serves_is_told(tmp_path: Path, command_line: Command) -> None:
    files = RunFiles(tmp_path)
    files.record.parent.mkdir()
    record = UpRecord(
        pid=os.getpid(),
        nats_url="nats://x",
        sandbox_url="http://x",
        oracle_url=None,
        page_url="http://p:7/",
        children={},
    )
    files.record.write_bytes(msgspec.json.encode(record))
    with files.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = command_line("ui", store=tmp_path)
    assert (done.returncode, "http://p:7/" in done.stdout) == (0, True)
