"""What a chat template can write, found by asking it for small conversations: calls, reasoning, tools, and
the end of an answer.

The end depends on the template and on whether the answer calls tools. ChatML writes one token after every
answer. gpt-oss's template writes `<|return|>` after a last answer, `<|end|>` in its place after an earlier
one and `<|call|>` after a call. GLM's writes nothing: the token that opens the next message ends the answer.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from orchard.pipelines.datasets.errors import DatasetError, ExampleError
from orchard.pipelines.datasets.forms import THINK, Message, Tools
from orchard.schemas.decoding import Unreadable, decode_text

Render = Callable[[Sequence[Message], Tools, bool], str]
"""Renders messages and tools, with the generation prompt where the flag is set. Raises ExampleError."""

TEXT = "\ue0f5"
"""Placeholder for the text of a message, to find what a template writes around it."""
_OPENING = re.compile(r"<think>\n*(</think>\n*)?\Z")
WORDS = "\ue0f6"
"""Placeholder for the text of the message after it."""
ASK: Message = {"role": "user", "content": "?"}
ASK_MORE: Message = {"role": "user", "content": WORDS}
_ARGUMENTS = '{"key": "value"}'
CALLS = [{"id": "call00000", "type": "function", "function": {"name": "probe", "arguments": _ARGUMENTS}}]
_SECOND = {"id": "call00001", "type": "function", "function": {"name": "other", "arguments": _ARGUMENTS}}
RESULT = {"role": "tool", "content": WORDS, "tool_call_id": "call00000"}
_TOOL = {"type": "function", "function": {"name": "probe", "description": "", "parameters": {}}}


@dataclass(frozen=True)
class End:
    """The end of an answer."""

    mark: str
    """The control token that a model samples last."""
    closing: str
    """Text from behind the answer to the mark, with the mark."""
    tail: str
    """What the template writes after a last answer, behind the mark if it writes that."""
    written: bool
    """Whether the template writes the mark after a last answer; else the mark opens what follows."""
    earlier: str
    """The mark after an earlier answer, "" where the template writes none."""

    @property
    def last(self) -> str:
        """What the template writes after a last answer."""
        return self.closing + self.tail if self.written else self.tail

    @property
    def rest(self) -> str:
        """What stands behind the mark at the end of a conversation."""
        return self.tail if self.written else ""

    def following(self, text: str, mark: str, opens: Callable[[str], bool]) -> str:
        """What follows the end, of a text that follows an answer's words.

        A control token after `mark` is text. Raises ExampleError where the answer has no end there: by
        `opens`, a text that begins with a control token needs none where the template writes none.
        """
        if self.earlier:
            at = find_token(text, self.earlier, mark)
            if at >= 0:
                return text[at + len(self.earlier) :]
        text = text.removeprefix(self.closing.removesuffix(self.mark))
        if self.earlier and (self.written or not opens(text)):
            raise ExampleError(f"the chat template does not end an answer with {self.earlier}")
        return text


class TemplateProbe:
    """What a template can write. Raises DatasetError for one that cannot write a question and an answer."""

    def __init__(self, render: Render, control: re.Pattern[str], eos: str) -> None:
        """`control` matches control tokens, of which `eos` is the tokenizer's own end token."""
        self._render = render
        self._control = control
        try:
            self.prompt = render([ASK], (), True)
            self.before, self.found, last = render([ASK, said(TEXT)], (), False).partition(TEXT)
            self._asked = render([ASK], (), False).rpartition("?")[2]
        except ExampleError as error:
            raise DatasetError(f"its chat template cannot write a question and an answer: {error}") from error
        self.end = self._end_of_text(last, eos)
        """The end of an answer without calls, None where the template has none."""
        self.takes_text = self.shows(_ARGUMENTS, [ASK, said("", CALLS)])
        self.calls_end = self._end_of_calls() if self._writes([ASK, self.adapted(said("", CALLS))]) else None
        """The end of an answer with calls, None where the template has no calls."""
        self.takes_text |= self.calls_end is None
        """Whether calls have their arguments as a text; else as an object (`with_objects`)."""
        self.has_several = self.shows("other", [ASK, self.adapted(said("", [*CALLS, _SECOND]))])
        thought = {**self.adapted(said("", CALLS)), "reasoning_content": TEXT}
        self.has_reasoning = self.shows(TEXT, [ASK, {**said("a"), "reasoning_content": TEXT}])
        self.has_text_beside_calls = not self.has_reasoning or (
            self._written([ASK, thought]) != self._written([ASK, self.adapted(said(TEXT, CALLS))])
        )
        """False where the template writes the text beside a call as reasoning, as gpt-oss's does."""
        self.opening = self._opened()
        """The beginning of an answer's reasoning that the generation prompt writes, and the template only
        where it takes all of an answer for reasoning."""
        self.tags = self._reasoning_tags()
        """The texts around reasoning."""
        self.has_tools = self.shows("probe", [ASK], [_TOOL])
        self.has_system = self.shows(TEXT, [{"role": "system", "content": TEXT}, ASK])

    def opens(self, text: str) -> bool:
        """Whether a message begins with a control token."""
        return bool(self._control.match(text.lstrip()))

    def adapted(self, message: Message) -> Message:
        return message if self.takes_text else with_objects(message)

    def after(self, text: str) -> str:
        """The text after an answer, or after the prompt where the template writes no earlier answer."""
        return text.partition(TEXT)[2] if TEXT in text else text.removeprefix(self.prompt)

    def shows(self, text: str, messages: Sequence[Message], tools: Tools = ()) -> bool:
        return text in self._written(messages, tools)

    def _opened(self) -> str:
        opened = _OPENING.search(self.prompt)
        if opened is None:
            return ""
        inside = (
            not self.has_reasoning and THINK[1] not in opened[0]
        )  # as Nemotron Nano 2's template writes all
        return opened[0] if inside or not self.before.startswith(self.prompt) else ""

    def _reasoning_tags(self) -> tuple[str, str]:
        text = self._written([ASK, {**said(TEXT), "reasoning_content": WORDS}])
        before, found, after = text.removeprefix(self.prompt.removesuffix(self.opening)).partition(WORDS)
        tags = before.strip(), after.partition(TEXT)[0].strip()
        return tags if found and all(tags) else THINK

    def _writes(self, messages: Sequence[Message]) -> bool:
        return self.shows("value", messages)

    def _written(self, messages: Sequence[Message], tools: Tools = (), generating: bool = False) -> str:
        try:
            return self._render(messages, tools, generating)
        except ExampleError:
            return ""

    def _between(self, message: Message, following: Message) -> str:
        """What stands between the words of an answer and those of the message after it, "" where the template
        does not write both."""
        between, found, _ = self.after(self._written([ASK, message, following])).partition(WORDS)
        return between if found else ""

    def _end_of_text(self, last: str, eos: str) -> End | None:
        """A token that stands both after a last answer and before a user's message, `eos` if that is one of
        them; else one that stands after a last answer alone; else, where nothing does, the token that opens
        the user's message, unless it also opens an answer."""
        between = self._between(said(TEXT), ASK_MORE)
        marks, there = self._control.findall(last), self._control.findall(between)
        both = [mark for mark in marks if mark in there]
        if marks:
            choice = both or marks
            mark = eos if eos in choice else choice[0]
            replaced = there[:1] if there[:1] == self._control.findall(self._asked)[:1] else []
            at = last.index(mark) + len(mark)
            return End(mark, last[:at], last[at:], True, mark if both else "".join(replaced))
        if last.strip() or not there or there[0] in self.prompt.removeprefix(self._written([ASK])):
            return None
        at = between.index(there[0]) + len(there[0])
        return End(there[0], between[:at], last, False, there[0])

    def _end_of_calls(self) -> End | None:
        """That of a text; else the token after a last call; else the token that opens the results."""
        if self.end is None:
            return None
        message = self.adapted(said(TEXT, CALLS))
        last = self.after(self._written([ASK, message]))
        if self.end.written:
            if last.endswith(self.end.last):
                return self.end
            *_, mark = ["", *self._control.findall(last)]
            tail = last.rpartition(mark)[2] if mark else "?"
            return None if tail.strip() else End(mark, mark, tail, True, mark)
        between = self._between(message, RESULT) or self._between(message, ASK_MORE)
        shared = _shared(last, between)
        mark = next(iter(self._control.findall(between[shared:])), "")
        if not mark or last[shared:].strip():
            return self.end
        at = between.index(mark, shared) + len(mark)
        return End(mark, between[shared:at], last[shared:], False, mark)


def find_token(text: str, token: str, mark: str) -> int:
    """Where a control token stands that is not behind `mark`, -1 where none does."""
    at = text.find(token)
    while at > 0 and text.startswith(mark, at - len(mark)):
        at = text.find(token, at + 1)
    return at


def _shared(first: str, second: str) -> int:
    """Number of characters with which both texts begin."""
    pairs = zip(first, second, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second)))


def said(content: str, calls: Sequence[Message] = ()) -> Message:
    message: Message = {"role": "assistant", "content": content}
    return {**message, "tool_calls": list(calls)} if calls else message


def with_objects(message: Message) -> Message:
    """The message with the arguments of calls as objects, where their text is one."""
    if not message.get("tool_calls"):
        return message
    calls = []
    for call in message["tool_calls"]:
        try:
            arguments: Any = decode_text(call["function"]["arguments"])
        except Unreadable:
            arguments = None
        function = (
            {**call["function"], "arguments": arguments} if isinstance(arguments, dict) else call["function"]
        )
        calls.append({**call, "function": function})
    return {**message, "tool_calls": calls}
