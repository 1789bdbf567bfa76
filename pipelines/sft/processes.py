"""One process or many: device, ranks and sharding (FSDP2) of a run, under `torchrun` or by itself."""

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from orchard.pipelines.sft.layers import layers_of
from orchard.pipelines.sft.precision import BFloat16Copies
from orchard.pipelines.sft.settings import Precision


class Processes(msgspec.Struct, frozen=True, kw_only=True):
    """The processes of a run, seen from one of them."""

    rank: int
    count: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and reports."""
        return self.rank == 0

    def summed(self, value: float) -> float:
        """The sum of a number over all processes."""
        if self.count == 1:
            return value
        tensor = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return tensor.item()

    def largest(self, value: float) -> float:
        if self.count == 1:
            return value
        tensor = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor.item()

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.count > 1:
            dist.barrier()


@contextmanager
def joined(threads: int) -> Iterator[Processes]:
    """This process as part of its run. `torchrun` sets the variables that say how many there are.

    `threads` is torch's number of CPU threads, 0 for its own choice.
    """
    if threads:
        torch.set_num_threads(threads)
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
        # cuBLAS is deterministic only with a workspace of a fixed size.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield Processes(rank=0, count=1, device=device)
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Processes(rank=dist.get_rank(), count=count, device=device)
    finally:
        dist.destroy_process_group()
        _settle()


def _settle() -> None:
    """Wait until gloo's threads sleep: they outlive the group, and may still hold what they exchanged
    last. One that releases a tensor while the interpreter ends aborts the process: the run is over,
    its files are written, and `torchrun` calls it failed."""
    busy = True
    while busy:
        time.sleep(0.01)  # who waits for the interpreter's lock gets it now
        busy = any(_runs(thread) for thread in Path("/proc/self/task").glob("*"))


def _runs(thread: Path) -> bool:
    try:
        _, name, state = re.split(r"[()] ?", (thread / "stat").read_text()[:64], maxsplit=2)
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return False
    return name == "pt_gloo_runloop" and not state.startswith("S")


Passes = Callable[[], AbstractContextManager[None]]
"""Opens the forward and backward passes of a step."""


def shard(model: torch.nn.Module, processes: Processes, precision: Precision) -> Passes:
    """Put a model on the device: whole, or spread over the processes, a layer at a time. All of its passes
    are to run within what this returns: there its weights have the precision.

    Each layer goes to the device as it is cut, so that no device ever holds the whole model.
    """
    half = precision is Precision.BFLOAT16
    if processes.count == 1:
        if not half:
            model.to(processes.device)
            return nullcontext
        if any(parameter.requires_grad for parameter in model.parameters()):
            return BFloat16Copies(model, processes.device).in_use
        for parameter in model.parameters():
            parameter.data = parameter.data.to(torch.bfloat16)
        model.to(processes.device)
        return nullcontext
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if half else None, reduce_dtype=torch.float32 if half else None
    )
    for layer in layers_of(model):
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return nullcontext


def last_backward(model: torch.nn.Module, last: bool) -> None:
    """Exchange gradients after the last of a step's backward passes, not after each."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)


def finite(model: torch.nn.Module) -> bool:
    """Whether this process's weights are all finite numbers."""
    weights = (w.to_local() if isinstance(w, DTensor) else w for w in model.parameters())
    return all(bool(torch.isfinite(weight).all()) for weight in weights)


def clipped(model: torch.nn.Module, limit: float) -> float:
    """Scale the gradient to a norm of at most `limit` (0: leave it); returns its norm before."""
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit or float("inf"))
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    return norm.item()
