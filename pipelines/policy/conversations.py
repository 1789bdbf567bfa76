"""Tokens in, tokens out over chat messages: what was sampled is never tokenized again.

A client sends a conversation as text. Assistant messages that this server said are recognized, by the whole
path up to them, and their sampled ids stand in the next prompt in place of the tokenization of their text.
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import msgspec

from orchard.pipelines.datasets.errors import DatasetError, ExampleError
from orchard.pipelines.datasets.tokenization import ChatTokenizer, Conversation
from orchard.pipelines.policy.answers import AssistantMessage, read_message
from orchard.pipelines.policy.call_forms import CallForm, form_of
from orchard.pipelines.policy.harmony import CHANNEL
from orchard.pipelines.policy.learned_forms import Calls, learned_form
from orchard.pipelines.vision.places import flat, picture_urls
from orchard.schemas.decoding import Unreadable, decode
from orchard.schemas.identity import digest

_OPENING_TOKENS = 16
"""Tokens of a prompt's end that hold the beginning of reasoning."""
_REMEMBERED = 100_000
_IMAGES = "images"
"""Field of a plain message for its pictures: it tells paths apart and is not rendered."""


_CALLS: Calls = [("probe", {"key": "value"})]
_ID = "call00000"
"""Id of the call that shows the form of calls; in Mistral's form, as its templates take no other."""


class _Generation(msgspec.Struct):
    """The part of `generation_config.json` that is read."""

    eos_token_id: int | list[int] | None = None


class Prompts:
    """Renders conversations to prompt tokens, and reads answers into messages, with one tokenizer and its
    template."""

    def __init__(self, tokenizer: ChatTokenizer, ends: Collection[int] = ()) -> None:
        """`ends` are the tokens at which the model's own configuration stops; those that the template writes
        are taken. Raises DatasetError for a template whose calls cannot be read back."""
        self._tokenizer = tokenizer
        self._sampled: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        template = tokenizer.template
        self._tags = template.tags
        try:
            shown = self._shown(_CALLS)
        except ValueError:
            shown = ""
        self._harmony = CHANNEL in shown
        family = form_of(template.family_call)
        self._calls = list(filter(None, (self._call_form(shown), family))) if _CALLS[0][0] in shown else []
        """The template's own form, and the one that stands in for it."""
        if not template.marks_itself:
            self._check_text()
        used = {end for end in ends if self.token(end) in template.source}
        eos = tokenizer.tokenizer.eos_token_id
        self.stop_ids = frozenset({*tokenizer.ends.values(), *used, *([] if eos is None else [eos])})
        """Tokens that end a message."""

    @classmethod
    def load(cls, directory: Path) -> "Prompts":
        """Of a model's directory. Raises DatasetError for one that cannot be served."""
        file = directory / "generation_config.json"
        ends: int | list[int] | None = None
        if file.is_file():
            try:
                ends = decode(msgspec.json.Decoder(_Generation), file.read_bytes()).eos_token_id
            except Unreadable as error:
                raise DatasetError(f"{file} cannot be read ({error}): restore it, or delete it") from error
        tokenizer = ChatTokenizer.load(str(directory))
        return cls(tokenizer, [ends] if isinstance(ends, int) else ends or ())

    def _check_text(self) -> None:
        """Raises DatasetError where an answer of text is not read back."""
        shown = self._shown((), "a")
        read = read_message(
            shown,
            calls=[],
            tags=self._tags,
            source=None,
            harmony=self._harmony,
            opened=self._opened(self._tokenizer.template.prompt),
        )
        if read.content.strip() != "a":
            raise DatasetError(
                f"the chat template of {self._tokenizer.template.name} writes an answer's text in a form "
                f"that the policy server does not read ({shown!r}): serve the model with vLLM or SGLang"
            )

    def _opened(self, prompt: str) -> bool:
        """Whether a prompt has begun the reasoning."""
        return self._tags is not None and prompt.rstrip().endswith(self._tags[0])

    def _shown(self, calls: Calls, content: str = "") -> str:
        """An answer as the template writes it, without its end mark. Raises ValueError."""
        written = [
            {
                "id": f"{_ID[:-1]}{number}",
                "type": "function",
                "function": {"name": name, "arguments": msgspec.json.encode(arguments).decode()},
            }
            for number, (name, arguments) in enumerate(calls)
        ]
        try:
            text = self._tokenizer.template.answer(content, written)
        except ExampleError as error:
            raise ValueError(str(error)) from error
        return next((text[: -len(end)] for end in self._tokenizer.ends if text.endswith(end)), text)

    def _call_form(self, shown: str) -> CallForm | None:
        """The template's own form of calls, of an answer with one; None for gpt-oss's."""
        if self._harmony:
            return None
        form = form_of(shown)
        read = read_message(shown, calls=[form] if form else [], tags=self._tags, source=None).tool_calls
        if [(call.name, msgspec.json.decode(call.arguments)) for call in read] == list(_CALLS):
            return form
        form = learned_form(self._shown, f"{_ID[:-1]}[0-9]")
        if form is None:
            raise DatasetError(
                f"the chat template of {self._tokenizer.template.name} writes calls in a form that the "
                f"policy server does not read ({shown.strip()!r}): serve the model with vLLM or SGLang"
            )
        return form

    def prompt(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
        pictures: Sequence[int] = (),
    ) -> list[int]:
        """Token ids up to where the next assistant message begins; `pictures` are the tokens of those in the
        messages. Raises DatasetError for messages that the template refuses."""
        messages = [_plain(message) for message in messages]
        paths = _paths(messages, tools)
        stored = {
            number: ids
            for number, message in enumerate(messages)
            if message["role"] == "assistant" and (ids := self._recalled(paths[number], message))
        }
        # A prompt ends where generation starts: before the text of one more assistant message.
        written = [{key: message[key] for key in message if key != _IMAGES} for message in messages]
        asked = Conversation(
            "prompt", [*written, {"role": "assistant", "content": "x"}], tools, stored, pictures=pictures
        )
        encoded = self._tokenizer.encode([asked])[0]
        return [int(token) for token in encoded.input_ids[: encoded.spans[-1][0]]]

    def answer(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
        prompt: Sequence[int],
        ids: Sequence[int],
    ) -> AssistantMessage:
        """The message that sampled tokens spell; both are remembered."""
        opened = self._opened(self._tokenizer.decode(prompt[-_OPENING_TOKENS:]))
        message = read_message(
            self.text(ids),
            calls=self._calls,
            tags=self._tags,
            opened=opened,
            tools=tools,
            harmony=self._harmony,
            source=[prompt, ids],
        )
        said = _plain(
            {
                "role": "assistant",
                "content": message.content,
                "tool_calls": [
                    {"id": call.id, "function": {"name": call.name, "arguments": call.arguments}}
                    for call in message.tool_calls
                ],
            }
        )
        path = _paths([*(_plain(each) for each in messages), said], tools)[-1]
        for key in {path, digest([path, message.reasoning])}:
            self._sampled[key] = tuple(ids)
            self._sampled.move_to_end(key)
        while len(self._sampled) > _REMEMBERED:
            self._sampled.popitem(last=False)
        return message

    def text(self, ids: Sequence[int]) -> str:
        ended = bool(ids) and ids[-1] in self.stop_ids
        return self._tokenizer.decode(ids[:-1] if ended else ids)

    def token(self, token: int) -> str:
        return self._tokenizer.decode([token])

    def tokens(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _recalled(self, path: str, message: dict[str, Any]) -> tuple[int, ...] | None:
        reasoning = message.get("reasoning_content")
        return self._sampled.get(digest([path, reasoning]) if reasoning else path)


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """A message with the fields that templates read, content as one text, and its pictures, if any."""
    content = message.get("content") or ""
    if isinstance(content, list) or message["role"] != "assistant":
        content = flat(content)
    plain: dict[str, Any] = {"role": message["role"], "content": content}
    if urls := picture_urls([message]):
        plain[_IMAGES] = urls
    if calls := message.get("tool_calls"):
        plain["tool_calls"] = [
            {
                "id": call.get("id", ""),
                "type": "function",
                "function": {
                    "name": call["function"]["name"],
                    "arguments": call["function"].get("arguments", ""),
                },
            }
            for call in calls
        ]
    for name in ("tool_call_id", "reasoning_content"):
        if message.get(name):
            plain[name] = message[name]
    return plain


def _paths(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> list[str]:
    """Hashes of each message with all before it, without reasoning, which clients may leave out."""
    paths, path = [], digest(list(tools))
    for message in messages:
        kept = {name: value for name, value in message.items() if name != "reasoning_content"}
        path = digest([path, kept])
        paths.append(path)
    return paths
