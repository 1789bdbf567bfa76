"""Assembles a chat completion that came as server-sent events as if it had come whole. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from orchard.schemas.decoding import Unreadable, decode
from orchard.workers.llm.answers import REASONING_FIELDS, MalformedAnswer, excerpt, usable_values
from orchard.workers.llm.endings import ending, failure, is_given

_END = b"[DONE]"
_LINE = re.compile(rb"\r\n|\r|\n")
_FIRST = (b"data:", b"event:", b"error:", b"id:", b"retry:", b":")
"""Beginnings of the first line of a stream."""
_CHUNK = msgspec.json.Decoder()
_TAIL = 200
"""Bytes that an error quotes of a stream without an ending."""
_SAYS = ("content", "refusal", "tool_calls", "function_call", *REASONING_FIELDS)
_GROWING = ("token_ids", "response_token_ids")
"""Lists of a choice that each chunk extends."""


@dataclass
class _Call:
    index: Any
    id: Any = None
    name: Any = None
    arguments: list[str] = field(default_factory=list)


def is_stream(raw: bytes) -> bool:
    """Whether a body, or its beginning, is a stream, whatever its Content-Type says."""
    return raw[:256].lstrip().startswith(_FIRST)


def assembled(raw: bytes) -> bytes:
    """Returns the completion of a whole stream, as JSON.

    Deltas of text, reasoning, arguments, token ids and log-probabilities are joined; of all else the newest
    value counts. Raises MalformedAnswer for a stream that reports an error anywhere, or ends without a finish
    reason: `[DONE]` is none. Raises TooDeep.
    """
    reply: dict[str, Any] = {}
    choice: dict[str, Any] = {}
    message: dict[str, Any] = {}
    calls: list[_Call] = []
    done = False
    for data in events(raw):
        if data == _END:
            done = True
            continue
        chunk = _decoded(data)
        if (said := failure(chunk)) is not None:
            raise MalformedAnswer("the stream says an error", said)
        if done:
            continue
        for part in _listed(chunk.get("choices")):
            if (part.get("index") or 0) == 0:
                _add(part, choice, message, calls)
        reply |= {name: value for name, value in chunk.items() if name != "choices" and value is not None}
        if not is_given(choice.get("finish_reason")):
            reply.pop("usage", None)  # of an answer that goes on
    if not is_given(choice.get("finish_reason")):
        what = "" if done else ", in the middle"
        raise MalformedAnswer(f"the stream ended without a finish_reason{what}: {excerpt(raw[-_TAIL:])}")
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "function": {"name": call.name, "arguments": "".join(call.arguments)}}
            for call in calls
        ]
    reply["choices"] = [choice]
    return msgspec.json.encode(reply)


def events(raw: bytes) -> Iterator[bytes]:
    """Yields the data of each event that has some; of an event named as an error, a chunk that reports it."""
    lines: list[bytes] = []
    failed = False
    for line in (*_LINE.split(raw), b""):
        name, colon, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name in (b"data", b"error") and colon:
            lines.append(value)
        failed = failed or name == b"error" or (name == b"event" and value.strip() == b"error")
        if line:
            continue
        data = b"\n".join(lines).strip()
        if data:
            yield _as_error(data) if failed else data
        lines, failed = [], False


def _as_error(data: bytes) -> bytes:
    """Returns data that reports an error, for an event that does so by its name alone."""
    try:
        said = decode(_CHUNK, data)
    except Unreadable:
        said = data.decode("utf-8", "replace")
    return data if failure(said) is not None else msgspec.json.encode({"error": said or "error"})


def _decoded(data: bytes) -> dict[str, Any]:
    try:
        chunk = decode(_CHUNK, data)
    except Unreadable as error:
        chunk = decode(_CHUNK, usable_values(data, error))
    if not isinstance(chunk, dict):
        raise MalformedAnswer(f"the stream holds what is no chunk of a completion: {excerpt(data)}")
    return chunk


def _listed(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _add(part: dict[str, Any], choice: dict[str, Any], message: dict[str, Any], calls: list[_Call]) -> None:
    delta = part.get("delta")
    if isinstance(delta, dict):
        choice["message"] = message
        if ending(choice.get("finish_reason")) is not None and any(map(delta.get, _SAYS)):
            del choice["finish_reason"]  # it was not the end
        for name in ("content", "refusal", *REASONING_FIELDS):
            if (text := delta.get(name)) is not None:
                message.setdefault(name, []).extend(_parts(text))
        if (part_of := delta.get("tool_calls")) and not isinstance(part_of, list):
            raise MalformedAnswer(f"the stream holds {part_of!r:.100} where calls should be")
        for call in _listed(part_of):
            _call(call, calls)
        if isinstance(function := delta.get("function_call"), dict):
            _call({"function": function}, calls)
    for name, value in part.items():
        if name in _GROWING and isinstance(value, list):
            choice.setdefault(name, []).extend(value)
        elif name == "logprobs" and isinstance(value, dict):
            choice.setdefault(name, {"content": []})["content"].extend(_listed(value.get("content")))
        elif name == "finish_reason":
            _ended(value, choice)
        elif name not in ("delta", "index", "message") and value is not None:
            choice[name] = value


def _parts(text: Any) -> list[Any]:
    if not isinstance(text, str | list):
        raise MalformedAnswer(f"the stream holds {text!r:.100} where a text should be")
    return text if isinstance(text, list) else [{"text": text}]


def _ended(reason: Any, choice: dict[str, Any]) -> None:
    """Stores a `finish_reason`; one that is no known ending is kept, whatever comes after it."""
    before = choice.get("finish_reason")
    if is_given(reason) and (before is None or ending(before) is not None):
        choice["finish_reason"] = reason


def _call(part: dict[str, Any], calls: list[_Call]) -> None:
    """Adds a part to the call with its index or, without an index, to the last one. An id without an index
    begins a new call, and so does another id with a name: some servers number all calls 0."""
    index, name = part.get("index"), part.get("id")
    function = part.get("function")
    function = function if isinstance(function, dict) else {}
    known = [call for call in calls if call.index == index] if index is not None else calls[-1:]
    other = bool(known and name and known[-1].id and name != known[-1].id and function.get("name"))
    if not known or other or (index is None and name):
        known = [_Call(index)]
        calls += known
    call = known[-1]
    call.id = call.id or name
    call.name = call.name or function.get("name")
    arguments = function.get("arguments")
    if arguments is not None:
        text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
        call.arguments.append(text)
