"""Generation on a GPU: the policy server's engine with and without CUDA graphs, and continuous batching of
`transformers`. For the table of tests.benchmarks.gpu."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel

from orchard.pipelines.policy.engine import EngineSettings, GenerationEngine
from orchard.pipelines.policy.running import Generated
from orchard.pipelines.policy.sampling import Sampling
from orchard.pipelines.policy.weights import ServedModel

_CONTEXT, _PAGE = 1024, 256
_WARM = 16
"""Tokens of each answer before the clock runs: enough for all requests to run at once, so that every shape of
a step has come."""


class Work(NamedTuple):
    """Requests that all come at once."""

    requests: int
    vocabulary: int
    prompt: int
    """Tokens of each prompt."""
    answer: int
    """Tokens of each answer."""


Ask = Callable[[list[list[int]], int], Any]
"""Answers prompts with so many tokens each."""


def seconds(ask: Ask, work: Work) -> float:
    """Of the answers; prompts are read in them."""
    spent = 0.0
    for round_number, tokens in enumerate((_WARM, work.answer)):
        prompts = _prompts(work, round_number)
        started = time.perf_counter()
        ask(prompts, tokens)
        spent = time.perf_counter() - started
    return spent


@contextmanager
def ours(model: PreTrainedModel, work: Work, *, graphs: bool) -> Iterator[Callable[..., list[Generated]]]:
    """The engine, with a slot for each request."""
    settings = EngineSettings(slots=work.requests, context=_CONTEXT, graphs=graphs)
    engine = GenerationEngine(ServedModel(model), 0, settings)

    def ask(prompts: list[list[int]], tokens: int) -> list[Generated]:
        asked = [engine.submit(each, Sampling(max_tokens=tokens, seed=n)) for n, each in enumerate(prompts)]
        return [answer.result() for answer in asked]

    engine.start()
    try:
        yield ask
    finally:
        engine.stop(0.0)


@contextmanager
def theirs(model: PreTrainedModel, work: Work) -> Iterator[Ask]:
    """Continuous batching of `transformers`, with as much memory for keys and values."""
    sampling = GenerationConfig(do_sample=True, temperature=1.0, top_k=0, top_p=1.0, eos_token_id=-1)
    limits = ContinuousBatchingConfig(
        page_size=_PAGE,
        num_blocks=work.requests * _CONTEXT // _PAGE,
        max_batch_tokens=EngineSettings().prefill,
    )
    with model.continuous_batching_context_manager(
        generation_config=sampling, continuous_batching_config=limits
    ) as manager:

        def ask(prompts: list[list[int]], tokens: int) -> None:
            left = set(manager.add_requests(prompts, max_new_tokens=tokens))
            while left:
                answer = manager.get_result(timeout=60)
                if answer is None or answer.error:
                    raise RuntimeError(f"continuous batching failed: {answer and answer.error}")
                if answer.is_finished():
                    left.discard(answer.request_id)

        yield ask


def agreement(make: Callable[[], PreTrainedModel], work: Work) -> str:
    """What differs between answers with and without graphs."""
    found = []
    for graphs in (True, False):
        with ours(make(), work, graphs=graphs) as ask:
            found.append(ask(_prompts(work, 0), work.answer))
    alike, far = 0, 0.0
    for one, other in zip(*found, strict=True):
        pairs = zip(one.ids, other.ids, one.logprobs, other.logprobs, strict=True)
        for token, same, logprob, near in pairs:
            if token != same:
                break
            alike, far = alike + 1, max(far, abs(logprob - near))
    total = work.requests * work.answer
    return (
        f"{work.requests} answers with and without graphs: {alike} of {total} tokens alike up to each "
        f"answer's first difference, their log-probabilities to {far:.1e}"
    )


def _prompts(work: Work, seed: int) -> list[list[int]]:
    random = np.random.default_rng(seed)
    found: list[list[int]] = random.integers(0, work.vocabulary, (work.requests, work.prompt)).tolist()
    return found
