"""Tokens in, tokens out over chat messages: what was sampled is never tokenized again.

A client sends a conversation as text. Assistant messages that this server said are recognized, by the whole
path up to them, and their sampled ids stand in the next prompt in place of the tokenization of their text.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from orchard.pipelines.datasets.tokenization import ChatTokenizer, Conversation
from orchard.pipelines.datasets.turns import OPENING
from orchard.pipelines.policy.answers import AssistantMessage, form_of, read_message
from orchard.pipelines.vision.places import flat, picture_urls
from orchard.schemas.identity import digest

_REMEMBERED = 100_000
_IMAGES = "images"
"""Field of a plain message for its pictures: it tells paths apart and is not rendered."""


class Prompts:
    """Renders conversations to prompt tokens, and reads answers into messages, with one tokenizer and its
    template."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self._sampled: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        written = tokenizer.template.marks_itself and tokenizer.template.source
        self._calls = form_of(tokenizer.template.call)
        self._thinking = not written or "<think>" in written
        ends = {tokenizer.end_id, tokenizer.tokenizer.eos_token_id}
        self.stop_ids = frozenset(end for end in ends if end is not None)
        """Tokens that end a message."""

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
        opened = self._tokenizer.decode(prompt[-len(OPENING) :]).endswith(OPENING)
        message = read_message(
            self.text(ids),
            calls=self._calls,
            thinking=self._thinking,
            opened=opened,
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
