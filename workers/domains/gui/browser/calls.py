"""The calls of an answer: those of the endpoint, or written into its text as `<tool_call>` blocks. Pure."""

import re
from collections.abc import Sequence

import msgspec

from orchard.schemas.messages import RESULT_TAGS, ToolCall
from orchard.workers.domains.gui.browser.tools import loaded, readable
from orchard.workers.llm.answers import Completion

_BLOCK = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_THOUGHT = re.compile(r".*</think>", re.DOTALL)


def calls_of(completion: Completion) -> tuple[ToolCall, ...]:
    """The calls of an answer, in order; none where one of them cannot be read."""
    calls = completion.tool_calls or written_calls(completion.text)
    return calls if all(call.name and readable(call.arguments) for call in calls) else ()


def written_calls(text: str) -> tuple[ToolCall, ...]:
    """The calls in a text, behind its thinking: JSON with `name` and `arguments`. None where one is not
    that."""
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
    """The result lines in what the user says of written calls; none in any other message."""
    if not message.startswith(RESULT_TAGS[0]):
        return ()
    lines = message.removeprefix(RESULT_TAGS[0]).splitlines()
    return tuple(_before(lines, "<observation>", "</tool_response>"))


def _before(lines: Sequence[str], *ends: str) -> list[str]:
    at = next((number for number, line in enumerate(lines) if line in ends), len(lines))
    return list(lines[:at])
