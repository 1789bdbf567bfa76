"""Published losses against their papers' formulas, written out here rollout by rollout in float64."""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from orchard.pipelines.rl.baselines import advantages
from orchard.pipelines.rl.loss_settings import LossSettings, Objective, with_recipe
from orchard.pipelines.rl.losses import (
    LossFigures,
    Tokens,
    get_loss,
    policy_loss,
    rollout_weights,
)
from orchard.pipelines.rl.settings import settings_from
from orchard.pipelines.sft.settings import TrainingError
from orchard.schemas.plugins import PluginError

LENGTHS = (5, 1, 9, 4, 7, 3)
GROUPS = ("a", "a", "a", "b", "b", "b")
REWARDS = (1.0, -1.0, -1.0, 1.0, 0.5, -1.0)
SIZE = 3


class Rollout(msgspec.Struct):
    """One rollout as the papers have it; all tensors are [tokens]."""

    new: torch.Tensor
    old: torch.Tensor
    sampled: torch.Tensor
    reference: torch.Tensor
    reward: float
    others: list[float]
    """Rewards of the other rollouts of its group."""

    @property
    def normalized(self) -> float:
        group = np.array([self.reward, *self.others])
        return float((self.reward - group.mean()) / (group.std(ddof=1) + 1e-6))

    @property
    def ratio(self) -> torch.Tensor:
        return (self.new - self.old).exp()


def a_batch(seed: int = 0) -> list[Rollout]:
    random = np.random.default_rng(seed)
    found = []
    for at, length in enumerate(LENGTHS):
        old = -random.exponential(1.0, length)
        drawn = [old + random.normal(0, spread, length) for spread in (1.6, 0.9, 0.5)]
        new, sampled, reference = (torch.tensor(each) for each in drawn)
        others = [
            r for n, (r, g) in enumerate(zip(REWARDS, GROUPS, strict=True)) if g == GROUPS[at] and n != at
        ]
        found.append(
            Rollout(new.requires_grad_(), torch.tensor(old), sampled, reference, REWARDS[at], others)
        )
    return found


def clipped(ratio: torch.Tensor, advantage: float, low: float, high: float) -> torch.Tensor:
    return torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


def grpo(batch: list[Rollout]) -> torch.Tensor:
    """arXiv 2402.03300, equation 3, without the divergence."""
    return sum(clipped(one.ratio, one.normalized, 0.2, 0.2).mean() for one in batch) / len(batch)


def dapo(batch: list[Rollout]) -> torch.Tensor:
    """arXiv 2503.14476, equation 8."""
    return sum(clipped(one.ratio, one.normalized, 0.2, 0.28).sum() for one in batch) / sum(LENGTHS)


def gspo(batch: list[Rollout]) -> torch.Tensor:
    """arXiv 2507.18071, equations 5 and 7."""
    return sum(clipped((one.new - one.old).mean().exp(), one.normalized, 3e-4, 4e-4) for one in batch) / len(
        batch
    )


def dr_grpo(batch: list[Rollout]) -> torch.Tensor:
    """arXiv 2503.20783, figure 1: no deviation, no length; the constant is that of its implementation."""
    total = torch.zeros((), dtype=torch.float64)
    for one in batch:
        advantage = one.reward - np.mean([one.reward, *one.others])
        total = total + clipped(one.ratio, advantage, 0.2, 0.2).sum()
    return total / 64.0


def rloo(batch: list[Rollout]) -> torch.Tensor:
    """arXiv 2402.14740, equation 8: the probability of the whole answer."""
    return sum((one.reward - np.mean(one.others)) * one.new.sum() for one in batch) / len(batch)


def cispo(batch: list[Rollout]) -> torch.Tensor:
    """arXiv 2506.13585, equations 4 and 5, without a lower bound."""
    total = torch.zeros((), dtype=torch.float64)
    for one in batch:
        weight = torch.minimum(one.ratio, torch.tensor(5.0, dtype=torch.float64)).detach()
        total = total + (weight * one.normalized * one.new).sum()
    return total / sum(LENGTHS)


def icepop(batch: list[Rollout]) -> torch.Tensor:
    """arXiv 2510.18855: tokens whose probability differs too much between trainer and server are left out."""
    total = torch.zeros((), dtype=torch.float64)
    for one in batch:
        k = (one.old - one.sampled).exp()
        calibrated = torch.where((k >= 0.5) & (k <= 5.0), k, torch.zeros_like(k))
        total = total + (calibrated * clipped(one.ratio, one.normalized, 0.2, 0.28)).mean()
    return total / len(batch)


def tokens_of(batch: list[Rollout], settings: LossSettings, **changes: Any) -> Tokens:
    found = advantages(REWARDS, GROUPS, settings.baseline)
    weights = rollout_weights(LENGTHS, settings)
    counts = torch.tensor(LENGTHS)
    fields: dict[str, Any] = {
        "logprobs": torch.cat([one.new for one in batch]).detach().requires_grad_(),
        "old": torch.cat([one.old for one in batch]),
        "sampled": torch.cat([one.sampled for one in batch]),
        "advantages": torch.tensor(found, dtype=torch.float64).repeat_interleave(counts),
        "weights": torch.tensor(weights, dtype=torch.float64).repeat_interleave(counts),
        "sequence": torch.arange(len(batch)).repeat_interleave(counts),
    }
    return Tokens(**(fields | changes))


def check(
    batch: list[Rollout], objective: torch.Tensor, tokens: Tokens, settings: LossSettings
) -> LossFigures:
    """Loss and gradient are those of the formula; what happened."""
    loss, figures = policy_loss(tokens, settings)
    loss.backward()  # type: ignore[no-untyped-call]
    (-objective).backward()  # type: ignore[no-untyped-call]
    assert loss.item() == pytest.approx(-objective.item(), abs=1e-9)
    expected = torch.cat([one.new.grad for one in batch if one.new.grad is not None])
    torch.testing.assert_close(tokens.logprobs.grad, expected, rtol=1e-9, atol=1e-12)
    return figures


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("recipe", "formula", "more"),
    [
        ("grpo", grpo, {}),
        ("dapo", dapo, {}),
        ("gspo", gspo, {}),
        ("dr-grpo", dr_grpo, {"constant": 64.0}),
        ("rloo", rloo, {}),
        ("cispo", cispo, {}),
        ("icepop", icepop, {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_recipe_is_the_formula_of_its_paper(
    recipe: str, formula: Callable[[list[Rollout]], torch.Tensor], more: dict[str, Any], seed: int
) -> None:
    batch = a_batch(seed)
    settings = msgspec.convert(with_recipe({"recipe": recipe, **more}), LossSettings)
    sampled = {} if recipe == "icepop" else {"sampled": None}
    figures = check(batch, formula(batch), tokens_of(batch, settings, **sampled), settings)
    acts = figures.truncated if recipe == "icepop" else figures.clipped
    assert acts > 0 or recipe == "rloo"


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_reference_adds_its_divergence(estimator: str) -> None:
    """arXiv 2402.03300, equation 4, is k3; the others are of http://joschu.net/blog/kl-approx.html."""
    batch, beta = a_batch(), 0.3
    settings = msgspec.convert(
        with_recipe({"recipe": "grpo", "kl": beta, "kl_estimator": estimator}), LossSettings
    )
    total = torch.zeros((), dtype=torch.float64)
    for one in batch:
        far = one.reference - one.new
        of = {"k1": -far, "k2": far**2 / 2, "k3": far.exp() - far - 1}[estimator]
        total = total + of.mean() / len(batch)
    reference = torch.cat([one.reference for one in batch])
    tokens = tokens_of(batch, settings, sampled=None, reference=reference)
    figures = check(batch, grpo(batch) - beta * total, tokens, settings)
    assert figures.reference_kl != 0


def test_failed_sequences_of_another_policy_are_masked() -> None:
    """arXiv 2512.02556, equation 9: of negative advantage, and on average too improbable by now."""
    batch, limit = a_batch(), 0.05
    settings = LossSettings(clip_low=0.2, clip_high=0.2, importance_limit=None, divergence_limit=limit)
    total, masked = torch.zeros((), dtype=torch.float64), 0
    for one in batch:
        if one.normalized < 0 and (one.sampled - one.new).mean().item() > limit:
            masked += len(one.new)
            total = total + (one.new * 0).sum()
            continue
        total = total + clipped(one.ratio, one.normalized, 0.2, 0.2).mean()
    figures = check(batch, total / len(batch), tokens_of(batch, settings), settings)
    assert figures.masked == masked > 0


def own_loss(batch: Tokens, settings: LossSettings) -> tuple[torch.Tensor, LossFigures]:
    """A plug-in, found by `package:function`."""
    loss, figures = policy_loss(batch, settings)
    return 2 * loss, figures


def test_a_loss_of_a_package_is_named_in_the_runs_file() -> None:
    settings = settings_from(
        {"run": "r", "model": "m", "out": "o", "loss": {"function": f"{__name__}:own_loss"}}
    )
    tokens = tokens_of(a_batch(), settings.loss)
    assert get_loss(settings.loss)(tokens, settings.loss)[0] == 2 * policy_loss(tokens, settings.loss)[0]
    with pytest.raises(PluginError, match="no_such_module:f of the run's file"):
        get_loss(LossSettings(function="no_such_module:f"))


def test_recipes_are_named_and_other_keys_win() -> None:
    least = {"run": "r", "model": "m", "out": "o"}
    assert settings_from(least | {"loss": "cispo"}).loss.objective == "cispo"
    loss = settings_from(least | {"loss": {"recipe": "icepop", "clip_high": 0.2}}).loss
    assert (loss.importance_range, loss.clip_high) == ((0.5, 5.0), 0.2)
    with pytest.raises(TrainingError, match="no loss is named 'ppo': choose one of grpo, dapo"):
        settings_from(least | {"loss": "ppo"})
    with pytest.raises(TrainingError, match=r'set it, .* \{ recipe = "dr-grpo", constant = 524288 \}'):
        settings_from(least | {"loss": "dr-grpo"})
    assert settings_from(least | {"loss": {"recipe": "dr-grpo", "constant": 524288}}).loss.constant == 524288
    with pytest.raises(TrainingError, match="this is token_mean: leave it out"):
        settings_from(least | {"loss": {"recipe": "dapo", "constant": 9.0}})


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        ({"recipe": "rloo", "clip_high": 0.1}, "does not use clip_high"),
        ({"recipe": "rloo", "dual_clip": 3.0}, "does not use dual_clip"),
        ({"recipe": "cispo", "dual_clip": 3.0}, "does not use dual_clip"),
        ({"objective": "reinforce", "ratio": "sequence"}, "does not use ratio"),
        ({"recipe": "grpo", "objective": "reinforce", "ratio": "sequence"}, "does not use ratio"),
        ({"recipe": "dapo", "ratio": "sequence"}, "for ratios of single tokens"),
        ({"recipe": "dapo", "ratio": "sequence", "clip_high": 4e-4}, "for ratios of single tokens"),
    ],
    ids=str,
)
def test_what_an_objective_would_ignore_or_misread_is_refused(loss: dict[str, Any], says: str) -> None:
    with pytest.raises(TrainingError, match=says):
        settings_from({"run": "r", "model": "m", "out": "o", "loss": loss})


@pytest.mark.parametrize("recipe", ["grpo", "gspo"])
def test_what_a_files_objective_does_not_use_of_its_recipe_is_left_out(recipe: str) -> None:
    loss = {"recipe": recipe, "objective": "reinforce"}
    made = settings_from({"run": "r", "model": "m", "out": "o", "loss": loss}).loss
    assert made == LossSettings(objective=Objective.REINFORCE)


def test_a_loss_of_a_package_may_use_every_key() -> None:
    assert LossSettings(function="p:f", objective=Objective.REINFORCE, clip_low=0.1).clip_low == 0.1
