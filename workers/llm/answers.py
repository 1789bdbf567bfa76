"""Reading a chat completion as servers really write it: OpenAI's fields, vLLM's and SGLang's additions."""

import json
import logging
import math
import re
from collections.abc import Sequence
from itertools import chain, count
from typing import Any, TypeVar

import msgspec

from orchard.schemas.decoding import TooDeep, Unreadable, decode
from orchard.schemas.llm_calls import ModelKind, Usage
from orchard.schemas.messages import TokenRecord, ToolCall, VersionRun

ORACLE_FINGERPRINT = "orchard-oracle"
"""How the `system_fingerprint` of everything played from a gold patch begins."""
REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Fields in which servers put a message's reasoning: DeepSeek, SGLang and older vLLM the first; OpenRouter
and vLLM since 0.16 the second, and each reads no other."""
UNPARSED = "unparsed"
"""How an answer ended that its server could not read: our word, no server's."""
_UNKNOWN_LOGPROB = -9999.0
"""vLLM's for a token whose log-probability it does not know."""
_ABOVE_ZERO = 0.01
"""No log-probability is above zero but by rounding."""
_LARGEST_ID = 2**31 - 1
_MOST_TOKENS = 10**9
_DIGITS = 19
"""Digits, or a sign and digits, that may be more than 64 bits."""
_LONGEST_WORD = 256
_VERSION = re.compile(r"(?:v|[a-z0-9_-]+#)?([0-9]{1,9})")
"""What servers call a policy: `7`, `v7`, or `first#7` of a run. `1.0` and `qwen2.5` are no policies."""

log = logging.getLogger(__name__)

T = TypeVar("T")


class MalformedAnswer(ValueError):
    """A 2xx reply without a usable choice; one sentence says what is wrong."""

    def __init__(self, detail: str, error: object = None) -> None:
        super().__init__(detail)
        self.error = error
        """What the reply held under `error`, as some routers answer 200 to a refusal."""


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """One assistant message, with all that the endpoint said about how it was made."""

    text: str
    reasoning: str = ""
    reasoning_field: str = ""
    """Where the answer had it; empty without any."""
    tool_calls: tuple[ToolCall, ...] = ()
    tokens: TokenRecord | None = None
    usage: Usage = Usage()
    cost_usd: float | None = None
    seconds: float = 0.0
    """Of the try that was answered; waiting for a place and earlier tries are not the model's time."""
    tries: int = 1
    seed: int | None = None
    """Of the try that was answered: another one than was asked for, where the server failed at that."""
    tools_left_out: bool | None = None
    """Whether the endpoint's template leaves the tools of the request out; None where that is not known."""
    finish_reason: str = ""
    endpoint: str = ""
    model: str = ""
    """As asked for."""
    served_model: str = ""
    system_fingerprint: str = ""
    model_kind: ModelKind = ModelKind.MODEL


class _Message(msgspec.Struct):
    content: Any = None
    tool_calls: Any = None
    reasoning_content: Any = None
    reasoning: Any = None


class _Sampled(msgspec.Struct):
    logprob: float | None = None
    token: str = ""


class _Logprobs(msgspec.Struct):
    content: list[_Sampled] | None = None


class _Span(msgspec.Struct):
    start: int
    version: int | str


class _Weights(msgspec.Struct):
    """SGLang's words on which weights sampled: spans of tokens, or one version for all."""

    weight_versions: list[_Span] | None = None
    weight_version: int | str | None = None

    @property
    def spans(self) -> list[_Span]:
        one = [] if self.weight_version is None else [_Span(start=0, version=self.weight_version)]
        return self.weight_versions or one


class _Extension(_Weights):
    """What SGLang puts beside the choices: ids of the prompt, and of each choice's tokens."""

    input_ids: list[int] | None = None
    output_ids: list[list[int]] | None = None


class _MetaInfo(_Weights):
    output_token_logprobs: list[tuple[float | None, int, Any]] | None = None


class _BareChoice(msgspec.Struct):
    message: _Message = msgspec.field(default_factory=_Message)
    finish_reason: Any = None


class _Choice(_BareChoice):
    logprobs: _Logprobs | None = None
    token_ids: list[int] | None = None
    response_token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    policy_versions: list[_Span] | None = None
    weight_versions: list[_Span] | None = None
    meta_info: _MetaInfo | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _CompletionDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None


class _BareReply(msgspec.Struct):
    """The message alone, without what the endpoint says about its tokens."""

    choices: Sequence[_BareChoice] | None = None
    model: Any = None
    system_fingerprint: Any = None
    error: Any = None


class _Reply(_BareReply):
    choices: Sequence[_Choice] | None = None
    usage: _Usage | None = None
    prompt_token_ids: list[int] | None = None
    metadata: _Weights | None = None
    sglext: _Extension | None = None


_DECODER = msgspec.json.Decoder(_Reply)
_BARE = msgspec.json.Decoder(_BareReply)


def read_completion(raw: bytes) -> Completion:
    """The completion in the body of a 2xx reply; `endpoint`, `model`, cost and time are the caller's to add.

    Raises MalformedAnswer when the body is no chat completion or has no choice. One whose message is nested
    too deep to be read is the model's doing: `cut_short`.
    """
    try:
        reply, whole = _read(raw)
    except TooDeep:
        return cut_short()
    if not reply.choices:
        raise MalformedAnswer("the reply has no choices", reply.error)
    choice = reply.choices[0]
    message = choice.message
    fingerprint = _word(reply.system_fingerprint)
    field = next((name for name in REASONING_FIELDS if _text(getattr(message, name))), "")
    return Completion(
        text=_text(message.content),
        reasoning=_text(getattr(message, field, None)),
        reasoning_field=field,
        tool_calls=_calls(message.tool_calls),
        tokens=_tokens(whole, whole.choices[0]) if whole is not None and whole.choices else None,
        usage=_usage(whole.usage if whole is not None else None),
        finish_reason=_word(choice.finish_reason),
        served_model=_word(reply.model),
        system_fingerprint=fingerprint,
        model_kind=ModelKind.ORACLE if fingerprint.startswith(ORACLE_FINGERPRINT) else ModelKind.MODEL,
    )


def cut_short() -> Completion:
    """What stands for an answer that has no end, in length or in depth: an empty message that was cut off."""
    return Completion(text="", finish_reason="length")


def unparsed() -> Completion:
    """What stands for an answer that its server could not read: an empty message, ended by UNPARSED."""
    return Completion(text="", finish_reason=UNPARSED)


def _read(raw: bytes) -> tuple[_BareReply, _Reply | None]:
    """The reply, and the same with all that is said about its tokens, where that is usable."""
    try:
        reply = decode(_DECODER, raw)
        return reply, reply
    except TooDeep:
        raise
    except Unreadable as error:
        first = error
    usable = usable_values(raw, first)
    try:
        reply = decode(_DECODER, usable)
    except Unreadable as error:
        try:
            bare = decode(_BARE, usable)
        except Unreadable:
            raise MalformedAnswer(f"the reply is not a chat completion: {first}") from first
        log.warning("a reply's token counts and tokens are left out, since they cannot be read: %s", error)
        return bare, None
    log.warning("a reply holds values that cannot be read and count as missing: %s", first)
    return reply, reply


def usable_values(raw: bytes, why: Unreadable) -> bytes:
    """The JSON with numbers that fit no type as null, and text that is no Unicode with U+FFFD."""
    try:
        value = json.loads(
            raw.decode("utf-8", "replace"),
            parse_constant=lambda _: None,
            parse_int=lambda digits: int(digits) if len(digits) < _DIGITS else None,
            parse_float=lambda digits: number if math.isfinite(number := float(digits)) else None,
        )
        return (
            json.dumps(value, ensure_ascii=False)
            .encode("utf-16", "surrogatepass")
            .decode("utf-16", "replace")
            .encode()
        )
    except RecursionError as error:
        raise TooDeep("it is nested too deep") from error
    except ValueError as error:
        raise MalformedAnswer(f"the reply is not a chat completion: {why}") from error


def _word(value: Any) -> str:
    """A name that the endpoint gives: text of a sane length, or nothing."""
    return value[:_LONGEST_WORD] if isinstance(value, str) else ""


def _text(content: Any) -> str:
    """Text of a string or of a list of content parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return ""


def _calls(calls: Any) -> tuple[ToolCall, ...]:
    """Calls as the model wrote them, with an id made where the endpoint gave none, one twice or none that can
    be sent back. What is no call at all becomes one of a tool without a name."""
    written: dict[str, ToolCall] = {}
    for index, call in enumerate(calls if isinstance(calls, list) else []):
        found = call if isinstance(call, dict) else {}
        function = found.get("function")
        part = function if isinstance(function, dict) else {"arguments": function}
        name = found.get("id")
        if not (isinstance(name, str) and 0 < len(name) <= _LONGEST_WORD) or name in written:
            name = next(made for number in count(index) if (made := f"call_{number}") not in written)
        tool = part.get("name")
        written[name] = ToolCall(
            id=name, name=tool if isinstance(tool, str) else "", arguments=_as_text(part.get("arguments"))
        )
    return tuple(written.values())


def _as_text(arguments: Any) -> str:
    """Arguments as the model wrote them; those that an endpoint has parsed are written again."""
    if isinstance(arguments, str):
        return arguments
    return "" if arguments is None else msgspec.json.encode(arguments).decode()


def _usage(usage: _Usage | None) -> Usage:
    """The counts that can be true: none below zero, none beyond what any model reads or writes."""
    if usage is None:
        return Usage()
    prompt = usage.prompt_tokens_details or _PromptDetails()
    completion = usage.completion_tokens_details or _CompletionDetails()
    read, sampled = _count(usage.prompt_tokens), _count(usage.completion_tokens)
    reasoning = _count(completion.reasoning_tokens) or _count(usage.reasoning_tokens)
    return Usage(
        prompt_tokens=read,
        completion_tokens=sampled,
        cached_tokens=min(_count(prompt.cached_tokens), read),
        reasoning_tokens=min(reasoning, sampled),
    )


def _count(tokens: int | None) -> int:
    if tokens is None or 0 <= tokens <= _MOST_TOKENS:
        return tokens or 0
    log.warning("an endpoint counts %d tokens: left out", tokens)
    return 0


def _tokens(reply: _Reply, choice: _Choice) -> TokenRecord | None:
    """Sampled tokens, wherever the server put them; None when it gave neither ids nor log-probabilities.

    vLLM (`return_token_ids`): `choice.token_ids` and the reply's `prompt_token_ids`, or log-probability
    tokens `token_id:<n>`. SGLang: `response_token_ids` and `prompt_token_ids` of the choice, the ids in
    `sglext`, or (log-probability, id, text) triples in `choice.meta_info`. Log-probabilities that do not
    align with the ids are left out, and so are versions without a number. Our own policy server: vLLM's
    fields and `choice.policy_versions`.
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
    """What stands in the first of the places that has something."""
    return next(filter(None, places), ())


def _ids(reply: _Reply, choice: _Choice) -> Sequence[int]:
    """Ids of the sampled tokens."""
    beside = reply.sglext or _Extension()
    return _given(
        choice.token_ids,
        choice.response_token_ids,
        _given(beside.output_ids, [[]])[0],
        [token for _, token, _ in _triples(choice)],
        _written_ids(_sampled(choice)),
    )


def _logprobs(choice: _Choice) -> list[float]:
    """Log-probabilities of the sampled tokens; none unless all are known."""
    written = [token.logprob for token in _sampled(choice)]
    found = _given([triple[0] for triple in _triples(choice)], written)
    known = [value for value in found if value is not None and _UNKNOWN_LOGPROB < value < _ABOVE_ZERO]
    return known if len(known) == len(found) else []


def _sampled(choice: _Choice) -> Sequence[_Sampled]:
    return _given(choice.logprobs.content if choice.logprobs else None)


def _triples(choice: _Choice) -> Sequence[tuple[float | None, int, Any]]:
    return _given(choice.meta_info.output_token_logprobs if choice.meta_info else None)


def _spans(reply: _Reply, choice: _Choice) -> Sequence[_Span]:
    """Where policy versions begin, wherever the server put them."""
    beside = [weights.spans for weights in (choice.meta_info, reply.sglext, reply.metadata) if weights]
    return _given(choice.policy_versions, choice.weight_versions, *beside)


def _versions(spans: Sequence[_Span], tokens: int) -> tuple[VersionRun, ...]:
    """Runs of policy versions over `tokens` tokens; none unless all are known."""
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
    found = [re.fullmatch(r"token_id:([0-9]{1,10})", token.token) for token in sampled]
    return [int(match[1]) for match in found if match] if all(found) else []
