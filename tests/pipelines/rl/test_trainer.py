"""The trainer over a real NATS server and a real policy server; groups that the test writes into the log."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import torch

from orchard.pipelines.models.directories import load_model
from orchard.pipelines.policy.engine import EngineSettings
from orchard.pipelines.policy.server import PolicyServer
from orchard.pipelines.rl.coordinator import RunError, begin
from orchard.pipelines.rl.engines import ServingEngine
from orchard.pipelines.rl.learner import NotFinite
from orchard.pipelines.rl.policies import NEWEST, Newest, policy_directory, read_newest, write_newest
from orchard.pipelines.rl.sequences import TokenSequence, sequences
from orchard.pipelines.rl.settings import EngineKind
from orchard.pipelines.rl.stepping import Limits, RunStopped, fitting, refusal
from orchard.pipelines.rl.trainer import MERGED, RlTrainer
from orchard.pipelines.sft.processes import Processes
from orchard.pipelines.sft.settings import Lora
from orchard.schemas.events import payload
from orchard.schemas.groups import DropReason, GroupDropped, PolicyUpdated
from orchard.schemas.protection import Protected
from orchard.schemas.training import PolicyStep
from orchard.storage.blobs import BlobStore
from orchard.streams.connection import Connection, connect
from orchard.streams.publisher import Publisher
from orchard.streams.replay import replay
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from tests.pipelines.policy.small_models import write_model
from tests.pipelines.rl.written_log import assembled, conversation, plan_of, run_settings, whole_group

KEY = "k" * 20
LABELS = {
    4: Protected.VALUE,
    0: Protected.ECHO,
    2: Protected.BIT,
    1: Protected.INSIDE,
    6: Protected.FORGEABLE,
}
"""Of the reward of the first member of a prompt's group; the second has none."""
ALONE = Processes(rank=0, count=1, device=torch.device("cpu"))


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("rl") / "model")


@pytest.fixture
async def server(model_directory) -> AsyncIterator[PolicyServer]:
    settings = EngineSettings(slots=8, context=128)
    async with PolicyServer(model_directory, settings=settings, api_key=KEY) as running:
        yield running


@pytest.fixture
def blobs(tmp_path) -> BlobStore:
    return BlobStore(str(tmp_path / "store"))


def address(server: PolicyServer) -> str:
    return server.url.removesuffix("/v1")


def engine_of(server: PolicyServer) -> ServingEngine:
    return ServingEngine(EngineKind.ORCHARD, address(server), "run", key=KEY)


async def facts(connection: Connection, kind: type) -> list:
    found = [stored.event async for stored in replay(connection)]
    return [fact for event in found if event and isinstance(fact := payload(event), kind)]


def weights(directory: Path) -> dict[str, torch.Tensor]:
    return load_model(directory).state_dict()


async def test_groups_train_in_order_and_each_policy_is_served(
    connection, server, blobs, model_directory, tmp_path
):
    settings = run_settings(str(model_directory), str(tmp_path / "out"))
    plan = plan_of(settings)
    start = await begin(connection, blobs, plan)
    publisher = Publisher(connection)
    trainer = RlTrainer(settings, plan, connection, blobs, ALONE, engines=[engine_of(server)])
    running = asyncio.create_task(trainer.run(start))
    for prompt in (4, 0, 2, 1, 6, 3):  # some before, some while it trains
        await publisher.events(whole_group(plan, prompt, label=LABELS.get(prompt)))
    await asyncio.wait_for(running, 240)
    updates = await facts(connection, PolicyUpdated)
    assert [update.version for update in updates] == [1, 2, 3]
    assert [update.groups for update in updates] == [
        ("run.4", "run.0"),
        ("run.2", "run.1"),
        ("run.6", "run.3"),
    ]
    steps = await facts(connection, PolicyStep)
    assert [(step.step, step.groups, step.rollouts, step.resolved, step.pass_rate) for step in steps] == [
        (number, 2, 4, 0.5, 0.5) for number in (1, 2, 3)
    ]
    assert [step.staleness for step in steps] == [0.0, 1.0, 2.0]
    assert [step.unprotected for step in steps] == [0.5, 0.75, 1.0]
    assert server.engine.version == 3
    newest = read_newest(tmp_path / "out")
    assert newest is not None
    assert newest.version == 3
    before, after = weights(model_directory), weights(Path(newest.path))
    assert any(not torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(("version", "left"), [(0, [0]), (6, [5, 6])])
def test_policies_that_an_earlier_run_left_do_not_take_the_place_of_the_newest(tmp_path, version, left):
    for number in (0, 4, 5, 6, 7):
        policy_directory(tmp_path, number).mkdir(parents=True)
    newest = Newest(version=version, path=str(policy_directory(tmp_path, version)))
    write_newest(tmp_path / NEWEST, newest, keep=2)
    assert sorted(Path(newest.path).parent.iterdir()) == [policy_directory(tmp_path, n) for n in left]


async def test_policies_of_a_run_with_an_adapter_are_adapters_and_the_last_is_merged(
    connection, server, blobs, model_directory, tmp_path
):
    settings = run_settings(str(model_directory), str(tmp_path / "out"), steps=1, lora=Lora(rank=2))
    plan = plan_of(settings)
    start = await begin(connection, blobs, plan)
    await Publisher(connection).events([*whole_group(plan, 0), *whole_group(plan, 1)])
    trainer = RlTrainer(settings, plan, connection, blobs, ALONE, engines=[engine_of(server)])
    await asyncio.wait_for(trainer.run(start), 240)
    policy = policy_directory(tmp_path / "out", 1)
    assert not (policy / "model.safetensors").exists() and (policy / "adapter_model.safetensors").exists()
    merged, adapted, before = weights(tmp_path / "out" / MERGED), weights(policy), weights(model_directory)
    assert all(torch.equal(merged[name], adapted[name]) for name in merged)
    assert any(not torch.equal(merged[name], before[name]) for name in before)
    assert server.engine.version == 1


async def test_stale_and_incomplete_groups_are_dropped_with_a_reason(
    connection, blobs, model_directory, tmp_path
):
    settings = run_settings(str(model_directory), str(tmp_path / "out"), staleness=0, steps=2)
    plan = plan_of(settings)
    start = await begin(connection, blobs, plan)
    publisher = Publisher(connection)
    bare = [event for event in whole_group(plan, 2) if event.type != "message.appended"]
    for events in (whole_group(plan, 0), bare, whole_group(plan, 1), whole_group(plan, 3)):
        await publisher.events(events)
    for prompt in (4, 5):
        await publisher.events(whole_group(plan, prompt, version=1))
    trainer = RlTrainer(settings, plan, connection, blobs, ALONE, engines=())
    await asyncio.wait_for(trainer.run(start), 240)
    dropped = {drop.group_id: drop.reason for drop in await facts(connection, GroupDropped)}
    assert dropped == {"run.2": DropReason.INCOMPLETE, "run.3": DropReason.STALE}
    assert [step.dropped for step in await facts(connection, PolicyStep)] == [1, 1]


async def test_tokens_of_a_policy_that_the_run_has_not_made_are_not_trained_on(
    connection, blobs, model_directory, tmp_path
):
    settings = run_settings(str(model_directory), str(tmp_path / "out"), steps=1)
    plan = plan_of(settings)
    start = await begin(connection, blobs, plan)
    for prompt, version in ((0, 7), (1, 0), (2, 0)):
        await Publisher(connection).events(whole_group(plan, prompt, version=version))
    await asyncio.wait_for(RlTrainer(settings, plan, connection, blobs, ALONE, engines=()).run(start), 240)
    (drop,) = await facts(connection, GroupDropped)
    assert (drop.group_id, drop.reason) == ("run.0", DropReason.INCOMPLETE)
    assert "names policy version 7 and the run has made 0" in drop.detail


async def test_a_refused_step_drops_its_groups_and_three_in_a_row_stop_the_run(
    connection, blobs, model_directory, tmp_path, monkeypatch
):
    """The first step is refused once, the second one always."""
    settings = run_settings(str(model_directory), str(tmp_path / "out"))
    plan = plan_of(settings)
    start = await begin(connection, blobs, plan)
    await Publisher(connection).events([e for prompt in range(12) for e in whole_group(plan, prompt)])
    trainer = RlTrainer(settings, plan, connection, blobs, ALONE, engines=())
    learner, tried = trainer._learner, []
    step = learner.step

    def sometimes(number, batch):
        tried.append(number)
        if len(tried) != 2:
            raise NotFinite("the loss is nan", changed=False)
        return step(number, batch)

    monkeypatch.setattr(learner, "step", sometimes)
    with pytest.raises(RunError, match="stops at step 2: 3 steps in a row"):
        await asyncio.wait_for(trainer.run(start), 240)
    assert tried == [0, 0, 1, 1, 1]
    dropped = await facts(connection, GroupDropped)
    assert [drop.reason for drop in dropped] == [DropReason.NOT_FINITE] * 8
    assert "the loss is nan" in dropped[0].detail
    assert [update.groups for update in await facts(connection, PolicyUpdated)] == [("run.2", "run.3")]


async def test_refused_steps_are_counted_in_the_log_whoever_was_started_again(
    connection, blobs, model_directory, tmp_path, monkeypatch
):
    """The first step makes weights that are not finite, each time."""
    settings = run_settings(str(model_directory), str(tmp_path / "out"))
    plan = plan_of(settings)
    start = await begin(connection, blobs, plan)
    await Publisher(connection).events([e for prompt in range(8) for e in whole_group(plan, prompt)])

    def never(*_):
        raise NotFinite("the optimizer made a weight that is not finite", changed=True)

    ends = []
    for _ in range(3):
        trainer = RlTrainer(settings, plan, connection, blobs, ALONE, engines=())
        monkeypatch.setattr(trainer._learner, "step", never)
        with pytest.raises(RunError) as ended:
            await asyncio.wait_for(trainer.run(start), 240)
        ends.append(ended.type)
    assert ends == [RunError, RunError, RunStopped]
    assert "3 steps in a row" in str(ended.value)


def test_a_member_that_is_too_long_is_left_out_and_its_group_trains():
    plan = plan_of(run_settings())
    group = payload(assembled(plan, 0, [0, 1, 2], [1.0, -1.0, 1.0]))
    rows = [sequences(conversation(1)), sequences(conversation(2)), [TokenSequence([1] * 600)]]
    left, own = fitting(group, rows, 512)
    assert [member.rollout_id for member in left.members] == [m.rollout_id for m in group.members[:2]]
    assert own == rows[:2]
    limits = Limits(2, 512)
    assert refusal(group, (left, own), limits, size=3, version=0, oldest=0) is None
    alike = payload(assembled(plan, 0, [0, 1, 2], [1.0, 1.0, -1.0]))
    found = refusal(alike, fitting(alike, rows, 512), limits, size=3, version=0, oldest=0)
    assert found is not None and "2 of 3 members have an ending that trains" in found.detail
    found = refusal(group, (left, own), limits._replace(whole=True), size=3, version=0, oldest=0)
    assert found is not None and "2 of 3 members have an ending that trains" in found.detail


def test_a_member_of_whose_ending_nobody_learns_is_left_out_and_its_group_trains():
    plan = plan_of(run_settings())
    group = payload(assembled(plan, 0, [0, 1, 2], [1.0, -1.0, -1.0]))
    group = msgspec.structs.replace(group, untrained=(group.members[2].rollout_id,))
    rows = [sequences(conversation(number)) for number in range(3)]
    left, own = fitting(group, rows, 512)
    assert left.members == group.members[:2] and own == rows[:2]
    assert refusal(group, (left, own), Limits(2, 512), size=3, version=0, oldest=0) is None


@pytest.mark.slow
async def test_a_run_killed_anywhere_repeats_no_group_and_skips_none(
    nats_server, connection, server, blobs, model_directory, tmp_path
):
    """SIGKILL at three places, then to the end: log and weights are those of a run that nobody disturbed."""
    settings = run_settings(str(model_directory), str(tmp_path / "killed"), steps=4, staleness=9)
    plan = plan_of(settings)
    start = await begin(connection, blobs, plan)
    publisher = Publisher(connection)
    for prompt in range(8):
        await publisher.events(whole_group(plan, prompt))
    store = str(tmp_path / "store")
    raw = msgspec.json.encode(settings).decode()
    for place in ("before checkpoint", "before policy.updated", "after policy.updated"):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.pipelines.rl.killed_trainer"),
            *(nats_server.url, store, address(server), KEY, place, raw),
        )
        code = await asyncio.wait_for(process.wait(), 240)
        assert code == -signal.SIGKILL, place
    trainer = RlTrainer(settings, plan, connection, blobs, ALONE, engines=[engine_of(server)])
    await asyncio.wait_for(trainer.run(start), 240)
    updates = await facts(connection, PolicyUpdated)
    assert [update.version for update in updates] == [1, 2, 3, 4]
    assert [group for update in updates for group in update.groups] == [f"run.{n}" for n in range(8)]
    assert [step.step for step in await facts(connection, PolicyStep)] == [1, 2, 3, 4]
    assert server.engine.version == 4

    calm = msgspec.structs.replace(settings, out=str(tmp_path / "calm"))
    async with (
        EmbeddedServer(tmp_path / "undisturbed") as other,
        connect(NatsSettings(), name="test", url=other.url) as alone,
    ):
        await declare(alone, NatsSettings(), [])
        start = await begin(alone, blobs, plan)
        for prompt in range(8):
            await Publisher(alone).events(whole_group(plan, prompt))
        trainer = RlTrainer(calm, plan, alone, blobs, ALONE, engines=())
        await asyncio.wait_for(trainer.run(start), 240)
    found, expected = (weights(policy_directory(tmp_path / name, 4)) for name in ("killed", "calm"))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


async def test_a_checkpoint_that_does_not_fit_the_log_is_refused(
    connection, blobs, model_directory, tmp_path
):
    settings = run_settings(str(model_directory), str(tmp_path / "out"), steps=2)
    plan = plan_of(settings)
    start = await begin(connection, blobs, plan)
    for prompt in range(4):
        await Publisher(connection).events(whole_group(plan, prompt))
    await asyncio.wait_for(RlTrainer(settings, plan, connection, blobs, ALONE, engines=()).run(start), 240)
    other = msgspec.structs.replace(settings, lr=1.0)
    with pytest.raises(RunError, match="another configuration"):
        await RlTrainer(other, plan, connection, blobs, ALONE, engines=()).run(start)
    lost = msgspec.structs.replace(settings, out=str(tmp_path / "lost"))
    with pytest.raises(RunError, match="has policy version 2"):
        await RlTrainer(lost, plan, connection, blobs, ALONE, engines=()).run(start)


@pytest.mark.long
@pytest.mark.parametrize(("steps", "known"), [(1, 0), (2, 4)], ids=["other groups", "two steps ahead"])
async def test_a_checkpoint_of_another_log_is_refused(
    connection, blobs, model_directory, tmp_path, steps, known
):
    """The log may lack the last step alone, as it was killed before it could say so."""
    settings = run_settings(str(model_directory), str(tmp_path / "out"), steps=steps)
    plan = plan_of(settings)
    start = await begin(connection, blobs, plan)
    for prompt in range(2 * steps):
        await Publisher(connection).events(whole_group(plan, prompt))
    await asyncio.wait_for(RlTrainer(settings, plan, connection, blobs, ALONE, engines=()).run(start), 240)
    async with (
        EmbeddedServer(tmp_path / "other") as other,
        connect(NatsSettings(), name="test", url=other.url) as alone,
    ):
        await declare(alone, NatsSettings(), [])
        start = await begin(alone, blobs, plan)
        for prompt in range(known):
            await Publisher(alone).events(whole_group(plan, prompt))
        with pytest.raises(RunError, match=f"is of step {steps}, the log has policy version 0"):
            await RlTrainer(settings, plan, alone, blobs, ALONE, engines=()).run(start)
        assert not await facts(alone, PolicyUpdated)
