"""Rollout routing replay, the whole way: policy server, worker and harness in a sandbox, log, trainer."""

import asyncio
from pathlib import Path

import pytest
import torch

from orchard.pipelines.datasets.tokenizer import train_tokenizer
from orchard.pipelines.models.directories import load_tokenizer, save_model
from orchard.pipelines.policy.engine import EngineSettings
from orchard.pipelines.policy.server import PolicyServer
from orchard.pipelines.rl.bar import BarSettings
from orchard.pipelines.rl.coordinator import Coordinator, begin
from orchard.pipelines.rl.engines import ServingEngine
from orchard.pipelines.rl.runs import make_plan
from orchard.pipelines.rl.settings import EngineKind, RlSettings, RouterReplay
from orchard.pipelines.rl.trainer import RlTrainer
from orchard.pipelines.tasks.registry import TaskRegistry
from orchard.schemas.events import payload
from orchard.schemas.groups import GroupDropped, PolicyUpdated
from orchard.schemas.messages import MessageNode
from orchard.schemas.queues import Queue
from orchard.schemas.training import PolicyStep
from orchard.storage.blobs import BlobStore
from orchard.streams.connection import connect
from orchard.streams.publisher import Publisher
from orchard.streams.replay import replay
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from orchard.workers.llm.settings import EndpointSettings
from tests.pipelines.moe import tiny_moe
from tests.pipelines.policy.small_models import TEXTS, sharp
from tests.pipelines.rl.test_closed_loop import TURNS, forgetful  # noqa: F401 (a fixture)
from tests.pipelines.rl.test_learner import ALONE
from tests.pipelines.rl.working import one_worker
from tests.tiny_tasks import build_tiny_image, tiny_task

pytestmark = pytest.mark.long


async def test_a_step_trains_on_the_experts_of_its_rollouts(
    nats_server,
    sandboxes,
    tmp_path: Path,
    forgetful,  # noqa: F811
):
    """Served in bfloat16, trained in float32; the harness rewrites history in the middle."""
    await build_tiny_image(sandboxes, 2)
    model, store = tmp_path / "model", str(tmp_path / "store")
    train_tokenizer(TEXTS, 340, model)
    tokenizer = load_tokenizer(model)
    save_model(sharp(tiny_moe(len(tokenizer), max_position_embeddings=4096)), model, tokenizer=tokenizer)
    blobs, nats = BlobStore(store), NatsSettings()
    settings = RlSettings(
        run="routed",
        model=str(model),
        out=str(tmp_path / "out"),
        harness=forgetful,
        bar=BarSettings(size=2, budget=6, stride=2, interval=(0.5, 0.5)),
        prompts_per_step=2,
        steps=1,
        updates=2,
        lr=1e-3,
        max_tokens=12,
        context=1024,
        router_replay=RouterReplay.ROLLOUT,
    )
    engine_settings = EngineSettings(slots=8, context=1024, prefix_cache=True)
    server = PolicyServer(model, settings=engine_settings, dtype=torch.bfloat16)
    async with server, connect(nats, name="test", url=nats_server.url) as connection:
        await declare(connection, nats, [Queue()])
        refs = await TaskRegistry(Publisher(connection), blobs).register([tiny_task(0), tiny_task(1)])
        plan = make_plan(settings, tuple(refs))
        start = await begin(connection, blobs, plan)
        asks = {"return_token_ids": True, "logprobs": True, "return_routed_experts": True}
        endpoint = EndpointSettings(base_url=server.url, extra_body=asks)
        engine = ServingEngine(EngineKind.ORCHARD, server.url.removesuffix("/v1"), plan.name)
        trainer = RlTrainer(settings, plan, connection, blobs, ALONE, engines=[engine])
        async with (
            one_worker(connection, sandboxes, blobs, {"policy": endpoint}, slots=3),
            asyncio.timeout(200),
        ):
            coordinator = Coordinator(connection, plan, engine.wait_for)
            await asyncio.gather(coordinator.run(start), trainer.run(start))
        found = [payload(stored.event) async for stored in replay(connection) if stored.event]
    answers = [fact for fact in found if isinstance(fact, MessageNode) and fact.tokens]
    assert len(answers) >= 4 * TURNS
    for node in answers:
        experts = node.tokens.experts
        tokens = len(node.tokens.prompt_ids) + len(node.tokens.ids) - 1 - experts.first
        assert (experts.width, experts.blob.size) == (4, 4 * tokens)
        assert blobs.has(experts.blob)
    assert any(node.tokens.experts.first for node in answers), "what an earlier message has is kept once"
    assert not [fact for fact in found if isinstance(fact, GroupDropped)]
    assert [fact.version for fact in found if isinstance(fact, PolicyUpdated)] == [1]
    (step,) = [fact for fact in found if isinstance(fact, PolicyStep)]
    assert step.trained_tokens > 0
    assert abs(step.importance - 1.0) < 0.01
