"""Reads what a chat completion says about its tokens, as vLLM, SGLang, llama.cpp and Orchard's policy server
do."""

import logging
import re
from collections.abc import Sequence
from itertools import chain
from typing import Any, TypeVar

import msgspec

from orchard.schemas.messages import TokenRecord, VersionRun

_UNKNOWN_LOGPROB = -9999.0
"""Value of vLLM for a token whose log-probability it does not know."""
_ABOVE_ZERO = 0.01
"""Bound of log-probabilities, which are above zero only by rounding."""
_LARGEST_ID = 2**31 - 1
_VERSION = re.compile(r"(?:v|[a-z0-9_-]+#)?([0-9]{1,9})")
"""Names that servers give a policy: `7`, `v7`, or `first#7` of a run. `1.0` and `qwen2.5` are no policies."""

log = logging.getLogger(__name__)

T = TypeVar("T")


class AnswerMessage(msgspec.Struct):
    content: str | list[Any] | None = None
    refusal: Any = None
    tool_calls: Any = None
    function_call: Any = None
    reasoning_content: Any = None
    reasoning: Any = None


class _Sampled(msgspec.Struct):
    logprob: float | None = None
    token: str = ""
    id: Any = None
    """The token's id in llama.cpp's server."""


class _Logprobs(msgspec.Struct):
    content: list[_Sampled] | None = None


class _Span(msgspec.Struct):
    start: int
    version: int | str


class _Weights(msgspec.Struct):
    """SGLang's versions of the weights that sampled: spans of tokens, or one version for all."""

    weight_versions: list[_Span] | None = None
    weight_version: int | str | None = None

    @property
    def spans(self) -> list[_Span]:
        one = [] if self.weight_version is None else [_Span(start=0, version=self.weight_version)]
        return self.weight_versions or one


class _Extension(_Weights):
    """SGLang's fields beside the choices: ids of the prompt, and of each choice's tokens."""

    input_ids: list[int] | None = None
    output_ids: list[list[int]] | None = None
    routed_experts: Any = None


class _MetaInfo(_Weights):
    output_token_logprobs: list[tuple[float | None, int, Any]] | None = None
    routed_experts: Any = None


class BareChoice(msgspec.Struct):
    message: AnswerMessage
    finish_reason: Any = None


class ChatChoice(BareChoice):
    logprobs: _Logprobs | None = None
    token_ids: list[int] | None = None
    response_token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    policy_versions: list[_Span] | None = None
    weight_versions: list[_Span] | None = None
    meta_info: _MetaInfo | None = None
    routed_experts: Any = None
    """Read by `orchard.workers.llm.routed_experts`."""


class BareReply(msgspec.Struct):
    """The message alone, without what the endpoint says about its tokens."""

    choices: Sequence[BareChoice] | None = None
    usage: Any = None
    model: Any = None
    system_fingerprint: Any = None


class ChatReply(BareReply):
    choices: Sequence[ChatChoice] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_routed_experts: Any = None
    metadata: _Weights | None = None
    sglext: _Extension | None = None


def token_record(reply: ChatReply, choice: ChatChoice) -> TokenRecord | None:
    """Returns the sampled tokens, wherever the server put them; None if it gave neither ids nor
    log-probabilities.

    vLLM (`return_token_ids`): `choice.token_ids` and the reply's `prompt_token_ids`, or log-probability
    tokens `token_id:<n>`. SGLang: `response_token_ids` and `prompt_token_ids` of the choice, the ids in
    `sglext`, or (log-probability, id, text) triples in `choice.meta_info`. llama.cpp: the `id` of each entry
    of `logprobs`. Orchard's policy server: vLLM's fields and `choice.policy_versions`. Log-probabilities that
    do not align with the ids are left out, and so are versions without a number.
    """
    ids, logprobs = _ids(reply, choice), _logprobs(choice)
    if ids and len(logprobs) != len(ids):
        logprobs = []
    if not ids and not logprobs:
        return None
    beside = reply.sglext or _Extension()
    prompt = _given(reply.prompt_token_ids, choice.prompt_token_ids, beside.input_ids)
    if not all(0 <= token <= _LARGEST_ID for token in chain(ids, prompt)):
        log.warning("a reply's tokens are left out: some of their ids are no ids")
        return None
    return TokenRecord(
        ids=tuple(ids),
        logprobs=tuple(logprobs),
        prompt_ids=tuple(prompt),
        versions=_versions(_spans(reply, choice), max(len(ids), len(logprobs))),
    )


def _given(*places: Sequence[T] | None) -> Sequence[T]:
    return next(filter(None, places), ())


def _ids(reply: ChatReply, choice: ChatChoice) -> Sequence[int]:
    beside = reply.sglext or _Extension()
    return _given(
        choice.token_ids,
        choice.response_token_ids,
        _given(beside.output_ids, [[]])[0],
        [token for _, token, _ in _triples(choice)],
        _written_ids(_sampled(choice)),
    )


def _logprobs(choice: ChatChoice) -> list[float]:
    """Returns the log-probabilities of the sampled tokens; none unless all are known."""
    written = [token.logprob for token in _sampled(choice)]
    found = _given([triple[0] for triple in _triples(choice)], written)
    known = [value for value in found if value is not None and _UNKNOWN_LOGPROB < value < _ABOVE_ZERO]
    return known if len(known) == len(found) else []


def _sampled(choice: ChatChoice) -> Sequence[_Sampled]:
    return _given(choice.logprobs.content if choice.logprobs else None)


def _triples(choice: ChatChoice) -> Sequence[tuple[float | None, int, Any]]:
    return _given(choice.meta_info.output_token_logprobs if choice.meta_info else None)


def _spans(reply: ChatReply, choice: ChatChoice) -> Sequence[_Span]:
    """Returns the spans of policy versions, wherever the server put them."""
    beside = [weights.spans for weights in (choice.meta_info, reply.sglext, reply.metadata) if weights]
    return _given(choice.policy_versions, choice.weight_versions, *beside)


def _versions(spans: Sequence[_Span], tokens: int) -> tuple[VersionRun, ...]:
    """Returns the runs of policy versions over `tokens` tokens; none unless all are known."""
    numbers = [_VERSION.fullmatch(str(span.version)) for span in spans]
    starts = [span.start for span in spans]
    ordered = starts[:1] == [0] and starts == sorted(set(starts)) and starts[-1] < tokens
    if None in numbers or not ordered:
        return ()
    return tuple(
        VersionRun(start=start, version=int(number[1]))
        for start, number in zip(starts, numbers, strict=True)
        if number
    )


def _written_ids(sampled: Sequence[_Sampled]) -> list[int]:
    found = [_written_id(token) for token in sampled]
    return [number for number in found if number is not None] if None not in found else []


def _written_id(token: _Sampled) -> int | None:
    if type(token.id) is int:
        return token.id
    match = re.fullmatch(r"token_id:([0-9]{1,10})", token.token)
    return int(match[1]) if match else None
