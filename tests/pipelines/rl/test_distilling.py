"""A run that distills: coordinator, workers, sandboxes, the servers of student and teacher, trainer."""

import asyncio
from pathlib import Path

import msgspec
import pytest
import torch

import orchard.workers.harnesses as harnesses
from orchard.pipelines.datasets.tokenizer import train_tokenizer
from orchard.pipelines.models.directories import load_model, load_tokenizer, save_model
from orchard.pipelines.policy.engine import EngineSettings
from orchard.pipelines.policy.server import PolicyServer
from orchard.pipelines.rl.bar import BarSettings
from orchard.pipelines.rl.coordinator import Coordinator, RunError, begin
from orchard.pipelines.rl.distillation import Distillation, RunObjective
from orchard.pipelines.rl.engines import ServingEngine
from orchard.pipelines.rl.policies import policy_directory
from orchard.pipelines.rl.runs import make_plan
from orchard.pipelines.rl.settings import EngineKind, RlSettings
from orchard.pipelines.rl.teacher import check_tokenizer
from orchard.pipelines.rl.trainer import RlTrainer
from orchard.pipelines.sft.processes import Processes
from orchard.pipelines.tasks.registry import TaskRegistry
from orchard.schemas.events import make_event, payload
from orchard.schemas.groups import DropReason, GroupDropped, GroupScored, PolicyUpdated
from orchard.schemas.queues import Queue
from orchard.schemas.training import PolicyStep
from orchard.storage.blobs import BlobStore
from orchard.streams.connection import Connection, connect
from orchard.streams.publisher import Publisher
from orchard.streams.replay import replay
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from orchard.workers.llm.scoring import ScoringEndpoint
from orchard.workers.llm.settings import EndpointSettings, Price, ScoringWire
from tests.pipelines.policy.small_models import write_model
from tests.pipelines.rl.test_closed_loop import Forgetful
from tests.pipelines.rl.working import one_worker
from tests.pipelines.rl.written_log import plan_of, run_settings, whole_group
from tests.tiny_tasks import build_tiny_image, tiny_task

ALONE = Processes(rank=0, count=1, device=torch.device("cpu"))
STEPS, SAID = 5, 150


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> tuple[Path, Path]:
    """A student that says anything, and a teacher with the same tokenizer that says only the first tokens of
    the vocabulary: from the same weights, and so within a few steps."""
    torch.manual_seed(0)
    place = tmp_path_factory.mktemp("distilling")
    student = write_model(place / "student")
    model = load_model(student)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(25):
        logprobs = torch.log_softmax(model(torch.randint(5, 300, (8, 40))).logits, -1)
        (-logprobs[..., :SAID].logsumexp(-1).mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
    save_model(model, place / "teacher", tokenizer=load_tokenizer(student))
    return student, place / "teacher"


def served(directory: Path, name: str, slots: int = 8) -> PolicyServer:
    return PolicyServer(directory, name=name, settings=EngineSettings(slots=slots, context=1024))


def asks(server: PolicyServer | str) -> ScoringEndpoint:
    url = server if isinstance(server, str) else server.url
    settings = EndpointSettings(base_url=url, prices={"teacher": Price(prompt=1.0, completion=0.0)})
    return ScoringEndpoint("teacher", settings, "teacher", ScoringWire.VLLM)


async def facts(connection: Connection, kind: type) -> list:
    found = [stored.event async for stored in replay(connection)]
    return [fact for event in found if event and isinstance(fact := payload(event), kind)]


@pytest.mark.long
async def test_the_student_comes_nearer_to_its_teacher(nats_server, sandboxes, tmp_path, models, monkeypatch):
    monkeypatch.setitem(harnesses._HARNESSES, Forgetful.name, Forgetful)
    await build_tiny_image(sandboxes, 2)
    student, teacher = models
    blobs, nats = BlobStore(str(tmp_path / "store")), NatsSettings()
    settings = RlSettings(
        run="distilled",
        model=str(student),
        out=str(tmp_path / "out"),
        harness=Forgetful.name,
        objective=RunObjective.DISTILL,
        distill=Distillation(teacher="teacher"),
        bar=BarSettings(size=4, budget=4, interval=None),
        keep_degenerate=True,
        prompts_per_step=2,
        steps=STEPS,
        ahead=0,
        oversample=1.0,
        lr=1e-2,
        min_lr=1e-2,
        max_tokens=16,
        context=1024,
    )
    async with (
        served(student, "policy") as policy,
        served(teacher, "teacher") as other,
        connect(nats, name="test", url=nats_server.url) as connection,
    ):
        await declare(connection, nats, [Queue()])
        refs = await TaskRegistry(Publisher(connection), blobs).register([tiny_task(0), tiny_task(1)])
        plan = make_plan(settings, tuple(refs))
        start = await begin(connection, blobs, plan)
        endpoint = EndpointSettings(
            base_url=policy.url, extra_body={"return_token_ids": True, "logprobs": True}
        )
        engine = ServingEngine(EngineKind.ORCHARD, policy.url.removesuffix("/v1"), plan.name)
        trainer = RlTrainer(settings, plan, connection, blobs, ALONE, engines=[engine], teacher=asks(other))
        async with (
            one_worker(connection, sandboxes, blobs, {"policy": endpoint}, slots=4),
            asyncio.timeout(300),
        ):
            coordinator = Coordinator(connection, plan, engine.wait_for)
            await asyncio.gather(coordinator.run(start), trainer.run(start))
        steps, scored = await facts(connection, PolicyStep), await facts(connection, GroupScored)
        updates = await facts(connection, PolicyUpdated)
        read = other.engine.figures.prompt_tokens
    assert [step.step for step in steps] == list(range(1, STEPS + 1))
    first, last = steps[0].teacher_kl, steps[-1].teacher_kl
    assert last < 0.7 * first, [step.teacher_kl for step in steps]
    trained = {name for update in updates for name in update.groups}
    assert trained <= {fact.group_id for fact in scored} and len(trained) == 2 * STEPS
    probed = read - sum(fact.teacher_tokens for fact in scored)
    assert 0 < probed < 10_000, "beside its groups, the teacher read the text that shows its tokenizer"
    of_steps = [fact for fact in scored if fact.group_id in trained]
    assert sum(step.teacher_tokens for step in steps) == sum(fact.teacher_tokens for fact in of_steps)
    assert all(fact.teacher_cost_usd == pytest.approx(fact.teacher_tokens / 1e6) for fact in scored)
    assert all(step.trained_tokens <= step.teacher_tokens for step in steps)


@pytest.mark.long
async def test_a_trainer_that_starts_again_trains_on_the_scores_of_the_log(
    connection, models, tmp_path, monkeypatch
):
    """It ended in its second step, and its teacher is gone: the weights are those of an unbroken run."""
    student, teacher = models
    blobs = BlobStore(str(tmp_path / "store"))

    def settings(out: str) -> RlSettings:
        return run_settings(
            str(student),
            str(tmp_path / out),
            staleness=9,
            keep_degenerate=True,
            objective=RunObjective.DISTILL,
            distill=Distillation(teacher="teacher", reward=0.5),
        )

    async def begun(at: Connection, out: str, endpoint: ScoringEndpoint) -> tuple[RlTrainer, int]:
        plan = plan_of(settings(out))
        start = await begin(at, blobs, plan)
        return RlTrainer(settings(out), plan, at, blobs, ALONE, engines=(), teacher=endpoint), start

    plan = plan_of(settings("broken"))
    start = await begin(connection, blobs, plan)
    await Publisher(connection).events([event for prompt in range(6) for event in whole_group(plan, prompt)])
    async with served(teacher, "teacher") as other:
        trainer, _ = await begun(connection, "broken", asks(other))
        step = trainer._learner.step

        def ends(number, batch):
            if number == 1:
                raise InterruptedError
            return step(number, batch)

        monkeypatch.setattr(trainer._learner, "step", ends)
        with pytest.raises(InterruptedError):
            await asyncio.wait_for(trainer.run(start), 240)
        async with (
            EmbeddedServer(tmp_path / "undisturbed") as another,
            connect(NatsSettings(), name="test", url=another.url) as alone,
        ):
            await declare(alone, NatsSettings(), [])
            calm, begins = await begun(alone, "calm", asks(other))
            events = [event for prompt in range(6) for event in whole_group(plan, prompt)]
            await Publisher(alone).events(events)
            await asyncio.wait_for(calm.run(begins), 240)
    again, _ = await begun(connection, "broken", asks("http://127.0.0.1:9/v1"))
    await asyncio.wait_for(again.run(start), 240)
    assert [fact.group_id for fact in await facts(connection, GroupScored)] == [f"run.{n}" for n in range(6)]
    assert [update.version for update in await facts(connection, PolicyUpdated)] == [1, 2, 3]
    found, expected = (
        load_model(policy_directory(tmp_path / out, 3)).state_dict() for out in ("broken", "calm")
    )
    assert all(torch.equal(found[name], expected[name]) for name in expected)


async def test_equal_rollouts_are_scored_once_and_a_group_that_is_refused_is_dropped(
    connection, models, tmp_path
):
    """The teacher's context is too short for one group; another one repeats a third."""
    student, teacher = models
    blobs = BlobStore(str(tmp_path / "store"))
    settings = run_settings(
        str(student),
        str(tmp_path / "out"),
        steps=1,
        context=4096,
        keep_degenerate=True,
        objective=RunObjective.DISTILL,
        distill=Distillation(teacher="teacher"),
    )
    plan = plan_of(settings)
    start = await begin(connection, blobs, plan)
    events = [*whole_group(plan, 2, turns=150), *whole_group(plan, 0), *whole_group(plan, 1, like=0)]
    await Publisher(connection).events(events)
    async with served(teacher, "teacher") as other:
        trainer = RlTrainer(settings, plan, connection, blobs, ALONE, engines=(), teacher=asks(other))
        await asyncio.wait_for(trainer.run(start), 240)
    scored = {fact.group_id: fact for fact in await facts(connection, GroupScored)}
    assert scored["run.1"].teacher_tokens == 0
    assert scored["run.1"].reused_tokens == scored["run.1"].scored_tokens == scored["run.0"].scored_tokens
    (drop,) = await facts(connection, GroupDropped)
    assert (drop.group_id, drop.reason) == ("run.2", DropReason.UNSCORED)
    assert "maximum context length" in drop.detail


async def test_a_teacher_that_alone_decides_needs_no_contrast(connection, models, tmp_path):
    """The only failure of a group has an ending that does not train; the successes do, though all alike."""
    student, teacher = models
    blobs = BlobStore(str(tmp_path / "store"))
    settings = run_settings(
        str(student),
        str(tmp_path / "out"),
        steps=1,
        prompts_per_step=1,
        keep_degenerate=True,
        objective=RunObjective.DISTILL,
        distill=Distillation(teacher="teacher", reward=0.0),
    )
    plan = plan_of(settings)
    start = await begin(connection, blobs, plan)
    *events, made = whole_group(plan, 0, rewards=(1.0, 1.0, -1.0))
    late = plan.request(0, 2).rollout_id
    group = msgspec.structs.replace(payload(made), untrained=(late,))
    made = make_event(group, id=made.id, source="test", campaign=plan.name, subject=made.subject)
    await Publisher(connection).events([*events, made, *whole_group(plan, 1)])
    async with served(teacher, "teacher") as other:
        trainer = RlTrainer(settings, plan, connection, blobs, ALONE, engines=(), teacher=asks(other))
        await asyncio.wait_for(trainer.run(start), 240)
    (update,) = await facts(connection, PolicyUpdated)
    assert (update.groups, update.left_out) == (("run.0",), (late,))


async def test_a_teacher_with_another_tokenizer_is_refused(models, tmp_path):
    student, teacher = models
    train_tokenizer(["Other words make other tokens, to be sure: 0123."] * 4, 340, tmp_path / "words")
    stranger = write_model(tmp_path / "stranger", tokenizer=tmp_path / "words")
    tokenizer = load_tokenizer(student)
    async with served(teacher, "teacher") as same, served(stranger, "teacher") as other:
        kin, alien = asks(same), asks(other)
        await check_tokenizer(kin, tokenizer, "the policy")
        with pytest.raises(RunError, match="'teacher' has another tokenizer than the policy"):
            await check_tokenizer(alien, tokenizer, "the policy")
        await kin.close()
        await alien.close()
    gone = asks("http://127.0.0.1:9/v1")
    with pytest.raises(RunError, match="'teacher' cannot be asked"):
        await check_tokenizer(gone, tokenizer, "the policy")
    await gone.close()
