"""An import that is killed in the middle loses and doubles nothing when it is run again."""

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from orchard.pipelines.datasets.importing import import_trajectories
from orchard.pipelines.interchange.reading import read_trajectories
from orchard.schemas.subjects import type_subjects
from orchard.storage.blobs import BlobStore
from orchard.storage.reader import open_tables
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare

ROWS = 800
MESSAGES = 8
KILLED_AFTER = 3000
"""Messages: in the middle of the second batch of 250 rows, or after it. The process waits after 600 rows."""
IMPORT = """
import asyncio, sys, threading
from itertools import chain, islice
from pathlib import Path
from orchard.pipelines.datasets.importing import import_trajectories
from orchard.pipelines.interchange.reading import read_trajectories
from orchard.storage.blobs import BlobStore
from orchard.streams.connection import connect
from orchard.streams.publisher import Publisher
from orchard.streams.settings import NatsSettings

def never():
    threading.Event().wait()
    yield

async def run(url, file, store):
    blobs = BlobStore(store)
    async with connect(NatsSettings(), name="import", url=url) as connection:
        found = islice(read_trajectories([Path(file)], blobs), 600)
        found = chain(found, never())
        await import_trajectories(Publisher(connection), blobs, found, campaign="c", dataset="d")

asyncio.run(run(*sys.argv[1:]))
"""


def document(number: int) -> dict[str, Any]:
    said = [{"source": "user", "message": f"Repair {number}."}]
    said += [{"source": "agent", "message": f"Step {at}."} for at in range(1, MESSAGES)]
    steps = [{"step_id": at, **step} for at, step in enumerate(said, start=1)]
    return {"session_id": f"s{number}", "agent": {"name": "a", "version": "1"}, "steps": steps}


@pytest.mark.long
async def test_a_killed_import_that_is_run_again_is_exact(
    nats_server: EmbeddedServer, connection: Connection, committed: Any, tmp_path: Path
) -> None:
    # What was published before the kill is forgotten by the server, and so published again.
    await declare(connection, NatsSettings(event_dedupe=0.1), [])
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(document(number))}\n" for number in range(ROWS)))
    store = await committed()
    (messages,) = type_subjects("c", "message.appended")
    seen = await connection.nats.subscribe(messages)
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", IMPORT, nats_server.url, str(file), store)
    )
    for _ in range(KILLED_AFTER):
        await seen.next_msg(timeout=120)
    child.send_signal(signal.SIGKILL)
    assert await child.wait() == -signal.SIGKILL
    with open_tables(await committed()) as tables:
        (before,) = tables.execute("select count(*) from rollouts").fetchone() or ()
    assert 0 < before < ROWS

    blobs, publisher = BlobStore(store), Publisher(connection)
    for expected in ((ROWS - before, before), (0, ROWS)):
        found = read_trajectories([file], blobs)
        done = await import_trajectories(publisher, blobs, found, campaign="c", dataset="d")
        assert (done.rollouts, done.there_already, done.left_out) == (*expected, [])
    with open_tables(await committed()) as tables:
        found_rows = tables.execute(
            "select r.task_id, list(m.content order by m.turn, m.role <> 'user') "
            "from rollouts r join messages m using (rollout_id) group by all"
        ).fetchall()
        (whole,) = tables.execute("select bool_and(holds) from conservation").fetchone() or ()
        tasks = tables.execute("select task_sha256 from requests").fetchall()
    assert dict(found_rows) == {
        f"s{number}": [step["message"] for step in document(number)["steps"]] for number in range(ROWS)
    }
    assert len(found_rows) == ROWS and whole
    assert all(blobs.read(sha256) for (sha256,) in tasks)
