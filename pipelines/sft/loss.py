"""A pack of examples as tensors, and the loss of the next tokens that the mask selects."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import torch
import torch.nn.functional as functional
from torch.utils.checkpoint import checkpoint

from orchard.pipelines.datasets.rows import TokenRow
from orchard.pipelines.sft.attention import packs_examples
from orchard.pipelines.sft.picture_packs import Eyes, PackedPictures

_LOGIT_ROWS = 8192


class Pack(msgspec.Struct, frozen=True, kw_only=True):
    ids: torch.Tensor
    """Token ids [1, tokens], int64."""
    positions: torch.Tensor
    """[1, tokens]: starts from 0 with each example. For a model that sees pictures [3, 1, tokens]."""
    lengths: list[int]
    starts: torch.Tensor
    """[examples + 1]: where examples begin, and where the last one ends; int32."""
    sources: torch.Tensor
    """[trained]: positions whose next token trains."""
    targets: torch.Tensor
    pictures: PackedPictures | None = None


def trained_tokens(row: TokenRow) -> int:
    """Tokens of a row that train; its first token cannot, as nothing comes before it."""
    return int(np.count_nonzero(row.loss_mask[1:]))


def make_pack(rows: Sequence[TokenRow], device: torch.device, eyes: Eyes | None = None) -> Pack:
    """The pack of some rows, in their order. No rows make a pack of one token that trains nothing.

    `eyes` find the pictures, for a model that sees. Raises Misplaced and BadPicture.
    """
    if eyes:
        rows = eyes.not_blind(rows)
    if not rows:
        zero = torch.zeros(1, 1, dtype=torch.int64, device=device)
        nothing = torch.zeros(0, dtype=torch.int64, device=device)
        starts = torch.tensor([0, 1], dtype=torch.int32, device=device)
        return Pack(ids=zero, positions=zero, lengths=[1], starts=starts, sources=nothing, targets=nothing)
    ids = np.concatenate([row.input_ids for row in rows]).astype(np.int64)
    mask = np.concatenate([np.concatenate(([0], row.loss_mask[1:])) for row in rows])
    counted = (eyes.positions(row)[:, None] if eyes else np.arange(len(row.input_ids))[None] for row in rows)
    trained = np.flatnonzero(mask)
    lengths = [len(row.input_ids) for row in rows]

    def tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    return Pack(
        ids=tensor(ids)[None],
        positions=tensor(np.concatenate(list(counted), axis=-1)),
        lengths=lengths,
        starts=tensor(np.cumsum([0, *lengths], dtype=np.int32)),
        sources=tensor(trained - 1),
        targets=tensor(ids[trained]),
        pictures=eyes.packed(rows, device) if eyes else None,
    )


def trained_logits(model: torch.nn.Module, pack: Pack) -> torch.Tensor:
    """The logits [trained, vocabulary] of a pack's trained tokens alone; one row where it has none.

    With one example in the pack any causal model will do; with more, one that `use_packed_attention` has
    prepared.
    """
    sources = pack.sources
    if not len(sources):
        sources = torch.zeros(1, dtype=torch.int64, device=pack.ids.device)
    logits: torch.Tensor = model(
        input_ids=pack.ids,
        position_ids=pack.positions,
        logits_to_keep=sources,
        use_cache=False,
        **(places(pack) if packs_examples(model) else {}),
        **_shown(pack.pictures),
    ).logits[0]
    return logits


def places(pack: Pack) -> dict[str, Any]:
    """Where the examples of a pack are, as a model of `use_packed_attention` is told."""
    return {"cu_seq_lens_q": pack.starts, "max_length_q": max(pack.lengths)}


def _shown(pictures: PackedPictures | None) -> dict[str, torch.Tensor]:
    if pictures is None:
        return {}
    return {"pixel_values": pictures.pixels, "image_grid_thw": pictures.grids}


def summed_loss(model: torch.nn.Module, pack: Pack) -> torch.Tensor:
    """Negative log-likelihood in nats, summed over the trained tokens of a pack."""
    losses = _in_parts(model, pack, "sum")
    return losses[0] if len(losses) == 1 else torch.stack(losses).sum()


def token_logprobs(model: torch.nn.Module, pack: Pack) -> torch.Tensor:
    """Log-probabilities of a pack's trained tokens, [trained]; of a pack without any one zero that every
    parameter takes part in."""
    losses = _in_parts(model, pack, "none")
    return -torch.cat([loss.reshape(-1) for loss in losses])


def _in_parts(model: torch.nn.Module, pack: Pack, reduction: str) -> list[torch.Tensor]:
    """Negative log-likelihoods of the trained tokens, in parts."""
    logits = trained_logits(model, pack)
    if not len(pack.targets):
        # Every parameter takes part in the backward pass, as other processes wait for its gradient.
        return [logits.float().sum() * 0.0]
    if len(logits) <= _LOGIT_ROWS:
        return [_nll(logits, pack.targets, reduction)]
    # A large vocabulary's log-probabilities in float32 are made again in the backward pass, a part at a time.
    parts = zip(torch.split(logits, _LOGIT_ROWS), torch.split(pack.targets, _LOGIT_ROWS), strict=True)
    return [checkpoint(_nll, *part, reduction, use_reentrant=False) for part in parts]


def _nll(logits: torch.Tensor, targets: torch.Tensor, reduction: str) -> torch.Tensor:
    return functional.cross_entropy(logits.float(), targets, reduction=reduction)
