"""Reads the bodies of replies, unpacked and bounded before they are in memory.

A reply without an end, in length or in depth, is judged by its beginning: a completion's is the model's
doing, any other one's the endpoint's.
"""

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import aiohttp

from orchard.workers.llm.answers import REASONING_FIELDS, Completion
from orchard.workers.llm.streamed import events, is_stream

ENCODINGS = "gzip, deflate"
"""Encodings that `body` can unpack, for the header Accept-Encoding."""
_PIECE = 256 * 1024
"""Bytes that are unpacked at once."""
_WINDOWS = {"gzip": zlib.MAX_WBITS | 16, "x-gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
_PLAIN = ("", "identity")
_DONE = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\] *(?:[\r\n]|$)")
"""Finds the end of a stream; some servers leave the connection open after it."""
_LINE = 32
"""Bytes of the end marker that may have come with the piece before."""
_DONE_SECONDS = 1.0
"""Seconds to wait after the end marker for an error that may follow it."""
_ERROR_SECONDS = 5.0

LOOKED_AT = 256 * 1024
"""Bytes of the beginning in which the model must have said something."""

_STRING = rb'"(?:[^"\\]++|\\.)*+'
_TOKEN = re.compile(
    rb'(?P<key>%b")\s*:|(?P<open>[{\[])|(?P<close>[}\]])|(?P<value>%b"?|[^\s{}\[\],:"]+)'
    % (_STRING, _STRING),
    re.DOTALL,
)
_NOTHING = frozenset({b'"', b'""', b"null", b"false", b"0"})
_SPEECH = frozenset({"content", "refusal", "tool_calls", "function_call", *REASONING_FIELDS})
_DEPTH = 6
"""Objects and lists around the values that are read: `choices[0].message.tool_calls[0].function`."""


class ReplyTooLarge(Exception):
    def __init__(self, begins: bytes) -> None:
        super().__init__("the body of the reply has no end in sight")
        self.begins = begins


class WrongEncoding(Exception):
    """The body is not packed as its header says, or in an encoding that was not asked for."""


async def body(reply: aiohttp.ClientResponse, limit: int) -> bytes:
    """Returns the body of a reply of a session that unpacks nothing itself. Raises ReplyTooLarge for one of
    more than `limit` bytes, unpacked; WrongEncoding; and aiohttp's errors for one that breaks off."""
    pieces, size, tail = list[bytes](), 0, b""
    try:
        async with asyncio.timeout(None) as clock:
            async for piece in _unpacked(reply):
                pieces.append(piece)
                size += len(piece)
                if size > limit:
                    raise ReplyTooLarge(b"".join(pieces)[:LOOKED_AT])
                if clock.when() is None and _DONE.search(tail + piece):
                    clock.reschedule(asyncio.get_running_loop().time() + _DONE_SECONDS)
                tail = (tail + piece)[-_LINE:]
    except TimeoutError:
        if not clock.expired():
            raise
    return b"".join(pieces)


async def error_text(reply: aiohttp.ClientResponse, limit: int) -> bytes:
    """Returns as much as can be read of the body of an error reply: status and headers are known without
    it."""
    pieces, size = list[bytes](), 0
    with suppress(WrongEncoding, aiohttp.ClientError, OSError):  # a TimeoutError is one of the last
        async with asyncio.timeout(_ERROR_SECONDS):
            async for piece in _unpacked(reply):
                pieces.append(piece)
                size += len(piece)
                if size > limit:
                    break
    return b"".join(pieces)


async def _unpacked(reply: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    encoding = reply.headers.get("Content-Encoding", "").strip().lower()
    chunks = reply.content.iter_any()
    if encoding in _PLAIN:
        async for chunk in chunks:
            yield chunk
        return
    if encoding not in _WINDOWS:
        raise WrongEncoding(
            f"the reply is encoded as {encoding[:40]!r}, not as asked for: let the server send {ENCODINGS}"
        )
    unpacker = zlib.decompressobj(_WINDOWS[encoding])
    try:
        async for chunk in chunks:
            left = chunk
            while left:
                if unpacker.eof:  # a body may be packed in several parts
                    unpacker = zlib.decompressobj(_WINDOWS[encoding])
                yield unpacker.decompress(left, _PIECE)
                left = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
    except zlib.error as error:
        raise WrongEncoding(f"the reply is not {encoding}: {error}") from error
    yield unpacker.flush()


def cut_short() -> Completion:
    """Returns the empty message, cut off by its length, that stands for an answer without an end."""
    return Completion(text="", finish_reason="length")


def begun(start: bytes) -> bool:
    """Whether a reply with this beginning is an answer of the model: a chat completion, whole or as a stream,
    in which a text, a thought or a call has begun, and no error."""
    start = start[:LOOKED_AT]
    said = False
    for document in events(start) if is_stream(start) else (start,):
        for path in _said(document):
            match path:
                case ["error", *_] | ["choices", "error", *_] | ["choices", "message" | "delta", "error", *_]:
                    return False
                case ["choices", "message" | "delta", part, *_] if part in _SPEECH:
                    said = True
    return said


def _said(document: bytes) -> Iterator[list[str]]:
    """Yields the keys around each value that says something, in JSON that may break off anywhere."""
    around: list[bytes] = []
    """Keys of the open objects and lists; empty for those without one."""
    key = b""
    for token in _TOKEN.finditer(document):
        match token.lastgroup:
            case "key":
                key = token["key"][1:-1]
            case "open":
                around.append(key)
                key = b""
            case "close":
                del around[-1:]
            case _ if token["value"] not in _NOTHING:
                yield [name.decode("utf-8", "replace") for name in (*around[:_DEPTH], key) if name]
