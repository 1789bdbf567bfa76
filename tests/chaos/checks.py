"""What must hold after a run, whatever was done to it: each check gives its findings, a sentence each."""

import asyncio
import os
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
import psutil

from orchard.actions.session import Session
from orchard.injector.agent.local.cgroups import cgroup_name
from orchard.injector.client import AsyncSandboxClient
from orchard.storage.digest import store_digests
from orchard.storage.reader import open_tables
from orchard.storage.settings import ArchiveSettings, archive_url
from orchard.storage.upkeep.maintenance import check, rebuild_derived, rebuild_events
from orchard.storage.writing.writer import Writer
from orchard.streams.connection import Connection, connect
from orchard.streams.server import EmbeddedServer
from orchard.workers.oracle.behaviours import DEFAULT_MIX, Behaviour, draw
from tests.chaos.world import CAMPAIGN

REWARDS = {Behaviour.RESOLVES: 1.0, Behaviour.WRONG_EDIT: -1.0, Behaviour.GIVES_UP: -1.0}
"""What the oracle earns by what it does. How the others end depends on their dice, so they are not here."""


async def no_sandboxes_left(client: AsyncSandboxClient, seconds: float = 60.0) -> list[str]:
    """Workers that were killed leave sandboxes; their time to live, below `seconds`, must take them."""
    deadline = time.monotonic() + seconds
    while left := await client.list_sandboxes():
        if time.monotonic() > deadline:
            return [f"{len(left)} sandboxes left after their time to live"]
        await asyncio.sleep(0.2)
    return []


def no_leftovers(store: Path) -> list[str]:
    """No mounts and control groups of sandboxes of this store."""
    mounts = {line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()}
    agent = cgroup_name(store / "sandboxes")
    groups = {str(path) for path in Path("/sys/fs/cgroup").glob(f"**/{agent}/*") if path.is_dir()}
    left = {mount for mount in mounts if mount.startswith(f"{store}/sandboxes")} | groups
    return [f"left behind: {sorted(left)[:5]}"] if left else []


def no_processes(store: Path) -> list[str]:
    """No process may still name the store."""
    left = []
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter(["pid", "cmdline", "environ"]):
        if process.pid in own:
            continue
        words = [*(process.info["cmdline"] or []), (process.info["environ"] or {}).get("ORCHARD_STORE", "")]
        if any(str(store) in word for word in words):
            left.append(f"{process.pid}: {' '.join(process.info['cmdline'] or [])[:100]}")
    return [f"processes left: {left}"] if left else []


def tables_hold(store: Path, rollouts: int) -> list[str]:
    """What the live store says, in SQL."""
    mine = f"campaign = '{CAMPAIGN}'"
    checks = {
        "rollouts with more or less than one accepted outcome": """
            select count(*) from (select rollout_id from rollouts group by 1 having count(*) <> 1)""",
        "accepted outcomes that nobody asked for": """
            select count(*) from rollouts where status = 'aborted' and cause <> 'cancelled'""",
        "campaigns whose rollouts are not accounted for": "select count(*) from conservation where not holds",
        "rollouts without an outcome": f"select coalesce(sum(open), 0) from conservation where {mine}",
        "outcomes without a start of their attempt": """
            select count(*) from rollouts r anti join attempts a on a.rollout_id = r.rollout_id
            and a.attempt = r.attempt and a.started_at is not null where r.status <> 'aborted'""",
        "outcomes without exactly one reward": """
            select count(*) from (select r.rollout_id from rollouts r left join rewards w using (rollout_id)
            where r.status <> 'aborted' group by 1 having count(w.value) <> 1)""",
        "attempts that have no ending": "select count(*) from attempts where ending = 'open'",
        "events stored twice": "select count(*) - count(distinct sequence) from events",
    }
    found = []
    with open_tables(str(store)) as tables:
        outcomes = tables.sql(f"select count(*) from rollouts where {mine}").fetchall()[0][0]
        if outcomes != rollouts:
            found.append(f"{outcomes} outcomes in the tables instead of {rollouts}")
        for what, query in checks.items():
            number = tables.sql(query).fetchall()[0][0]
            if number:
                found.append(f"{number} {what}")
    return found + check(str(store))


def no_false_rewards(store: Path) -> list[str]:
    """Each reward is what the behaviour earns that the oracle was asked for, by task and seed."""
    with open_tables(str(store)) as tables:
        rows = tables.sql("select rollout_id, task_id, reward, status, exit_status from rollouts").fetchall()
    found = []
    for rollout, task, reward, status, exit_status in rows:
        behaviour = draw(DEFAULT_MIX, int(rollout[:7], 16), task)
        if reward != REWARDS.get(behaviour, reward):
            found.append(f"rollout {rollout} ({status}, {exit_status}): {behaviour} has the reward {reward}")
    return found


async def rebuilds_equal(session: Session, store: Path) -> list[str]:
    """The store made again from the stream equals the one that was written live."""
    async with _server(session, store) as server, _connection(session, server) as connection:
        return await _rebuilt(connection, store, "rebuilt", None)


async def archive_rebuilds_equal(session: Session, store: Path) -> list[str]:
    """With the campaign archived and its events purged, archive and stream give the same store again.

    The archiving's own events are written to the live tables first.
    """
    async with _server(session, store) as server, _connection(session, server) as connection:
        stop = asyncio.Event()
        stop.set()
        await Writer(str(store), connection, archive=session.config.archive).run(stop)
        archive = ArchiveSettings(url=archive_url(str(store), session.config.archive))
        return await _rebuilt(connection, store, "rebuilt-from-archive", archive)


def _server(session: Session, store: Path) -> EmbeddedServer:
    return EmbeddedServer(store / "nats", sync=session.config.nats.sync_interval)


def _connection(session: Session, server: EmbeddedServer) -> AbstractAsyncContextManager[Connection]:
    settings = msgspec.structs.replace(session.config.nats, url=server.url)
    return connect(settings, name="chaos rebuild")


async def _rebuilt(
    connection: Connection, store: Path, name: str, archive: ArchiveSettings | None
) -> list[str]:
    copy = store / name
    copy.mkdir()
    await rebuild_events(str(copy), connection, archive)
    rebuild_derived(str(copy))
    live, again = store_digests(str(store)), store_digests(str(copy))
    return [
        f"{name}: table {table} differs from the live one" for table in live if again[table] != live[table]
    ]
