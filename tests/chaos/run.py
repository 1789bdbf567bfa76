"""`make chaos`: kill processes at random through a campaign, then prove that nothing was lost or doubled.

The kills are spaced by progress, not by time: one after every few outcomes. The same code, smaller, is a
test (tests/test_chaos.py).
"""

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psutil

from orchard.config import load
from orchard.injector.agent.local.cgroups import cgroup_name
from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.campaigns import Campaigns
from orchard.pipelines.tasks.registry import TaskRegistry
from orchard.schemas.campaigns import Budget, CampaignSpec, ModelSpec, TaskRef, Timeouts
from orchard.schemas.events import TERMINAL_TYPES
from orchard.schemas.llm_calls import ModelKind
from orchard.session import Session
from orchard.storage.digest import store_digests
from orchard.storage.maintenance import check, rebuild_derived, rebuild_events
from orchard.storage.reader import open_tables
from orchard.streams.connection import connect
from orchard.streams.deadletters import DeadLetters
from orchard.streams.publisher import Publisher
from orchard.streams.replay import replay
from orchard.streams.server import EmbeddedServer
from orchard.up import UpRecord, running
from tests.tiny_tasks import build_tiny_image, tiny_task

CAMPAIGN = "chaos"
QUICK = {
    "ORCHARD_NATS__ACK_WAIT": "4",
    "ORCHARD_NATS__HEARTBEAT": "1",
    "ORCHARD_NATS__MAX_DELIVER": "5",
    "ORCHARD_SANDBOX__TTL_SECONDS": "10",
    "ORCHARD_SANDBOX__HEARTBEAT_SECONDS": "2",
    "ORCHARD_UP__RESTART_SECONDS": "0.2",
    "ORCHARD_WRITER__COMMIT_SECONDS": "0.5",
}
"""Leases and times to live short enough that recovery from a kill takes seconds."""

DEADLINE_SECONDS = 1500.0


@dataclass
class Report:
    """What a run did and what was found afterwards."""

    rollouts: int
    kills: Counter[str] = field(default_factory=Counter)
    finished: int = 0
    terminal_events: int = 0
    attempts: int = 0
    endings: dict[str, int] = field(default_factory=dict)
    """Attempts by how they ended, as the view `attempts` tells it."""
    dead_letters: int = 0
    resumed: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)


def session_for(store: Path) -> Session:
    """A session on the store with the short settings."""
    os.environ.update(QUICK)
    return Session(load({"store": str(store)}))


@asynccontextmanager
async def pipeline(store: Path, workers: int, slots: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """`orchard up` as a process of its own; ended by SIGINT, which drains."""
    environment = {**os.environ, **QUICK, "ORCHARD_STORE": str(store)}
    command = [sys.executable, "-m", "orchard", "up", "--workers", str(workers), "--slots", str(slots)]
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
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


def spec_of(refs: list[TaskRef], rollouts: int) -> CampaignSpec:
    """The campaign: the oracle's usual mix over the tiny tasks."""
    return CampaignSpec(
        name=CAMPAIGN,
        tasks=tuple(refs),
        harnesses=("mini-swe-agent",),
        models=(ModelSpec(name="oracle", endpoint="oracle", kind=ModelKind.ORACLE),),
        samples=rollouts // len(refs),
        budget=Budget(steps=15, wall_seconds=120.0),
        timeouts=Timeouts(command=20.0, creation=60.0, grading=60.0, rollout=300.0),
        max_tries=10,
    )


class Outcomes:
    """Follows the log and counts what was accepted."""

    def __init__(self) -> None:
        self.finished: set[str] = set()
        self.aborted: set[str] = set()
        self.terminal = 0

    async def follow(self, session: Session) -> None:
        """Until cancelled."""
        async with session.connection("chaos outcomes") as connection:
            async for stored in replay(connection, subjects="orchard.events.done.>", follow=True):
                if stored.event is None or stored.event.rollout_id is None:
                    continue
                rollout = stored.event.rollout_id
                self.terminal += stored.event.type in TERMINAL_TYPES
                if stored.event.type == "rollout.finished":
                    self.finished.add(rollout)
                    self.aborted.discard(rollout)
                elif stored.event.type == "rollout.aborted":
                    self.aborted.add(rollout)
                else:
                    self.aborted.discard(rollout)


def kill_one(store: Path, chance: random.Random, report: Report) -> None:
    """SIGKILL a worker, the writer, the orchestrator or the NATS server, whichever chance names."""
    record = running(store)
    if not isinstance(record, UpRecord):
        return
    kind = chance.choice(["worker", "worker", "writer", "orchestrator", "nats"])
    names = [name for name in record.children if name.split("-")[0] == kind]
    name = chance.choice(names)
    try:
        os.kill(record.children[name], signal.SIGKILL)
    except ProcessLookupError:
        return  # it is just being started again
    report.kills[kind] += 1


async def run(
    store: Path, *, rollouts: int, workers: int, slots: int, kills: int, tasks: int, seed: int
) -> Report:
    """The whole experiment; the report's `faults` are empty when every promise held."""
    report = Report(rollouts=rollouts)
    chance = random.Random(seed)
    started = time.monotonic()
    session = session_for(store)
    async with pipeline(store, workers, slots):
        async with session.sandboxes() as client:
            await build_tiny_image(client, tasks)
        async with session.connection("chaos") as connection:
            blobs = session.blobs
            registry = TaskRegistry(Publisher(connection), blobs)
            refs = await registry.register(tiny_task(number) for number in range(tasks))
            await session.committed(connection)  # the oracle reads tasks from the tables
            async for _ in Campaigns(connection, blobs).submit(spec_of(refs, rollouts)):
                pass
            outcomes = Outcomes()
            follower = asyncio.create_task(outcomes.follow(session))
            done_kills = 0
            while len(outcomes.finished) < rollouts:
                assert not follower.done(), follower.exception()
                if time.monotonic() - started > DEADLINE_SECONDS:
                    report.faults.append(
                        f"only {len(outcomes.finished)} of {rollouts} in {DEADLINE_SECONDS:g} s"
                    )
                    break
                settled = len(outcomes.finished) + len(outcomes.aborted)
                if done_kills < kills and settled * (kills + 1) >= (done_kills + 1) * rollouts * 0.9:
                    kill_one(store, chance, report)
                    done_kills = sum(report.kills.values())
                if outcomes.aborted and settled == rollouts:
                    report.resumed += len(outcomes.aborted)
                    async for _ in Campaigns(connection, blobs).resume(CAMPAIGN):
                        pass
                await asyncio.sleep(0.05)
            follower.cancel()
        async with session.sandboxes() as client:
            await no_sandboxes_left(client, report)
    report.seconds = time.monotonic() - started
    report.finished, report.terminal_events = len(outcomes.finished), outcomes.terminal
    check_processes(store, report)
    if left := sandbox_leftovers(store):
        report.faults.append(f"left behind: {sorted(left)[:5]}")
    check_tables(store, report)
    await check_rebuild(session, store, report)
    return report


async def no_sandboxes_left(client: AsyncSandboxClient, report: Report) -> None:
    """Workers that were killed leave sandboxes; their time to live must take them."""
    deadline = time.monotonic() + 60
    while left := await client.list_sandboxes():
        if time.monotonic() > deadline:
            report.faults.append(f"{len(left)} sandboxes left after their time to live")
            return
        await asyncio.sleep(0.2)


def sandbox_leftovers(store: Path) -> set[str]:
    """Mounts and control groups that belong to sandboxes of this store."""
    mounts = {line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()}
    agent = cgroup_name(store / "sandboxes")
    groups = {str(path) for path in Path("/sys/fs/cgroup").glob(f"**/{agent}/*") if path.is_dir()}
    return {mount for mount in mounts if mount.startswith(str(store))} | groups


def check_processes(store: Path, report: Report) -> None:
    """No process may still name the store."""
    left = []
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter(["pid", "cmdline", "environ"]):
        if process.pid in own:
            continue
        words = [*(process.info["cmdline"] or []), (process.info["environ"] or {}).get("ORCHARD_STORE", "")]
        if any(str(store) in word for word in words):
            left.append(f"{process.pid}: {' '.join(process.info['cmdline'] or [])[:100]}")
    if left:
        report.faults.append(f"processes left: {left}")


def check_tables(store: Path, report: Report) -> None:
    """What the live store says, in SQL."""
    checks = {
        "rollouts with more or less than one accepted outcome": """
            select count(*) from (select rollout_id from rollouts group by 1 having count(*) <> 1)""",
        "accepted outcomes that are not finished": "select count(*) from rollouts where status = 'aborted'",
        "campaigns whose rollouts are not accounted for": "select count(*) from conservation where not holds",
        "rollouts without an outcome": "select coalesce(sum(open), 0) from conservation",
        "outcomes without a start of their attempt": """
            select count(*) from rollouts r anti join attempts a on a.rollout_id = r.rollout_id
            and a.attempt = r.attempt and a.started_at is not null""",
        "outcomes without exactly one reward": """
            select count(*) from (select r.rollout_id from rollouts r left join rewards w using (rollout_id)
            group by 1 having count(w.value) <> 1)""",
        "attempts that have no ending": "select count(*) from attempts where ending = 'open'",
        "events stored twice": "select count(*) - count(distinct sequence) from events",
    }
    with open_tables(str(store)) as tables:
        outcomes = tables.sql("select count(*) from rollouts").fetchall()[0][0]
        if outcomes != report.rollouts:
            report.faults.append(f"{outcomes} outcomes in the tables instead of {report.rollouts}")
        for what, query in checks.items():
            number = tables.sql(query).fetchall()[0][0]
            if number:
                report.faults.append(f"{number} {what}")
        report.endings = dict(tables.sql("select ending, count(*) from attempts group by 1").fetchall())
        report.attempts = sum(report.endings.values())
    report.faults += check(str(store))


async def check_rebuild(session: Session, store: Path, report: Report) -> None:
    """The store rebuilt from the stream must equal the one that was written live, each time it is rebuilt."""
    live = store_digests(str(store))
    async with EmbeddedServer(store / "nats") as server:
        settings = msgspec.structs.replace(session.config.nats, url=server.url)
        async with connect(settings, name="chaos rebuild") as connection:
            report.dead_letters = len(await DeadLetters(connection).list())
            for name in ("rebuilt", "rebuilt-again"):
                copy = store / name
                copy.mkdir()
                await rebuild_events(str(copy), connection)
                rebuild_derived(str(copy))
                again = store_digests(str(copy))
                report.faults += [
                    f"{name}: table {t} differs from the live one" for t in live if again[t] != live[t]
                ]


def main() -> None:
    """Full size from the command line; exit code 1 when a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=200)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--tasks", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", type=Path, help="kept for a look afterwards; a temporary one otherwise")
    options = vars(parser.parse_args())
    store = options.pop("store")
    with tempfile.TemporaryDirectory(prefix="orchard-chaos-") as temporary:
        report = asyncio.run(run(store or Path(temporary), **options))
    sys.stdout.write(json.dumps(msgspec.to_builtins(report), indent=1) + "\n")
    sys.exit(1 if report.faults else 0)


if __name__ == "__main__":
    main()
