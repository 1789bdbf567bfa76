"""In place of a GPU: what cannot be in a CUDA graph is refused, and a step is replayed by its operations."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
_WAITED_FOR = {
    aten._local_scalar_dense,
    aten.item,
    aten.is_nonzero,
    aten.equal,
    aten.allclose,
    aten.nonzero,
    aten.argwhere,
    aten.masked_select,
    aten._unique2,
}
"""The host waits for their results: a number, or a shape that depends on numbers."""
_CHOOSING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}
"""They count what a mask chooses, if they get one."""


class Uncapturable(Exception):
    """An operation that cannot be in a CUDA graph."""


class OnDevice(TorchDispatchMode):
    """Raises Uncapturable for what the host waits for, and for what is not on the device `meta` alone. Its
    tensors have no numbers, so the host cannot have asked for any."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = func.overloadpacket
        masked = packet in _CHOOSING and any(
            getattr(each, "dtype", None) == torch.bool for each in tree_leaves(args[1])
        )
        if packet in _WAITED_FOR or masked:
            raise Uncapturable(str(func))
        out = func(*args, **(kwargs or {}))
        for each in tree_leaves((args, kwargs, out)):
            if isinstance(each, torch.Tensor) and each.device.type != "meta":
                raise Uncapturable(f"{func} with a tensor on {each.device}")
        return out


class Recorded(TorchDispatchMode):
    """The operations of a step on the tensors that they met, as a CUDA graph has kernels with addresses."""

    def __init__(self) -> None:
        super().__init__()
        self._operations: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self._operations.append((func, args, kwargs or {}, out))
        return out

    @torch.inference_mode()
    def replay(self) -> None:
        """Compute everything again, each result into the memory of the first one."""
        for func, args, kwargs, out in self._operations:
            for first, again in zip(tree_leaves(out), tree_leaves(func(*args, **kwargs)), strict=True):
                if first.data_ptr() != again.data_ptr():
                    first.copy_(again)


class Recorder:
    """In place of CUDA graphs: no Python of a step runs when it is replayed."""

    def __init__(self) -> None:
        self.shapes = self.replays = 0

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        self.shapes += 1
        with Recorded() as recorded:
            work()

        def replay() -> None:
            self.replays += 1
            recorded.replay()

        return replay
