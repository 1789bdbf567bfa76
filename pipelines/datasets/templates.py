"""Renders conversations with a tokenizer's chat template, in which no message's text becomes a control
token."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import jinja2
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import (
    _alias_reasoning_fields,
    _compile_jinja_template,
    _render_with_assistant_indices,
)

from orchard.pipelines.datasets.errors import DatasetError, ExampleError
from orchard.pipelines.datasets.forms import THINK, Message, Tools, fixed_text, form_of
from orchard.pipelines.datasets.probing import ASK, CALLS, TemplateProbe, said
from orchard.pipelines.datasets.turns import TurnWriter, with_words

DATE = datetime(2024, 7, 26, tzinfo=UTC)
"""The date that a template is given, so that equal conversations give equal rows on any day. Llama's own
templates write it where they have no clock."""

START, END = "\ufdd0", "\ufdd1"
"""Marks around a control token that is text. Unicode reserves them for a program's own use, so no text
should hold one. Icons of fonts are among the characters that transformers marks with."""

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_LEVELS = 200
"""Maximum nesting of objects and lists in arguments and tools. Python's stack has room for little more
than twice as many."""
_KEYS = 4096
"""Keys of arguments and tools that are remembered."""


class ChatTemplate:
    """A chat template. Raises DatasetError for a tokenizer without one, or with one that is unusable."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
        if not isinstance(tokenizer.chat_template, str):
            raise DatasetError(
                f"tokenizer {name} has no chat template: choose one of a chat model, or add one"
            )
        self.name = name
        self.source: str = tokenizer.chat_template
        self.special = {key: str(value) for key, value in tokenizer.special_tokens_map.items()}
        written = self.source + fixed_text(tokenizer.added_tokens_encoder, CALLS)
        self._control = any_of(
            token.content
            for number, token in tokenizer.added_tokens_decoder.items()
            if token.special
            or (token.content in written and not token.content.isspace())
            or not _made_of_text(tokenizer.backend_tokenizer, token.content, number)
        )
        self._marked_key = lru_cache(_KEYS)(self._marked_text)
        """Keys are few, and many of what is marked."""
        self.marks_itself = bool(_GENERATION.search(self.source))
        """Whether it marks assistant text by `generation` blocks; other templates are rendered turn by
        turn."""
        eos = self.special.get("eos_token", "")
        self._turns: TurnWriter | None = None
        try:
            self._probe = TemplateProbe(self._written, self._control, eos)
            if not self.marks_itself:
                known = tokenizer.added_tokens_encoder
                self._turns = TurnWriter(self._written, self._probe, known, START)
        except DatasetError as error:
            raise DatasetError(f"tokenizer {name} cannot serve: {error}") from error
        ends = [end.mark for end in (self._probe.end, self._probe.calls_end) if end is not None]
        self.family_call = form_of(tokenizer.added_tokens_encoder)("", "", CALLS[:1])
        """A call in the form of the vocabulary's family, which stands where the template writes none."""
        self.ends = tuple(dict.fromkeys(ends or [eos] * bool(eos)))
        """The tokens that end answers: one with text, one with calls, if that is another."""

    @property
    def tags(self) -> tuple[str, str] | None:
        """The texts around reasoning, None where none is written."""
        written = self._turns is not None or self._probe.has_reasoning or THINK[0] in self.source
        return self._probe.tags if written else None

    @property
    def prompt(self) -> str:
        """A prompt of one question."""
        return self._probe.prompt

    def answer(self, content: str, calls: Sequence[Message]) -> str:
        """An answer with its end, from where the generation prompt ends."""
        message = self._probe.adapted(said(content, calls))
        if self._turns is not None:
            return self._turns.answer(message)
        return self._written([ASK, message], (), False).removeprefix(self._probe.prompt)

    def write(self, messages: Sequence[Message], tools: Tools) -> tuple[str, list[tuple[int, int]]]:
        """The text of a conversation and the span of characters of each assistant message.

        Control tokens inside messages and tools are between START and END. Raises ExampleError for a
        conversation that the template refuses.
        """
        messages = list(map(self._probe.adapted, messages))
        messages, tools = self._marked(messages), self._marked(tools)
        if self._turns is not None:
            return self._turns.write(messages, tools)
        text, spans = self._rendered(messages, tools, marking=True)
        count = sum(message["role"] == "assistant" for message in messages)
        if len(spans) != count:
            raise ExampleError(
                f"the chat template of {self.name} marks {len(spans)} generations of {count} assistant "
                "messages: mend its `generation` blocks"
            )
        return with_words(text, messages, spans), spans

    def _marked(self, value: Any, levels: int = _LEVELS) -> Any:
        """A value with the control tokens in its texts, keys included, between markers."""
        if isinstance(value, str):
            return self._marked_text(value)
        if not isinstance(value, Mapping | list | tuple):
            return value
        if not levels:
            raise ExampleError(f"arguments or tools are nested deeper than {_LEVELS} levels")
        if isinstance(value, Mapping):
            return {self._marked_key(key): self._marked(item, levels - 1) for key, item in value.items()}
        return [self._marked(item, levels - 1) for item in value]

    def _marked_text(self, text: str) -> str:
        if START in text or END in text:
            raise ExampleError("a message or a tool holds U+FDD0 or U+FDD1, which are no characters")
        # `sub` takes three times as long as `search` where it finds nothing.
        return self._control.sub(rf"{START}\g<0>{END}", text) if self._control.search(text) else text

    def _written(self, messages: Sequence[Message], tools: Tools, generating: bool) -> str:
        return self._rendered(messages, tools, generating=generating)[0]

    def _rendered(
        self, messages: Sequence[Message], tools: Tools, *, generating: bool = False, marking: bool = False
    ) -> tuple[str, list[tuple[int, int]]]:
        """Render like `render_jinja_template` of transformers, without its copies: these messages are
        plain. With `marking` also the spans of `generation` blocks."""
        given: dict[str, Any] = {
            "messages": _alias_reasoning_fields(messages),
            "tools": list(tools) or None,
            "documents": None,
            "add_generation_prompt": generating,
            "strftime_now": DATE.strftime,
            **self.special,
        }
        try:
            template: Any = _compile_jinja_template(self.source)
            if not marking:
                return str(template.render(**given)), []
            text, spans = _render_with_assistant_indices(template, **given)
        except (jinja2.TemplateError, ValueError, TypeError, LookupError) as error:
            raise ExampleError(f"the chat template of {self.name} refuses it: {error}") from error
        return text, spans


def _made_of_text(backend: Any, content: str, number: int) -> bool:
    """Whether the vocabulary makes an added token of plain text anyway, as Gemma does of runs of white
    space."""
    text = backend.normalizer.normalize_str(content) if backend.normalizer else content
    pieces = backend.pre_tokenizer.pre_tokenize_str(text) if backend.pre_tokenizer else [(text, ())]
    return [token.id for piece, _ in pieces for token in backend.model.tokenize(piece)] == [number]


def any_of(tokens: Iterable[str]) -> re.Pattern[str]:
    """A pattern that matches any of the tokens, longer ones first."""
    return re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or "(?!)")
