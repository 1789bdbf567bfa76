"""Types and helpers shared by the wires and the recording: requests, replies, errors, and parsing."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from orchard.schemas.decoding import TooDeep, Unreadable, decode_whole
from orchard.schemas.identity import digest
from orchard.schemas.messages import Role, ToolCall
from orchard.workers.episode.arguments import UNPARSED as UNPARSED
from orchard.workers.episode.arguments import as_object as as_object
from orchard.workers.llm.answers import Completion

PIECE = 8192
"""Key that holds arguments that are no JSON object, where a wire or an upstream needs an object."""
SUMMARIZE = (
    "Summarize this conversation for the assistant that continues it: the task, what was done and found, "
    "decisions, names of files, and what remains to be done. Answer with the summary alone."
)
"""Request of the user that asks the model to compact a conversation."""
LABELS = frozenset(
    {"metadata", "user", "safety_identifier", "labels", "store", "service_tier"}
    | {"prompt_cache_key", "prompt_cache_retention", "cache_control"}
)
"""Fields of several wires that say who asks, and what is kept, cached and billed: they change no answer."""
_UNNAMED = "unnamed-"
_ANY: "msgspec.json.Decoder[Any]" = msgspec.json.Decoder()
_LONGEST_NAME = 256
_LONGEST_KIND = 60
_READ = frozenset(
    {"text", "input_text", "output_text", "summary_text", "reasoning_text", "refusal", "document"}
    | {"image", "image_url", "input_image"}
)
"""Types of the parts that are read as they are meant."""


class BadProgramRequest(ValueError):
    """The wire does not allow the request; the text is one sentence for the program."""


class Content(NamedTuple):
    """What the model can read of a content. Its fields are those of ProgramMessage."""

    text: str
    images: tuple[str, ...]
    not_shown: tuple[str, ...]


class ProgramMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: Role
    text: str = ""
    """Contains a mark (`image_mark`) for each image."""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    images: tuple[str, ...] = ()
    """URLs, `data:` or other, each with its mark in the text."""
    not_shown: tuple[str, ...] = ()
    """Types of the parts that no model of chat completions can read; most have a mark in the text."""


class ProgramRequest(msgspec.Struct, frozen=True, kw_only=True):
    messages: tuple[ProgramMessage, ...]
    model: str = ""
    """The name that the program uses; the reply repeats it."""
    tools: tuple[dict[str, Any], ...] = ()
    """Tool definitions in the format of chat completions."""
    stream: bool = False
    include_usage: bool = False
    thinking: bool = True
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    fields: dict[str, Any] = {}
    """Further fields for the upstream, in the format of chat completions."""
    custom: frozenset[str] = frozenset()
    """Names of tools whose argument is text instead of JSON (chat, Responses)."""
    native: frozenset[str] = frozenset()
    """Names of tools without a schema, whose calls are items of their own (Responses)."""
    spaces: dict[str, tuple[str, str]] = {}
    """Maps full names of namespaced tools to namespace and name (Responses)."""
    left_out: tuple[str, ...] = ()
    """Types of tools and of edits of the context that only a vendor's server has, and names of fields without
    effect here."""
    compacts: bool = False
    """Whether the last message asks for a summary that replaces the conversation."""
    kept: tuple[dict[str, Any], ...] = ()
    """Items that the reply repeats before that summary (Responses)."""


class ProgramReply(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    """Made by the gateway; a wire adds its prefix."""
    created: int
    completion: Completion


class CallError(Enum):
    """The kinds of errors that a call can get, with their default messages."""

    INVALID = "the request cannot be understood"
    NOT_FOUND = "there is nothing under this address"
    TOO_LARGE = "the body of the request is too large"
    CONTEXT = "the conversation is longer than the model takes"
    BUDGET = "a budget of the task has run out"
    UNAVAILABLE = "the model cannot be reached"


class CallRejected(Exception):
    """The call gets an error; the message is one sentence for the program."""

    def __init__(self, failure: CallError, message: str = "") -> None:
        super().__init__(message or failure.value)
        self.failure = failure
        self.message = message or failure.value


@dataclass(frozen=True)
class Wire:
    """One API, as functions of plain data."""

    name: str
    read: Callable[[bytes], ProgramRequest]
    """Raises BadProgramRequest for bad bytes, and nothing else."""
    whole: Callable[[ProgramRequest, ProgramReply], Any]
    """Returns the answer as one JSON value."""
    stream: Callable[[ProgramRequest, ProgramReply], Iterator[bytes]]
    """Yields complete server-sent events, ready to be written."""
    error: Callable[[CallError, str], tuple[int, dict[str, Any]]]
    """Returns the HTTP status and the body."""
    broken: Callable[[CallError, str], bytes]
    """Returns an error event for a stream that has begun."""
    waiting: bytes = b": the model is at work\n\n"
    """What is sent while the model works, which its clients skip."""


def read_object(raw: bytes) -> dict[str, Any]:
    """Parses a body as a JSON object. Invalid Unicode, from programs that cut text, becomes U+FFFD. Raises
    BadProgramRequest."""
    try:
        value = decode_whole(_ANY, raw)
    except TooDeep as error:
        raise BadProgramRequest(f"the body cannot be read: {error}") from error
    except Unreadable as error:
        value = _mended(raw, error)
    if not isinstance(value, dict):
        raise BadProgramRequest("the body must be a JSON object")
    return value


def _mended(raw: bytes, why: Unreadable) -> Any:
    try:
        value = json.loads(raw.decode("utf-8", "replace"))
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        mended = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return decode_whole(_ANY, mended.encode())
    except (ValueError, RecursionError):
        raise BadProgramRequest(f"the body is not JSON: {why}") from None


def objects(value: Any, name: str) -> list[dict[str, Any]]:
    """Checks a list of objects; null is an empty list. Raises BadProgramRequest."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise BadProgramRequest(f"{name} must be a list of objects")
    return value


def mapping(value: Any, name: str) -> dict[str, Any]:
    """Checks an optional object; null is an empty one. Raises BadProgramRequest."""
    if value is not None and not isinstance(value, dict):
        raise BadProgramRequest(f"{name} must be an object")
    return value or {}


def text_of(value: Any, name: str) -> str:
    """Checks an optional text; null is an empty one. Raises BadProgramRequest."""
    if value is not None and not isinstance(value, str):
        raise BadProgramRequest(f"{name} must be a text")
    return value or ""


def child(value: Any) -> dict[str, Any]:
    """Returns an object; anything else becomes an empty one."""
    return value if isinstance(value, dict) else {}


def word(value: Any) -> str:
    """Returns a string; anything else becomes an empty one."""
    return value if isinstance(value, str) else ""


def named(value: Any, name: str) -> str:
    """Checks a required string, such as the name of a tool or the id of a call. Raises BadProgramRequest."""
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_NAME:
        raise BadProgramRequest(f"{name} must be a text of 1 to {_LONGEST_NAME} characters")
    return value


def number(body: dict[str, Any], name: str) -> float | None:
    """Reads an optional number. Raises BadProgramRequest."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadProgramRequest(f"{name} must be a number")
    try:
        return float(value)
    except OverflowError as error:
        raise BadProgramRequest(f"{name} is too large for a number") from error


def flag(body: dict[str, Any], name: str) -> bool | None:
    """Reads an optional true or false. Raises BadProgramRequest."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise BadProgramRequest(f"{name} must be true or false")
    return value


def count(body: dict[str, Any], *names: str) -> int | None:
    """Reads a positive integer from the first of the names that is present. Raises BadProgramRequest."""
    for name in names:
        if (value := body.get(name)) is not None:
            if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
                raise BadProgramRequest(f"{name} must be a positive integer")
            return value
    return None


def sampling(body: dict[str, Any], *limits: str) -> dict[str, Any]:
    """Reads the fields that all wires share; `limits` name the token limit's field. Raises
    BadProgramRequest."""
    return {
        "model": word(body.get("model")),
        "stream": flag(body, "stream") is True,
        "max_tokens": count(body, *limits),
        "temperature": number(body, "temperature"),
        "top_p": number(body, "top_p"),
    }


def image_mark(url: str) -> str:
    """The text that replaces an image in a message."""
    return f"[image {digest(url)}]"


def content_of(value: Any, name: str, between: str = "") -> Content:
    """Reads a content: a string, null, or parts of any wire. An unknown part without text becomes a mark with
    its type; a field of another part that has no effect is counted. Raises BadProgramRequest."""
    if value is None or isinstance(value, str):
        return Content(value or "", (), ())
    texts, images, not_shown = list[str](), list[str](), list[str]()
    for part in objects(value, name):
        kind, held = kind_of_part(part), _held(part)
        if held is None:
            texts += [] if kind == "redacted_thinking" else [unseen_mark(kind)]
            not_shown.append(kind)
            continue
        not_shown += [kind] if part.get("type") is not None and kind not in _READ else []
        images += [held.url] if held.url else []
        texts.append(image_mark(held.url) if held.url else held.text)
        not_shown += unread(part, frozenset({"type", held.field}))
        not_shown += unread(child(part[held.field]), frozenset(held.inner))
    return Content(between.join(texts), tuple(images), tuple(not_shown))


def kind_of_part(part: Mapping[str, Any]) -> str:
    """Returns the type of a part, an item or a tool, as it is marked and counted."""
    return word(part.get("type"))[:_LONGEST_KIND] or "part"


def unseen_mark(kind: str) -> str:
    """The text that replaces what a model cannot read."""
    return f"[{kind}: not shown]"


class _Held(NamedTuple):
    """The text or the picture of a part, the field that holds it, and what is read in that field."""

    field: str
    inner: tuple[str, ...] = ()
    text: str = ""
    url: str = ""


def _held(part: dict[str, Any]) -> _Held | None:
    """Reads a part: `image_url` of both OpenAI wires, `source` of Anthropic's pictures and documents, or a
    text. None if a model cannot read it."""
    picture = part.get("image_url")
    if url := word(child(picture).get("url")) or word(picture):
        return _Held("image_url", ("url",), url=url)
    source = child(part.get("source"))
    data, media = word(source.get("data")), word(source.get("media_type"))
    match part.get("type"), source.get("type"):
        case "image", "base64":
            return _Held("source", ("type", "media_type", "data"), url=f"data:{media};base64,{data}")
        case "image", "url" if url := word(source.get("url")):
            return _Held("source", ("type", "url"), url=url)
        case "document", "text" if isinstance(source.get("data"), str):
            return _Held("source", ("type", "media_type", "data"), text=data)
    field = next((each for each in ("text", "refusal") if isinstance(part.get(each), str)), "")
    return _Held(field, text=part[field]) if field else None


def merge_system_messages(said: list[ProgramMessage]) -> list[ProgramMessage]:
    """Adapts system messages to chat templates: those that open a conversation become one message, later ones
    become user messages."""
    first = next((at for at, each in enumerate(said) if each.role is not Role.SYSTEM), len(said))
    texts = [each for each in said[:first] if each.text]
    opened = [
        ProgramMessage(
            role=Role.SYSTEM,
            text="\n\n".join(each.text for each in texts),
            images=tuple(url for each in texts for url in each.images),
            not_shown=tuple(kind for each in texts for kind in each.not_shown),
        )
    ][: len(texts)]
    return opened + [
        msgspec.structs.replace(each, role=Role.USER) if each.role is Role.SYSTEM else each
        for each in said[first:]
    ]


def refuse(body: dict[str, Any], reasons: Mapping[str, str]) -> None:
    """Raises BadProgramRequest if a request has a field that asks a server for what is not done here, with
    the reason for it."""
    for name, reason in reasons.items():
        if body.get(name) not in (None, False, [], {}):
            raise BadProgramRequest(f"{name}: {reason}")


def unread(body: Mapping[str, Any], known: frozenset[str]) -> tuple[str, ...]:
    """Returns the names of the fields that ask for something and have no effect here, to be counted. `known`
    are those that the wire reads or refuses."""
    known |= LABELS
    return tuple(
        name[:_LONGEST_KIND]
        for name, value in body.items()
        if name not in known and value is not None and value is not False and value not in ([], {}, "")
    )


def unnamed(number: int) -> str:
    """The id of the call with that number in a conversation, where the program gives none."""
    return f"{_UNNAMED}{number}"


def is_unnamed(call_id: str) -> bool:
    return call_id.startswith(_UNNAMED)


def named_as(call_id: str, ids: list[str]) -> str:
    """Returns the recorded id of a call that the program gave none. `ids` are those of the conversation's
    recorded calls, in order."""
    number = call_id.removeprefix(_UNNAMED) if is_unnamed(call_id) else ""
    return ids[int(number)] if number.isdecimal() and int(number) < len(ids) else call_id


def as_json(value: Any) -> str:
    """Encodes JSON. Raises BadProgramRequest for values that cannot be encoded."""
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise BadProgramRequest(f"a value cannot be written as JSON: {error}") from error


def pieces(text: str) -> list[str]:
    """Splits a text into deltas; an empty text has none."""
    return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]


def sse(data: object, event: str = "") -> bytes:
    head = f"event: {event}\n".encode() if event else b""
    return head + b"data: " + msgspec.json.encode(data) + b"\n\n"


def openai_error(failure: CallError, message: str, budget: int = 403) -> tuple[int, dict[str, Any]]:
    """Formats an error for OpenAI's APIs. `budget` is a status after which the wire's clients do not
    retry."""
    status, kind, code = {
        CallError.INVALID: (400, "invalid_request_error", None),
        CallError.NOT_FOUND: (404, "invalid_request_error", "not_found"),
        CallError.TOO_LARGE: (413, "invalid_request_error", "request_too_large"),
        CallError.CONTEXT: (400, "invalid_request_error", "context_length_exceeded"),
        CallError.BUDGET: (budget, "insufficient_quota", "insufficient_quota"),
        CallError.UNAVAILABLE: (503, "service_unavailable", "service_unavailable"),
    }[failure]
    return status, {"error": {"message": message, "type": kind, "param": None, "code": code}}
