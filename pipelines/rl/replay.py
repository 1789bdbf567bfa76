"""The experts that an engine chose at the rollout, for the packs that a trainer reads. Needs torch."""

from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from orchard.pipelines.models.routers import Choices, Routers
from orchard.pipelines.rl.sequences import NotSampled, TokenSequence

_FIX = (
    "have the server report them, by `return_routed_experts = true` in `extra_body` of its endpoint (vLLM: "
    "by --enable-return-routed-experts), or leave `router_replay` out"
)


class RolloutExperts:
    """Reads experts as a model's routers take them. Raises ModelError for a model without."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._routers = Routers(model)
        self._shape = model.config.get_text_config().num_hidden_layers, self._routers.top_k

    def check(self, sequence: TokenSequence) -> None:
        """Raises NotSampled for a sequence in which a token was sampled by unknown experts, or by those of
        another model. Those of its context may be unknown."""
        known = self._array(sequence.experts, len(sequence.ids))
        sources = np.flatnonzero(np.asarray(sequence.mask)[1:])
        if (known[sources] < 0).any():
            raise NotSampled(f"a sampled token has no routed experts: {_FIX}")
        if known.max() >= self._routers.experts:
            raise NotSampled(
                f"a token went to expert {known.max()}, and the model has {self._routers.experts} in a layer:"
                " its engine served another model"
            )

    def choices(self, sequences: Sequence[tuple[Sequence[bytes], int]], device: torch.device) -> Choices:
        """The choices of each router for a pack of sequences, given the experts and the number of tokens of
        each; -1 for tokens whose experts are unknown. Of a pack without sequences, one such token."""
        parts = [self._array(experts, tokens) for experts, tokens in sequences] or [self._array([], 1)]
        whole = torch.from_numpy(np.concatenate(parts)).to(device)
        return [whole[:, layer].long() for layer in self._routers.layers]

    def _array(self, experts: Sequence[bytes], tokens: int) -> np.ndarray:
        """[tokens, layers, experts of a token], int32. Raises NotSampled for those of another shape."""
        layers, top_k = self._shape
        found = np.full((tokens, layers, top_k), -1, dtype=np.int32)
        told = np.asarray([len(each) for each in experts], dtype=np.int64)
        if strange := {*told.tolist()} - {0, layers * top_k, 2 * layers * top_k}:
            raise NotSampled(
                f"a token has {min(strange)} bytes of routed experts, and the model {layers} layers of "
                f"{top_k}: its engine served another model"
            )
        for size, kind in ((1, np.dtype("u1")), (2, np.dtype("<u2"))):
            places = np.flatnonzero(told == size * layers * top_k)
            packed = b"".join(experts[place] for place in places.tolist())
            found[places] = np.frombuffer(packed, kind).reshape(-1, layers, top_k)
        return found
