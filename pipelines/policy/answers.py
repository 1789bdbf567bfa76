"""Reads a generated text back into a message, by the form in which the chat template writes one.

That is reasoning between tags, then text, then the calls in the form of the model's family, or gpt-oss's
messages in channels. What does not follow it to the letter stays text: a half-made call is not repaired.
"""

import re
from collections.abc import Sequence
from functools import cache

import msgspec

from orchard.pipelines.policy.call_forms import CallForm, Found, Tools
from orchard.pipelines.policy.harmony import read_harmony
from orchard.schemas.decoding import Unreadable, decode
from orchard.schemas.identity import digest
from orchard.schemas.messages import ToolCall

_ID_LENGTH = 9
"""Mistral's templates take ids of nine letters and digits, and no others."""


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True):
    """An assistant message with OpenAI's fields."""

    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


def read_message(
    text: str,
    *,
    calls: Sequence[CallForm],
    tags: tuple[str, str] | None,
    source: object,
    opened: bool = False,
    tools: Tools = (),
    harmony: bool = False,
) -> AssistantMessage:
    """The message in `text`, which has no end mark.

    `calls` are the forms in which calls may stand; `tags` the texts around reasoning, None where there is
    none; `opened` says that the prompt has begun the reasoning already; `harmony`, that answers are messages
    in channels. `tools` are those that the model was offered. `source` is hashed into the calls' ids: equal
    answers to equal prompts have equal ids.
    """
    if harmony:
        answer = read_harmony(text)
        found = _tool_calls(answer.calls, source) if answer else ()
        if answer is None or len(found) != len(answer.calls):
            return AssistantMessage(content=text)
        return AssistantMessage(content=answer.content, reasoning=answer.reasoning, tool_calls=found)
    reasoning = ""
    if tags and (match := _thinking(*tags, opened).fullmatch(text)):
        reasoning, text = match[1], match[2]
    for form in calls:
        before = text.find(form.opening)
        if before < 0:
            continue
        try:
            found = _tool_calls(form.read(text[before:], tools) or [], source)
        except (Unreadable, ValueError, RecursionError):
            continue
        if found:
            return AssistantMessage(
                content=text[:before].removesuffix("\n"), reasoning=reasoning, tool_calls=found
            )
    return AssistantMessage(content=text, reasoning=reasoning)


@cache
def _thinking(begin: str, end: str, opened: bool) -> re.Pattern[str]:
    """A pattern of an answer with reasoning; its groups are the reasoning and the rest."""
    before = "" if opened else rf"\s*{re.escape(begin)}\n?"
    return re.compile(rf"{before}(.*?)\n?{re.escape(end)}\n*(.*)", re.DOTALL)


def _tool_calls(found: Found, source: object) -> tuple[ToolCall, ...]:
    """Calls with their ids; none when the arguments of one are no object."""
    try:
        written = [(name, _json_object(arguments)) for name, arguments in found]
    except (Unreadable, ValueError, RecursionError):
        return ()
    return tuple(
        ToolCall(id=digest([source, number])[:_ID_LENGTH], name=name, arguments=arguments)
        for number, (name, arguments) in enumerate(written)
    )


def _json_object(raw: msgspec.Raw) -> str:
    """The text of an object in JSON. Raises Unreadable or ValueError for anything else."""
    decode(msgspec.json.Decoder(dict[str, msgspec.Raw]), bytes(raw))
    return bytes(raw).decode()
