"""Asks an endpoint for the log-probabilities that its model gives to tokens which it did not sample.

vLLM and Orchard's policy server: `prompt_logprobs` of `/v1/completions`. SGLang: `return_logprob` of its own
`/generate`. Both give them at temperature 1.
"""

import logging
import os
import random
import time
from asyncio import sleep
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from orchard.schemas.decoding import Unreadable, decode
from orchard.schemas.llm_calls import Usage
from orchard.schemas.outcomes import AbortCause
from orchard.workers.failures import InfrastructureError
from orchard.workers.llm.answers import MalformedAnswer
from orchard.workers.llm.connection import EndpointConnection, FailedRequest
from orchard.workers.llm.refusals import Meaning, pause
from orchard.workers.llm.replicas import Replica, choose
from orchard.workers.llm.rest_policy import servers
from orchard.workers.llm.settings import EndpointSettings, ScoringWire, cost_usd

SECONDS = 600.0
"""Time limit of one request."""
_LATER = (Meaning.TRANSIENT, Meaning.THROTTLED)

log = logging.getLogger(__name__)

T = TypeVar("T")


class Passage(NamedTuple):
    """A sequence of tokens, of which those from index `first`, 1 or more, are scored."""

    ids: Sequence[int]
    first: int


class _VllmScore(msgspec.Struct):
    logprob: float


class _VllmChoice(msgspec.Struct):
    index: int = 0
    prompt_logprobs: list[dict[str, _VllmScore] | None] | None = None
    prompt_token_ids: list[int] | None = None


class _VllmReply(msgspec.Struct):
    choices: list[_VllmChoice]


class _SglangMeta(msgspec.Struct):
    input_token_logprobs: list[tuple[float | None, int, Any]] | None = None


class _SglangReply(msgspec.Struct):
    meta_info: _SglangMeta


_VLLM = msgspec.json.Decoder(_VllmReply)
_SGLANG = msgspec.json.Decoder(list[_SglangReply])


class ScoringEndpoint:
    """Asks one model of an endpoint. Use and close it in one event loop."""

    def __init__(self, name: str, settings: EndpointSettings, model: str, wire: ScoringWire) -> None:
        """Raises InfrastructureError (LLM_REFUSED) for a key that is not in the environment."""
        self.name, self.model = name, model
        self._settings, self._wire = settings, wire
        key = os.environ.get(settings.api_key_env, "") if settings.api_key_env else ""
        if settings.api_key_env and not key:
            raise InfrastructureError(
                AbortCause.LLM_REFUSED,
                f"endpoint {name!r} needs its key in the environment variable {settings.api_key_env}: set it",
            )
        self._replicas = [Replica(url) for url in servers(settings)]
        self._connection = EndpointConnection(name, settings, key, servers(settings))

    async def close(self) -> None:
        await self._connection.close()

    def cost_usd(self, tokens: int, passages: int) -> float | None:
        """Price in USD of scoring that many passages with so many tokens together, by the configuration; None
        if it has none. One token of each is sampled, too: the servers take no request without."""
        return cost_usd(self._settings, self.model, Usage(prompt_tokens=tokens, completion_tokens=passages))

    async def score(self, passages: Sequence[Passage]) -> list[list[float]]:
        """Returns the log-probabilities in nats of the scored tokens of each passage, by one request. Waits
        as long as the endpoint fails or asks to wait; raises FailedRequest for a request that would be
        refused again."""
        ids = [passage.ids for passage in passages]
        if self._wire is ScoringWire.VLLM:
            asked = _vllm_request(self.model, ids)
            return await self._answer("/completions", asked, partial(_read_vllm, passages))
        asked = _sglang_request("input_ids", ids, [passage.first - 1 for passage in passages])
        return await self._answer("/generate", asked, partial(_read_sglang, passages))

    async def token_ids(self, text: str, *, patient: bool) -> list[int]:
        """Returns the tokens as which the endpoint reads a text. Raises FailedRequest if it refuses, and
        unless `patient` if it fails."""
        if self._wire is ScoringWire.VLLM:
            asked = _vllm_request(self.model, text) | {"return_token_ids": True}
            return await self._answer("/completions", asked, _vllm_ids, patient=patient)
        asked = _sglang_request("text", [text], [0])
        return await self._answer("/generate", asked, _sglang_ids, patient=patient)

    async def _answer(
        self, route: str, asked: dict[str, Any], reader: Callable[[bytes], T], *, patient: bool = True
    ) -> T:
        request, tries = msgspec.json.encode(asked), 0
        while True:
            tries += 1
            server = choose(self._replicas, self.model, time.monotonic())
            url = server.url if self._wire is ScoringWire.VLLM else server.url.removesuffix("/v1")
            deadline = time.monotonic() + SECONDS
            try:
                answer = await self._connection.read(url + route, request, self.model, deadline, reader)
            except FailedRequest as error:
                if error.meaning is Meaning.TRANSIENT:
                    server.failed(time.monotonic())
                if error.meaning not in _LATER or not patient:
                    raise
                wait = pause(tries, error.failure.asked, random.random())
                log.warning("try %d: %s; next in %.1f s", tries, error.detail, wait)
                await sleep(wait)
            else:
                server.answered()
                return answer


def _vllm_request(model: str, prompt: str | Sequence[Sequence[int]]) -> dict[str, Any]:
    return {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}


def _sglang_request(name: str, prompts: Sequence[Any], starts: list[int]) -> dict[str, Any]:
    return {
        name: prompts,
        "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
        "return_logprob": True,
        "logprob_start_len": starts,
    }


def _read_vllm(passages: Sequence[Passage], raw: bytes) -> list[list[float]]:
    found = []
    choices = sorted(_decoded(_VLLM, raw).choices, key=lambda choice: choice.index)
    for passage, choice in _paired(passages, choices):
        scores = choice.prompt_logprobs or []
        if len(scores) != len(passage.ids):
            raise MalformedAnswer(f"it scores {len(scores)} of {len(passage.ids)} tokens of the prompt")
        scored = zip(passage.ids[passage.first :], scores[passage.first :], strict=True)
        found.append([_of_token(token, known) for token, known in scored])
    return found


def _of_token(token: int, known: dict[str, _VllmScore] | None) -> float:
    if known is None or (score := known.get(str(token))) is None:
        raise MalformedAnswer(f"it has no log-probability of token {token} of the prompt")
    return score.logprob


def _read_sglang(passages: Sequence[Passage], raw: bytes) -> list[list[float]]:
    replies = [reply.meta_info for reply in _decoded(_SGLANG, raw)]
    found = []
    for passage, meta in _paired(passages, replies):
        wanted = list(passage.ids[passage.first :])
        scores = (meta.input_token_logprobs or [])[-len(wanted) :]
        logprobs = [score for score, _, _ in scores if score is not None]
        if [token for _, token, _ in scores] != wanted or len(logprobs) != len(wanted):
            raise MalformedAnswer("its `input_token_logprobs` are not of the tokens that were sent")
        found.append(logprobs)
    return found


def _vllm_ids(raw: bytes) -> list[int]:
    choice = next(iter(_decoded(_VLLM, raw).choices), _VllmChoice())
    if choice.prompt_logprobs is None:
        raise MalformedAnswer("it gives no `prompt_logprobs`, as vLLM and `orchard serve-policy` do")
    if choice.prompt_token_ids is None:
        raise MalformedAnswer("it does not tell the tokens of a text: vLLM does from version 0.10.2 on")
    return choice.prompt_token_ids


def _sglang_ids(raw: bytes) -> list[int]:
    replies = _decoded(_SGLANG, raw)
    if not replies or replies[0].meta_info.input_token_logprobs is None:
        raise MalformedAnswer("it has no `input_token_logprobs`")
    return [token for _, token, _ in replies[0].meta_info.input_token_logprobs]


def _paired(passages: Sequence[Passage], answers: Sequence[T]) -> list[tuple[Passage, T]]:
    if len(answers) != len(passages):
        raise MalformedAnswer(f"it answers {len(answers)} of {len(passages)} prompts")
    return list(zip(passages, answers, strict=True))


def _decoded(decoder: "msgspec.json.Decoder[T]", raw: bytes) -> T:
    try:
        return decode(decoder, raw)
    except Unreadable as error:
        raise MalformedAnswer(f"the reply is no scoring of tokens: {error}") from error
