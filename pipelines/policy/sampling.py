"""Chooses tokens: a batch of distributions, each with its own temperature, cuts and random numbers."""

import secrets

import msgspec
import torch

LEAST_TEMPERATURE = 1e-5
"""Temperatures below are taken for 0: dividing by them leaves the range of float32."""
_DRAWN_AT_ONCE = 64


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How one request chooses its tokens."""

    max_tokens: int
    temperature: float = 1.0
    """Temperature; 0: always the most probable token."""
    top_p: float = 1.0
    top_k: int = 0
    """Number of most probable tokens to choose from; 0: all."""
    seed: int | None = None
    stop_ids: frozenset[int] = frozenset()
    """Tokens that end the answer; the one that did is its last."""


class Draws:
    """Uniform numbers in [0, 1) of one request: the same for the same seed, whatever else is in the batch."""

    def __init__(self, seed: int | None) -> None:
        self._generator = torch.Generator()
        self._generator.manual_seed(secrets.randbits(63) if seed is None else seed % 2**63)
        self._ready: list[float] = []

    def next(self) -> float:
        if not self._ready:
            self._ready = torch.rand(_DRAWN_AT_ONCE, generator=self._generator).tolist()[::-1]
        return self._ready.pop()


def choose(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_p: torch.Tensor,
    top_k: torch.Tensor,
    draws: torch.Tensor,
    *,
    cut: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A token for each row of `logits` [rows, vocabulary], and its log-probability in nats: both [rows].

    The other tensors are [rows] on the same device: numbers of each row's `Sampling`, and of its `Draws`.
    Unless `cut`, no row has a `top_p` or `top_k`. The log-probability is of the distribution at the request's
    temperature before these cut it; at temperature 0 it is that of temperature 1.
    """
    greedy = temperature == 0.0
    logits = logits / temperature.masked_fill(greedy, 1.0)[:, None]
    logprobs = torch.log_softmax(logits, dim=-1)
    probabilities = logprobs.exp()
    if cut:
        probabilities = _cut(probabilities, top_p[:, None], top_k[:, None])
    summed = probabilities.cumsum(dim=-1)
    whole = summed[:, -1:]
    drawn = draws[:, None] * whole
    # Rounding must not carry a draw to the very end, behind the last token that has a probability.
    drawn = torch.minimum(drawn, torch.nextafter(whole, torch.zeros_like(whole)))
    chosen = torch.searchsorted(summed, drawn, right=True)
    chosen = torch.where(greedy[:, None], logits.argmax(dim=-1, keepdim=True), chosen)
    return chosen[:, 0], logprobs.gather(1, chosen)[:, 0]


def _cut(probabilities: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """Zero all but the `top_k` most probable tokens, of these all but the fewest that sum to `top_p`."""
    size = probabilities.shape[1]
    ordered, places = probabilities.sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(size, device=probabilities.device)
    ordered = ordered * (ranks < top_k.masked_fill(top_k == 0, size))
    before = ordered.cumsum(dim=-1) - ordered
    kept = (before < top_p * ordered.sum(dim=-1, keepdim=True)) | (top_p >= 1.0) | (ranks == 0)
    return torch.zeros_like(probabilities).scatter_(1, places, ordered * kept)
