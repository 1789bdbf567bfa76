"""Reads chat completions as servers really write them: OpenAI's fields, vLLM's and SGLang's additions."""

import json
import logging
import math
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import msgspec

from orchard.schemas.decoding import TooDeep, Unreadable, decode
from orchard.schemas.llm_calls import ModelKind, Usage
from orchard.schemas.messages import TokenRecord, ToolCall
from orchard.workers.llm.endings import UNPARSED, ending, failure
from orchard.workers.llm.routed_experts import ReportedExperts, reported_experts
from orchard.workers.llm.sampled_tokens import AnswerMessage, BareReply, ChatReply, token_record

ORACLE_FINGERPRINT = "orchard-oracle"
"""Prefix of the `system_fingerprint` of everything played from a gold patch."""
REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Fields in which servers put a message's reasoning: DeepSeek, SGLang and older vLLM the first; OpenRouter
and vLLM since 0.16 the second, and each reads no other."""
_CALLS = ("tool_calls", "function_call")
"""Finish reasons of an answer that calls something."""
_THOUGHTS = ("thinking", "redacted_thinking", "reasoning")
"""Types of content parts that hold no text."""
_DIGITS = 19
"""Digits, or a sign and digits, from which on a number may exceed 64 bits."""
_LONGEST_WORD = 256
_EXCERPT = 200
"""Characters of a reply that an error quotes."""

log = logging.getLogger(__name__)


class MalformedAnswer(ValueError):
    """A 2xx reply is no answer of the model, or its end is not known; the text says what is wrong, and quotes
    it."""

    def __init__(self, detail: str, error: object = None) -> None:
        super().__init__(detail)
        self.error = error
        """The error that the reply reports: some routers answer 200 to a refusal."""


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """One assistant message, with all that the endpoint said about how it was made."""

    text: str
    reasoning: str = ""
    reasoning_field: str = ""
    """Name of the field in which the answer had its reasoning; empty without any."""
    tool_calls: tuple[ToolCall, ...] = ()
    tokens: TokenRecord | None = None
    experts: ReportedExperts | None = None
    """Experts of the tokens, as the server reports them."""
    usage: Usage = Usage()
    cost_usd: float | None = None
    seconds: float = 0.0
    """Seconds of the try that was answered; waiting for a place and earlier tries are not the model's
    time."""
    seconds_waiting: float = 0.0
    """Seconds before the try that was answered."""
    tries: int = 1
    seed: int | None = None
    """Seed of the try that was answered: not the requested one if the server failed at that."""
    tools_left_out: bool | None = None
    """Whether the endpoint's template leaves the tools of the request out; None if that is not known."""
    finish_reason: str = ""
    endpoint: str = ""
    model: str = ""
    """The model's name in the request."""
    served_model: str = ""
    system_fingerprint: str = ""
    model_kind: ModelKind = ModelKind.MODEL


_DECODER = msgspec.json.Decoder(ChatReply)
_BARE = msgspec.json.Decoder(BareReply)
_ANY = msgspec.json.Decoder()


def read_completion(raw: bytes) -> Completion:
    """Reads the completion in the body of a 2xx reply; the caller adds `endpoint`, `model`, cost and time.

    Raises MalformedAnswer for a body that is no chat completion, has no choice, reports an error anywhere, or
    does not say how the answer ended; TooDeep for one that is nested deeper than can be read.
    """
    _check_errors(raw)
    reply, whole = _read(raw)
    if not reply.choices:
        raise MalformedAnswer(f"the reply has no choices: {excerpt(raw)}")
    choice = reply.choices[0]
    message = choice.message
    text = _text(message.content) or _text(message.refusal)
    reason = ending(choice.finish_reason)
    if reason is None:
        raise MalformedAnswer(
            f"the answer has no known end, but the finish_reason {choice.finish_reason!r:.100}, after the "
            f"text {text[:_EXCERPT]!r}"
        )
    field = next((name for name in REASONING_FIELDS if _text(getattr(message, name))), "")
    reasoning, calls = _text(getattr(message, field, None)), _calls(message)
    fingerprint = _word(reply.system_fingerprint)
    sampled = whole.choices[0] if whole is not None and whole.choices else None
    tokens = token_record(whole, sampled) if whole and sampled else None
    if reason in _CALLS and not (text or calls):
        raise MalformedAnswer(f"the answer ends with a call and holds nothing: {excerpt(raw)}")
    if not (text or reasoning or calls) and isinstance(message.content, list):
        _check_parts(message.content)
    return Completion(
        text=text,
        reasoning=reasoning,
        reasoning_field=field,
        tool_calls=calls,
        tokens=tokens,
        experts=reported_experts(whole, sampled, tokens) if whole and sampled else None,
        usage=usage_of(reply.usage, said=bool(text or reasoning or calls)),
        finish_reason=reason,
        served_model=_word(reply.model),
        system_fingerprint=fingerprint,
        model_kind=ModelKind.ORACLE if fingerprint.startswith(ORACLE_FINGERPRINT) else ModelKind.MODEL,
    )


def excerpt(raw: bytes) -> str:
    return " ".join(raw[: 4 * _EXCERPT].decode("utf-8", "replace").split())[:_EXCERPT] or "it is empty"


def _check_errors(raw: bytes) -> None:
    """Raises MalformedAnswer if the reply reports an error."""
    if b'"error"' not in raw and b"\\u00" not in raw:  # a key may be written in escapes
        return
    try:
        said = failure(decode(_ANY, raw))
    except TooDeep:
        raise
    except Unreadable as error:
        said = failure(decode(_ANY, usable_values(raw, error)))
    if said is not None:
        raise MalformedAnswer("the reply says an error", said)


def unparsed() -> Completion:
    """Returns the empty message that stands for an answer which its server could not parse."""
    return Completion(text="", finish_reason=UNPARSED)


def _read(raw: bytes) -> tuple[BareReply, ChatReply | None]:
    """Returns the reply, and the same reply with its token data if that is usable."""
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
            raise MalformedAnswer(f"the reply is not a chat completion ({first}): {excerpt(raw)}") from first
        log.warning("a reply's tokens are left out, since they cannot be read: %s", error)
        return bare, None
    log.warning("a reply holds values that cannot be read and count as missing: %s", first)
    return reply, reply


def usable_values(raw: bytes, why: Unreadable) -> bytes:
    """Returns the JSON with numbers that fit no type as null, and text that is no Unicode with U+FFFD."""
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
        raise MalformedAnswer(f"the reply is not a chat completion ({why}): {excerpt(raw)}") from error


def _word(value: Any) -> str:
    """Cuts a name that the endpoint gives to a sane length; empty if it is no text."""
    return value[:_LONGEST_WORD] if isinstance(value, str) else ""


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(_part(part) or "" for part in content)
    return content if isinstance(content, str) else ""


def _part(part: Any) -> str | None:
    text = part.get("text") if isinstance(part, dict) else part
    return text if isinstance(text, str) else None


def _check_parts(content: Sequence[Any]) -> None:
    """Raises MalformedAnswer if an answer of parts alone has one that is neither text nor thought."""
    for part in content:
        if _part(part) is None and not (isinstance(part, dict) and part.get("type") in _THOUGHTS):
            raise MalformedAnswer(f"the answer is a part that cannot be read: {part!r:.{_EXCERPT}}")


def _calls(message: AnswerMessage) -> tuple[ToolCall, ...]:
    """Returns the calls as the model wrote them. A missing, repeated or unusable id is replaced; a value that
    is no call becomes a call of a tool without a name."""
    calls = message.tool_calls or []
    if not calls and message.function_call is not None:
        calls = [{"function": message.function_call}]  # as the API had it before it knew several
    if not isinstance(calls, list):
        raise MalformedAnswer(f"the answer holds {calls!r:.{_EXCERPT}} where calls should be")
    written: dict[str, ToolCall] = {}
    for index, call in enumerate(calls):
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
    if isinstance(arguments, str):
        return arguments
    return "" if arguments is None else msgspec.json.encode(arguments).decode()


_MOST_TOKENS = 10**9
_BESIDE = ("cache_read_input_tokens", "cache_creation_input_tokens")


def usage_of(raw: object, *, said: bool) -> Usage:
    """Returns the counts under `usage`, in OpenAI's words or in Anthropic's. `said` tells whether the answer
    holds anything: if it does, it has tokens, as every prompt has. A count that is missing or cannot be true
    is not known."""
    found = raw if isinstance(raw, Mapping) else {}
    prompt, cached = _token_counts(found)
    completion = _sampled(found, prompt)
    details = _inside(found, "completion_tokens_details", "output_tokens_details")
    said_twice = [_count(each, "reasoning_tokens") for each in (details, found)]
    reasoning = max((number for number in said_twice if number is not None), default=None)
    return Usage(
        prompt_tokens=_at_least(cached, prompt) or None,
        completion_tokens=_at_least(reasoning, completion if completion or not said else None),
        cached_tokens=cached,
        reasoning_tokens=reasoning,
    )


def _sampled(usage: Mapping[str, Any], prompt: int | None) -> int | None:
    """Returns the tokens that were sampled. Gemini and xAI count the thoughts among them in the total
    alone."""
    completion, total = _count(usage, "completion_tokens", "output_tokens"), _count(usage, "total_tokens")
    if completion is None or prompt is None or total is None:
        return completion
    return max(completion, total - prompt)


def _token_counts(usage: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Returns the tokens of the prompt, and those of them that came from a cache. Anthropic counts what its
    cache has read and written beside the others, OpenAI within."""
    cached = _count(_inside(usage, "prompt_tokens_details", "input_tokens_details"), "cached_tokens")
    if "prompt_tokens" in usage or "input_tokens" not in usage:
        return _count(usage, "prompt_tokens"), cached
    fresh, read, written = (_count(usage, name) for name in ("input_tokens", *_BESIDE))
    unread = any(usage.get(name) is not None and _count(usage, name) is None for name in _BESIDE)
    beside = (read or 0) + (written or 0)
    return (None if fresh is None or unread else fresh + beside), read if read is not None else cached


def _inside(usage: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    found = (usage.get(name) for name in names)
    return next((one for one in found if isinstance(one, Mapping)), {})


def _count(usage: Mapping[str, Any], *names: str) -> int | None:
    """Returns the first of the counts that is present, if it is valid: no text, no fraction, not below
    zero."""
    value = next((usage[name] for name in names if name in usage), None)
    return value if type(value) is int and 0 <= value <= _MOST_TOKENS else None


def _at_least(part: int | None, whole: int | None) -> int | None:
    """Returns `whole`, unless it is less than its part and so cannot be true."""
    return None if part is not None and whole is not None and whole < part else whole
