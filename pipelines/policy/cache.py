"""Keys and values of the sequences being generated: one slot for each, attended to in a batch."""

from functools import cache

import torch
import torch.nn.functional as functional

from orchard.pipelines.policy.experts import ExpertCache
from orchard.pipelines.policy.weights import ROWS, Attend, ServedModel

_FINE = 64
COARSE = 256


def visible(length: int) -> int:
    """Number of positions that a step attends to when the longest sequence has `length`: few values, for
    few shapes. Steps of 256 above 256, as the attention kernel sums in blocks and rounds by how a
    block was cut: a row's sum is the same for all lengths that this function returns."""
    step = _FINE if length <= COARSE else COARSE
    return -(-length // step) * step


class Cache:
    """Static tensors [layers, slots, key heads, places, width]; the last place takes what nobody reads."""

    def __init__(self, model: ServedModel, *, slots: int, context: int) -> None:
        self.slots, self.context = -(-slots // ROWS) * ROWS, context
        places = visible(context) + 1
        shape = (model.layers, self.slots, model.key_heads, places, model.width)
        self._keys = torch.zeros(shape, device=model.device, dtype=model.dtype)
        self._values = torch.zeros_like(self._keys)
        self._device = model.device
        self._groups = model.heads // model.key_heads
        self._scratch = places - 1
        self.experts: ExpertCache | None = None
        """Experts of the tokens that the slots hold; None for a model without."""
        if model.routers is not None:
            self.experts = ExpertCache(
                model.routers, slots=self.slots, places=places, layers=model.layers, device=model.device
            )

    def decoding(self, places: torch.Tensor, seen: int) -> Attend:
        """Attention of one new token in each of the first slots, at its place in `places` [slots], to all
        before it; no place is `seen` or more.

        Slots at place -1 take part as rows that write and read nothing of theirs. `places` is on the device,
        and no shape depends on its numbers.
        """
        rows = torch.arange(len(places), device=self._device)
        last = places.clamp(min=0)
        places = places.masked_fill(places < 0, self._scratch)

        @cache
        def mask(window: int | None) -> torch.Tensor:
            unseen = ~_seen(last, seen, window)
            filled = self._keys.new_zeros(len(rows), seen).masked_fill_(unseen, float("-inf"))
            return filled[:, None, None]

        def attend(
            layer: int,
            query: torch.Tensor,
            key: torch.Tensor,
            value: torch.Tensor,
            scale: float,
            window: int | None,
        ) -> torch.Tensor:
            keys, values = self._keys[layer], self._values[layer]
            keys[rows, :, places] = key
            values[rows, :, places] = value
            # The heads that share a key stand where a sequence's tokens would: no key is repeated.
            count = len(rows)
            grouped = query.reshape(count, key.shape[1], self._groups, -1)
            attended = functional.scaled_dot_product_attention(
                grouped, keys[:count, :, :seen], values[:count, :, :seen], attn_mask=mask(window), scale=scale
            )
            return attended.reshape(count, -1)

        return attend

    def exchange(self, one: int, other: int, places: int) -> None:
        for held in (self._keys, self._values):
            first, second = held[:, one, :, :places], held[:, other, :, :places]
            kept = first.clone()
            first.copy_(second)
            second.copy_(kept)
        if self.experts is not None:
            self.experts.exchange(one, other, places)

    def filling(self, pieces: list[tuple[int, int, int]], padding: int) -> Attend:
        """Attention of pieces of sequences, one after another: (slot, first place, tokens) of each.

        Each token sees its own piece up to itself and what the slot already holds before it. `padding` rows
        at the end attend to nothing.
        """

        @cache
        def mask(first: int, end: int, window: int | None) -> torch.Tensor | None:
            if not first and (window is None or end <= window):
                return None
            return _seen(torch.arange(first, end, device=self._device), end, window)

        def attend(
            layer: int,
            query: torch.Tensor,
            key: torch.Tensor,
            value: torch.Tensor,
            scale: float,
            window: int | None,
        ) -> torch.Tensor:
            outputs, position = [], 0
            for slot, first, tokens in pieces:
                rows = slice(position, position + tokens)
                end = first + tokens
                keys, values = self._keys[layer, slot], self._values[layer, slot]
                keys[:, first:end] = key[rows].transpose(0, 1)
                values[:, first:end] = value[rows].transpose(0, 1)
                seen = mask(first, end, window)
                attended = functional.scaled_dot_product_attention(
                    query[rows].transpose(0, 1)[None],
                    keys[None, :, :end],
                    values[None, :, :end],
                    attn_mask=seen,
                    is_causal=seen is None,
                    scale=scale,
                    enable_gqa=self._groups > 1,
                )
                outputs.append(attended[0].transpose(0, 1).reshape(tokens, -1))
                position += tokens
            outputs.append(query.new_zeros(padding, query.shape[1] * query.shape[2]))
            return torch.cat(outputs)

        return attend


def _seen(places: torch.Tensor, end: int, window: int | None) -> torch.Tensor:
    """[rows, end]: whether the token at a row's place sees the one at each place before `end`."""
    distance = places[:, None] - torch.arange(end, device=places.device)
    return (distance >= 0) & (distance < (window or end))
