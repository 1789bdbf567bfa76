"""One token for each running request: a step whose tensors stay where they are, so that a GPU can replay it.

A step is some hundreds of kernels, and Python starts them more slowly than a GPU computes them. As a CUDA
graph they are started at once. A graph has one shape, so steps are padded to few shapes, and each is recorded
when it first comes. What a step is told and what it chose are the only copies between host and device.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch

from orchard.pipelines.policy.cache import COARSE, Cache, visible
from orchard.pipelines.policy.sampling import choose
from orchard.pipelines.policy.weights import ROWS, ServedModel

Record = Callable[[Callable[[], None]], Callable[[], None]]
"""Does a step's work, and returns what does it again with the same tensors."""


class StepInput(NamedTuple):
    """What a step is told of a slot. The defaults are those of a slot without a request."""

    token: int = 0
    place: int = -1
    """The token's number in its sequence, from 0; -1: the slot's contents stay as they are."""
    position: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    draw: float = 0.0
    """Uniform number in [0, 1)."""

    @property
    def cut(self) -> bool:
        return self.top_k > 0 or self.top_p < 1.0


class Decoder:
    """Steps of the requests in a cache. Not safe to share between threads."""

    def __init__(self, model: ServedModel, cache: Cache, record: Record | None) -> None:
        """Without `record`, no step is padded or replayed."""
        self._model, self._cache, self._record = model, cache, record
        size, kind = (cache.slots, len(StepInput._fields)), torch.float64  # exact for ids and for float32
        self._given = torch.zeros(size, dtype=kind, device=model.device)
        self._chosen = torch.zeros(cache.slots, 2, dtype=kind, device=model.device)
        self._recorded: dict[tuple[int, int, bool], Callable[[], None]] = {}

    def exchange(self, model: ServedModel) -> None:
        """Compute with the weights of `model` from the next step on. Recorded steps stay valid, since the new
        weights move to where the old ones are."""
        if self._recorded:
            model.move_to(self._model)
        self._model = model

    def step(self, rows: Mapping[int, StepInput]) -> list[tuple[int, float]]:
        """The next token of each slot in `rows`, in their order, and its log-probability in nats."""
        count = -(-(max(rows) + 1) // ROWS) * ROWS
        seen = visible(max(row.place for row in rows.values()) + 1)
        if self._record:
            count = _padded(count, ROWS, self._cache.slots)
            seen = _padded(seen, COARSE, visible(self._cache.context))
        idle = StepInput()
        given = [rows.get(slot, idle) for slot in range(count)]
        self._given[:count].copy_(torch.tensor(given, dtype=self._given.dtype))
        shape = count, seen, any(row.cut for row in rows.values())
        if self._record is None:
            self._work(*shape)
        elif shape in self._recorded:
            self._recorded[shape]()
        else:
            self._recorded[shape] = self._record(partial(self._work, *shape))
        chosen = self._chosen[:count].tolist()
        return [(int(chosen[slot][0]), chosen[slot][1]) for slot in rows]

    @torch.inference_mode()
    def _work(self, count: int, seen: int, cut: bool) -> None:
        """A step of the first `count` slots, whose sequences have at most `seen` tokens. It reads and writes
        tensors of the device alone, and its kernels do not depend on what they hold."""
        token, place, position, temperature, top_p, top_k, draw = self._given[:count].unbind(1)
        positions = position.long()
        hidden = self._model.hidden(
            token.long(),
            positions.expand(3, -1) if self._model.tower else positions,
            self._cache.decoding(place.long(), seen),
            note=self._cache.experts.decoding(place.long()) if self._cache.experts else None,
        )
        tokens, logprobs = choose(
            self._model.logits(hidden),
            temperature.float(),
            top_p.float(),
            top_k.long(),
            draw.float(),
            cut=cut,
        )
        self._chosen[:count, 0] = tokens
        self._chosen[:count, 1] = logprobs


def recorder(model: ServedModel, wanted: bool | None) -> Record | None:
    """What records the steps of `model`, by default on a GPU alone. On a CPU a step is computed again.

    None where that is not wanted, and for a model whose steps cannot be recorded.
    """
    cuda = model.device.type == "cuda"
    if not model.recordable or not (cuda if wanted is None else wanted):
        return None
    return CudaGraphs() if cuda else _repeat


def _repeat(work: Callable[[], None]) -> Callable[[], None]:
    work()
    return work


class CudaGraphs:
    """Records work as CUDA graphs, which share the memory of what they compute between."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            work()  # this result counts; what libraries do in a first call alone cannot be captured
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        try:  # another thread may load new weights onto the device meanwhile
            with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                work()
        except RuntimeError as error:
            raise RuntimeError(
                f"no CUDA graph could be made of a step ({error}): serve with fewer slots, or with --eager"
            ) from error
        return graph.replay


def _padded(size: int, least: int, most: int) -> int:
    """The smallest of `least`, twice that, and so on, and at last `most`, that holds `size`."""
    while least < size:
        least *= 2
    return min(least, most)
