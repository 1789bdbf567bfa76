"""Renders conversations with a model's own chat template, with no earlier turn rewritten.

Most templates write the newest turn in one way and earlier turns in another: they drop reasoning, or
add an empty block of it. Then a prompt is not the beginning of the next one, and a turn is not trained
as it was sampled. So every turn is written here as the template writes the newest one, its end included,
and what stands between two turns as the template writes it after the newest one. What a template does not
rewrite comes out equal. What a template cannot express (tools, calls, reasoning, results of tools) is written
in the form of the model's family where the vocabulary shows it, else in that of Hermes and Qwen.
"""

import json
import re
from collections.abc import Collection, Sequence

from orchard.pipelines.datasets.errors import DatasetError, ExampleError
from orchard.pipelines.datasets.forms import (
    CLOSE,
    OPENING,
    THINK,
    Message,
    Tools,
    form_of,
    with_tools,
    without_results,
)
from orchard.pipelines.datasets.probing import (
    ASK,
    CALLS,
    RESULT,
    TEXT,
    WORDS,
    End,
    Render,
    TemplateProbe,
    find_token,
    said,
)

_EMPTY = re.compile(r"\A(<think>)?\n*</think>\n*")
"""The beginning of an answer without reasoning, in templates that write it empty."""


class TurnWriter:
    def __init__(self, render: Render, probe: TemplateProbe, vocabulary: Collection[str], mark: str) -> None:
        """Raises DatasetError for a template whose answers have no end (`TemplateProbe.end`), or that does
        not write an answer after its own generation prompt. After `mark`, a control token is text."""
        self._render = render
        self._probe = probe
        self._mark = mark
        self._form = form_of(vocabulary)
        self._opening = probe.opening
        self._prompt = probe.prompt.removesuffix(self._opening)
        """The generation prompt, without the reasoning that it may begin."""
        if not probe.found or not probe.before.startswith(self._prompt):
            raise DatasetError("its chat template begins an answer otherwise than its generation prompt does")
        if probe.end is None:
            raise DatasetError(
                "its chat template writes no control token after a last answer, and none that opens a user's "
                "message alone, so nothing would teach a model to stop: mend the template"
            )
        self._end = probe.end
        calls = probe.adapted(said(TEXT, CALLS))
        self._keeps_calls = probe.shows(TEXT, [ASK, calls])
        self._has_results = self._follows(calls, RESULT)
        if not self._has_results:
            self._keeps_calls &= self._follows(calls, {"role": "user", "content": WORDS})

    def write(self, messages: Sequence[Message], tools: Tools) -> tuple[str, list[tuple[int, int]]]:
        """Render messages whose calls have arguments as `TemplateProbe.takes_text` says; returns the text,
        and of each assistant message the span of characters, its end mark included. Raises ExampleError for
        a conversation that the template refuses."""
        if tools and not self._probe.has_tools:
            messages, tools = with_tools(messages, tools, self._form, self._probe.has_system), ()
        if not self._has_results:
            messages = list(without_results(messages))
        turns = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        if not turns:
            return with_words(self._render(messages, tools, False), messages), []
        before = messages[: turns[0]]
        pieces = [with_words(self._render(before, tools, True), before)]
        spans = []
        at = len(pieces[0])
        for turn, following in zip(turns, [*turns[1:], None], strict=True):
            answer = self.answer(messages[turn], pieces[-1].endswith(self._opening))
            rest = self._between(messages[turn], messages[turn + 1 : following], following is not None)
            pieces += [answer, rest]
            spans.append((at, at + len(answer)))
            at += len(answer) + len(rest)
        return "".join(pieces), spans

    def answer(self, message: Message, opened: bool = True) -> str:
        """An assistant message from the end of the generation prompt to the end mark; `opened` says whether
        that prompt begins the reasoning, where prompts of this template do."""
        reasoning = message.get("reasoning_content") or ""
        if reasoning and not self._probe.has_reasoning:
            rest = _EMPTY.sub("", self.answer({**message, "reasoning_content": ""}, opened))
            opened = opened and bool(self._opening) and CLOSE.strip() not in self._opening
            return f"{'' if opened else OPENING}{reasoning}{CLOSE}{rest}"
        answer = self._native(message)
        if answer is None:
            lead = self._render([ASK, {**said(TEXT), "reasoning_content": reasoning}], (), False)
            lead = lead.partition(TEXT)[0].removeprefix(self._prompt)
            calls = message.get("tool_calls") or ()
            answer = self._form(lead, message.get("content") or "", calls) + self._end_of(message).closing
        return self._continued(answer) if opened else answer

    def _continued(self, answer: str) -> str:
        """The rest of an answer whose reasoning the generation prompt has begun, or, empty, also ended."""
        if not self._opening:
            return answer
        _, close = THINK
        if close in self._opening:
            return _EMPTY.sub("", answer)
        if answer.startswith(THINK[0]):
            answer = answer.removeprefix(self._opening).removeprefix(THINK[0])
            if self._probe.has_reasoning:
                return answer
        return answer if answer.lstrip().startswith(close) else CLOSE + answer

    def _native(self, message: Message) -> str | None:
        """The answer as the template itself writes it, None where it leaves something out."""
        probe, calls = self._probe, message.get("tool_calls") or ()
        content, reasoning = message.get("content") or "", message.get("reasoning_content") or ""
        if (
            (calls and probe.calls_end is None)
            or (len(calls) > 1 and not probe.has_several)
            or (reasoning and not probe.has_reasoning)
            or (calls and content and not probe.has_text_beside_calls)
        ):
            return None
        try:
            text = self._render([ASK, message], (), False)
        except ExampleError:
            return None
        end = self._end_of(message)
        answer = text[len(self._prompt) : len(text) - len(end.last)]
        words = [content, reasoning, *(call["function"]["name"] for call in calls)]
        whole = text.startswith(self._prompt) and text.endswith(end.last)
        whole &= find_token(answer, end.mark, self._mark) < 0  # one inside would end it
        return answer + end.closing if whole and all(word.strip() in answer for word in words) else None

    def _end_of(self, message: Message) -> End:
        return (self._probe.calls_end if message.get("tool_calls") else None) or self._end

    def _between(self, answer: Message, run: Sequence[Message], asks: bool) -> str:
        """The text between the end mark of an assistant message and the beginning of the next one."""
        end = self._end_of(answer)
        if not run and not asks:
            return end.rest
        stub = said(TEXT)
        calls = answer.get("tool_calls") if self._keeps_calls else None
        if calls and (end.written or (run and run[0]["role"] == "tool")):
            stub = self._probe.adapted(said(TEXT, [_emptied(call) for call in calls]))
        text = self._probe.after(self._render([ASK, stub, *run], (), asks))
        return with_words(end.following(text, self._mark, self._probe.opens), run)

    def _follows(self, answer: Message, message: Message) -> bool:
        """Whether the template writes `message` after the end mark of `answer`."""
        try:
            return bool(self._between(answer, [message], True))
        except ExampleError:
            return False


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


def _emptied(call: Message) -> Message:
    return {**call, "function": {**call["function"], "arguments": "{}"}}
