"""Log-probabilities and entropy of trained tokens, a few rows of the vocabulary at a time. Needs torch.

Logits of 20,000 tokens over 151,936 words are 12 GB in float32, and softmax, entropy and gradient are three
more of them. So the output layer is asked for a part of the tokens at once, in the backward pass again, and
only one part's logits are there at any time, in one copy that becomes their gradient.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from orchard.pipelines.models.picture_tokens import NEVER, never_said
from orchard.pipelines.sft.loss import Pack, trained_logits

ROWS = 512
"""Tokens whose logits are in memory at once."""
_PIECE = 16
"""Tokens of these whose logits are in memory a second time."""
_AFTERWARDS = ("final_logit_softcapping", "logits_scaling", "logit_scale")
"""Settings of models that change logits after the output layer."""


def trained_logprobs(
    model: PreTrainedModel, pack: Pack, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities at `temperature` and entropies in nats of the pack's trained tokens, [trained]
    each."""
    if not len(pack.targets):
        nothing = trained_logits(model, pack).float().sum() * 0.0
        return nothing.expand(0), nothing.expand(0)
    config, unsaid = model.config.get_text_config(), never_said(model.config)
    if any(getattr(config, name, None) not in (None, 1.0) for name in _AFTERWARDS):
        found = _of_logits(trained_logits(model, pack), pack.targets, temperature, unsaid)
    else:
        with _in_parts(model, pack.targets, temperature, unsaid):
            found = trained_logits(model, pack)
    return found[:, 0], found[:, 1]


@contextmanager
def _in_parts(
    model: PreTrainedModel, targets: torch.Tensor, temperature: float, unsaid: list[int]
) -> Iterator[None]:
    """Makes the model's output layer answer with `_of_logits`, [1, trained, 2], in place of logits.

    The layer is called where the model calls it, so that its weights are whole there where they are
    sharded.
    """
    layer = model.get_output_embeddings()
    plain = layer.forward

    def part(hidden: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return _of_logits(plain(hidden), wanted, temperature, unsaid)

    def parts(hidden: torch.Tensor) -> torch.Tensor:
        pieces = zip(torch.split(hidden[0], ROWS), torch.split(targets, ROWS), strict=True)
        return torch.cat([checkpoint(part, *piece, use_reentrant=False) for piece in pieces])[None]

    layer.forward = parts
    try:
        yield
    finally:
        del layer.forward


def _of_logits(
    logits: torch.Tensor, targets: torch.Tensor, temperature: float, unsaid: list[int]
) -> torch.Tensor:
    """[tokens, 2]: log-probability of the target, and entropy; without the tokens `unsaid`. Overwrites
    `logits`."""
    found: torch.Tensor = _InPlace.apply(logits, targets, temperature, unsaid)  # type: ignore[no-untyped-call]
    return found


class _InPlace(torch.autograd.Function):
    """Computes in the memory of the logits: they become what is saved, and that becomes their gradient."""

    @staticmethod
    def forward(
        context: Any, logits: torch.Tensor, targets: torch.Tensor, temperature: float, unsaid: list[int]
    ) -> torch.Tensor:
        scaled = logits.detach().float().div_(temperature)
        if unsaid:
            scaled[:, unsaid] = NEVER
        scaled.sub_(scaled.amax(dim=-1, keepdim=True))
        picked = scaled.gather(-1, targets[:, None])[:, 0]
        sums, means = torch.empty_like(picked), torch.empty_like(picked)
        for start in range(0, len(scaled), _PIECE):
            piece = scaled[start : start + _PIECE]
            powers = piece.exp()
            sums[start : start + _PIECE] = powers.sum(dim=-1)
            means[start : start + _PIECE] = powers.mul_(piece).sum(dim=-1)
        context.save_for_backward(scaled, targets, sums)
        context.temperature, context.dtype = temperature, logits.dtype
        return torch.stack([picked - sums.log(), sums.log() - means / sums], dim=-1)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        """The gradients of a logit z by the log-probability of token t and by the entropy H are, with
        p the probability of z's token, ([z is t's] - p) / T and -p (log p + H) / T."""
        scaled, targets, sums = context.saved_tensors
        outer, spread = gradients[0].unbind(-1)
        outer, spread = outer / context.temperature, spread / context.temperature
        if spread.any():
            gradient = _with_entropy(scaled, sums, outer, spread)
        else:
            gradient = scaled.exp_().mul_((-outer / sums)[:, None])
        gradient.scatter_add_(-1, targets[:, None], outer[:, None])
        return gradient.to(context.dtype), None, None, None


def _with_entropy(
    scaled: torch.Tensor, sums: torch.Tensor, outer: torch.Tensor, spread: torch.Tensor
) -> torch.Tensor:
    """-p (outer + spread (log p + H)) of each token and logit, in the memory of `scaled`."""
    for start in range(0, len(scaled), _PIECE):
        rows = slice(start, start + _PIECE)
        log_powers = scaled[rows].sub_(sums[rows].log()[:, None])
        powers = log_powers.exp()
        entropy = -(powers * log_powers).sum(dim=-1, keepdim=True)
        log_powers.add_(entropy).mul_(spread[rows, None]).add_(outer[rows, None]).mul_(powers).neg_()
    return scaled
