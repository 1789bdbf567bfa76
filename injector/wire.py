r"""JSON and query strings with paths of any bytes.

A path need not be UTF-8. Python decodes other bytes to lone surrogates (`surrogateescape`): in JSON they are
escapes such as `\udcff`, in a query string `%FF`. Records are encoded and decoded by msgspec, which does not
support lone surrogates; texts with them are left to the standard library.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlencode

import msgspec
from yarl import URL

from orchard.injector.errors import SandboxRequestInvalid

_BYTE = re.compile(rb"\\u[dD][cC][89a-fA-F][0-9a-fA-F]")

T = TypeVar("T")


def encode(document: Any) -> bytes:
    """Encode as compact JSON. Raises SandboxRequestInvalid for surrogates that stand for no byte."""
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(document)
        text_bytes(json.dumps(plain, ensure_ascii=False))
        return json.dumps(plain, separators=(",", ":")).encode()


def decode(data: bytes, kind: type[T]) -> T:
    """Decode like msgspec, which raises msgspec.DecodeError or UnicodeDecodeError."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        if not carries_bytes(data):
            raise
        return msgspec.convert(_loaded(data), kind)


def carries_bytes(data: bytes) -> bool:
    """Whether a text in this JSON may have a byte that is not UTF-8."""
    return _BYTE.search(data) is not None


def members(data: bytes) -> dict[str, Any]:
    """Decode a JSON object whose texts may have such bytes. Raises msgspec.DecodeError."""
    found = _loaded(data)
    if not isinstance(found, dict):
        raise msgspec.ValidationError("Expected `object`")
    return found


def check_finite(record: msgspec.Struct) -> None:
    """Raise SandboxRequestInvalid for infinities and NaN, which JSON would turn into null."""
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if isinstance(value, float) and not math.isfinite(value):
            raise SandboxRequestInvalid(f"`{name}` is {value}, which is no number of seconds or bytes")


def url(base: str, parameters: Mapping[str, str] | Iterable[tuple[str, str]] | None) -> URL:
    """Add a query to `base`. Raises SandboxRequestInvalid as `encode` does."""
    there = URL(base)
    if not parameters:
        return there
    pairs = list(parameters.items() if isinstance(parameters, Mapping) else parameters)
    for pair in pairs:
        text_bytes("".join(pair))
    return URL(f"{there}?{urlencode(pairs, errors='surrogateescape')}", encoded=True)


def text_bytes(text: str) -> bytes:
    """Encode a text. Raises SandboxRequestInvalid as `encode` does."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise SandboxRequestInvalid("a text has surrogates that stand for no byte") from error


def _loaded(data: bytes) -> Any:
    try:
        found = json.loads(data)
        text_bytes(json.dumps(found, ensure_ascii=False))
    except (ValueError, SandboxRequestInvalid) as error:
        raise msgspec.DecodeError(str(error)) from error
    return found
