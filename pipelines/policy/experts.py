"""Experts that the routers of a served mixture choose, kept beside the keys and values of the same tokens."""

import base64
import io
from collections.abc import Callable

import numpy as np
import torch

from orchard.pipelines.models.routers import Choices, Routers

Note = Callable[[Choices], None]
"""Takes the choices of one pass, [tokens of the pass, experts of a token] of each router."""


class ExpertCache:
    """A static tensor [slots, places, layers, experts of a token]; dense layers have 0. A token that is kept
    in the prefix cache keeps its experts, as in https://arxiv.org/abs/2510.11370."""

    def __init__(
        self, routers: Routers, *, slots: int, places: int, layers: int, device: torch.device
    ) -> None:
        kind = torch.uint8 if routers.experts <= 256 else torch.int16
        self._held = torch.zeros(slots, places, layers, routers.top_k, dtype=kind, device=device)
        self._layers = torch.tensor(routers.layers, device=device)

    def decoding(self, places: torch.Tensor) -> Note:
        """Keeps what one token in each of the first slots chose, at its place in `places` [slots]; -1 is
        the last place, which nobody reads."""
        rows = torch.arange(len(places), device=places.device)
        return lambda choices: self._keep(rows, places, choices)

    def filling(self, pieces: list[tuple[int, int, int]]) -> Note:
        """Keeps what pieces of sequences chose, one after another: (slot, first place, tokens) of each."""
        device = self._held.device
        rows = torch.cat([torch.full((tokens,), slot, device=device) for slot, _, tokens in pieces])
        places = torch.cat(
            [torch.arange(first, first + tokens, device=device) for _, first, tokens in pieces]
        )
        return lambda choices: self._keep(rows, places, choices)

    def _keep(self, rows: torch.Tensor, places: torch.Tensor, choices: Choices) -> None:
        chosen = torch.stack(choices, dim=1)[: len(rows)]
        self._held[rows[:, None], places[:, None], self._layers] = chosen.to(self._held.dtype)

    def exchange(self, one: int, other: int, places: int) -> None:
        first, second = self._held[one, :places], self._held[other, :places]
        kept = first.clone()
        first.copy_(second)
        second.copy_(kept)

    def read(self, slot: int, first: int, end: int) -> np.ndarray:
        """[tokens, layers, experts of a token], uint8 or uint16, of the places from `first` to before
        `end`."""
        found = self._held[slot, first:end].cpu().numpy()
        return found.astype(np.uint8 if found.dtype == np.uint8 else np.uint16)  # a copy: the slot goes on


def encoded(experts: np.ndarray) -> str:
    """The form in which vLLM reports experts: a NumPy file in Base64."""
    file = io.BytesIO()
    np.save(file, experts, allow_pickle=False)
    return base64.b64encode(file.getvalue()).decode()
