"""Reads the tool calls of an answer: the endpoint's, or `<tool_call>` blocks in its text. Pure."""

import re
from collections.abc import Sequence

import msgspec

from orchard.schemas.messages import RESULT_TAGS, ToolCall
from orchard.workers.domains.gui.browser.tools import loaded, readable
from orchard.workers.llm.answers import Completion

_BLOCK = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_THOUGHT = re.compile(r".*</think>", re.DOTALL)


def calls_of(completion: Completion) -> tuple[ToolCall, ...]:
    """Returns the calls of an answer in order; none if any of them is unreadable."""
    calls = completion.tool_calls or written_calls(completion.text)
    return calls if all(call.name and readable(call.arguments) for call in calls) else ()


def written_calls(text: str) -> tuple[ToolCall, ...]:
    """Returns the calls in a text after its thinking: JSON with `name` and `arguments`. None if any block is
    not that."""
    calls = []
    for number, block in enumerate(_BLOCK.findall(_THOUGHT.sub("", text, count=1))):
        try:
            found = loaded(block)
        except (ValueError, RecursionError):
            return ()
        if not isinstance(found, dict) or not isinstance(found.get("name"), str):
            return ()
        arguments = found.get("arguments", {})
        said = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
        calls.append(ToolCall(id=f"text-{number}", name=found["name"], arguments=said))
    return tuple(calls)


def written_results(message: str) -> tuple[str, ...]:
    """Returns the result lines of a message that answers written calls; none for other messages."""
    if not message.startswith(RESULT_TAGS[0]):
        return ()
    lines = message.removeprefix(RESULT_TAGS[0]).splitlines()
    return tuple(_before(lines, "<observation>", "</tool_response>"))


def _before(lines: Sequence[str], *ends: str) -> list[str]:
    at = next((number for number, line in enumerate(lines) if line in ends), len(lines))
    return list(lines[:at])
