"""Records which experts the routers of a model choose, and makes them choose the same again. Needs torch.

Between two weights, and between an engine and a trainer, a token's experts may differ, and with them its
probability. With recorded choices (routing replay: https://arxiv.org/abs/2507.18071, section 5.3, and
https://arxiv.org/abs/2510.11370, equation 7) the same experts are weighed by the weights that train.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from orchard.pipelines.models.errors import ModelError

Choices = list[torch.Tensor]
"""The chosen experts of each router: [tokens, experts of a token], int64. In a replay, -1 leaves a token to
the router."""
_LAYER = re.compile(r"\blayers\.(\d+)\.")


class Routers:
    """The routers of one model, in the order of its layers. Raises ModelError for a model without, and for
    routers of another kind than Qwen's."""

    def __init__(self, model: torch.nn.Module) -> None:
        found = {
            name: module
            for name, module in model.named_modules()
            if type(module).__name__.endswith("TopKRouter")
        }
        self._routers: list[Any] = list(found.values())
        if not self._routers or not all(hasattr(router, "norm_topk_prob") for router in self._routers):
            raise ModelError(
                f"{type(model).__name__} has no routers whose choices can be replayed: leave "
                "`router_replay` out, or train a model such as Qwen3-30B-A3B"
            )
        named = [_LAYER.search(name) for name in found]
        self.layers = [int(match[1]) if match else number for number, match in enumerate(named)]
        """The layer of each router, from 0; the layers between are dense."""
        self.top_k: int = self._routers[0].top_k
        """Experts of a token in one layer."""
        self.experts: int = self._routers[0].num_experts
        """Experts of one layer."""

    @contextmanager
    def recording(self) -> Iterator[Choices]:
        """The choices of one forward pass, once it is done."""
        found: Choices = []

        def note(_: torch.nn.Module, __: Any, output: tuple[torch.Tensor, ...]) -> None:
            found.append(output[2].detach())

        with ExitStack() as hooks:
            for router in self._routers:
                hooks.enter_context(_removed(router.register_forward_hook(note)))
            yield found

    @contextmanager
    def replaying(self, choices: Sequence[torch.Tensor]) -> Iterator[None]:
        """Make each router choose what it chose then, in the backward pass too; the chosen experts are
        weighed by its own probabilities. A token of which -1 is known chooses by itself."""
        with ExitStack() as hooks:
            for router, chosen in zip(self._routers, choices, strict=True):
                hooks.enter_context(_removed(router.register_forward_hook(_chooser(chosen))))
            yield


def _chooser(chosen: torch.Tensor) -> Any:
    def choose(
        router: Any, _: Any, output: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits = output[0]
        taken = torch.where(chosen < 0, output[2], chosen)
        weights = torch.softmax(logits, dim=-1, dtype=torch.float).gather(-1, taken)
        if router.norm_topk_prob:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return logits, weights.to(output[1].dtype), taken

    return choose


@contextmanager
def _removed(handle: Any) -> Iterator[None]:
    try:
        yield
    finally:
        handle.remove()
