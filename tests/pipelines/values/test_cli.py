"""`orchard values annotate` over a pipeline that runs: offers, works, waits for the tables, goes on later."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest
from typer.testing import CliRunner

from orchard.actions import values as actions
from orchard.actions.session import Session
from orchard.actions.values import AnnotationRound, annotate_campaign
from orchard.cli import values
from orchard.cli.app import app
from orchard.configuration.config import Config, ConfigError
from orchard.pipelines.values.requests import Asking
from orchard.storage.errors import StoreUnreachable
from orchard.storage.reader import open_tables
from orchard.storage.writing.writer import Writer, WriterSettings
from orchard.streams.errors import NatsUnreachable
from orchard.streams.settings import NatsSettings
from orchard.workers.llm.settings import EndpointSettings
from orchard.workers.oracle.server import OracleServer
from tests.orchard.test_facts import check, jq
from tests.tiny_tasks import tiny_task
from tests.trajectory_log import Author

TASK = tiny_task(1)


@pytest.mark.long
async def test_a_campaign_is_annotated_once_and_new_rollouts_later(pipeline: Any, nats_server: Any) -> None:
    author = Author()
    more = {
        "blob": pipeline.blobs.put(msgspec.json.encode(TASK)),
        "user": TASK.statement,
        "task": TASK.task_id,
        "resolved": False,
    }
    commands = ["cat arithmetic/mod_1.py", "true", "submit"]
    events = [event for sample in range(3) for event in author.rollout(sample, commands, **more)]
    await pipeline.publisher.events(events)
    stop = asyncio.Event()
    writer = Writer(pipeline.store, pipeline.connection, WriterSettings(commit_seconds=0.1))
    writing = asyncio.create_task(writer.run(stop))
    async with OracleServer(lambda: [TASK]) as oracle, asyncio.timeout(60):
        config = Config(
            store=pipeline.store,
            nats=NatsSettings(url=nats_server.url),
            endpoints={"oracle": EndpointSettings(base_url=oracle.url)},
        )
        asking = Asking(model="oracle", endpoint="oracle")
        assert (await annotate_campaign(Session(config), "demo", asking, 2)).verdicts == {
            "value.annotated": 3
        }
        assert (await annotate_campaign(Session(config), "demo", asking, 2)) == AnnotationRound()
        await pipeline.publisher.events(author.rollout(7, commands, **more))
        assert (await annotate_campaign(Session(config), "demo", asking, 2)).verdicts == {
            "value.annotated": 1
        }
        with pytest.raises(ConfigError, match="no rollout of 'nosuch' has ended"):
            await annotate_campaign(Session(config), "nosuch", asking, 2)
    stop.set()
    await writing
    with open_tables(pipeline.store) as tables:
        assert tables.execute("select count(*), min(model_kind) from values").fetchall() == [(4, "oracle")]
    facts = CliRunner().invoke(app, ["--store", pipeline.store, "values", "shapes", "--json"]).stdout
    check("values shapes", facts)
    assert jq(".annotators[0].annotator, .annotators[0].shapes.curves", facts) == "oracle\n4\n"


async def test_a_look_that_fails_is_repeated(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(actions, "LOOK_SECONDS", 0.0)
    looks = iter(
        (StoreUnreachable("no store"), NatsUnreachable("no server"), duckdb.IOException("full"), {"a"})
    )
    ended = []

    async def others() -> set[str]:
        found = next(looks)
        if isinstance(found, Exception):
            raise found
        return found

    await actions._watch({"a"}, others, lambda: ended.append(True))

    assert ended == [True]
    assert [word in caplog.text for word in ("no store", "no server", "full")] == [True] * 3


@pytest.mark.parametrize(("annotated", "status"), [(0, 1), (1, 0)])
def test_a_round_that_failed_everywhere_says_why_and_exits_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, annotated: int, status: int
) -> None:
    async def failing(*_: object) -> AnnotationRound:
        counts = Counter({"value.annotated": annotated, "annotation.failed": 3})
        return AnnotationRound(counts, Counter({"no_json: it is a poem": 2, "context_exceeded: 9": 1}))

    monkeypatch.setattr(values, "annotate_campaign", failing)
    done = CliRunner().invoke(app, ["--store", str(tmp_path), "values", "annotate", "demo"])
    assert done.exit_code == status
    assert f"{annotated} annotated, 3 failed" in done.output
    assert "2 failed: no_json: it is a poem: `orchard values annotate demo --again`" in done.output
