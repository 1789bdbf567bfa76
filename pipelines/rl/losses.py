"""Policy-gradient losses over the trained tokens of a batch. Needs torch.

Everything is flat: one entry for each trained token, of all rollouts in a pack, so that packs of any cut
add up to the same loss. What a token weighs follows from the whole batch and is given: `rollout_weights`.
"""

from collections.abc import Callable, Sequence

import msgspec
import torch

from orchard.pipelines.rl.loss_settings import (
    ImportanceLevel,
    KlEstimator,
    LossSettings,
    Objective,
    Ratio,
    Reduction,
)
from orchard.schemas.plugins import Kind
from orchard.workers.plugins import need

_LOG_RATIO_LIMIT = 20.0


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """The trained tokens of some sequences; all tensors are [tokens]."""

    logprobs: torch.Tensor
    """Log-probabilities by the weights that train; the gradient flows through these and `entropies`
    alone."""
    old: torch.Tensor
    """Log-probabilities by the trainer's weights before the step, computed by the trainer."""
    sampled: torch.Tensor | None
    """Log-probabilities that the policy server reported when it sampled; None when it did not."""
    advantages: torch.Tensor
    weights: torch.Tensor
    """Weight of the token's rollout, by `rollout_weights`."""
    sequence: torch.Tensor
    """int64: which sequence of the pack the token is of, from 0. A sequence is whole within its pack."""
    reference: torch.Tensor | None = None
    """Log-probabilities by the weights that the run started from; None where `kl` is 0."""
    entropies: torch.Tensor | None = None
    """Entropies of the distributions that the tokens were drawn from, by the weights that train, in nats;
    None where `entropy` is 0."""


class LossFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a loss, as sums over `tokens`: the caller adds them over packs."""

    tokens: int
    clipped: float
    """Tokens whose ratio was clipped, so that no gradient flows."""
    ratio: float
    kl: float
    """k3 estimate of KL(old || new), the divergence from the old policy, in nats: exp(d) - 1 - d by
    d = logp - logp_old of a token that the old policy sampled (http://joschu.net/blog/kl-approx.html)."""
    importance: float
    truncated: float
    """Tokens whose importance weight was at its limit, or outside its range."""
    masked: float = 0.0
    """Tokens of sequences that were masked as off-policy."""
    reference_kl: float = 0.0
    """Estimate of the divergence from the reference, in nats."""


Loss = Callable[[Tokens, LossSettings], tuple[torch.Tensor, LossFigures]]
"""Computes some tokens' part of the batch's loss, as a scalar, and its figures."""


def get_loss(settings: LossSettings) -> Loss:
    """The loss that the settings name: the built-in one, or a plug-in. Raises PluginError."""
    if settings.function is None:
        return policy_loss
    loss: Loss = need(Kind.LOSS, settings.function)
    return loss


def rollout_weights(tokens: Sequence[int], settings: LossSettings) -> list[float]:
    """Weight of each trained token of a rollout in the loss of the whole batch.

    `tokens` are the trained tokens of each rollout, over all its sequences. A rollout without any
    weighs nothing and counts for nothing.
    """
    rollouts = sum(count > 0 for count in tokens)
    match settings.reduction:
        case Reduction.ROLLOUT_MEAN:
            return [1 / (rollouts * count) if count else 0.0 for count in tokens]
        case Reduction.TOKEN_MEAN:
            return [1 / sum(tokens) if count else 0.0 for count in tokens]
        case Reduction.CONSTANT_SUM:
            assert settings.constant is not None
            return [1 / settings.constant if count else 0.0 for count in tokens]
        case Reduction.ROLLOUT_SUM:
            return [1 / rollouts if count else 0.0 for count in tokens]


def policy_loss(batch: Tokens, settings: LossSettings) -> tuple[torch.Tensor, LossFigures]:
    """These tokens' part of the batch's loss, and its figures. Log-ratios are held within +-20, so that
    one token cannot make the loss infinite."""
    losses, ratio, clipped = _objective(batch, settings)
    importance, truncated = _importance(batch, settings)
    kept = _on_policy(batch, settings)
    signed = torch.where(batch.advantages < 0, settings.negative, 1.0)
    divergence = _divergence(batch, settings)
    each = losses * importance * signed * kept
    if settings.kl:
        each = each + settings.kl * divergence
    if batch.entropies is not None:
        each = each - settings.entropy * batch.entropies
    loss = (each * batch.weights).sum()
    with torch.no_grad():
        moved = (batch.logprobs - batch.old).clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT)
        figures = LossFigures(
            tokens=len(losses),
            clipped=clipped.sum().item(),
            ratio=ratio.sum().item(),
            kl=(moved.exp() - 1 - moved).sum().item(),
            importance=importance.sum().item(),
            truncated=truncated.sum().item(),
            masked=(1 - kept).sum().item(),
            reference_kl=divergence.sum().item(),
        )
    return loss, figures


def _objective(batch: Tokens, settings: LossSettings) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Loss and ratio of each token, and whether a clip decided."""
    log_ratio = (batch.logprobs - batch.old).clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT)
    if settings.ratio is Ratio.SEQUENCE:
        sums, sizes = _over_sequences(log_ratio, batch.sequence)
        log_ratio = sums / sizes
    ratio = log_ratio.exp()
    if settings.objective is Objective.REINFORCE:
        return -batch.advantages * batch.logprobs, ratio, torch.zeros_like(ratio, dtype=torch.bool)
    low, high = settings.clips
    inside = ratio.clamp(1 - low, 1 + high)
    if settings.objective is Objective.CISPO:
        return -inside.detach() * batch.advantages * batch.logprobs, ratio, inside != ratio
    free, held = -ratio * batch.advantages, -inside * batch.advantages
    losses = torch.maximum(free, held)
    clipped = held > free
    if settings.dual_clip is not None:
        bound = -settings.dual_clip * batch.advantages
        beyond = (batch.advantages < 0) & (losses > bound)
        losses = torch.where(beyond, bound, losses)
        clipped = clipped | beyond
    return losses, ratio, clipped


def _over_sequences(values: torch.Tensor, sequence: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of `values` over each token's sequence and its number of tokens, for each token."""
    count = int(sequence.max()) + 1 if len(sequence) else 0
    sums = values.new_zeros(count).index_add(0, sequence, values)
    sizes = values.new_zeros(count).index_add(0, sequence, torch.ones_like(values))
    return sums[sequence], sizes[sequence]


def _importance(batch: Tokens, settings: LossSettings) -> tuple[torch.Tensor, torch.Tensor]:
    """Importance weights, through which no gradient flows, and where they were limited or are out of
    range."""
    nowhere = torch.zeros_like(batch.old, dtype=torch.bool)
    limit, span = settings.importance_limit, settings.importance_range
    if batch.sampled is None or settings.importance_level is ImportanceLevel.NONE:
        return torch.ones_like(batch.old), nowhere
    log_weight = (batch.old - batch.sampled).detach()
    if settings.importance_level is ImportanceLevel.SEQUENCE:
        log_weight, _ = _over_sequences(log_weight, batch.sequence)
        log_weight = log_weight.clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT)
    weight = log_weight.exp()
    if span is not None:
        outside = (weight < span[0]) | (weight > span[1])
        return torch.where(outside, 0.0, weight), outside
    if limit is not None:
        return weight.clamp(max=limit), weight >= limit
    return torch.ones_like(weight), nowhere


def _on_policy(batch: Tokens, settings: LossSettings) -> torch.Tensor:
    """1 for tokens that train, 0 for those of failed sequences that another policy sampled."""
    if settings.divergence_limit is None:
        return torch.ones_like(batch.old)
    sampled = batch.old if batch.sampled is None else batch.sampled
    sums, sizes = _over_sequences(sampled - batch.logprobs.detach(), batch.sequence)
    return 1.0 - ((batch.advantages < 0) & (sums / sizes > settings.divergence_limit)).to(sums)


def _divergence(batch: Tokens, settings: LossSettings) -> torch.Tensor:
    """Estimate of each token's divergence from the reference."""
    if batch.reference is None:
        return torch.zeros_like(batch.old)
    d = batch.logprobs - batch.reference
    match settings.kl_estimator:
        case KlEstimator.K1:
            return d
        case KlEstimator.K2:
            return d.square() / 2
        case KlEstimator.K3:
            return (-d).clamp(max=_LOG_RATIO_LIMIT).exp() - 1 + d
