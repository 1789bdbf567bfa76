"""Decoding JSON that others wrote: whatever the bytes are, a value or one kind of error.

Every event, request and reply comes in through `decode`. What it refuses does not depend on how much of the
stack its caller has used, so a replay refuses what the first reader refused.
"""

from itertools import accumulate
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

NESTING_LIMIT = 400
"""Levels of objects and lists. Python's own limit is a thousand, less what the caller's stack has used."""

_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NEITHER = bytes(set(range(256)) - set(_STEP) - {ord('"')})
"""Bytes that neither nest nor quote."""


_ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


class Unreadable(ValueError):
    """Bytes that are not the JSON that was expected; the text says why."""


class TooDeep(Unreadable):
    """JSON, as far as it can be told, but nested deeper than can be read."""


def decode(decoder: "msgspec.json.Decoder[T]", raw: bytes | msgspec.Raw) -> T:
    """The decoded value. Raises Unreadable, and nothing else, for bytes that are not JSON, are nested too
    deep for the stack (TooDeep), or do not fit the decoder's type."""
    try:
        return decoder.decode(raw)
    except RecursionError as error:
        raise TooDeep("it is nested too deep") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, OverflowError) as error:
        raise Unreadable(str(error)) from error


def decode_text(text: str) -> Any:
    """Decodes the JSON in a text, such as a call's arguments; raises Unreadable, and nothing else."""
    return decode(_ANY, text.encode("utf-8", "replace"))


def decode_whole(decoder: "msgspec.json.Decoder[T]", raw: bytes) -> T:
    """Decodes as `decode` does, and refuses a document that is not UTF-8 or is nested deeper than
    NESTING_LIMIT even where the decoder does not look."""
    value = decode(decoder, raw)
    try:
        if not raw.isascii():
            raw.decode()
    except UnicodeDecodeError as error:
        raise Unreadable(str(error)) from error
    if _is_nested_too_deep(raw):
        raise TooDeep(f"it is nested deeper than {NESTING_LIMIT} levels")
    return value


def _is_nested_too_deep(raw: bytes) -> bool:
    """Whether valid JSON is nested deeper than NESTING_LIMIT. Few brackets cannot nest deep, which decides
    nearly always; else those outside of strings are counted, about 3 ms for a megabyte."""
    if raw.count(b"[") + raw.count(b"{") <= NESTING_LIMIT:
        return False
    plain = raw.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, _NEITHER)
    brackets = b"".join(plain.split(b'"')[::2])
    return any(depth > NESTING_LIMIT for depth in accumulate(map(_STEP.__getitem__, brackets)))
