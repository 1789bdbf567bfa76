"""Experts that the engine chose at the rollout are chosen again in training (R3, arXiv:2510.11370)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from orchard.pipelines.datasets.tokenizer import train_tokenizer
from orchard.pipelines.models.directories import load_model, load_tokenizer, save_model
from orchard.pipelines.models.routers import Routers
from orchard.pipelines.policy.engine import EngineSettings
from orchard.pipelines.policy.server import PolicyServer
from orchard.pipelines.rl.coordinator import begin
from orchard.pipelines.rl.learner import Learner, Trained
from orchard.pipelines.rl.replay import RolloutExperts
from orchard.pipelines.rl.sequences import NotSampled, TokenSequence, sequences
from orchard.pipelines.rl.settings import RouterReplay
from orchard.pipelines.rl.stepping import RunStopped
from orchard.pipelines.rl.trainer import RlTrainer
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import ModelSpec
from orchard.schemas.events import Event, payload
from orchard.schemas.groups import DropReason, GroupDropped, PolicyUpdated
from orchard.schemas.messages import MessageNode, RoutedExperts, TokenRecord
from orchard.storage.blobs import BlobStore
from orchard.streams.publisher import Publisher
from orchard.workers.episode.message_tree import MessageTree
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.settings import EndpointSettings
from tests.pipelines.moe import tiny_moe
from tests.pipelines.policy.small_models import TEXTS, sharp
from tests.pipelines.rl.test_learner import ALONE, plain_logprobs, settings
from tests.pipelines.rl.test_routers import moved
from tests.pipelines.rl.test_trainer import facts
from tests.pipelines.rl.written_log import plan_of, run_settings, whole_group

SPEC = ModelSpec(name="policy", max_tokens=24, temperature=1.0, logprobs=True)
ASKS = {"return_token_ids": True, "return_routed_experts": True}
ROLLOUT = RouterReplay.ROLLOUT


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("moe")
    train_tokenizer(TEXTS, 340, directory)
    tokenizer = load_tokenizer(directory)
    save_model(tiny_moe(len(tokenizer)), directory, tokenizer=tokenizer)
    return directory


@pytest.fixture
def blobs(tmp_path) -> BlobStore:
    return BlobStore(str(tmp_path / "store"))


async def conversed(
    server: PolicyServer, blobs: BlobStore, seeds: range, forget: int = -1
) -> list[TokenRecord]:
    """The records of a conversation with a turn for each seed; before turn `forget`, the first is asked
    again."""
    published: list[msgspec.Struct] = []

    async def publish(fact: msgspec.Struct) -> None:
        published.append(fact)

    tree = MessageTree(publish, blobs)
    endpoint = EndpointSettings(base_url=server.url, extra_body=ASKS)
    async with ModelClient({"default": endpoint}) as client:
        leaf = start = await tree.user(await tree.system("You mend code."), "Fix add.py")
        for turn, seed in enumerate(seeds):
            leaf = start if turn == forget else leaf
            answer = await client.complete(SPEC, tree.messages(leaf), [], seed=seed, timeout=60)
            leaf = await tree.user(await tree.answered(leaf, answer), "go on")
    return [fact.tokens for fact in published if isinstance(fact, MessageNode) and fact.tokens]


def packed_by(blobs: BlobStore):
    return lambda experts: blobs.get(experts.blob)


async def sampled(directory: Path, blobs: BlobStore, dtype=torch.float32, number: int = 4) -> list[Trained]:
    """A group of conversations with a real server."""
    engine = EngineSettings(slots=8, context=512, prefix_cache=True)
    found = []
    async with PolicyServer(directory, settings=engine, dtype=dtype) as server:
        for one in range(number):
            records = await conversed(server, blobs, range(2 * one, 2 * one + 2))
            rows = sequences(records, experts=packed_by(blobs))
            found.append(Trained(f"r{one}", "g", 1.0 if one % 2 else -1.0, one % 2 == 1, rows))
    return found


def told(sequence: TokenSequence) -> np.ndarray:
    """[tokens but the last, layers, experts of a token], as the server reported them."""
    return np.frombuffer(b"".join(sequence.experts), np.uint8).reshape(-1, 2, 2)


def chosen(model, sequence: TokenSequence) -> np.ndarray:
    with torch.no_grad(), Routers(model).recording() as choices:
        model(torch.tensor([sequence.ids]))
    return torch.stack(choices, dim=1).numpy()[:-1]


async def test_every_token_comes_with_its_experts_and_each_is_kept_once(model_directory, blobs):
    """Also where a second answer to the same messages begins a sequence of its own."""
    engine = EngineSettings(slots=4, context=512)
    async with PolicyServer(model_directory, settings=engine) as server:
        records = await conversed(server, blobs, range(4), forget=2)
    rows = sequences(records, experts=packed_by(blobs))
    assert len(rows) == 2
    for row in rows:
        assert np.array_equal(told(row), chosen(load_model(model_directory), row))
        assert row.experts[-1] == b"", "the last token went nowhere"
    kept = [len(record.prompt_ids) + len(record.ids) - 1 - record.experts.first for record in records]
    assert [record.experts.blob.size for record in records] == [4 * tokens for tokens in kept]
    last = [len(record.prompt_ids) + len(record.ids) - 1 for record in records]
    assert [record.experts.first for record in records] == [0, last[0], 0, last[2]]


def test_a_context_that_an_earlier_sequence_has_needs_no_second_copy():
    """The first answer is followed by two others; the second record of the two says what is its own alone."""
    first = TokenRecord(ids=(7, 8), logprobs=(-1.0, -1.0), prompt_ids=(5, 6), experts=of(0, b"\0\1\2"))
    one = TokenRecord(ids=(9,), logprobs=(-1.0,), prompt_ids=(5, 6, 7, 8, 1), experts=of(3, b"\3\4"))
    two = TokenRecord(ids=(9,), logprobs=(-1.0,), prompt_ids=(5, 6, 7, 8, 2), experts=of(3, b"\5\6"))
    rows = sequences([first, one, two], experts=lambda experts: bytes.fromhex(experts.blob.media_type))
    assert [row.experts for row in rows] == [
        [b"\0", b"\1", b"\2", b"\3", b"\4", b""],
        [b"\0", b"\1", b"\2", b"\3", b"\6", b""],
    ]


def of(first: int, packed: bytes) -> RoutedExperts:
    """Experts whose blob's bytes are written into the reference."""
    return RoutedExperts(first=first, width=1, blob=BlobRef(sha256="0" * 64, size=0, media_type=packed.hex()))


@pytest.mark.parametrize("packed", [b"", b"\0", b"\0\1\2\3", b"\0\1\2\3\4\5\6"])
def test_a_blob_of_another_size_is_no_experts(packed):
    record = TokenRecord(ids=(7, 8), logprobs=(-1.0, -1.0), prompt_ids=(5, 6), experts=of(0, packed))
    with pytest.raises(NotSampled, match="bytes of routed experts are not those of 3 tokens"):
        sequences([record], experts=lambda experts: bytes.fromhex(experts.blob.media_type))


@pytest.mark.long
async def test_other_weights_choose_the_experts_of_the_rollout_in_every_update(model_directory, blobs):
    """By weights whose routers have moved; in the pass before the updates, too."""
    batch = await sampled(model_directory, blobs, number=2)
    model = moved(load_model(model_directory))
    free = [chosen(model, row) for one in batch for row in one.sequences]
    replayed = [told(row) for one in batch for row in one.sequences]
    assert any(not np.array_equal(a, b) for a, b in zip(free, replayed, strict=True))
    learner = Learner(settings(router_replay=ROLLOUT, updates=2, lr=0.3), model, ALONE)
    seen: list[list[np.ndarray]] = [[], []]
    for layer, found in zip(learner.model.model.layers, seen, strict=True):
        layer.mlp.experts.register_forward_pre_hook(
            lambda _, given, found=found: found.append(given[1].numpy())
        )
    for rollout in batch:
        for sequence in rollout.sequences:
            learner.check_experts(sequence)
    learner.step(0, batch)
    parts = [np.concatenate([padded(row) for one in part for row in one.sequences]) for part in halves(batch)]
    for layer, found in enumerate(seen):
        assert len(found) == 4
        for part, chose in zip([*parts, *parts], found, strict=True):
            known = part[:, layer, 0] >= 0
            assert np.count_nonzero(~known) == sum(len(one.sequences) for one in batch) / 2
            assert np.array_equal(chose[known], part[known, layer])


def halves(batch: list[Trained]) -> tuple[list[Trained], list[Trained]]:
    return batch[: len(batch) // 2], batch[len(batch) // 2 :]


def padded(sequence: TokenSequence) -> np.ndarray:
    return np.concatenate([told(sequence).astype(int), np.full((1, 2, 2), -1)])


def test_the_gradient_reaches_the_routers_through_the_chosen_experts_alone():
    """Equation 7 weighs by a softmax over the chosen experts: the others have no part in it."""
    model, ids = tiny_moe(61), torch.arange(3, 40)
    experts = [bytes([0, 1, 0, 1])] * len(ids)
    choices = RolloutExperts(model).choices([(experts, len(ids))], torch.device("cpu"))
    with Routers(model).replaying(choices):
        logprobs = torch.log_softmax(model(ids[None]).logits[0], dim=-1)
        logprobs[:-1].gather(1, ids[1:, None]).sum().backward()
    for layer in model.model.layers:
        gradient = layer.mlp.gate.weight.grad.abs()
        assert gradient[2:].max() < 1e-4 * gradient[:2].max()


@pytest.mark.long
async def test_probabilities_of_engine_and_trainer_are_nearer_with_replay(tmp_path, blobs):
    """The engine computes in bfloat16, the trainer in float32: some tokens go to other experts."""
    train_tokenizer(TEXTS, 340, tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    model = sharp(tiny_moe(len(tokenizer)))
    save_model(model, tmp_path, tokenizer=tokenizer)
    batch = await sampled(tmp_path, blobs, torch.bfloat16)
    routers, replay = Routers(model), RolloutExperts(model)
    gaps: dict[str, list[np.ndarray]] = {"free": [], "replayed": []}
    flipped = 0
    for row in (row for one in batch for row in one.sequences):
        flipped += np.count_nonzero(np.sort(told(row)) != np.sort(chosen(model, row)))
        trains = np.asarray(row.mask) == 1
        sampled_as = np.asarray(row.logprobs)[trains]
        with torch.no_grad():
            gaps["free"].append(plain_logprobs(model, row).numpy() - sampled_as)
            with routers.replaying(replay.choices([(row.experts, len(row.ids))], torch.device("cpu"))):
                gaps["replayed"].append(plain_logprobs(model, row).numpy() - sampled_as)
    assert flipped > 0
    free, replayed = (np.concatenate(gaps[name]) for name in ("free", "replayed"))
    assert divergence(replayed) < divergence(free) / 2
    assert np.abs(replayed).max() < np.abs(free).max()


def divergence(gaps: np.ndarray) -> float:
    """KL(engine || trainer) of sampled tokens, in the estimator k3."""
    return float(np.mean(np.exp(gaps) - 1 - gaps))


def test_a_sequence_without_its_experts_or_of_another_model_is_not_trained():
    check = RolloutExperts(tiny_moe(300)).check
    row = TokenSequence([1, 2, 3, 4], [0, 0, 1, 1], [0.0, 0.0, -1.0, -1.0], [-1, -1, 0, 0], [-1, -1, 0, 0])
    for experts, what in (
        ([], "no routed experts: have the server report them"),
        ([b"", b"\0\1\2\3", b"", b""], "no routed experts"),
        ([b"", b"\0\1\2\3", b"\0\1\2\x08", b""], "to expert 8, and the model has 8 in a layer"),
        ([b"", b"\0\1\2\3", b"\0\1\2", b""], "3 bytes of routed experts, and the model 2 layers of 2"),
    ):
        row.experts = experts
        with pytest.raises(NotSampled, match=what):
            check(row)
    row.experts = [b"", b"\0\1\2\3", b"\0\0\1\0\2\0\3\0", b""]
    check(row)


def test_a_pack_of_nothing_leaves_its_one_token_to_the_routers():
    """Another process has more packs, and all do as many passes."""
    model = tiny_moe(61)
    choices = RolloutExperts(model).choices([], torch.device("cpu"))
    assert [each.tolist() for each in choices] == [[[-1, -1]]] * 2
    with torch.no_grad(), Routers(model).replaying(choices):
        replayed = model(torch.tensor([[5]])).logits
    assert torch.equal(replayed, model(torch.tensor([[5]])).logits)


def with_experts(events: list[Event], blobs: BlobStore) -> list[Event]:
    """The same messages, with random experts of their tokens."""
    found = []
    for event in events:
        node = payload(event)
        if isinstance(node, MessageNode) and node.tokens is not None:
            tokens = len(node.tokens.prompt_ids) + len(node.tokens.ids) - 1
            random = np.random.default_rng(tokens).integers(0, 8, (tokens, 4), dtype=np.uint8)
            experts = RoutedExperts(first=0, width=4, blob=blobs.put(random.tobytes()))
            told_of = msgspec.structs.replace(node.tokens, experts=experts)
            node = msgspec.structs.replace(node, tokens=told_of)
            event = msgspec.structs.replace(event, data=msgspec.Raw(msgspec.json.encode(node)))
        found.append(event)
    return found


@pytest.fixture
async def trainer_of(connection, blobs, model_directory, tmp_path) -> AsyncIterator:
    async def made(**changes) -> tuple[RlTrainer, int]:
        run = run_settings(str(model_directory), str(tmp_path / "out"), **changes)
        plan = plan_of(run)
        start = await begin(connection, blobs, plan)
        return RlTrainer(run, plan, connection, blobs, ALONE, engines=[]), start

    return made


async def test_a_run_without_experts_stops_before_its_first_step_and_nothing_is_lost(connection, trainer_of):
    trainer, start = await trainer_of(router_replay=ROLLOUT, steps=1)
    plan = trainer.plan
    await Publisher(connection).events([*whole_group(plan, 0), *whole_group(plan, 1)])
    with pytest.raises(RunStopped, match="before its first step: a sampled token has no routed experts"):
        await asyncio.wait_for(trainer.run(start), 60)
    assert await facts(connection, GroupDropped) == []
    again, _ = await trainer_of(steps=1)
    await asyncio.wait_for(again.run(start), 60)
    (update,) = await facts(connection, PolicyUpdated)
    assert update.groups == ("run.0", "run.1")


async def test_a_later_group_without_experts_is_dropped_with_the_reason(connection, trainer_of, blobs):
    trainer, start = await trainer_of(router_replay=ROLLOUT, steps=2)
    plan = trainer.plan
    groups = [whole_group(plan, number) for number in range(5)]
    known = [group if number == 2 else with_experts(group, blobs) for number, group in enumerate(groups)]
    await Publisher(connection).events([event for group in known for event in group])
    await asyncio.wait_for(trainer.run(start), 60)
    (drop,) = await facts(connection, GroupDropped)
    assert (drop.group_id, drop.reason) == ("run.2", DropReason.INCOMPLETE)
    assert "no routed experts" in drop.detail
    assert [update.groups for update in await facts(connection, PolicyUpdated)] == [
        ("run.0", "run.1"),
        ("run.3", "run.4"),
    ]
