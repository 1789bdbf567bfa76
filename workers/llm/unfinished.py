"""Whose doing a reply is that has no end, in length or in depth: told by how it begins. Pure."""

import re
from collections.abc import Iterator

from orchard.workers.llm.answers import REASONING_FIELDS, Completion
from orchard.workers.llm.streamed import events, is_stream

LOOKED_AT = 256 * 1024
"""Bytes of the beginning, in which the model must have said something."""

_STRING = rb'"(?:[^"\\]++|\\.)*+'
_TOKEN = re.compile(
    rb'(?P<key>%b")\s*:|(?P<open>[{\[])|(?P<close>[}\]])|(?P<value>%b"?|[^\s{}\[\],:"]+)'
    % (_STRING, _STRING),
    re.DOTALL,
)
_NOTHING = frozenset({b'"', b'""', b"null", b"false", b"0"})
_SPEECH = frozenset({"content", "refusal", "tool_calls", "function_call", *REASONING_FIELDS})
_DEPTH = 6
"""Objects and lists around what is looked at: `choices[0].message.tool_calls[0].function`."""


def cut_short() -> Completion:
    """What stands for an answer that has no end: an empty message that was cut off."""
    return Completion(text="", finish_reason="length")


def begun(start: bytes) -> bool:
    """Whether a reply, of which this is the beginning, is an answer of the model: a chat completion, whole or
    as a stream, in which a text, a thought or a call has begun, and no error."""
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
    """Where in JSON, which may break off anywhere, a value stands that says something: the keys around it."""
    around: list[bytes] = []
    """The key of each object and list that is open; empty without one."""
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
