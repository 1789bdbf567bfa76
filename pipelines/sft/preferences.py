"""Direct preference optimization (DPO, https://arxiv.org/abs/2305.18290) on pairs of rollouts of one task, of
which one is resolved. Needs torch."""

from collections.abc import Sequence
from itertools import groupby

import torch
import torch.nn.functional as functional
from transformers import PreTrainedModel

from orchard.pipelines.datasets.rows import TokenRow
from orchard.pipelines.sft.loss import Pack, token_logprobs, trained_tokens
from orchard.pipelines.sft.settings import TrainingError

Pair = tuple[TokenRow, ...]
"""A resolved row, and an unresolved one of the same task."""


def preference_pairs(rows: Sequence[TokenRow]) -> list[Pair]:
    """Pairs of the first resolved rollout of each task with the first unresolved one, the second with the
    second, as far as there are both. Of a rollout with several rows, as older datasets have of programs, the
    first is taken, which is that of its last message. Raises TrainingError where there is no pair."""
    found: list[Pair] = []
    first: dict[str, TokenRow] = {}
    for row in rows:
        first.setdefault(row.rollout_id, row)
    for _, of_task in groupby(sorted(first.values(), key=_task), _task):
        own = list(of_task)
        good, bad = ([row for row in own if row.resolved is resolved] for resolved in (True, False))
        found += zip(good, bad, strict=False)
    if not found:
        raise TrainingError(
            "the dataset has no resolved and unresolved example of one task: build it with "
            "`selection = { preferences = 4 }`, or leave `dpo` out"
        )
    return found


def _task(row: TokenRow) -> str:
    return row.task_id


def dpo_loss(policy: torch.Tensor, reference: torch.Tensor, beta: float) -> torch.Tensor:
    """-log sigmoid(beta ((pc - rc) - (pr - rr))), summed over pairs; both are log-probabilities of answers as
    [pairs, 2], the chosen one first."""
    moved = policy - reference
    return -functional.logsigmoid(beta * (moved[:, 0] - moved[:, 1])).sum()


def summed_dpo_loss(
    model: PreTrainedModel,
    reference: PreTrainedModel | None,
    pack: Pack,
    pairs: Sequence[Pair],
    beta: float,
) -> torch.Tensor:
    """The loss of a pack of pairs. `reference` is what the run started from; None: the model without its
    adapter."""
    counts = torch.tensor([trained_tokens(row) for pair in pairs for row in pair], dtype=torch.int64)
    policy = token_logprobs(model, pack)
    with torch.no_grad():
        before = _by_reference(model, reference, pack)
    if not pairs:
        return policy.sum() * 0.0
    return dpo_loss(_of_answers(policy, counts), _of_answers(before, counts), beta)


def _by_reference(model: PreTrainedModel, reference: PreTrainedModel | None, pack: Pack) -> torch.Tensor:
    if reference is not None:
        return token_logprobs(reference, pack)
    model.disable_adapters()
    try:
        return token_logprobs(model, pack)
    finally:
        model.enable_adapters()


def _of_answers(logprobs: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """[pairs, 2] sums of log-probabilities over the trained tokens of each row."""
    rows = torch.arange(len(counts)).repeat_interleave(counts).to(logprobs.device)
    return logprobs.new_zeros(len(counts)).index_add(0, rows, logprobs).view(-1, 2)
