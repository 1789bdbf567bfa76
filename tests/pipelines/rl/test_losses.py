"""Losses and gradients against a plain reference, for each combination of ratio, clip and reduction."""

import itertools
import math

import numpy as np
import pytest
import torch

from orchard.pipelines.rl.baselines import Overlong, advantages, shaped
from orchard.pipelines.rl.loss_settings import ImportanceLevel, LossSettings, Ratio, Reduction
from orchard.pipelines.rl.losses import Tokens, policy_loss, rollout_weights

LENGTHS = (5, 1, 9, 4)
"""Trained tokens of four sequences; the first two are of one rollout."""
ROLLOUTS = (0, 0, 1, 2)
ADVANTAGES = (1.3, 1.3, -0.7, -2.1)


def plain(logprobs, old, sampled, settings):
    """The reference: one token after another, float by float, with derivatives written out by hand."""
    per_rollout = [
        sum(n for n, r in zip(LENGTHS, ROLLOUTS, strict=True) if r == rollout) for rollout in range(3)
    ]
    loss, gradient, start = 0.0, [0.0] * len(logprobs), 0
    for length, rollout, advantage in zip(LENGTHS, ROLLOUTS, ADVANTAGES, strict=True):
        places = range(start, start + length)
        start += length
        mean = math.fsum(logprobs[t] - old[t] for t in places) / length
        for t in places:
            alone = settings.ratio is Ratio.TOKEN
            ratio = math.exp(logprobs[t] - old[t] if alone else mean)
            slope = ratio  # of the ratio, by its own log
            held = min(max(ratio, 1 - settings.clip_low), 1 + settings.clip_high)
            value = -ratio * advantage
            if -held * advantage > value:
                value, slope = -held * advantage, 0.0
            if settings.dual_clip and advantage < 0 and value > -settings.dual_clip * advantage:
                value, slope = -settings.dual_clip * advantage, 0.0
            weight = 1.0
            if settings.importance_limit:
                weight = min(math.exp(old[t] - sampled[t]), settings.importance_limit)
            weight *= settings.negative if advantage < 0 else 1
            if settings.reduction is Reduction.ROLLOUT_MEAN:
                weight /= 3 * per_rollout[rollout]
            elif settings.reduction is Reduction.TOKEN_MEAN:
                weight /= sum(LENGTHS)
            elif settings.reduction is Reduction.ROLLOUT_SUM:
                weight /= 3
            else:
                weight /= settings.constant
            loss += weight * value
            for moved in [t] if alone else places:
                gradient[moved] += -weight * advantage * slope / (1 if alone else length)
    return loss, gradient


def numbers(seed=0, spread=0.5):
    """Log-probabilities far enough apart that every clip acts somewhere."""
    random = np.random.default_rng(seed)
    old = -random.exponential(1.0, sum(LENGTHS))
    return old + random.normal(0, spread, len(old)), old, old + random.normal(0, spread, len(old))


def packed(logprobs, old, sampled, settings, parts=slice(None)):
    """The tokens of some of the sequences as a pack has them."""
    weights = rollout_weights([LENGTHS[0] + LENGTHS[1], *LENGTHS[2:]], settings)
    chosen = range(len(LENGTHS))[parts]
    sequence = np.repeat(range(len(LENGTHS)), LENGTHS)
    places = np.isin(sequence, chosen)

    def tensor(values):
        return torch.tensor(np.asarray(values, np.float32)[places])

    return Tokens(
        logprobs=tensor(logprobs).requires_grad_(),
        old=tensor(old),
        sampled=tensor(sampled),
        advantages=tensor(np.repeat(ADVANTAGES, LENGTHS)),
        weights=tensor(np.repeat([weights[rollout] for rollout in ROLLOUTS], LENGTHS)),
        sequence=torch.tensor(sequence[places] - chosen[0]),
    )


COMBINATIONS = [
    LossSettings(
        ratio=ratio,
        clip_low=low,
        clip_high=high,
        dual_clip=dual,
        reduction=reduction,
        constant=64.0 if reduction is Reduction.CONSTANT_SUM else None,
        negative=negative,
        importance_limit=limit,
    )
    for ratio, (low, high), dual, reduction, negative, limit in itertools.product(
        Ratio, [(0.2, 0.28), (0.0, 0.0), (1.0, 10.0)], [None, 1.5], Reduction, [1.0, 0.25], [None, 1.2]
    )
]


@pytest.mark.parametrize("settings", COMBINATIONS, ids=str)
def test_loss_and_gradient_equal_a_plain_reference(settings):
    for seed in range(3):
        logprobs, old, sampled = numbers(seed)
        expected, gradient = plain(logprobs, old, sampled, settings)
        batch = packed(logprobs, old, sampled, settings)
        loss, _ = policy_loss(batch, settings)
        loss.backward()
        assert loss.item() == pytest.approx(expected, abs=1e-5)
        assert batch.logprobs.grad.tolist() == pytest.approx(gradient, abs=1e-5)


@pytest.mark.parametrize("reduction", Reduction)
def test_packs_add_up_however_they_are_cut(reduction):
    constant = 64.0 if reduction is Reduction.CONSTANT_SUM else None
    settings = LossSettings(ratio=Ratio.SEQUENCE, reduction=reduction, constant=constant)
    values = numbers()
    whole, figures = policy_loss(packed(*values, settings), settings)
    cuts = [policy_loss(packed(*values, settings, parts), settings) for parts in (slice(0, 2), slice(2, 4))]
    assert sum(loss.item() for loss, _ in cuts) == pytest.approx(whole.item(), abs=1e-6)
    for name in figures.__struct_fields__:
        assert sum(getattr(part, name) for _, part in cuts) == pytest.approx(getattr(figures, name), rel=1e-5)


def test_an_unchanged_policy_has_the_plain_gradient():
    """Ratio 1 everywhere: nothing is clipped, and the gradient is -A times the token's weight."""
    settings = LossSettings()
    _, old, _ = numbers()
    batch = packed(old, old, old, settings)
    loss, figures = policy_loss(batch, settings)
    loss.backward()
    torch.testing.assert_close(batch.logprobs.grad, -batch.advantages * batch.weights)
    assert (figures.clipped, figures.kl, figures.truncated) == (0, pytest.approx(0, abs=1e-6), 0)


@pytest.mark.parametrize(("new", "before"), [(-1e-6, -800.0), (-800.0, -1e-6)])
def test_one_wild_token_keeps_loss_gradient_and_figures_finite(new, before):
    settings = LossSettings()
    logprobs, old, sampled = numbers()
    logprobs[3], old[3] = new, before
    batch = packed(logprobs, old, sampled, settings)
    loss, figures = policy_loss(batch, settings)
    loss.backward()
    assert torch.isfinite(loss)
    assert bool(torch.isfinite(batch.logprobs.grad).all())
    assert all(math.isfinite(getattr(figures, name)) for name in figures.__struct_fields__)


def test_the_divergence_is_that_of_the_new_policy_from_the_old_one_that_sampled():
    """Old [0.9, 0.1], new [0.5, 0.5], in the proportions in which the old one samples."""
    old, new = (
        torch.tensor([math.log(high)] * 9 + [math.log(low)]) for high, low in ((0.9, 0.1), (0.5, 0.5))
    )
    rest = {"sampled": None, "advantages": torch.ones(10), "weights": torch.ones(10) / 10}
    tokens = Tokens(logprobs=new, old=old, sequence=torch.zeros(10, dtype=torch.int64), **rest)
    _, figures = policy_loss(tokens, LossSettings())
    assert figures.kl / 10 == pytest.approx(0.9 * math.log(0.9 / 0.5) + 0.1 * math.log(0.1 / 0.5), rel=1e-5)


def test_without_sampled_log_probabilities_no_weight_is_made_up():
    settings = LossSettings()
    batch = packed(*numbers(), settings)
    bare = Tokens(
        **{name: getattr(batch, name) for name in batch.__struct_fields__ if name != "sampled"}, sampled=None
    )
    assert policy_loss(bare, settings)[1].importance == sum(LENGTHS)


def test_advantages_are_within_groups_by_id_not_by_place():
    rewards, groups = [1, -1, 1, 1, -1, -1], ["a", "b", "a", "b", "a", "b"]
    found = advantages(rewards, groups)
    deviation = math.sqrt(4 / 3)
    high, low = (2 / 3) / (deviation + 1e-6), (-4 / 3) / (deviation + 1e-6)
    assert found == pytest.approx([high, low / 2, high, -low, low, low / 2])


def test_equal_rewards_have_no_advantage():
    assert advantages([0.1] * 3, ["a"] * 3) == pytest.approx([0, 0, 0], abs=1e-9)


def test_a_group_of_one_is_refused():
    with pytest.raises(ValueError, match="group b has fewer than two"):
        advantages([1, -1, 1], ["a", "a", "b"])


def test_a_rollout_without_trained_tokens_counts_for_nothing():
    settings = LossSettings()
    assert rollout_weights([4, 0, 2], settings) == [1 / 8, 0.0, 1 / 4]


@pytest.mark.parametrize(
    "wrong",
    [
        {"clip_low": 1.5},
        {"clip_high": -0.1},
        {"dual_clip": 1.0},
        {"negative": -0.1},
        {"importance_limit": 0.0},
        {"constant": 5.0},
        {"reduction": Reduction.CONSTANT_SUM},
        {"reduction": Reduction.CONSTANT_SUM, "constant": 0.0},
        {"importance_range": (5.0, 0.5)},
        {"importance_range": (0.5, 5.0), "importance_level": ImportanceLevel.NONE},
        {"entropy": -0.1},
        {"kl": -1.0},
        {"divergence_limit": -0.1},
    ],
    ids=str,
)
def test_quantities_that_make_no_loss_are_refused(wrong):
    with pytest.raises(ValueError, match=r"must|belongs|set it|leave one out"):
        LossSettings(**wrong)


@pytest.mark.parametrize(("limit", "span"), [(1.2, None), (0.5, None), (2.0, (0.5, 5.0))])
def test_sequence_level_importance_is_the_product_over_the_sequence(limit, span):
    """As verl's `rollout_is = "sequence"`: exp of the sum of log-ratios, then the bound."""
    logprobs, old, sampled = numbers(spread=0.3)
    settings = LossSettings(
        importance_level=ImportanceLevel.SEQUENCE, importance_limit=limit, importance_range=span
    )
    plain_settings = LossSettings(importance_level=ImportanceLevel.NONE)
    batch = packed(logprobs, old, sampled, settings)
    loss, figures = policy_loss(batch, settings)
    loss.backward()
    weights, start = [], 0
    for length in LENGTHS:
        place = slice(start, start + length)
        weight = float(np.exp((old - sampled)[place].sum()))
        if span:
            weight = weight if span[0] <= weight <= span[1] else 0.0
        elif limit:
            weight = min(weight, limit)
        weights += [weight] * length
        start += length
    bare = packed(logprobs, old, sampled, plain_settings)
    policy_loss(bare, plain_settings)[0].backward()
    expected = bare.logprobs.grad.numpy() * np.array(weights)
    assert batch.logprobs.grad.tolist() == pytest.approx(expected.tolist(), rel=1e-4, abs=1e-7)
    assert figures.importance == pytest.approx(sum(weights), rel=1e-4)


@pytest.mark.parametrize(("tokens", "reward"), [(0, 1.0), (60, 1.0), (80, 0.5), (100, 0.0), (5000, 0.0)])
def test_overlong_answers_cost_what_equation_13_of_dapo_says(tokens, reward):
    assert shaped(1.0, tokens, Overlong(limit=100, buffer=40)) == pytest.approx(reward)
    assert shaped(1.0, tokens, Overlong(limit=100, buffer=40, penalty=0.5)) == pytest.approx(0.5 + reward / 2)
    assert shaped(1.0, tokens, None) == 1.0
