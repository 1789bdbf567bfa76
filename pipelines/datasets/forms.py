"""The forms in which tools, calls and results are written where a chat template has none.

Calls take the form of the model's family where the vocabulary shows it, else that of Hermes and Qwen.
"""

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import groupby
from typing import Any

from orchard.pipelines.datasets.errors import ExampleError

Message = dict[str, Any]
Tools = Sequence[dict[str, Any]]
Form = Callable[[str, str, Sequence[Message]], str]
"""Writes a text and calls behind what leads to the text."""

THINK = ("<think>", "</think>")
"""The texts around reasoning."""
OPENING = "<think>\n"
CLOSE = "\n</think>\n\n"

_TOOLS = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with "
    "function signatures within <tools></tools> XML tags:\n<tools>\n{tools}\n</tools>\n\n"
    "Return each function call in this form:\n{call}"
)
_SHOWN = {"function": {"name": "<function-name>", "arguments": "<args-json-object>"}}


def form_of(vocabulary: Collection[str]) -> Form:
    """The function that writes calls in the form of the vocabulary's family."""
    if "<｜tool▁calls▁begin｜>" in vocabulary:
        return _deepseek
    if "[TOOL_CALLS]" in vocabulary:
        return _mistral
    if "<|channel|>" in vocabulary and "<|call|>" in vocabulary:
        return _harmony
    return _llama if "<|start_header_id|>" in vocabulary else _hermes


def fixed_text(vocabulary: Collection[str], calls: Sequence[Message]) -> str:
    """All that is written here in place of a template, to be searched for control tokens."""
    results = without_results([{"role": "tool", "content": ""}])
    written = form_of(vocabulary)("", "", calls)
    return "".join([OPENING, CLOSE, written, *(message["content"] for message in results)])


def with_tools(messages: Sequence[Message], tools: Tools, form: Form, has_system: bool) -> list[Message]:
    """Append the tools, as lines of JSON, and the form of calls to the system message, in Qwen's words; where
    the template has none, put them before the first message."""
    lines = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    words = _TOOLS.format(tools=lines, call=form("", "", [_SHOWN]))
    first = messages[0] if messages else None
    if first and first["role"] == "system":
        return [{**first, "content": f"{first['content']}\n\n{words}"}, *messages[1:]]
    if first and not has_system:
        return [{**first, "content": f"{words}\n\n{first['content']}"}, *messages[1:]]
    return [{"role": "system", "content": words}, *messages]


def without_results(messages: Sequence[Message]) -> Iterator[Message]:
    """Turn results of tools into messages of the user."""
    for role, run in groupby(messages, lambda message: message["role"]):
        if role == "tool":
            results = (f"<tool_response>\n{message['content']}\n</tool_response>" for message in run)
            yield {"role": "user", "content": "\n".join(results)}
        else:
            yield from run


def _deepseek(lead: str, content: str, calls: Sequence[Message]) -> str:
    written = [
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"
        for name, arguments in map(_named, calls)
    ]
    listed = f"<｜tool▁calls▁begin｜>{chr(10).join(written)}<｜tool▁calls▁end｜>" if written else ""
    return lead + content + listed


def _mistral(lead: str, content: str, calls: Sequence[Message]) -> str:
    written = []
    for call in calls:
        name, arguments = _named(call)
        number = f', "id": "{call["id"]}"' if call.get("id") else ""
        written.append(f'{{"name": "{name}", "arguments": {arguments}{number}}}')
    return lead + content + (f"[TOOL_CALLS][{', '.join(written)}]" if written else "")


def _harmony(lead: str, content: str, calls: Sequence[Message]) -> str:
    """gpt-oss's: the text beside a call is a message of its own, in the channel `commentary`. Raises
    ExampleError for several calls: the first one's end ends the answer."""
    if not calls:
        return lead + content
    if len(calls) > 1:
        raise ExampleError(f"an answer of gpt-oss has one call, and this one has {len(calls)}")
    ((name, arguments),) = map(_named, calls)
    before = lead[: lead.rfind("<|channel|>")] if "<|channel|>" in lead else lead
    if content:
        before += f"<|channel|>commentary<|message|>{content}<|end|><|start|>assistant"
    return f"{before}<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}"


def _llama(lead: str, content: str, calls: Sequence[Message]) -> str:
    written = [f'{{"name": "{name}", "parameters": {arguments}}}' for name, arguments in map(_named, calls)]
    return lead + content + ("\n" if content and calls else "") + "; ".join(written)


def _hermes(lead: str, content: str, calls: Sequence[Message]) -> str:
    written = [
        f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
        for name, arguments in map(_named, calls)
    ]
    return lead + content + ("\n" if content and calls else "") + "\n".join(written)


def _named(call: Message) -> tuple[str, str]:
    arguments = call["function"]["arguments"]
    return call["function"]["name"], (
        arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    )
