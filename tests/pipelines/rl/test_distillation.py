"""On-policy distillation: the loss against a plain reference, what is asked of a teacher, what is refused."""

import math

import msgspec
import numpy as np
import pytest
import torch

from orchard.pipelines.models.tiny import new_model
from orchard.pipelines.rl.distillation import LIMIT, Distillation, RunObjective, token_advantages
from orchard.pipelines.rl.learner import Learner, Trained
from orchard.pipelines.rl.loss_settings import LossSettings
from orchard.pipelines.rl.losses import Tokens, policy_loss
from orchard.pipelines.rl.sequences import TokenSequence, sequences
from orchard.pipelines.rl.settings import settings_from, settings_hash
from orchard.pipelines.rl.teacher import passages_of, sampled_runs
from orchard.pipelines.sft.processes import Processes
from orchard.pipelines.sft.settings import TrainingError
from orchard.workers.llm.scoring import Passage
from tests.pipelines.rl.written_log import VOCABULARY, conversation, run_settings
from tests.pipelines.sft.small_runs import SHAPE

FILE = {"run": "r", "model": "m", "out": "o", "objective": "distill", "distill": {"teacher": "big"}}
ALONE = Processes(rank=0, count=1, device=torch.device("cpu"))


def test_the_gradient_is_that_of_the_reverse_divergence():
    """In the mean over what the student samples: every token of a vocabulary of 7, by its probability, in
    float64."""
    torch.manual_seed(0)
    student = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    teacher = torch.log_softmax(torch.randn(3, 7, dtype=torch.float64), -1)
    logprobs = torch.log_softmax(student, -1)
    (divergence,) = torch.autograd.grad(
        (logprobs.exp() * (logprobs - teacher)).sum(), student, retain_graph=True
    )
    sampled = logprobs.detach()
    batch = Tokens(
        logprobs=logprobs.reshape(-1),
        old=sampled.reshape(-1),
        sampled=sampled.reshape(-1),
        advantages=torch.from_numpy(token_advantages(teacher.numpy(), sampled.numpy())).reshape(-1),
        weights=sampled.exp().reshape(-1),
        sequence=torch.arange(3).repeat_interleave(7),
    )
    loss, _ = policy_loss(batch, LossSettings())
    (found,) = torch.autograd.grad(loss, student)
    assert torch.allclose(found, divergence, rtol=1e-12, atol=1e-14)


def test_loss_and_gradient_equal_a_plain_reference():
    """Token by token, float by float, with ratios on both sides of the clips and one wild teacher."""
    random = np.random.default_rng(1)
    count, settings = 40, LossSettings()
    old = random.normal(-2, 1, count)
    new, sampled = old + random.normal(0, 0.4, count), old + random.normal(0, 0.3, count)
    teacher = old + random.normal(0, 2, count)
    teacher[0] = -9999.0
    loss, slopes = 0.0, []
    for place in range(count):
        advantage = min(max(teacher[place] - sampled[place], -LIMIT), LIMIT)
        ratio = math.exp(new[place] - old[place])
        held = min(max(ratio, 0.8), 1.28)
        weight = min(math.exp(old[place] - sampled[place]), 2.0) / count
        free = -ratio * advantage >= -held * advantage
        loss += weight * max(-ratio * advantage, -held * advantage)
        slopes.append(-weight * advantage * ratio if free else 0.0)
    logprobs = torch.tensor(new, requires_grad=True)
    batch = Tokens(
        logprobs=logprobs,
        old=torch.tensor(old),
        sampled=torch.tensor(sampled),
        advantages=torch.from_numpy(token_advantages(teacher, sampled)),
        weights=torch.full((count,), 1 / count, dtype=torch.float64),
        sequence=torch.zeros(count, dtype=torch.int64),
    )
    found, _ = policy_loss(batch, settings)
    found.backward()
    assert found.item() == pytest.approx(loss, rel=1e-12)
    assert logprobs.grad is not None
    assert np.allclose(logprobs.grad.numpy(), slopes, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_each_token_has_its_own_advantage_and_the_outcomes_with_its_weight(weight):
    settings = run_settings(
        objective=RunObjective.DISTILL, distill=Distillation(teacher="big", reward=weight)
    )
    learner = Learner(settings, new_model(SHAPE, vocabulary=VOCABULARY, seed=1), ALONE)
    batch = []
    for number, reward in enumerate((1.0, -1.0)):
        rows = sequences(conversation(number))
        scores = [np.linspace(-4, -6, sum(row.mask)).astype("<f4") for row in rows]
        batch.append(Trained(f"r{number}", "g", reward, reward > 0, rows, teacher=scores))
    found = learner._rows(batch, learner._outcomes(batch), [()] * len(batch))
    for rollout, row, sign in zip(batch, found, (1, -1), strict=True):
        expected = rollout.teacher[0] - row.sampled + sign * weight / math.sqrt(2)
        assert np.allclose(row.advantages, expected, atol=1e-5)


def test_a_run_of_sampled_tokens_is_known_by_all_before_it():
    first, other = sequences(conversation(1)), sequences(conversation(2))
    assert len(sampled_runs(first[0])) == 2
    again = msgspec.convert(vars(first[0]), TokenSequence)
    assert sampled_runs(again) == sampled_runs(first[0])
    moved = msgspec.convert(vars(first[0]) | {"ids": [first[0].ids[0] + 1, *first[0].ids[1:]]}, TokenSequence)
    keys = [{run.key for run in sampled_runs(row)} for row in (first[0], other[0], moved)]
    assert not keys[0] & keys[1] and not keys[0] & keys[2]


def test_a_shared_node_is_asked_for_once():
    """Two rollouts say the same in their first turn and not in their second; a third one says the same as
    the first."""
    head = TokenSequence([1, 2, 3, 4], [0, 0, 1, 1], [0.0] * 4, [-1, -1, 0, 0], [-1, -1, 0, 0])

    def goes_on(*tail: int) -> TokenSequence:
        ids = [*head.ids, 9, *tail]
        return TokenSequence(ids, [*head.mask, 0, *(1 for _ in tail)], [0.0] * len(ids))

    rows = [goes_on(5, 6), goes_on(7), goes_on(5, 6)]
    claimed: set[bytes] = set()
    asked = [passage for passage, _ in passages_of(rows, {}, claimed)]
    assert asked == [Passage([1, 2, 3, 4, 9, 5, 6], 2), Passage([1, 2, 3, 4, 9, 7], 5)]
    assert not list(passages_of(rows, claimed, set()))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"distill": None}, "needs a teacher"),
        ({"objective": "reward"}, "belongs to objective"),
        ({"temperature": 0.7}, "temperature 1, and `temperature` is 0.7"),
        ({"overlong": {"limit": 10, "buffer": 5}}, "`overlong` changes the outcome's advantage"),
        ({"distill": {"teacher": "big", "wire": "grpc"}}, "wire"),
    ],
)
def test_settings_that_cannot_distill_are_refused(changes, said):
    tree = {key: value for key, value in (FILE | changes).items() if value is not None}
    with pytest.raises(TrainingError, match=said):
        settings_from(tree)


def test_all_groups_train_and_how_the_teacher_is_asked_changes_no_run():
    settings = settings_from(FILE)
    assert settings.keep_degenerate and settings.bar.interval is None
    assert settings_from(FILE | {"method": "bar"}).bar.interval is not None
    plain = settings_from({"run": "r", "model": "m", "out": "o", "method": "fixed"})
    assert settings_hash(settings) != settings_hash(plain)
    moved = settings_from(FILE | {"distill": {"teacher": "big", "endpoint": "e", "wire": "sglang"}})
    assert settings_hash(settings) == settings_hash(moved)
    assert settings_hash(settings_from(FILE | {"distill": {"teacher": "other"}})) != settings_hash(settings)
