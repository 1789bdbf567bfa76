"""Splits files into JSON documents as a stream: one document, JSON lines, or a list; also with gzip."""

import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import msgspec

SUFFIXES = (".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz", ".ndjson.gz")
LINES = (".jsonl", ".ndjson")
"""Suffixes of files with a document a line, `.gz` aside."""
_CHUNK = 1 << 20
_BLANK = b" \t\r\n"
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|["\[\]{}]', re.DOTALL)
"""A whole string, a quotation mark whose string is not whole, or a bracket."""


class Document(NamedTuple):
    """The bytes of a document, and the file, with its line or its place in the list."""

    name: str
    raw: bytes


def documents(file: Path) -> Iterator[Document]:
    """Yield the documents of a file; only one is in memory. Raises OSError, EOFError or zlib.error."""
    with cast(BinaryIO, gzip.open(file) if file.suffix == ".gz" else file.open("rb")) as stream:
        first = stream.readline()
        while first.isspace():
            first = stream.readline()
        if first.lstrip(_BLANK).startswith(b"["):
            for number, raw in enumerate(_elements(stream, first), start=1):
                yield Document(f"{file}, item {number}", raw)
            return
        lines = Path(str(file).removesuffix(".gz")).suffix in LINES or _is_whole(first)
        second = stream.readline()
        if not second and first:
            yield Document(str(file), first)
        elif not lines:
            yield Document(str(file), first + second + stream.read())
        else:
            for number, line in enumerate(_chain(first, second, stream), start=1):
                if not line.isspace():
                    yield Document(f"{file}, line {number}", line)


def _chain(first: bytes, second: bytes, rest: BinaryIO) -> Iterator[bytes]:
    yield first
    yield second
    yield from rest


def _is_whole(line: bytes) -> bool:
    try:
        msgspec.json.decode(line)
    except (ValueError, RecursionError):
        return False
    return True


def _elements(stream: BinaryIO, head: bytes) -> Iterator[bytes]:
    """The elements of a list. What stands between two objects, and is no comma, is an element too."""
    buffer, at, begin, depth, ended = head, 0, 0, 0, False
    more = _CHUNK
    while not ended:
        for token in _TOKEN.finditer(buffer, at):
            mark = token.group()
            if mark == b'"':
                break  # the rest of the string is not read yet
            at = token.end()
            if mark in b"[{":
                depth += 1
                if depth == 1:
                    begin = at
                elif depth == 2:
                    if between := buffer[begin : token.start()].strip(_BLANK + b","):
                        yield between
                    begin = token.start()
            elif mark in b"]}":
                depth -= 1
                if depth == 1:
                    yield buffer[begin:at]
                    begin = at
                elif depth == 0:
                    if between := buffer[begin : token.start()].strip(_BLANK + b","):
                        yield between
                    begin = at
        else:
            at = len(buffer)
        chunk = stream.read(more)
        ended = not chunk
        more = _CHUNK if begin else 2 * more
        buffer, at, begin = buffer[begin:] + chunk, at - begin, 0
    if left := buffer.strip(_BLANK + b","):
        yield left  # it was cut off
