"""One running pipeline with a campaign in it: what faults are done to, and what follows its log."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from orchard.actions.session import Session
from orchard.configuration.config import load
from orchard.configuration.run_files import UpRecord, running
from orchard.pipelines.campaigns.commands import Campaigns
from orchard.processes.signals import die_with_parent
from orchard.schemas.events import TERMINAL_TYPES
from orchard.schemas.subjects import EVENTS_PREFIX
from orchard.streams.connection import Connection
from orchard.streams.replay import replay
from orchard.streams.tasks import end

CAMPAIGN = "chaos"
ACK_WAIT = 4.0
QUICK = {
    "ORCHARD_NATS__ACK_WAIT": f"{ACK_WAIT:g}",
    "ORCHARD_NATS__CONNECT_TIMEOUT": "60",
    "ORCHARD_NATS__HEARTBEAT": "1",
    "ORCHARD_NATS__MAX_DELIVER": "5",
    "ORCHARD_SANDBOX__TTL_SECONDS": "10",
    "ORCHARD_SANDBOX__HEARTBEAT_SECONDS": "2",
    "ORCHARD_UP__PAGE": "false",
    "ORCHARD_UP__RESTART_SECONDS": "0.2",
    "ORCHARD_WRITER__COMMIT_SECONDS": "0.5",
}
"""Leases and times to live short enough that recovery from a kill takes seconds."""


def session_for(store: Path) -> Session:
    """A session on the store with the short settings."""
    os.environ.update(QUICK)
    return Session(load({"store": str(store)}))


def words_of(store: Path) -> Path:
    """The file that gets what `orchard up` says."""
    return store.with_name(f"{store.name}.up.log")


@asynccontextmanager
async def pipeline(
    store: Path,
    workers: int,
    slots: int,
    environment: Mapping[str, str] | None = None,
    *,
    url: str | None = None,
) -> AsyncIterator[asyncio.subprocess.Process]:
    """`orchard up` as a process of its own, in a given environment or this; ended by SIGINT, which drains.
    With a `url`, `store` is its state directory."""
    where = {"ORCHARD_STORE": url or str(store), "ORCHARD_STATE": str(store)}
    environment = {**(environment or os.environ), **QUICK, **where, "COLUMNS": "400"}
    command = [sys.executable, "-m", "orchard", "up", "--workers", str(workers), "--slots", str(slots)]
    words_of(store).parent.mkdir(parents=True, exist_ok=True)
    with words_of(store).open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        await until(
            lambda: running(store) is not None or process.returncode is not None, "orchard up to start"
        )
        assert process.returncode is None, "orchard up ended at once"
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        await asyncio.wait_for(process.wait(), 120)


async def until(condition: Callable[[], bool], what: str, timeout: float = 120.0) -> None:
    """Wait for a condition; AssertionError when it does not come true."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout:g} s in vain for {what}")
        await asyncio.sleep(0.05)


class Outcomes:
    """Follows the log and counts what was accepted, and what each process began and ended."""

    def __init__(self) -> None:
        self.finished: set[str] = set()
        self.aborted: set[str] = set()
        self.terminal = 0
        self.begun: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        """Attempts by the event's source."""

    @property
    def settled(self) -> int:
        """Rollouts that have an outcome."""
        return len(self.finished) + len(self.aborted)

    async def follow(self, session: Session) -> None:
        """Until cancelled."""
        subjects = [f"{EVENTS_PREFIX}.done.>", f"{EVENTS_PREFIX}.started.>"]
        async with session.reading_connection("chaos outcomes") as connection:
            async for stored in replay(connection, subjects=subjects, follow=True):
                event = stored.event
                if event is None or event.rollout_id is None:
                    continue
                rollout = event.rollout_id
                self.terminal += event.type in TERMINAL_TYPES
                self.ended[event.source] += event.type in TERMINAL_TYPES
                if event.type == "rollout.started":
                    self.begun[event.source] += 1
                elif event.type == "rollout.finished":
                    self.finished.add(rollout)
                    self.aborted.discard(rollout)
                elif event.type == "rollout.aborted":
                    self.aborted.add(rollout)
                else:
                    self.aborted.discard(rollout)


@dataclass
class World:
    """The pipeline under test. Faults change it; the campaign must end as if they had not."""

    store: Path
    session: Session
    rollouts: int
    chance: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    """What faults led to, by a few words."""
    outcomes: Outcomes = field(default_factory=Outcomes)
    _following: "asyncio.Task[None] | None" = None

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Connection]:
        """A connection for one action, as a command has it; it waits while the stream is held."""
        async with self.session.connection("chaos", hold=True) as connection:
            yield connection

    async def pause(self) -> None:
        """Pause the campaign."""
        async with self.connected() as connection:
            await Campaigns(connection, self.session.blobs).pause(CAMPAIGN)

    async def resume(self) -> None:
        """Resume it."""
        async with self.connected() as connection:
            async for _ in Campaigns(connection, self.session.blobs).resume(CAMPAIGN):
                pass

    @property
    def over(self) -> bool:
        """Whether each rollout is finished."""
        return len(self.outcomes.finished) >= self.rollouts

    def record(self) -> UpRecord:
        """What runs now."""
        record = running(self.store)
        assert isinstance(record, UpRecord), "orchard up has ended"
        return record

    def signal(self, name: str, number: signal.Signals) -> int | None:
        """Send a signal to a child of `orchard up`; its pid, or None where it is just being started again."""
        pid = self.record().children[name]
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return None
        return pid

    def children(self, *kinds: str) -> list[str]:
        """Names of the children of these kinds, such as `worker`."""
        return [name for name in self.record().children if name.split("-")[0] in kinds]

    async def follow(self) -> None:
        """Follow the log from its begin: events that were followed before may have been lost since."""
        await self.unfollow()
        self.outcomes = Outcomes()
        self._following = asyncio.create_task(self.outcomes.follow(self.session))

    async def unfollow(self) -> None:
        """Stop following. Raises what the follower has raised."""
        if self._following is None:
            return
        self._following.cancel()
        with suppress(asyncio.CancelledError):
            await self._following

    def check_follower(self) -> None:
        """Raise what the follower has raised."""
        if self._following is not None and self._following.done():
            self._following.result()

    def said(self, start: int = 0) -> str:
        """What `orchard up` has said, from a byte of its output on."""
        return words_of(self.store).read_bytes()[start:].decode(errors="replace")

    @property
    def said_so_far(self) -> int:
        """Bytes of its output."""
        return words_of(self.store).stat().st_size

    async def orchard(self, *words: str) -> tuple[int, str]:
        """Run a command as a user would; its exit code, and what it said on both of its outputs."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "orchard", "--store", str(self.store), *words),
            env={**os.environ, **QUICK, "COLUMNS": "400"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        return process.returncode or 0, said.decode(errors="replace")

    @asynccontextmanager
    async def guest(self, name: str, variables: Mapping[str, str]) -> AsyncIterator[str]:
        """A worker of its own beside those of `up`, started again when it ends as they are; source of its
        events. It is drained at the end."""
        record = self.record()
        oracle = {"ORCHARD_ENDPOINTS__ORACLE__BASE_URL": record.oracle_url or ""}

        async def start() -> asyncio.subprocess.Process:
            with words_of(self.store).open("ab") as output:
                return await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "orchard", "--store", str(self.store), "worker", "--name", name),
                    env={**os.environ, **QUICK, **oracle, **variables},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    preexec_fn=die_with_parent,
                )

        process = await start()

        async def keep() -> None:
            nonlocal process
            while True:
                await process.wait()
                process = await start()

        keeping = asyncio.create_task(keep())
        try:
            yield f"orchard/worker/{name}"
        finally:
            await end(keeping)
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(process.wait(), 120)
