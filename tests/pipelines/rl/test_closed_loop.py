"""The loop closed for real: coordinator, workers, sandboxes, tests, policy server and trainer.

The harness of this test rewrites history in the middle of a rollout, as compaction does.
"""

import asyncio
from pathlib import Path

import pytest
import torch

import orchard.pipelines.rl.trainer as trainer_module
import orchard.workers.harnesses as harnesses
from orchard.pipelines.policy.engine import EngineSettings
from orchard.pipelines.policy.server import PolicyServer
from orchard.pipelines.rl.bar import BarSettings
from orchard.pipelines.rl.coordinator import Coordinator, begin
from orchard.pipelines.rl.engines import ServingEngine
from orchard.pipelines.rl.runs import make_plan
from orchard.pipelines.rl.settings import EngineKind, RlSettings
from orchard.pipelines.rl.trainer import RlTrainer
from orchard.pipelines.sft.processes import Processes
from orchard.pipelines.tasks.registry import TaskRegistry
from orchard.schemas.events import payload
from orchard.schemas.groups import GroupAssembled, PolicyUpdated
from orchard.schemas.messages import MessageNode, Role
from orchard.schemas.outcomes import ExitStatus
from orchard.schemas.queues import Queue
from orchard.storage.blobs import BlobStore
from orchard.streams.connection import connect
from orchard.streams.publisher import Publisher
from orchard.streams.replay import replay
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from orchard.workers.harnesses.interface import Episode, Harness, HarnessResult
from orchard.workers.llm.settings import EndpointSettings
from tests.pipelines.policy.small_models import BASH, write_model
from tests.pipelines.rl.working import one_worker
from tests.tiny_tasks import build_tiny_image, tiny_task

TURNS = 4


class Forgetful(Harness):
    """Asks, runs a command, and after two turns tells what was before in other words."""

    name = "forgetful"
    tools = (BASH,)

    async def run(self, episode: Episode) -> HarnessResult:
        trace, task = episode.trace, episode.task
        leaf = await trace.user(await trace.system("You mend code."), task.statement)
        for turn in range(TURNS):
            said = await episode.model.complete(
                episode.spec, trace.messages(leaf), list(self.tools), seed=episode.seed + turn, timeout=60
            )
            leaf = await trace.answered(leaf, said)
            done = await episode.machine.run("git status --short", timeout=20, cwd=task.workdir, env={})
            leaf = await trace.user(leaf, f"exit {done.returncode}")
            if turn == 1:
                start = await trace.system("You mend code.")
                leaf = await trace.user(start, f"{task.statement} So far: {said.text[:30]}")
        # A random model solves nothing: its seed decides, so that groups have both classes.
        submission = task.gold_patch if episode.seed % 2 else ""
        return HarnessResult(exit_status=ExitStatus.SUBMITTED, submission=submission, leaf=leaf)


@pytest.fixture
def forgetful(monkeypatch) -> str:
    monkeypatch.setitem(harnesses._HARNESSES, Forgetful.name, Forgetful)
    return Forgetful.name


async def test_what_trains_is_what_was_sampled_though_the_harness_rewrites_history(
    nats_server, sandboxes, tmp_path: Path, forgetful, monkeypatch
):
    await build_tiny_image(sandboxes, 2)
    model = write_model(tmp_path / "model")
    store = str(tmp_path / "store")
    blobs, nats = BlobStore(store), NatsSettings()
    settings = RlSettings(
        run="loop",
        model=str(model),
        out=str(tmp_path / "out"),
        harness=forgetful,
        bar=BarSettings(size=2, budget=6, stride=2, interval=(0.5, 0.5)),
        prompts_per_step=2,
        steps=2,
        lr=1e-3,
        max_tokens=12,
        context=1024,
    )
    trained = {}
    original = trainer_module.Trained

    def noted(rollout_id, group, reward, resolved, rows, *more):
        trained[rollout_id] = rows
        return original(rollout_id, group, reward, resolved, rows, *more)

    monkeypatch.setattr(trainer_module, "Trained", noted)
    server = PolicyServer(model, settings=EngineSettings(slots=8, context=1024, prefix_cache=True))
    async with server, connect(nats, name="test", url=nats_server.url) as connection:
        await declare(connection, nats, [Queue()])
        refs = await TaskRegistry(Publisher(connection), blobs).register([tiny_task(0), tiny_task(1)])
        plan = make_plan(settings, tuple(refs))
        start = await begin(connection, blobs, plan)
        endpoint = EndpointSettings(
            base_url=server.url, extra_body={"return_token_ids": True, "logprobs": True}
        )
        alone = Processes(rank=0, count=1, device=torch.device("cpu"))
        engine = ServingEngine(EngineKind.ORCHARD, server.url.removesuffix("/v1"), plan.name)
        trainer = RlTrainer(settings, plan, connection, blobs, alone, engines=[engine])
        async with (
            one_worker(connection, sandboxes, blobs, {"policy": endpoint}, slots=3),
            asyncio.timeout(200),
        ):
            coordinator = Coordinator(connection, plan, engine.wait_for)
            await asyncio.gather(coordinator.run(start), trainer.run(start))
        events = [stored.event async for stored in replay(connection) if stored.event]
    facts = [(event, payload(event)) for event in events]
    groups = {fact.group_id: fact for _, fact in facts if isinstance(fact, GroupAssembled)}
    updates = [fact for _, fact in facts if isinstance(fact, PolicyUpdated)]
    assert [update.version for update in updates] == [1, 2]
    said: dict[tuple[str, int], list] = {}
    for event, fact in facts:
        if isinstance(fact, MessageNode) and fact.role is Role.ASSISTANT:
            said.setdefault((event.rollout_id, event.attempt), []).append(fact)
    members = [member for update in updates for name in update.groups for member in groups[name].members]
    assert len(members) == 8
    for member in members:
        messages, rows = said[member.rollout_id, member.attempt], trained[member.rollout_id]
        records = [message.tokens for message in messages]
        assert len(records) == TURNS
        # An empty message is shown in words, which is another history.
        empty = sum(not message.content for message in messages[:-1:2])
        assert len(rows) == 2 + empty, "one sequence before the history was rewritten, one after"
        assert [
            (t, p) for row in rows for t, p, m in zip(row.ids, row.logprobs, row.mask, strict=True) if m
        ] == [pair for record in records for pair in zip(record.ids, record.logprobs, strict=True)]
        assert {p for row in rows for p, m in zip(row.versions, row.mask, strict=True) if m} <= {0, 1, 2}
    for name in (name for update in updates for name in update.groups):
        assert {member.reward for member in groups[name].members} == {1.0, -1.0}
    assert server.engine.version == 2
