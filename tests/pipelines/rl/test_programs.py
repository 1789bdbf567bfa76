"""A program's rollouts train on the very tokens that were sampled for its work, each once."""

import msgspec
import pytest
import torch

from orchard.pipelines.campaigns.commands import requested_event
from orchard.pipelines.models.directories import load_model
from orchard.pipelines.policy.engine import EngineSettings
from orchard.pipelines.policy.server import PolicyServer
from orchard.pipelines.rl.bar import BarSettings
from orchard.pipelines.rl.feed import Feed
from orchard.pipelines.rl.learner import Learner, Trained
from orchard.pipelines.trajectories.reading import assistants, path
from orchard.pipelines.values.cases import steps_of
from orchard.schemas.campaigns import Budget, ModelSpec
from orchard.schemas.llm_calls import CallKind, LLMCall
from orchard.schemas.messages import MessageNode, Role
from orchard.storage.blobs import BlobStore
from orchard.workers.episode.message_tree import MessageTree
from orchard.workers.gateway.recording import Recording
from orchard.workers.gateway.wire_types import ProgramMessage, ProgramRequest
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.settings import EndpointSettings
from tests.pipelines.policy.small_models import BASH, write_model
from tests.pipelines.rl.test_feed import stored
from tests.pipelines.rl.test_learner import ALONE, settings
from tests.pipelines.rl.written_log import about, assembled, finished, plan_of, run_settings

PLAN = plan_of(run_settings(bar=BarSettings(size=2, budget=2, interval=None)))
SYSTEM = ProgramMessage(role=Role.SYSTEM, text="You repair programs.")
TASK = ProgramMessage(role=Role.USER, text="Fix add.py")
TITLE = ProgramMessage(role=Role.USER, text="A title for: Fix add.py")
ON = ProgramMessage(role=Role.USER, text="go on")


async def a_program(recording: Recording) -> None:
    """Asks for a title, works, repeats a question, and begins anew with a summary of its own."""

    async def ask(
        *messages: ProgramMessage, tools: tuple[dict[str, object], ...] = (BASH,)
    ) -> ProgramMessage:
        said = await recording.answer(ProgramRequest(messages=messages, tools=tools), {})
        return ProgramMessage(role=Role.ASSISTANT, text=said.text, tool_calls=said.tool_calls)

    await ask(TITLE, tools=())
    first = await ask(SYSTEM, TASK)
    await ask(SYSTEM, TASK, first, ON)
    again = await ask(SYSTEM, TASK, first, ON)  # as after a dropped connection
    await ask(SYSTEM, TASK, first, ON, again, ON)
    invented = ProgramMessage(role=Role.ASSISTANT, text="I have read all files.")
    await ask(SYSTEM, TASK, invented, ON)


async def test_a_step_trains_what_was_sampled_for_the_work_and_nothing_else(tmp_path) -> None:
    directory = write_model(tmp_path / "model")
    blobs = BlobStore(str(tmp_path / "store"))
    feed = Feed(PLAN, blobs)
    events, sampled, judged = [], [], []
    engine = EngineSettings(slots=8, context=1024, prefix_cache=True)
    async with PolicyServer(directory, settings=engine) as server:
        endpoint = EndpointSettings(base_url=server.url, extra_body={"return_token_ids": True})
        async with ModelClient({"default": endpoint}) as client:
            for slot in range(2):
                request, facts = PLAN.request(0, slot), list[msgspec.Struct]()

                async def publish(fact: msgspec.Struct, into: list[msgspec.Struct] = facts) -> None:
                    into.append(fact)

                recording = Recording(
                    MessageTree(publish, blobs),
                    client,
                    lambda: ModelSpec(name="policy", max_tokens=20, temperature=1.0, logprobs=True),
                    Budget(steps=0),
                    seed=slot,
                    timeout=60,
                )
                await a_program(recording)
                events.append(requested_event(request))
                events += [about(request, fact, str(n)) for n, fact in enumerate(facts)]
                events.append(finished(request, 1.0 - 2 * slot, leaf=recording.leaf))
                calls = [fact for fact in facts if isinstance(fact, LLMCall)]
                assert [call.call_kind for call in calls][:2] == [CallKind.TITLE, CallKind.MAIN]
                nodes = {fact.node_id: fact for fact in facts if isinstance(fact, MessageNode)}
                consumed = dict.fromkeys(call.node for call in calls if call.call_kind is CallKind.MAIN)
                dropped = calls[2].node  # the second question was asked twice
                wanted = [name for name in consumed if name != dropped or dropped == calls[3].node]
                sampled.append([token for name in wanted for token in nodes[name].tokens.ids])
                way = assistants(path(nodes, recording.leaf))
                assert len(steps_of(path(nodes, recording.leaf))) == len(way) == 2
                step_of = {node.node_id: step for step, node in enumerate(way)}
                judged.append([step_of.get(name, -1) for name in wanted for _ in nodes[name].tokens.ids])
                offered = {call.tools.sha256 for call in calls if call.tools is not None}
                assert [msgspec.json.decode(blobs.get(calls[1].tools))] == [[BASH]]
                assert len(offered) == 1
    feed.take(stored([*events, assembled(PLAN, 0, [0, 1], [1.0, -1.0])]))
    (group,) = feed.waiting
    rows = await feed.sampled(group)
    trained = [
        [token for row in own for token, trains in zip(row.ids, row.mask, strict=True) if trains]
        for own in rows
    ]
    assert trained == sampled
    steps = [
        [step for row in own for step, trains in zip(row.turns, row.mask, strict=True) if trains]
        for own in rows
    ]
    assert steps == judged, "a judge's step is one on the way to the last message, and no other"
    assert all({-1, 1} == set(own) for own in judged)
    batch = [Trained(f"r{n}", "g", 1.0 - 2 * n, not n, own) for n, own in enumerate(rows)]
    learner = Learner(settings(context=1024, temperature=1.0), load_model(directory), ALONE)
    before = [parameter.detach().clone() for parameter in learner.model.parameters()]
    figures = learner.step(0, batch)
    assert figures.importance == pytest.approx(1.0, abs=1e-3)
    assert any(not torch.equal(old, new) for old, new in zip(before, learner.model.parameters(), strict=True))
