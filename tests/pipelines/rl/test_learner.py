"""A step on a real tiny model against a plain reference, and the tokens that a server really sampled."""

import copy
import subprocess
import sys

import msgspec
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from orchard.pipelines.models.directories import load_model
from orchard.pipelines.models.tiny import ModelShape, new_model
from orchard.pipelines.policy.engine import EngineSettings
from orchard.pipelines.policy.server import PolicyServer
from orchard.pipelines.rl import learner as learner_module
from orchard.pipelines.rl import logprobs
from orchard.pipelines.rl.baselines import Overlong
from orchard.pipelines.rl.learner import Learner, NotFinite, StepFigures, Trained
from orchard.pipelines.rl.loss_settings import LossSettings, Ratio, Reduction
from orchard.pipelines.rl.losses import policy_loss
from orchard.pipelines.rl.sequences import TokenSequence, sequences
from orchard.pipelines.rl.settings import RlSettings
from orchard.pipelines.sft.attention import use_packed_attention
from orchard.pipelines.sft.processes import Processes
from orchard.schemas.campaigns import ModelSpec
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.settings import EndpointSettings
from tests.pipelines.policy.small_models import BASH, write_model

VOCABULARY = 61
ALONE = Processes(rank=0, count=1, device=torch.device("cpu"))


def settings(**changes) -> RlSettings:
    fields = {"run": "r", "model": "m", "out": "o", "context": 400, "lr": 1e-2, "clip": 0.0, "steps": 10}
    return RlSettings(**(fields | changes))


def rollouts(seed=0) -> list[Trained]:
    """Two groups of four; every other rollout has two sequences."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(8):
        rows = []
        for _ in range(1 + number % 2):
            length = int(random.integers(6, 20))
            mask = [0, 0, *(random.random(length - 2) < 0.5).astype(int).tolist()]
            mask[-1] = 1
            rows.append(
                TokenSequence(
                    random.integers(0, VOCABULARY, length).tolist(),
                    mask,
                    [float(-4 + random.normal()) if trains else 0.0 for trains in mask],
                    [0 if trains else -1 for trains in mask],
                )
            )
        found.append(
            Trained(
                f"r{number}",
                f"g{number // 4}",
                1.0 if (good := number % 4 <= number // 4) else -1.0,
                good,
                rows,
            )
        )
    return found


def plain_logprobs(model, sequence) -> torch.Tensor:
    """Of the trained tokens, the sequence alone through the model as it comes."""
    ids = torch.tensor(sequence.ids)
    everything = torch.log_softmax(model(input_ids=ids[None]).logits[0].float(), dim=-1)
    chosen = everything[:-1].gather(1, ids[1:, None])[:, 0]
    return chosen[torch.tensor(sequence.mask[1:]) == 1]


def plain_loss(model, batch, everyone, olds, loss):
    """The loss of a part of a batch, written rollout by rollout, and the mean of the ratios."""
    total, weights, ratios = 0.0, [], []
    for rollout in batch:
        same = [other.reward for other in everyone if other.group == rollout.group]
        advantage = (rollout.reward - np.mean(same)) / (np.std(same, ddof=1) + 1e-6)
        summed = 0.0
        for sequence in rollout.sequences:
            new = plain_logprobs(model, sequence)
            old = olds[id(sequence)] if olds else new.detach()
            log_ratio = new - old
            if loss.ratio is Ratio.SEQUENCE:
                log_ratio = log_ratio.mean().expand(len(new))
            ratio = log_ratio.exp()
            ratios += ratio.tolist()
            value = torch.maximum(
                -ratio * advantage, -ratio.clamp(1 - loss.clips[0], 1 + loss.clips[1]) * advantage
            )
            said = torch.tensor([p for p, m in zip(sequence.logprobs, sequence.mask, strict=True) if m])
            summed = summed + (value * (old - said).exp().clamp(max=2.0)).sum()
        weights.append(rollout.tokens)
        if loss.reduction is Reduction.ROLLOUT_MEAN:
            summed = summed / rollout.tokens / len(batch)
        total = total + summed
    if loss.reduction is Reduction.TOKEN_MEAN:
        total = total / sum(weights)
    if loss.reduction is Reduction.CONSTANT_SUM:
        total = total / loss.constant
    return total, np.mean(ratios)


def gradients_of(trainer: Learner) -> list[dict[str, torch.Tensor]]:
    """Filled with the gradient of each update."""
    seen = []

    def note(*_):
        seen.append({name: p.grad.clone() for name, p in trainer.model.named_parameters()})

    trainer.optimizer.register_step_pre_hook(note)
    return seen


def assert_same(found, expected, tolerance=1e-5):
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=tolerance, msg=name)


@pytest.mark.long
@pytest.mark.parametrize("context", [40, 400], ids=["some packs", "one pack"])
@pytest.mark.parametrize(
    "loss",
    [
        LossSettings(),
        LossSettings(ratio=Ratio.SEQUENCE, reduction=Reduction.TOKEN_MEAN),
        LossSettings(reduction=Reduction.CONSTANT_SUM, constant=50.0),
    ],
    ids=lambda loss: loss.reduction,
)
def test_one_update_is_that_of_the_plain_reference(model, loss, context):
    batch = rollouts()
    reference = copy.deepcopy(model)
    trainer = Learner(settings(loss=loss, context=context), model, ALONE)
    found = gradients_of(trainer)
    figures = trainer.step(0, batch)
    expected, _ = plain_loss(reference, batch, batch, None, loss)
    expected.backward()
    assert figures.loss == pytest.approx(expected.item(), abs=1e-5)
    assert figures.ratio == 1.0
    assert figures.clipped == 0.0
    assert figures.trained_tokens == sum(rollout.tokens for rollout in batch)
    assert_same(found[0], {name: p.grad for name, p in reference.named_parameters()})


@pytest.mark.parametrize("rows", [3, 10_000], ids=["some tokens at a time", "all at once"])
def test_an_entropy_bonus_has_the_gradient_of_the_plain_entropy(model, monkeypatch, rows):
    monkeypatch.setattr(logprobs, "ROWS", rows)
    monkeypatch.setattr(logprobs, "_PIECE", 2)
    batch, reference = rollouts(), copy.deepcopy(model)
    loss = LossSettings(entropy=0.3, reduction=Reduction.TOKEN_MEAN)
    trainer = Learner(settings(loss=loss, temperature=0.7), model, ALONE)
    found = gradients_of(trainer)
    figures = trainer.step(0, batch)
    total, spread = torch.zeros(()), torch.zeros(())
    tokens = sum(rollout.tokens for rollout in batch)
    for rollout, advantage in zip(batch, [a for g in (0, 1) for a in _normalized(batch, g)], strict=True):
        for sequence in rollout.sequences:
            logits = reference(input_ids=torch.tensor([sequence.ids])).logits[0, :-1].float() / 0.7
            everything = torch.log_softmax(logits, dim=-1)
            trains = torch.tensor(sequence.mask[1:]) == 1
            new = everything.gather(1, torch.tensor(sequence.ids)[1:, None])[trains, 0]
            said = torch.tensor(sequence.logprobs)[1:][trains]
            weight = (new.detach() - said).exp().clamp(max=2.0)
            total = total - (advantage * weight * (new - new.detach()).exp()).sum()
            spread = spread - (everything.exp() * everything).sum(dim=-1)[trains].sum()
    expected = (total - 0.3 * spread) / tokens
    expected.backward()
    assert figures.loss == pytest.approx(expected.item(), abs=1e-5)
    assert figures.entropy == pytest.approx(spread.item() / tokens, abs=1e-5)
    assert_same(found[0], {name: p.grad for name, p in reference.named_parameters()})


def _normalized(batch, group):
    rewards = np.array([rollout.reward for rollout in batch if rollout.group == f"g{group}"])
    return (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)


def test_advantages_are_made_of_rewards_less_the_penalty_for_length(model, monkeypatch):
    batch, seen = rollouts(), []
    limit = max(rollout.tokens for rollout in batch)
    trainer = Learner(settings(overlong=Overlong(limit=limit, buffer=limit)), model, ALONE)
    monkeypatch.setattr(trainer, "_rows", lambda _, found, *__: seen.append(found) or [])
    trainer.step(0, batch)
    expected = []
    for group in ("g0", "g1"):
        rewards = np.array([r.reward - r.tokens / limit for r in batch if r.group == group])
        expected += ((rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)).tolist()
    assert seen[0] == pytest.approx(expected)


def test_a_row_is_resolved_where_the_grader_found_the_task_solved(model):
    sequence = TokenSequence([1, 2, 3], [0, 0, 1], [0.0, 0.0, -1.0], [-1, -1, 0])
    batch = [Trained("right", "g", -1.0, True, [sequence]), Trained("wrong", "g", 1.0, False, [sequence])]
    rows = Learner(settings(), model, ALONE)._rows(batch, [1.0, -1.0], [(), ()])
    assert {found.row.rollout_id: found.row.resolved for found in rows} == {"right": True, "wrong": False}


class Largest(TorchDispatchMode):
    """The most numbers that one tensor has which is made meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        tensors = [each for each in tree_leaves(made) if isinstance(each, torch.Tensor)]
        self.numbers = max([self.numbers, *(tensor.numel() for tensor in tensors)])
        return made


def test_logits_are_there_for_a_few_tokens_at_a_time_and_change_nothing(model, monkeypatch):
    """With activations computed again, too: loss, entropy and gradient are the plain ones to 1e-6."""
    batch, found = rollouts(), []
    for rows, again in ((10_000, False), (3, False), (3, True)):
        monkeypatch.setattr(logprobs, "ROWS", rows)
        trainer = Learner(settings(activation_checkpointing=again), copy.deepcopy(model), ALONE)
        gradients = gradients_of(trainer)
        figures = trainer.step(0, batch)
        found.append((figures.loss, figures.entropy, gradients[0]))
    for loss, entropy, gradient in found[1:]:
        assert (loss, entropy) == pytest.approx(found[0][:2], abs=1e-6)
        for name, plain in found[0][2].items():
            torch.testing.assert_close(gradient[name], plain, rtol=0, atol=1e-6, msg=name)


def test_no_tensor_has_the_logits_of_all_tokens(monkeypatch):
    """Of 200 trained tokens over 5,000 words, those of 8."""
    monkeypatch.setattr(logprobs, "ROWS", 8)
    shape = ModelShape(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, head_dim=8,
    )  # fmt: skip
    trainer = Learner(settings(lr=1e-9), new_model(shape, vocabulary=5000, seed=0), ALONE)
    rows = [TokenSequence([1] * 101, [0] + [1] * 100, [-8.0] * 101, [0] * 101) for _ in range(2)]
    batch = [Trained(f"r{at}", "g", float(at), False, [row]) for at, row in enumerate(rows)]
    with Largest() as largest:
        trainer.step(0, batch)
    assert largest.numbers <= 8 * 5000


def test_a_step_that_is_not_finite_is_refused_and_changes_nothing(model):
    batch = rollouts()
    row = batch[0].sequences[0]
    row.logprobs[row.mask.index(1)] = float("nan")
    before = copy.deepcopy(model.state_dict())
    trainer = Learner(settings(), model, ALONE)
    with pytest.raises(NotFinite) as refused:
        trainer.step(0, batch)
    assert not refused.value.changed
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())
    trainer.step(0, rollouts())


def test_a_weight_that_is_not_finite_is_refused(model):
    trainer = Learner(settings(lr=1e38), model, ALONE)
    with pytest.raises(NotFinite, match="weight") as refused:
        trainer.step(0, rollouts())
        trainer.step(1, rollouts())
    assert refused.value.changed


@pytest.mark.parametrize("ratio", list(Ratio))
def test_later_updates_compare_with_the_weights_before_the_step(model, ratio):
    loss, batch = LossSettings(ratio=ratio), rollouts()
    reference = copy.deepcopy(model)
    trainer = Learner(settings(loss=loss, updates=2, context=60), model, ALONE)
    with torch.no_grad():
        olds = {id(s): plain_logprobs(reference, s) for rollout in batch for s in rollout.sequences}
    before = copy.deepcopy(reference)
    found = gradients_of(trainer)
    weights = []

    def keep(*_):
        weights.append({name: p.detach().clone() for name, p in trainer.model.named_parameters()})

    trainer.optimizer.register_step_post_hook(keep)
    figures = trainer.step(0, batch)
    assert len(found) == 2
    ratios = []
    for number, part in enumerate((batch[:4], batch[4:])):
        if number:
            before.load_state_dict(weights[0], strict=False)
        before.zero_grad()
        expected, mean = plain_loss(before, part, batch, olds, loss)
        expected.backward()
        ratios += [mean] * sum(rollout.tokens for rollout in part)
        assert_same(found[number], {name: p.grad for name, p in before.named_parameters()})
        if number == 0:
            assert mean == pytest.approx(1.0, abs=1e-6)
    assert figures.ratio == pytest.approx(np.mean(ratios), rel=1e-4)
    assert figures.ratio != pytest.approx(1.0, abs=1e-4), "the first update moved nothing"


def test_a_figure_that_is_not_finite_refuses_the_step_before_it_is_saved(model, monkeypatch):
    def spy(tokens, given):
        loss, figures = policy_loss(tokens, given)
        return loss, msgspec.structs.replace(figures, kl=float("inf"))

    monkeypatch.setattr(learner_module, "get_loss", lambda _: spy)
    with pytest.raises(NotFinite, match="`kl` is inf") as refused:
        Learner(settings(), model, ALONE).step(0, rollouts())
    assert refused.value.changed


def test_a_step_makes_good_rollouts_likelier(model):
    batch = rollouts(seed=1)
    trainer = Learner(settings(lr=3e-3, loss=LossSettings(importance_limit=None)), model, ALONE)

    def likelihood(sign):
        model.set_attn_implementation("sdpa")
        with torch.no_grad():
            found = [
                plain_logprobs(model, sequence).mean().item()
                for rollout in batch
                if rollout.reward * sign > 0
                for sequence in rollout.sequences
            ]
        use_packed_attention(model)
        return np.mean(found)

    good, bad = likelihood(1), likelihood(-1)
    trainer.step(0, batch)
    assert likelihood(1) - good > likelihood(-1) - bad


@pytest.mark.long
@pytest.mark.parametrize("temperature", [1.0, 0.6])
async def test_the_learner_gives_sampled_tokens_the_probability_that_the_server_reported(
    tmp_path, monkeypatch, temperature
):
    """Tokens in, tokens out, end to end: two rollouts of several turns, one with its history rewritten."""
    directory = write_model(tmp_path / "model")
    server = PolicyServer(directory, settings=EngineSettings(slots=8, context=1024, prefix_cache=True))
    endpoint = EndpointSettings(base_url="", extra_body={"return_token_ids": True})
    spec = ModelSpec(name="policy", max_tokens=30, temperature=temperature, logprobs=True)
    found = []
    async with server:
        endpoint = EndpointSettings(base_url=server.url, extra_body={"return_token_ids": True})
        async with ModelClient({"default": endpoint}) as client:
            for number in range(4):
                messages, records = [{"role": "user", "content": "Fix add.py"}], []
                for turn in range(4):
                    said = await client.complete(spec, messages, [BASH], seed=9 * number + turn, timeout=60)
                    records.append(said.tokens)
                    if number % 2 and turn == 1:  # compaction: what came before is told in other words
                        messages = [{"role": "user", "content": f"Fix add.py. So far: {said.text[:20]}"}]
                        continue
                    messages = [
                        *messages,
                        {"role": "assistant", "content": said.text or "[empty message]"},
                        {"role": "user", "content": "go on"},
                    ]
                rows = sequences(records)
                sampled = [token for record in records for token in record.ids]
                trained = [t for row in rows for t, m in zip(row.ids, row.mask, strict=True) if m]
                assert trained == sampled
                assert len(rows) >= 1 + number % 2
                found.append(Trained(f"r{number}", "g", float(number % 3), False, rows))
    seen = []

    def spy(tokens, given):
        seen.append(tokens)
        return policy_loss(tokens, given)

    monkeypatch.setattr(learner_module, "get_loss", lambda _: spy)
    trainer = Learner(settings(context=1024, temperature=temperature), load_model(directory), ALONE)
    figures = trainer.step(0, found)
    assert sum(len(tokens.old) for tokens in seen) == sum(rollout.tokens for rollout in found)
    for tokens in seen:
        torch.testing.assert_close(tokens.old, tokens.sampled, rtol=0, atol=1e-4)
    assert figures.importance == pytest.approx(1.0, abs=1e-4)
    assert figures.truncated == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("kind", [[], ["routed"]], ids=["", "routed"])
def test_two_processes_do_what_one_does(model, kind):
    from tests.pipelines.rl.routed_rollouts import routed_learner, routed_rollouts  # which import from here

    command = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    done = subprocess.run(
        [sys.executable, "-m", *command, "tests.pipelines.rl.two_processes", *kind],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    sharded = msgspec.json.decode(done.stdout.splitlines()[-1], type=list[StepFigures])
    alone = routed_learner(ALONE) if kind else Learner(settings(context=60, updates=2), model, ALONE)
    batch = routed_rollouts if kind else rollouts
    for number, found in enumerate(sharded):
        expected = msgspec.structs.asdict(alone.step(number, batch(number)))
        del expected["seconds"]
        for name, value in expected.items():
            assert getattr(found, name) == pytest.approx(value, rel=1e-3, abs=1e-6), name
