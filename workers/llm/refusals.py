"""What a refusal of an endpoint means and how long to wait after it: pure functions over what it said."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum

import msgspec

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0


_QUOTED = 2000
"""Characters of an error that are looked at."""


class Meaning(StrEnum):
    """Why a try brought no completion."""

    TRANSIENT = "transient"
    """Worth trying again: connection lost, time-out, 408, 409, 5xx, an answer that is not one."""
    THROTTLED = "throttled"
    """Worth trying again, later, and with fewer calls at once."""
    REFUSED = "refused"
    """The request itself is unacceptable and would be so again."""
    CONTEXT_EXCEEDED = "context_exceeded"
    """The conversation is longer than the model takes: a budget of the task, not a failure of ours."""


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """The part of an OpenAI-style error object that decides."""

    message: str = ""
    code: str = ""
    type: str = ""


_CONTEXT = re.compile(
    r"context[ _]length|context[ _]window|maximum context|max_model_len|prompt is too long"
    r"|longer than the model|exceeds? the (?:model's )?maximum (?:input|context|number of tokens)"
    r"|input is too long|too many (?:input |prompt )?tokens",
    re.IGNORECASE,
)
_QUOTA = ("insufficient_quota", "billing_hard_limit_reached")


_DATA = re.compile(r"(data:[a-z]+/[a-z+.-]+;base64,)[A-Za-z0-9+/=]+", re.IGNORECASE)


def error_of(reply: bytes) -> ErrorBody:
    """Read the body of an error reply, which may be no JSON."""
    try:
        raw = msgspec.json.decode(reply)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raw = reply.decode("utf-8", "replace").strip()
    return error_body(raw)


def error_body(raw: object) -> ErrorBody:
    """Read the decoded JSON of an error reply; the shapes of OpenAI, vLLM and FastAPI are known."""
    if isinstance(raw, Mapping):
        inner = raw.get("error", raw)
        if isinstance(inner, Mapping):
            message = inner.get("message") or inner.get("detail")
            return ErrorBody(
                message=_plain(message), code=_plain(inner.get("code")), type=_plain(inner.get("type"))
            )
        return ErrorBody(message=_plain(inner))
    return ErrorBody(message=_plain(raw))


def _plain(value: object) -> str:
    """What can be quoted of a value: a list or object, which may be of any depth, only in small. Pictures of
    the request, which some endpoints repeat, are left out."""
    if isinstance(value, str | int | float):
        return _DATA.sub(r"\1...", str(value)[:_QUOTED]) if value else ""
    try:
        return _DATA.sub(r"\1...", msgspec.json.encode(value).decode()[:_QUOTED]) if value else ""
    except (RecursionError, OverflowError, UnicodeEncodeError, msgspec.MsgspecError):
        return ""


def meaning(status: int, body: ErrorBody) -> Meaning:
    """The meaning of an HTTP error status with its body."""
    if status in (400, 422) and (body.code == "context_length_exceeded" or _CONTEXT.search(body.message)):
        return Meaning.CONTEXT_EXCEEDED
    if status == 413:
        return Meaning.CONTEXT_EXCEEDED
    if status == 429:
        return Meaning.REFUSED if body.code in _QUOTA or body.type in _QUOTA else Meaning.THROTTLED
    if status in (408, 409) or status >= 500:
        return Meaning.TRANSIENT
    return Meaning.REFUSED


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds the endpoint asked to wait (`retry-after-ms`, or `retry-after` as seconds or date), if it did.

    `headers` has lower-case names. A value that cannot be read counts as absent.
    """
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        text = headers.get(name, "")
        if re.fullmatch(r"\d+(?:\.\d+)?", text):
            return float(text) * unit
    try:
        date = parsedate_to_datetime(headers.get("retry-after", ""))
    except (ValueError, OverflowError, TypeError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - now).total_seconds())


def pause(tries: int, asked: float | None, jitter: float) -> float:
    """Seconds to wait after try number `tries` (from 1): doubling, jittered, never less than asked for.

    `jitter` is uniform in [0, 1]; the pause lies between half and the whole of the doubled value.
    """
    doubled = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(tries - 1, 16))
    return max(asked or 0.0, doubled * (0.5 + 0.5 * jitter))
