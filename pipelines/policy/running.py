"""A request that an engine answers: its tokens so far, and what a step needs to know of it."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

import msgspec
import numpy as np
import torch

from orchard.pipelines.policy.decoding import StepInput
from orchard.pipelines.policy.pictures import Layout, Shown
from orchard.pipelines.policy.sampling import LEAST_TEMPERATURE, Draws, Sampling
from orchard.schemas.messages import VersionRun

Ends = Callable[[Sequence[int]], bool]
"""Tells whether an answer, by its tokens so far, is complete for another reason than a stop token."""


class Generated(msgspec.Struct, frozen=True, kw_only=True):
    ids: list[int]
    logprobs: list[float]
    versions: list[VersionRun]
    finish_reason: str
    """Why generation ended: `stop` or `length`."""
    cached: int
    """Tokens of the prompt that were not read again."""
    prompt_logprobs: list[float] | None = None
    """Log-probabilities at temperature 1 of the prompt's tokens after the first; None unless asked for."""
    experts: np.ndarray | None = None
    """Experts of all tokens but the last, [tokens, layers, experts of a token]; None unless asked for."""


class RunningRequest:
    def __init__(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        ends: Ends | None,
        layout: Layout | None,
        *,
        scored: bool,
        routed: bool,
    ) -> None:
        self.tokens = list(prompt)
        self.keys = layout.keys if layout else self.tokens
        """Keys of the prefix cache: token ids, with the picture's content in place of its tokens."""
        self.layout = layout
        self.prompt = len(prompt)
        self.sampling = sampling
        self.ends = ends
        self.draws = Draws(sampling.seed)
        self.logprobs: list[float] = []
        self.versions: list[VersionRun] = []
        self.cached = 0
        self.scored = scored
        self.prompt_logprobs: list[float] | None = [] if scored else None
        self.routed = routed
        self.experts: list[np.ndarray] = []
        """Experts of the first tokens, where these were read again since."""
        self.future: Future[Generated] = Future()

    def take(self, token: int, logprob: float, version: int) -> str | None:
        """Append a sampled token; the finish reason when it was the last."""
        count = len(self.logprobs)
        if not self.versions or self.versions[-1].version != version:
            self.versions.append(VersionRun(start=count, version=version))
        self.tokens.append(token)
        if self.layout:
            self.keys.append(token)
        self.logprobs.append(logprob)
        if token in self.sampling.stop_ids or (self.ends and self.ends(self.tokens[self.prompt :])):
            return "stop"
        return "length" if count + 1 >= self.sampling.max_tokens else None

    def row(self) -> StepInput:
        """What the next step is told. Draws a number."""
        place, said = len(self.tokens) - 1, self.sampling
        position = place + (self.layout.shift if self.layout else 0)
        temperature = said.temperature if said.temperature >= LEAST_TEMPERATURE else 0.0
        top_k, draw = min(said.top_k, 2**31), self.draws.next()  # exact in float64
        return StepInput(self.tokens[-1], place, position, temperature, said.top_p, top_k, draw)

    def positions(self, first: int, end: int) -> torch.Tensor:
        """[3, tokens] of the tokens from `first` to before `end`, in a model that sees."""
        assert self.layout is not None
        said = torch.arange(max(first, self.prompt), max(end, self.prompt)) + self.layout.shift
        return torch.cat([self.layout.positions[:, first:end], said.expand(3, -1)], dim=1)

    def pictures(self, first: int, end: int) -> Iterator[tuple[int, Shown, int, int]]:
        """Pictures between two tokens: where each begins or continues, counted from `first`, and which of
        its tokens these are."""
        for begin, stop, shown in self.layout.pictures if self.layout else ():
            if max(begin, first) < min(stop, end):
                yield max(begin, first) - first, shown, max(first - begin, 0), min(stop, end) - begin
