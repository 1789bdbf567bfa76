"""Sandboxes die under a run: their slots are filled again, and nothing counts that has no reward."""

import asyncio
from collections import Counter

import pytest

import orchard.workers.harnesses as harnesses
from orchard.pipelines.rl.bar import BarSettings
from orchard.pipelines.rl.coordinator import Coordinator, begin
from orchard.pipelines.rl.plan import RunPlan
from orchard.pipelines.tasks.registry import TaskRegistry
from orchard.schemas.campaigns import ModelSpec
from orchard.schemas.events import RolloutAborted, RolloutFinished, payload
from orchard.schemas.groups import GroupAssembled, PromptFailed
from orchard.schemas.outcomes import AbortCause, ExitStatus
from orchard.schemas.queues import Queue
from orchard.storage.blobs import BlobStore
from orchard.streams.connection import connect
from orchard.streams.publisher import Publisher
from orchard.streams.replay import replay
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from orchard.workers.episode.sandboxes import SandboxMachine
from orchard.workers.failures import InfrastructureError
from orchard.workers.harnesses.interface import Harness, HarnessResult
from tests.pipelines.rl.test_coordinator import train
from tests.pipelines.rl.working import one_worker
from tests.tiny_tasks import build_tiny_image, tiny_task

pytestmark = pytest.mark.long

EVERY = 4
"""One in so many rollouts loses its sandbox when it is tried first."""


class Mortal(Harness):
    """Submits at once; the sandboxes of some are deleted before they run their command."""

    name = "mortal"
    tools = ()

    def __init__(self, client):
        self.client = client
        self.died = Counter()

    async def run(self, episode):
        leaf = await episode.trace.user(await episode.trace.system("."), episode.task.statement)
        if episode.seed % EVERY == 0 and not self.died[episode.seed]:
            self.died[episode.seed] += 1
            await self.client.delete_sandbox(episode.machine.sandbox.sandbox_id)
        await episode.machine.run("true", timeout=20, cwd=episode.task.workdir, env={})
        submission = episode.task.gold_patch if episode.seed // EVERY % 2 else ""
        return HarnessResult(exit_status=ExitStatus.SUBMITTED, submission=submission, leaf=leaf)


@pytest.fixture
def mortal(sandboxes, monkeypatch):
    harness = Mortal(sandboxes)
    harnesses._built_in.cache_clear()
    monkeypatch.setitem(harnesses._HARNESSES, Mortal.name, lambda: harness)
    return harness


async def test_no_aborted_rollout_is_in_a_group_and_every_slot_is_filled(
    nats_server, sandboxes, tmp_path, mortal
):
    await build_tiny_image(sandboxes, 2)
    blobs, nats = BlobStore(str(tmp_path / "store")), NatsSettings()
    async with connect(nats, name="test", url=nats_server.url) as connection:
        await declare(connection, nats, [Queue()])
        refs = await TaskRegistry(Publisher(connection), blobs).register([tiny_task(0), tiny_task(1)])
        plan = RunPlan(
            name="deaths",
            tasks=tuple(refs),
            harness=Mortal.name,
            model=ModelSpec(name="nobody"),
            bar=BarSettings(size=4, budget=8, stride=4, interval=(0.25, 0.75)),
            prompts_per_step=2,
            steps=2,
            max_tries=1,
        )
        start = await begin(connection, blobs, plan)
        async with one_worker(connection, sandboxes, blobs, {}, slots=4), asyncio.timeout(120):
            await asyncio.gather(Coordinator(connection, plan).run(start), train(connection, plan, start))
        events = [stored.event async for stored in replay(connection) if stored.event]
    facts = [(event, payload(event)) for event in events]
    aborted = {(e.rollout_id, e.attempt): fact for e, fact in facts if isinstance(fact, RolloutAborted)}
    graded = {(e.rollout_id, e.attempt): fact for e, fact in facts if isinstance(fact, RolloutFinished)}
    groups = [fact for _, fact in facts if isinstance(fact, GroupAssembled)]
    assert 0 < len(aborted) <= sum(mortal.died.values())
    assert {fact.cause for fact in aborted.values()} == {AbortCause.SANDBOX_DIED}
    assert not [fact for _, fact in facts if isinstance(fact, PromptFailed)]
    for group in groups:
        assert len(group.members) == 4 and group.generated in (4, 8)
        for member in group.members:
            assert (member.rollout_id, member.attempt) not in aborted
            assert graded[member.rollout_id, member.attempt].reward == member.reward
        own = {plan.request(group.prompt, slot).rollout_id for slot in range(8)}
        assert group.aborted == sum(rollout in own for rollout, _ in aborted), "the waste is told"
        assert group.generated == sum(rollout in own for rollout, _ in graded), "and not counted as spent"


@pytest.mark.parametrize("command", ["sleep 60", "sleep 60; true", "sleep 60 & wait", "sleep 60 | cat"])
async def test_a_command_that_ends_with_its_sandbox_has_no_exit_code(sandboxes, command):
    """137 would be an observation of the agent, or a test run that fails, and a reward of -1."""
    await build_tiny_image(sandboxes, 1)
    machine = SandboxMachine(await sandboxes.create_sandbox(tiny_task(0).image))
    await machine.write("/tmp/begun", b"")
    running = asyncio.create_task(machine.run(f"rm /tmp/begun; {command}", timeout=90, cwd="/"))
    while (await machine.run("test -e /tmp/begun", timeout=20, cwd="/")).returncode == 0:
        await asyncio.sleep(0.01)
    await sandboxes.delete_sandbox(machine.sandbox.sandbox_id)
    with pytest.raises(InfrastructureError) as caught:
        await running
    assert caught.value.cause is AbortCause.SANDBOX_DIED
