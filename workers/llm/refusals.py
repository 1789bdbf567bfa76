"""Reads an endpoint's refusals, and decides how long to wait after them. Pure.

`known_errors` has their meanings.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any

import msgspec

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
_FOREVER = 1e9
"""Seconds that replace an infinite number."""

_QUOTED = 2000
"""Characters of an error that are read."""


class Meaning(StrEnum):
    TRANSIENT = "transient"
    """Worth trying again: connection lost, time-out, 408, 409, 5xx, a reply that is no answer."""
    THROTTLED = "throttled"
    """Worth trying again, later, and with fewer calls at once."""
    REFUSED = "refused"
    """The request itself is unacceptable and would be so again."""
    CONTEXT_EXCEEDED = "context_exceeded"
    """The conversation is longer than the model accepts: a budget of the task, not an infrastructure
    failure."""
    UNPARSED = "unparsed"
    """The server could not parse what its model wrote: this counts as an answer, without content."""


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    message: str = ""
    code: str = ""
    type: str = ""
    status: str = ""
    """Google's name of the kind, as INVALID_ARGUMENT."""
    retry_seconds: float | None = None
    """Seconds to wait, as Google puts them in the body."""

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset(word.lower() for word in (self.code, self.type, self.status) if word)


_DATA = re.compile(r"(data:[a-z]+/[a-z+.-]+;base64,)[A-Za-z0-9+/=]+", re.IGNORECASE)


def error_of(reply: bytes) -> ErrorBody:
    """Reads the body of an error reply, which may be no JSON."""
    try:
        raw = msgspec.json.decode(reply)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raw = reply.decode("utf-8", "replace").strip()
    return error_body(raw)


def error_body(raw: object) -> ErrorBody:
    """Reads the decoded JSON of an error reply: an object, under `error` or bare, a text, or a list of
    one."""
    if isinstance(raw, list) and len(raw) == 1:  # Gemini
        raw = raw[0]
    if not isinstance(raw, Mapping):
        return ErrorBody(message=_plain(raw))
    inner = raw.get("error") or raw
    if not isinstance(inner, Mapping):
        return ErrorBody(message=_plain(inner), type=_plain(raw.get("error_type")))  # TGI
    return ErrorBody(
        message=_message(inner),
        code=_plain(inner.get("code")),
        type=_plain(inner.get("type") or inner.get("__type")),  # the latter is AWS'
        status=_plain(inner.get("status")),
        retry_seconds=_retry_seconds(inner.get("details")),
    )


def _message(inner: Mapping[str, Any]) -> str:
    """Returns the message, with what a router quotes of the server behind it, and with both sizes of
    llama.cpp's."""
    message = _plain(inner.get("message") or inner.get("detail"))
    metadata = inner.get("metadata")
    if isinstance(metadata, Mapping) and metadata.get("raw"):  # OpenRouter
        message += f": {_plain(metadata['raw'])}"
    needed, there = inner.get("n_prompt_tokens"), inner.get("n_ctx")
    if isinstance(needed, int) and isinstance(there, int) and str(needed) not in message:
        message += f" ({needed} tokens, the context has {there})"
    return message


def _retry_seconds(details: object) -> float | None:
    """Reads the delay in `google.rpc.RetryInfo`, such as `34.5s`."""
    for detail in details if isinstance(details, list) else ():
        delay = detail.get("retryDelay") if isinstance(detail, Mapping) else None
        if isinstance(delay, str) and re.fullmatch(r"\d{1,9}(?:\.\d{1,9})?s", delay):
            return float(delay[:-1])
    return None


def _plain(value: object) -> str:
    """Returns a short text for any value, whatever its depth. Pictures of the request, which some endpoints
    repeat, are left out."""
    if isinstance(value, str | int | float):
        return _DATA.sub(r"\1...", str(value)[:_QUOTED]) if value else ""
    try:
        return _DATA.sub(r"\1...", msgspec.json.encode(value).decode()[:_QUOTED]) if value else ""
    except (RecursionError, OverflowError, UnicodeEncodeError, msgspec.MsgspecError):
        return ""


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """Returns the seconds that the endpoint asked to wait (`retry-after-ms`, or `retry-after` as seconds or
    date), if it did.

    `headers` has lower-case names. A value that cannot be read counts as absent. A date is one of the
    endpoint's clock, as its header `date` has it; without that header `now`, the local time, is compared.
    """
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        text = headers.get(name, "")
        if re.fullmatch(r"\d+(?:\.\d+)?", text):
            return min(float(text) * unit, _FOREVER)
    until = _date(headers.get("retry-after", ""))
    if until is None:
        return None
    return max(0.0, (until - (_date(headers.get("date", "")) or now)).total_seconds())


def _date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError, TypeError):
        return None
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)


def pause(tries: int, asked: float | None, jitter: float) -> float:
    """Returns the seconds to wait after try number `tries` (from 1): doubling, jittered, never less than
    asked for.

    `jitter` is uniform in [0, 1]; the pause lies between half and the whole of the doubled value.
    """
    doubled = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(tries - 1, 16))
    return max(asked or 0.0, doubled * (0.5 + 0.5 * jitter))


_PART = 4
"""Characters of a key in a row that a word may not hold."""
_HIDDEN = re.compile(r"\*\*|••|\.\.\.\S")
"""Marks of a word in which a part is left out."""


def without_key(text: str, key: str) -> str:
    """Replaces words that hold a part of the key, as endpoints write `sk-abc***wxyz`."""
    parts = {key[at : at + _PART] for at in range(len(key) - _PART + 1)}

    def kept(word: re.Match[str]) -> str:
        holds = bool(key) and (any(part in word[0] for part in parts) or bool(_HIDDEN.search(word[0])))
        return "***" if holds else word[0]

    return re.sub(r"\S+", kept, text)
