"""bfloat16 weights for the passes of a step, with float32 masters that the optimizer updates.

Mixed precision with master weights (https://arxiv.org/abs/1710.03740, section 3.1). Between two steps the
model has its float32 weights alone, so optimizers, checkpoints and saved models know of nothing else. Sharded
models have the same from FSDP2.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn import Module, Parameter


class BFloat16Copies:
    """The copies of one model's weights, on the device. Weights that do not train are there in bfloat16
    alone: their float32 values move to the CPU."""

    def __init__(self, model: Module, device: torch.device) -> None:
        self._places: list[tuple[Module, str, Parameter, Parameter]] = []
        """Each module's own weights: module, name, master, copy. Tied weights are one of each."""
        self._trained: list[tuple[Parameter, Parameter]] = []
        """Master and copy of each weight that trains."""
        copies: dict[Parameter, Parameter] = {}
        for module in model.modules():
            module._buffers.update({n: b.to(device) for n, b in module._buffers.items() if b is not None})
            for name, master in module._parameters.items():
                if master is None:
                    continue
                if master not in copies:
                    copies[master] = self._copy(master, device)
                self._places.append((module, name, master, copies[master]))

    def _copy(self, master: Parameter, device: torch.device) -> Parameter:
        master.data = master.data.to(device if master.requires_grad else "cpu")
        copy = Parameter(master.detach().to(device, torch.bfloat16), requires_grad=master.requires_grad)
        if master.requires_grad:
            self._trained.append((master, copy))

            def add(_: torch.Tensor) -> None:
                """Sums of many passes would lose small gradients in bfloat16."""
                assert copy.grad is not None
                gradient, copy.grad = copy.grad, None
                if master.grad is None:
                    master.grad = gradient.float()
                else:
                    master.grad.add_(gradient)

            copy.register_post_accumulate_grad_hook(add)  # type: ignore[no-untyped-call]
        return copy

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """The model computes with copies of its weights as they are now; gradients go to the masters."""
        with torch.no_grad():
            masters, copies = zip(*self._trained, strict=True)
            torch._foreach_copy_(copies, masters)
        for module, name, _, copy in self._places:
            module._parameters[name] = copy
        try:
            yield
        finally:
            for module, name, master, _ in self._places:
                module._parameters[name] = master
