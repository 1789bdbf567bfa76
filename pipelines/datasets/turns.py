"""Renders conversations with a model's own chat template, with no earlier turn rewritten.

Most templates write the newest turn in one way and earlier turns in another: they drop reasoning, or
add an empty block of it. Then a prompt is not the beginning of the next one, and a turn is not trained
as it was sampled. So every turn is written here as the template writes the newest one, and what stands
between two turns as the template writes it after the newest one. What a template does not rewrite
comes out equal. What a template cannot express (tools, calls, reasoning, results of tools) is written
in the form of the model's family where the vocabulary shows it, else in that of Hermes and Qwen.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import groupby
from typing import Any

from orchard.pipelines.datasets.errors import DatasetError, ExampleError
from orchard.schemas.decoding import Unreadable, decode_text

Message = dict[str, Any]
Tools = Sequence[dict[str, Any]]
Render = Callable[[Sequence[Message], Tools, bool], str]
"""Renders messages and tools, with the generation prompt where the flag is set. Raises ExampleError."""

_TEXT = "\ue0f5"
"""Placeholder for the text of a message, to find what a template writes around it."""
_WORDS = "\ue0f6"
"""Placeholder for the text of the message after it."""
_ASK: Message = {"role": "user", "content": "?"}
OPENING = "<think>\n"
"""The beginning of an answer with reasoning; some generation prompts write it."""
_CLOSE = "\n</think>\n\n"
_ARGUMENTS = '{"key": "value"}'
_CALLS = [{"id": "call00000", "type": "function", "function": {"name": "probe", "arguments": _ARGUMENTS}}]
_RESULT = {"role": "tool", "content": _WORDS, "tool_call_id": "call00000"}
_TOOL = {"type": "function", "function": {"name": "probe", "description": "", "parameters": {}}}

_TOOLS = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with "
    "function signatures within <tools></tools> XML tags:\n<tools>\n{tools}\n</tools>\n\n"
    "Return each function call in this form:\n{call}"
)
_SHOWN = {"function": {"name": "<function-name>", "arguments": "<args-json-object>"}}
Form = Callable[[str, Sequence[Message]], str]
"""Appends calls to a text."""


class TurnWriter:
    def __init__(self, render: Render, end: str, vocabulary: Collection[str], mark: str) -> None:
        """Raises DatasetError for a template without an `end` mark (see `end_mark`), or that does not
        write an answer after its own generation prompt. After `mark`, `end` is text."""
        self._render = render
        self._end, self._marked_end = end, mark + end
        self._form = _form_of(vocabulary)
        try:
            self._prompt = render([_ASK], (), True)
            before, found, after = render([_ASK, _said(_TEXT)], (), False).partition(_TEXT)
        except ExampleError as error:
            raise DatasetError(f"its chat template cannot write a question and an answer: {error}") from error
        self._opening = OPENING if self._prompt.endswith(OPENING) else ""
        if not found or not before.startswith(self._prompt.removesuffix(self._opening)):
            raise DatasetError("its chat template begins an answer otherwise than its generation prompt does")
        if not end:
            raise DatasetError(
                "its chat template writes no control token both after a last answer and between an answer "
                "and a user's message, so nothing would teach a model to stop: mend the template"
            )
        self._ending = after[: after.index(end) + len(end)]
        self._tail = after[len(self._ending) :]
        self.takes_text = self._shows(_ARGUMENTS, [_ASK, _said("", _CALLS)])
        self._has_calls = self._shows("value", [_ASK, self._adapted(_said("", _CALLS))])
        self.takes_text |= not self._has_calls
        """Whether calls have their arguments as a text; else as an object (`with_objects`)."""
        said = self._adapted(_said(_TEXT, _CALLS))
        self._has_reasoning = self._shows(_TEXT, [_ASK, {**_said("a"), "reasoning_content": _TEXT}])
        self._has_tools = self._shows("probe", [_ASK], [_TOOL])
        self._has_system = self._shows(_TEXT, [{"role": "system", "content": _TEXT}, _ASK])
        self._keeps_calls = self._shows(_TEXT, [_ASK, said])
        self._has_results = self._follows(said, _RESULT)
        self.call = self._answer(self._adapted(_said("", _CALLS)), False)
        """An answer with one call."""
        if not self._has_results:
            self._keeps_calls &= self._follows(said, {"role": "user", "content": _WORDS})

    def write(self, messages: Sequence[Message], tools: Tools) -> tuple[str, list[tuple[int, int]]]:
        """Render messages whose calls have arguments as `takes_text` says; returns the text, and of each
        assistant message the span of characters, its end mark included. Raises ExampleError for a
        conversation that the template refuses."""
        if tools and not self._has_tools:
            messages, tools = _with_tools(messages, tools, self._form, self._has_system), ()
        if not self._has_results:
            messages = list(_without_results(messages))
        turns = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        if not turns:
            return with_words(self._render(messages, tools, False), messages), []
        before = messages[: turns[0]]
        pieces = [with_words(self._render(before, tools, True), before)]
        spans = []
        at = len(pieces[0])
        for turn, following in zip(turns, [*turns[1:], None], strict=True):
            answer = self._answer(messages[turn], pieces[-1].endswith(OPENING))
            rest = self._between(messages[turn], messages[turn + 1 : following], following is not None)
            pieces += [answer, rest]
            spans.append((at, at + len(answer)))
            at += len(answer) + len(rest)
        return "".join(pieces), spans

    def _answer(self, message: Message, opened: bool) -> str:
        """An assistant message from the end of the generation prompt, which may have `opened` the reasoning,
        to the end mark."""
        answer = self._native(message)
        if answer is None:
            content, reasoning = message.get("content") or "", message.get("reasoning_content") or ""
            frame = {**_said(_TEXT), **({"reasoning_content": reasoning} if self._has_reasoning else {})}
            answer = self._render([_ASK, frame], (), False).partition(_TEXT)[0]
            if answer.startswith(self._prompt):
                answer = answer[len(self._prompt) :]
                reasoning = "" if self._has_reasoning else reasoning
                answer += f"{OPENING}{reasoning}{_CLOSE}" if reasoning else ""
            else:
                answer = reasoning + _CLOSE
            answer += content + self._form(content, message.get("tool_calls") or ()) + self._ending
        if opened or not self._opening:
            return answer
        return answer.removeprefix(_CLOSE) if answer.startswith(_CLOSE) else self._opening + answer

    def _native(self, message: Message) -> str | None:
        """The answer as the template itself writes it, None where it leaves something out."""
        calls, reasoning = message.get("tool_calls") or (), message.get("reasoning_content") or ""
        if (calls and not self._has_calls) or (reasoning and not self._has_reasoning):
            return None
        try:
            text = self._render([_ASK, message], (), False)
        except ExampleError:
            return None
        answer = text[len(self._prompt) : len(text) - len(self._tail)]
        words = [message.get("content") or "", reasoning, *(call["function"]["name"] for call in calls)]
        whole = text.startswith(self._prompt) and text.endswith(self._ending + self._tail)
        return answer if whole and all(word.strip() in answer for word in words) else None

    def _between(self, said: Message, run: Sequence[Message], asks: bool) -> str:
        """The text between the end mark of an assistant message and the beginning of the next one."""
        if not run and not asks:
            return self._tail
        stub = _said(_TEXT)
        if self._keeps_calls and said.get("tool_calls"):
            stub = self._adapted(_said(_TEXT, [_emptied(call) for call in said["tool_calls"]]))
        text = self._render([_ASK, stub, *run], (), asks)
        text = _after(text, self._prompt)
        at = text.find(self._end)
        while at > 0 and text.startswith(self._marked_end, at - len(self._marked_end) + len(self._end)):
            at = text.find(self._end, at + 1)
        if at < 0:
            raise ExampleError(f"the chat template does not end an answer with {self._end}")
        return with_words(text[at + len(self._end) :], run)

    def _follows(self, said: Message, message: Message) -> bool:
        """Whether the template writes `message` after the end mark of `said`."""
        try:
            return bool(self._between(said, [message], True))
        except ExampleError:
            return False

    def _shows(self, text: str, messages: Sequence[Message], tools: Tools = ()) -> bool:
        try:
            return text in self._render(messages, tools, False)
        except ExampleError:
            return False

    def _adapted(self, message: Message) -> Message:
        return message if self.takes_text else with_objects(message)


def end_mark(render: Render, control: re.Pattern[str], eos: str) -> str:
    """The control token that ends an answer, "" where there is none.

    It is one that the template writes both after a last answer and between an answer and a user's message:
    `eos`, the tokenizer's own, if that is one of them, else the first.
    """
    try:
        prompt = render([_ASK], (), True)
        last = render([_ASK, _said(_TEXT)], (), False)
        asked = render([_ASK, _said(_TEXT), {"role": "user", "content": _WORDS}], (), False)
    except ExampleError:
        return ""
    between = set(control.findall(_after(asked, prompt).partition(_WORDS)[0]))
    found = [token for token in control.findall(last.partition(_TEXT)[2]) if token in between]
    return eos if eos in found else next(iter(found), "")


def _after(text: str, prompt: str) -> str:
    """The text after an answer, or after the prompt where the template writes no earlier answer."""
    return text.partition(_TEXT)[2] if _TEXT in text else text.removeprefix(prompt)


def forms(vocabulary: Collection[str]) -> str:
    """All fixed text that is written here in place of a template, to be searched for control tokens."""
    calls = _form_of(vocabulary)("", _CALLS)
    results = _without_results([_RESULT])
    return "".join([OPENING, _CLOSE, calls, *(message["content"] for message in results)])


def with_words(text: str, messages: Sequence[Message], answers: Sequence[tuple[int, int]] = ()) -> str:
    """Return `text` if every message's content appears in it in order, else raise ExampleError: no
    message may be left out in silence. System messages may come first, contents may be in JSON, white
    space at their ends does not count; `answers` are the spans of the assistant's messages."""
    system_first = sorted(messages, key=lambda message: message["role"] != "system")
    missing = [_missing(text, order, answers) for order in (messages, system_first)]
    if all(missing):
        raise ExampleError(f"the chat template leaves out or rewrites what a {missing[0]} message says")
    return text


def _missing(text: str, messages: Sequence[Message], answers: Sequence[tuple[int, int]]) -> str:
    """The role of the first message whose content is not behind those of the messages before it, "" where
    all are."""
    spans = iter([*answers, (len(text), len(text))])
    at, (stop, following) = 0, next(spans)
    for message in messages:
        if message["role"] == "assistant":
            at, (stop, following) = following, next(spans)
            continue
        words = (message.get("content") or "").strip()
        forms = (words, json.dumps(words, ensure_ascii=False)[1:-1])
        ends = [place + len(form) for form in forms if (place := text.find(form, at, stop)) >= 0]
        if not ends:
            return str(message["role"])
        at = min(ends)
    return ""


def with_objects(message: Message) -> Message:
    """The message with the arguments of calls as objects, where their text is one."""
    if not message.get("tool_calls"):
        return message
    calls = []
    for call in message["tool_calls"]:
        try:
            arguments = decode_text(call["function"]["arguments"])
        except Unreadable:
            arguments = None
        function = (
            {**call["function"], "arguments": arguments} if isinstance(arguments, dict) else call["function"]
        )
        calls.append({**call, "function": function})
    return {**message, "tool_calls": calls}


def _said(content: str, calls: Sequence[Message] = ()) -> Message:
    said: Message = {"role": "assistant", "content": content}
    return {**said, "tool_calls": list(calls)} if calls else said


def _emptied(call: Message) -> Message:
    return {**call, "function": {**call["function"], "arguments": "{}"}}


def _with_tools(messages: Sequence[Message], tools: Tools, form: Form, has_system: bool) -> list[Message]:
    """Append the tools, as lines of JSON, and the form of calls to the system message, in Qwen's words; where
    the template has none, put them before the first message."""
    lines = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    words = _TOOLS.format(tools=lines, call=form("", [_SHOWN]))
    first = messages[0] if messages else None
    if first and first["role"] == "system":
        return [{**first, "content": f"{first['content']}\n\n{words}"}, *messages[1:]]
    if first and not has_system:
        return [{**first, "content": f"{words}\n\n{first['content']}"}, *messages[1:]]
    return [{"role": "system", "content": words}, *messages]


def _without_results(messages: Sequence[Message]) -> Iterator[Message]:
    """Turn results of tools into messages of the user."""
    for role, run in groupby(messages, lambda message: message["role"]):
        if role == "tool":
            results = (f"<tool_response>\n{message['content']}\n</tool_response>" for message in run)
            yield {"role": "user", "content": "\n".join(results)}
        else:
            yield from run


def _form_of(vocabulary: Collection[str]) -> Form:
    """The function that appends calls to a text, in the form of the vocabulary's family."""
    if "<｜tool▁calls▁begin｜>" in vocabulary:
        return _deepseek
    if "[TOOL_CALLS]" in vocabulary:
        return _mistral
    return _llama if "<|start_header_id|>" in vocabulary else _hermes


def _deepseek(_: str, calls: Sequence[Message]) -> str:
    written = [
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"
        for name, arguments in map(_named, calls)
    ]
    return f"<｜tool▁calls▁begin｜>{chr(10).join(written)}<｜tool▁calls▁end｜>" if written else ""


def _mistral(_: str, calls: Sequence[Message]) -> str:
    written = []
    for call in calls:
        name, arguments = _named(call)
        number = f', "id": "{call["id"]}"' if call.get("id") else ""
        written.append(f'{{"name": "{name}", "arguments": {arguments}{number}}}')
    return f"[TOOL_CALLS][{', '.join(written)}]" if written else ""


def _llama(content: str, calls: Sequence[Message]) -> str:
    written = [f'{{"name": "{name}", "parameters": {arguments}}}' for name, arguments in map(_named, calls)]
    return ("\n" if content and calls else "") + "; ".join(written)


def _hermes(content: str, calls: Sequence[Message]) -> str:
    written = [
        f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
        for name, arguments in map(_named, calls)
    ]
    return ("\n" if content and calls else "") + "\n".join(written)


def _named(call: Message) -> tuple[str, str]:
    arguments = call["function"]["arguments"]
    return call["function"]["name"], (
        arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    )
