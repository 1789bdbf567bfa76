"""Log-probabilities of given tokens, over the wires of vLLM and SGLang; a fake server answers over HTTP."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from orchard.workers.llm import scoring
from orchard.workers.llm.connection import FailedRequest
from orchard.workers.llm.scoring import Passage, ScoringEndpoint
from orchard.workers.llm.settings import EndpointSettings, Price, ScoringWire

PASSAGES = [Passage([5, 6, 7, 8], 2), Passage([5, 9], 1)]
SCORES = [[-0.25, -1.5], [-3.0]]
Answer = Callable[[dict[str, Any]], tuple[int, Any]]


@asynccontextmanager
async def endpoint(
    wire: ScoringWire, answer: Answer, **settings: Any
) -> AsyncIterator[tuple[ScoringEndpoint, list[tuple[str, dict[str, Any]]]]]:
    asked: list[tuple[str, dict[str, Any]]] = []

    async def handle(request: web.Request) -> web.Response:
        body = await request.json()
        asked.append((request.path, body))
        status, reply = answer(body)
        return web.json_response(reply, status=status)

    app = web.Application()
    app.router.add_post("/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    scorer = ScoringEndpoint("teacher", EndpointSettings(base_url=url, **settings), "big", wire)
    try:
        yield scorer, asked
    finally:
        await scorer.close()
        await runner.cleanup()


def vllm_choice(index: int, ids: list[int], logprobs: list[float]) -> dict[str, Any]:
    """A choice as vLLM 0.11 has it: the first token is scored by nothing, others under their ids, beside the
    most probable token where `prompt_logprobs` asks for that."""
    scored = zip(ids[1:], logprobs, strict=True)
    return {
        "index": index,
        "text": " x",
        "logprobs": None,
        "finish_reason": "length",
        "stop_reason": None,
        "token_ids": None,
        "prompt_logprobs": [
            None,
            *(
                {
                    str(token): {"logprob": logprob, "rank": 3, "decoded_token": "a"},
                    "77": {"logprob": -0.1, "rank": 1, "decoded_token": "b"},
                }
                for token, logprob in scored
            ),
        ],
        "prompt_token_ids": ids,
    }


def vllm(_: dict[str, Any]) -> tuple[int, Any]:
    choices = [vllm_choice(1, [5, 9], [-3.0]), vllm_choice(0, [5, 6, 7, 8], [-9.0, -0.25, -1.5])]
    usage = {"prompt_tokens": 6, "total_tokens": 8, "completion_tokens": 2, "prompt_tokens_details": None}
    return 200, {
        "id": "cmpl-1",
        "object": "text_completion",
        "model": "big",
        "choices": choices,
        "usage": usage,
    }


def sglang(_: dict[str, Any]) -> tuple[int, Any]:
    """The reply of SGLang 0.5 to a batch: triples from `logprob_start_len` on, the first without a value."""

    def one(triples: list[list[Any]], prompt: int) -> dict[str, Any]:
        meta = {
            "id": "1f",
            "finish_reason": {"type": "length", "length": 1},
            "prompt_tokens": prompt,
            "weight_version": "default",
            "input_token_logprobs": triples,
            "output_token_logprobs": [[-0.5, 4, None]],
            "completion_tokens": 1,
            "cached_tokens": 0,
            "e2e_latency": 0.01,
        }
        return {"text": " x", "output_ids": [4], "meta_info": meta}

    first = one([[None, 6, None], [-0.25, 7, None], [-1.5, 8, None]], 4)
    return 200, [first, one([[None, 5, None], [-3.0, 9, None]], 2)]


async def test_vllm_is_asked_for_all_passages_at_once():
    async with endpoint(ScoringWire.VLLM, vllm) as (scorer, asked):
        assert await scorer.score(PASSAGES) == SCORES
    assert asked == [
        (
            "/v1/completions",
            {
                "model": "big",
                "prompt": [[5, 6, 7, 8], [5, 9]],
                "max_tokens": 1,
                "temperature": 0.0,
                "prompt_logprobs": 0,
            },
        )
    ]


async def test_sglang_is_asked_from_the_token_before_the_first_that_is_scored():
    async with endpoint(ScoringWire.SGLANG, sglang) as (scorer, asked):
        assert await scorer.score(PASSAGES) == SCORES
    assert asked == [
        (
            "/generate",
            {
                "input_ids": [[5, 6, 7, 8], [5, 9]],
                "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
                "return_logprob": True,
                "logprob_start_len": [1, 0],
            },
        )
    ]


@pytest.mark.parametrize(("wire", "answer"), [(ScoringWire.VLLM, vllm), (ScoringWire.SGLANG, sglang)])
async def test_a_server_that_fails_is_asked_again(wire, answer, monkeypatch):
    monkeypatch.setattr(scoring, "pause", lambda *_: 0.0)
    left = [503, 500]

    def sometimes(body: dict[str, Any]) -> tuple[int, Any]:
        return (left.pop(), {"error": {"message": "not now"}}) if left else answer(body)

    async with endpoint(wire, sometimes) as (scorer, asked):
        assert await scorer.score(PASSAGES) == SCORES
    assert len(asked) == 3


async def test_scores_of_other_tokens_are_no_answer(monkeypatch):
    monkeypatch.setattr(scoring, "pause", lambda *_: 0.0)
    replies = [
        sglang({}),
        (
            200,
            [*sglang({})[1][:1], {"meta_info": {"input_token_logprobs": [[None, 5, None], [-1.0, 8, None]]}}],
        ),
    ]
    async with endpoint(ScoringWire.SGLANG, lambda _: replies.pop()) as (scorer, asked):
        assert await scorer.score(PASSAGES) == SCORES
    assert len(asked) == 2


async def test_a_refusal_is_raised_with_the_servers_words():
    refusal = {"error": {"message": "This model's maximum context length is 4 tokens", "code": 400}}
    async with endpoint(ScoringWire.VLLM, lambda _: (400, refusal)) as (scorer, _):
        with pytest.raises(FailedRequest, match="maximum context length is 4"):
            await scorer.score(PASSAGES)


async def test_a_server_without_prompt_logprobs_is_named():
    reply = {"choices": [{"index": 0, "text": "x", "prompt_token_ids": [1]}]}
    async with endpoint(ScoringWire.VLLM, lambda _: (200, reply)) as (scorer, _):
        with pytest.raises(FailedRequest, match="gives no `prompt_logprobs`, as vLLM"):
            await scorer.token_ids("a text", patient=False)


async def test_reading_has_a_price():
    prices = {"big": Price(prompt=1.0, completion=10.0)}
    async with endpoint(ScoringWire.VLLM, vllm, prices=prices) as (scorer, _):
        assert scorer.cost_usd(1_000_000, 2) == pytest.approx(1.00002)
    async with endpoint(ScoringWire.VLLM, vllm) as (scorer, _):
        assert scorer.cost_usd(1_000_000, 2) is None
