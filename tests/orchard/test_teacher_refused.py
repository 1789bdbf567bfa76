"""`orchard rl` with a teacher that cannot teach: refused before anything is queued, in a sentence."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from orchard.actions.session import Session
from orchard.configuration.config import ConfigError, load
from orchard.pipelines.rl.coordinator import RunError, beginning
from orchard.pipelines.rl.distillation import Distillation, RunObjective
from orchard.pipelines.rl.settings import RlSettings, TaskPool
from orchard.pipelines.tasks.registry import TaskRegistry
from orchard.processes.rl_run import enter
from orchard.schemas.queues import Queue
from orchard.storage.writing.writer import Writer
from orchard.streams.publisher import Publisher
from orchard.streams.server import EmbeddedServer
from orchard.streams.topology import declare
from orchard.workers.llm.settings import EndpointSettings
from tests.pipelines.policy.small_models import write_model
from tests.tiny_tasks import tiny_task

pytestmark = pytest.mark.long


@pytest.fixture
async def registered(nats_server: EmbeddedServer, tmp_path: Path) -> Session:
    """A session on a store with a task, and a server."""
    session = Session(load({"store": str(tmp_path / "store"), "nats.url": nats_server.url}))
    async with session.reading_connection("test set-up") as connection:
        await declare(connection, session.config.nats, [Queue()])
        await TaskRegistry(Publisher(connection), session.blobs).register([tiny_task(0)])
        stop = asyncio.Event()
        stop.set()
        await Writer(session.config.store, connection).run(stop)
    return session


async def test_a_teacher_with_another_tokenizer_is_refused_before_anything_is_queued(
    registered: Session, tmp_path: Path
) -> None:
    async def answers(_: web.Request) -> web.Response:
        choice = {"index": 0, "text": "", "prompt_token_ids": [1, 2, 3], "prompt_logprobs": [None]}
        return web.json_response({"choices": [choice]})

    app = web.Application()
    app.router.add_post("/v1/completions", answers)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    teacher = EndpointSettings(base_url=f"http://127.0.0.1:{runner.addresses[0][1]}/v1")
    settings = RlSettings(
        run="strange",
        model=str(write_model(tmp_path / "model")),
        out=str(tmp_path / "out"),
        tasks=TaskPool(unproven=True),
        objective=RunObjective.DISTILL,
        distill=Distillation(teacher="big"),
    )
    config = registered.config
    session = Session(msgspec.structs.replace(config, endpoints={**config.endpoints, "teacher": teacher}))
    try:
        with pytest.raises(RunError, match="the teacher 'big' has another tokenizer than"):
            await enter(session, settings)
        with pytest.raises(ConfigError, match="no endpoint is named 'teacher'"):
            await enter(registered, settings)
    finally:
        await runner.cleanup()
    async with session.connection("test") as connection:
        assert await beginning(connection, "strange") is None
