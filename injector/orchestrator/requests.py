"""Parses JSON bodies of requests as the published service does, except that unknown fields are refused.

A number or truth value may be a string; null or empty values count as left out. A file's content in Base64 is
decoded as it comes: it may have 200 MB, and must not delay others.
"""

import difflib
import json
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TypeVar

import msgspec
from aiohttp import hdrs, web

from orchard.injector import wire
from orchard.injector.operations import JSON
from orchard.injector.orchestrator.deadlines import arriving
from orchard.injector.orchestrator.deadlines import body as whole_body
from orchard.schemas.sandboxes import ApplyPatch, ExecRequest, MoveFile, UploadFile

JSON_BODY_LIMIT = 256 * 1024 * 1024
"""Bytes; raw uploads have no limit."""
AROUND_CONTENT = 64 * 1024
_NOTHING = frozenset({b'""', b"0", b"0.0", b"{}"})
_OR_DEFAULT = frozenset({"sandbox_id", "cpu", "memory", "timeout", "timeout_seconds", "cwd", "env"})
"""Fields that count as left out when they are empty or zero."""
_CONTENT = re.compile(rb'"content"\s*:\s*"')
_ESCAPE = re.compile(rb"\\(?:u00([0-9a-fA-F]{2})|(.))", re.DOTALL)
_UNFINISHED = re.compile(rb"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_BLANKS = b" \t\r\n"
_BYTES = msgspec.json.Decoder(bytes)
"""Decodes Base64 in half the time that binascii needs."""

_OF_FILES = (ApplyPatch, ExecRequest, MoveFile, UploadFile)
"""Records with texts that may have bytes which are not UTF-8."""

T = TypeVar("T", bound=msgspec.Struct)


class Invalid(Exception):
    """A request that does not fit its schema; `place` is where, `kind` a word for programs."""

    def __init__(self, place: Sequence[str | int], message: str, kind: str = "value_error") -> None:
        super().__init__(message)
        self.place = list(place)
        self.message = message
        self.kind = kind


async def decoded(request: web.Request, kind: type[T]) -> T:
    """Decode the body as a record. Raises Invalid, and HTTPUnsupportedMediaType unless its type is JSON."""
    check_media(request)
    return record(await whole_body(request, JSON_BODY_LIMIT), kind)


def check_media(request: web.Request) -> None:
    """Refuse other media types than JSON, which a browser sends for any page without preflight."""
    kind_sent = request.headers.get(hdrs.CONTENT_TYPE, "").partition(";")[0].strip().lower()
    if request.body_exists and kind_sent != JSON:
        raise web.HTTPUnsupportedMediaType(reason=f"the header Content-Type must be {JSON}")


def record(body: bytes, kind: type[T]) -> T:
    try:
        try:
            return _plain(body, kind)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            if not wire.carries_bytes(body):
                raise
            return _with_bytes(body, kind)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `")
        raise Invalid(["body", *steps(path.rstrip("`"))], message, "validation_error") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(["body"], f"the body is not JSON: {error}", "json_invalid") from error
    except RecursionError as error:
        raise Invalid(["body"], "the body is nested too deeply", "json_invalid") from error


def _plain(body: bytes, kind: type[T]) -> T:
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    _check_known(fields, kind)
    said = {name: raw for name, raw in fields.items() if not _left_out(name, bytes(raw))}
    if len(said) < len(fields):
        body = msgspec.json.encode(said)
    return msgspec.json.decode(body, type=kind, strict=False)


def _with_bytes(body: bytes, kind: type[T]) -> T:
    """Decode a document whose texts have bytes that are not UTF-8."""
    fields = wire.members(body)
    if kind not in _OF_FILES:
        raise Invalid(["body"], "a text has a byte that is not UTF-8", "value_error")
    _check_known(fields, kind)
    said = {name: value for name, value in fields.items() if not _left_out(name, json.dumps(value).encode())}
    return msgspec.convert(said, kind, strict=False)


def _check_known(fields: Iterable[str], kind: type[msgspec.Struct]) -> None:
    for name in fields:
        if name not in kind.__struct_fields__:
            raise _unknown(name, kind)


def _left_out(name: str, raw: bytes) -> bool:
    return raw == b"null" or (raw in _NOTHING and name in _OR_DEFAULT)


def _unknown(name: str, kind: type[msgspec.Struct]) -> Invalid:
    alike = difflib.get_close_matches(name, kind.__struct_fields__, 1)
    meant = f"did you mean `{alike[0]}`?" if alike else "there are " + ", ".join(kind.__struct_fields__)
    return Invalid(["body", name], f"there is no field `{name[:100]}`: {meant}", "extra_forbidden")


def steps(path: str) -> list[str | int]:
    """Split a msgspec error path: `$.labels[...]` is labels, `$.command[2]` is command, 2."""
    parts: list[str | int] = []
    for name, index in re.findall(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]", path):
        parts.append(name or (int(index) if index.isdigit() else index))
    return parts


class UploadBody:
    """The body of a request that is an `UploadFile`, without holding its content in memory.

    `begin` reads up to the content, `content` yields it, and `refused` is why that ended too early, for a
    caller that forwards it and sees only the end.
    """

    def __init__(self, request: web.Request) -> None:
        check_media(request)
        self._pieces = arriving(request)
        self._head = b""
        self._rest = b""
        self._held: list[bytes] | None = None
        self._left = JSON_BODY_LIMIT
        self.refused: Exception | None = None
        self.record: UploadFile

    async def begin(self) -> None:
        """Read until `record` is known except for its content. Raises Invalid."""
        await self._find()
        try:
            self.record = record(self._head + b'""}', UploadFile)
        except Invalid:  # what is needed comes after the content, or is not there
            self._held = [piece async for piece in self._decoded()]

    async def content(self) -> AsyncIterator[bytes]:
        try:
            if self._held is not None:
                for piece in self._held:
                    yield piece
                return
            async for piece in self._decoded():
                yield piece
        except (Invalid, web.HTTPException) as error:
            self.refused = error
            raise

    async def _find(self) -> None:
        seen = b""
        while (found := _CONTENT.search(seen)) is None:
            piece = await self._next()
            if not piece or len(seen) > AROUND_CONTENT:
                record(seen, UploadFile)
                raise Invalid(["body", "content"], "the content must be a string of Base64", "missing")
            seen += piece
        self._head, self._rest = seen[: found.end() - 1], seen[found.end() :]

    async def _next(self) -> bytes:
        piece = await anext(self._pieces, b"")
        self._left -= len(piece)
        if self._left < 0:
            raise web.HTTPRequestEntityTooLarge(JSON_BODY_LIMIT, JSON_BODY_LIMIT + 1)
        return piece

    async def _decoded(self) -> AsyncIterator[bytes]:
        """Yield the content, then read the fields after it and complete `record`."""
        decoder = _Base64()
        piece, tail = self._rest, b""
        while True:
            whole, quote, tail = piece.partition(b'"')
            if data := decoder.decode(whole):
                yield data
            if quote:
                break
            piece = await self._next()
            if not piece:
                raise Invalid(["body"], "the body is not JSON: it ends within the content", "json_invalid")
        decoder.end()
        while piece := await self._next():
            tail += piece
            if len(tail) > AROUND_CONTENT:
                raise Invalid(["body"], f"more than {AROUND_CONTENT} bytes come after the content")
        full = record(self._head + b'""' + tail, UploadFile)
        if full.content or (self._held is None and hasattr(self, "record") and full != self.record):
            raise Invalid(["body"], "fields other than the content must be there once, and before it")
        self.record = full


class _Base64:
    """Decodes the inside of a JSON string of Base64 in pieces; line ends in it are skipped."""

    def __init__(self) -> None:
        self._left = b""
        self._padded = False

    def decode(self, piece: bytes) -> bytes:
        """Decode as much as is complete. Raises Invalid."""
        text = self._left + piece
        cut = len(text)
        if b"\\" in text:
            unfinished = _UNFINISHED.search(text)
            cut = unfinished.start() if unfinished else cut
            done = _ESCAPE.sub(_unescaped, text[:cut])
            text, after = done, text[cut:]
            if b"\\" in text:
                raise Invalid(["body", "content"], "not base64: there is a backslash in it")
        else:
            after = b""
        if any(blank in text for blank in _BLANKS):
            text = text.translate(None, _BLANKS)
        whole = len(text) - len(text) % 4
        self._left = text[whole:] + after
        return self._bytes(text[:whole])

    def end(self) -> None:
        if self._left:
            raise Invalid(["body", "content"], "not base64: it is cut off")

    def _bytes(self, text: bytes) -> bytes:
        if not text:
            return b""
        if self._padded:
            raise Invalid(["body", "content"], "not base64: there is more after its end")
        self._padded = text.endswith(b"=")
        try:
            return _BYTES.decode(b'"%b"' % text)
        except msgspec.DecodeError as error:
            raise Invalid(["body", "content"], f"not base64: {error}") from error


_ESCAPES = {b"n": b"", b"r": b"", b"t": b"", b"/": b"/"}


def _unescaped(match: re.Match[bytes]) -> bytes:
    code, letter = match.groups()
    return bytes([int(code, 16)]) if code else _ESCAPES.get(letter, b"\\")
