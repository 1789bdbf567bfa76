"""Tokenizes conversations with the span of each assistant message, checked against the tokenizer itself.

A conversation is rendered once by the chat template and cut where assistant text begins and ends. The
parts are tokenized apart, as a policy server does it: a prompt ends where generation starts. So the
tokens of a span are exactly those of the assistant's own text, its end mark included: the tokenizer is
given it whole. Only context is put together from lines and words that were seen before. Control tokens
that stand inside a message or a tool's description are text: an observation cannot end a turn.
"""

import hashlib
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import encode_marked_chat, mark_control_tokens

from orchard.pipelines.datasets.errors import DatasetError, ExampleError, MaskError
from orchard.pipelines.datasets.forms import Message
from orchard.pipelines.datasets.lines import LineCutter
from orchard.pipelines.datasets.rows import Ids
from orchard.pipelines.datasets.templates import END, START, ChatTemplate, any_of
from orchard.pipelines.vision.places import PICTURE

CACHED_CHARACTERS = 10_000_000
"""Characters after which a cache of texts and their tokens is emptied of all that was not used since it
last was."""

_MARKS = dict(zip(map(ord, (START, END)), mark_control_tokens("x", re.compile("x")).split("x"), strict=True))
_ID_BYTES = 4
_FRAME = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
"""Tokens that Qwen's templates write for a picture; the one in the middle is repeated."""
_PROOF = 64
"""One conversation in this many is tokenized whole as well and its ids are compared."""
_PROBES = ("a\n", "b  ", "\tc\n\n", "`é漢`", " d")


@dataclass(frozen=True)
class Conversation:
    """A conversation to tokenize. `stored` has the sampled token ids of assistant messages, by message
    index; `cut` the indices of those that a limit of tokens ended."""

    name: str
    """Name of the example, for error messages."""
    messages: Sequence[Message]
    tools: Sequence[dict[str, Any]] = ()
    stored: Mapping[int, Sequence[int]] = field(default_factory=dict)
    cut: Collection[int] = ()
    pictures: Sequence[int] = ()
    """Number of tokens of each picture, in the order in which PICTURE stands for them in the messages'
    contents."""


@dataclass(frozen=True)
class Encoded:
    input_ids: Ids
    spans: tuple[tuple[int, int], ...]
    """The first token of each assistant message and the one after its last."""
    stored: frozenset[int]
    """Indices of assistant messages, counted among these, whose stored ids were taken."""


@dataclass(frozen=True)
class _Part:
    text: str
    marked: bool
    """Whether it holds control tokens that are text, between START and END."""
    whole: bool
    """Whether an assistant said it, so it may train: it is tokenized whole."""
    pieces: list[str]
    """Texts that are tokenized apart; joined they are the part."""


class _Memory:
    """A cache of texts to their tokens, int32: prompts, commands and lines of files repeat, thoughts do
    not."""

    def __init__(self) -> None:
        self.now: dict[str, bytes] = {}
        """Entries that were used since the cache was last emptied."""
        self._before: dict[str, bytes] = {}
        self._characters = 0

    def begin(self) -> None:
        """Drop the entries that were not used lately, once the cache is full."""
        if self._characters > CACHED_CHARACTERS:
            self._before, self.now, self._characters = self.now, {}, 0

    def unknown(self, texts: Iterable[str]) -> list[str]:
        """Those of the texts that are not cached, each once; all others are in `now` afterwards."""
        now, before = self.now, self._before
        found = []
        for text in dict.fromkeys([text for text in texts if text not in now]):
            if (ids := before.get(text)) is None:
                found.append(text)
            else:
                self.put(text, ids)
        return found

    def put(self, text: str, ids: bytes) -> None:
        self.now[text] = ids
        self._characters += len(text)


class ChatTokenizer:
    """A tokenizer with its chat template. Raises DatasetError for one that is unusable."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
        self.name = name
        self.tokenizer = tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise DatasetError(
                f"tokenizer {name} has no fast implementation: choose one with a tokenizer.json"
            )
        self._backend = backend
        self._backend.no_padding()
        self._backend.no_truncation()
        self.template = ChatTemplate(tokenizer, name)
        self.ends: dict[str, int] = {end: tokenizer.convert_tokens_to_ids(end) for end in self.template.ends}
        """Ids of the tokens that end answers."""
        self._added = any_of(tokenizer.added_tokens_encoder)
        self._lines = LineCutter.of(tokenizer)
        self._memory = _Memory()
        """Tokens of the texts between cuts, and of lines where lines can be tokenized apart."""
        self._said = _Memory()
        """Tokens of assistant messages, each tokenized whole."""
        self._words = _Memory()
        self._lossy: set[str] = set()
        """Texts whose tokens, at once, do not stand for their very bytes."""
        self._unsafe: dict[str, str] = {}
        """Texts in which a control token that is text cannot be told from a real one, and why."""
        self._check_pieces()
        known = tokenizer.get_vocab()
        self._frame = [known.get(token) for token in _FRAME]

    @classmethod
    def load(cls, name: str) -> "ChatTokenizer":
        """Load from a directory, or by name from the Hub or its cache."""
        try:
            tokenizer = AutoTokenizer.from_pretrained(name)
        except (OSError, ValueError, KeyError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise DatasetError(
                f"no tokenizer can be loaded from {name} ({reason}): name a directory with tokenizer.json, "
                "or train one with `orchard dataset tokenizer`"
            ) from error
        return cls(tokenizer, name)

    @property
    def sha256(self) -> str:
        """64 hexadecimal digits over the vocabulary, the rules and the template, wherever they lie."""
        template = self.template
        parts = [self._backend.to_str(), template.source, *map("=".join, sorted(template.special.items()))]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, special ones included."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=False)
        return text

    def render(self, conversation: Conversation) -> tuple[str, list[tuple[int, int]]]:
        """The text of a conversation and the span of characters of each assistant message, by
        `ChatTemplate`; an ExampleError names the example."""
        try:
            return self.template.write(conversation.messages, conversation.tools)
        except ExampleError as error:
            raise ExampleError(f"example {conversation.name}: {error}") from error

    def encode(self, conversations: Sequence[Conversation]) -> list[Encoded]:
        """Tokens of many conversations. Raises ExampleError, of which MaskError is one."""
        found = []
        for each in self.encode_each(conversations):
            if isinstance(each, ExampleError):
                raise each
            found.append(each)
        return found

    def encode_each(self, conversations: Sequence[Conversation]) -> list[Encoded | ExampleError]:
        """Tokens of many conversations, or why one has none; equal texts are tokenized once."""
        cut = [self._parts(conversation) for conversation in conversations]
        self._learn([part for parts in cut if not isinstance(parts, ExampleError) for part in parts])
        for parts in cut[::_PROOF]:
            if not isinstance(parts, ExampleError):
                self._prove(parts)
        return [self._joined(one, parts) for one, parts in zip(conversations, cut, strict=True)]

    def _parts(self, conversation: Conversation) -> list[_Part] | ExampleError:
        """The parts between the cuts: even ones are context, odd ones are assistant text."""
        try:
            text, spans = self.render(conversation)
        except ExampleError as error:
            return error
        cuts = [0, *(at for span in spans for at in span), len(text)]
        if not conversation.pictures:
            return [
                self._part(text[start:end], said=bool(number % 2))
                for number, (start, end) in enumerate(pairwise(cuts))
            ]
        if None in self._frame:
            return ExampleError(
                f"example {conversation.name}: tokenizer {self.name} has no token for pictures: choose "
                "that of a vision-language model"
            )
        parts = [
            self._part(text[start:end], said=True) if number % 2 else self._pictured(text[start:end])
            for number, (start, end) in enumerate(pairwise(cuts))
        ]
        shown = sum(part.pieces.count(PICTURE) for part in parts[::2])
        if shown != len(conversation.pictures):
            return ExampleError(
                f"example {conversation.name}: the chat template of {self.name} shows {shown} of "
                f"{len(conversation.pictures)} pictures"
            )
        return parts

    def _pictured(self, text: str) -> _Part:
        """A part of context with pictures: the texts between them are tokenized apart."""
        first, *others = (self._part(piece, said=False) for piece in text.split(PICTURE))
        pieces = [*first.pieces, *(piece for part in others for piece in (PICTURE, *part.pieces))]
        return _Part(text, START in text or END in text, False, [piece for piece in pieces if piece])

    def _part(self, text: str, *, said: bool) -> _Part:
        marked = START in text or END in text
        if marked or said or self._lines is None:
            return _Part(text, marked, said and not marked, [text])
        return _Part(text, marked, False, self._lines.cut(text))

    def _learn(self, parts: Sequence[_Part]) -> None:
        """Tokenize what is not cached."""
        memory = self._memory
        memory.begin()
        memory.put(PICTURE, b"")  # its tokens are not those of a text
        self._said.begin()
        self._encode(self._said.unknown(part.text for part in parts if part.whole), self._said)
        plain = memory.unknown(
            piece for part in parts if not (part.marked or part.whole) for piece in part.pieces
        )
        if self._lines is not None:
            plain = self._learn_words(self._lines, plain)
        self._encode(plain, memory)
        for text in memory.unknown(piece for part in parts if part.marked for piece in part.pieces):
            try:
                ids = self._marked_ids(text)
            except ValueError as error:
                self._unsafe[text] = str(error)
            else:
                memory.put(text, np.array(ids, np.int32).tobytes())

    def _marked_ids(self, text: str) -> list[int]:
        """Tokenize a text with marked control tokens. Raises ValueError where they cannot be told from
        real ones."""
        for mark in _MARKS.values():
            if mark in text:
                raise ValueError(f"U+{ord(mark):X} and a text that spells a control token stand side by side")
        ids: list[int] = encode_marked_chat(self.tokenizer, text.translate(_MARKS))
        return ids

    def _learn_words(self, cutter: LineCutter, lines: list[str]) -> list[str]:
        """Join lines from the tokens of their words; returns the lines that have no words, to be
        tokenized whole."""
        memory, known = self._memory, self._words
        known.begin()
        plain: list[str] = []
        strange: list[tuple[str, list[str]]] = []
        for line in lines:
            words = None if self._added.search(line) else cutter.words(line)
            if words is None or not self._lossy.isdisjoint(words):
                plain.append(line)
                continue
            try:
                memory.put(line, b"".join(map(known.now.__getitem__, words)))
            except KeyError:
                strange.append((line, words))
        self._encode(known.unknown(word for _, words in strange for word in words), known)
        for line, words in strange:
            if not self._lossy.isdisjoint(words):
                plain.append(line)
                continue
            memory.put(line, b"".join(map(known.now.__getitem__, words)))
        return plain

    def _encode(self, texts: list[str], into: _Memory) -> None:
        found = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        for text, encoding in zip(texts, found, strict=True):
            into.put(text, np.array(encoding.ids, np.int32).tobytes())
            if self._lines is not None and self._lines.bytes_of(encoding.ids) != text.encode():
                self._lossy.add(text)

    def _joined(
        self, conversation: Conversation, parts: list[_Part] | ExampleError
    ) -> Encoded | ExampleError:
        if isinstance(parts, ExampleError):
            return parts
        for part in parts:
            if part.marked and (reason := next(filter(None, map(self._unsafe.get, part.pieces)), None)):
                return ExampleError(f"example {conversation.name}: {reason}")
        assistants = [i for i, m in enumerate(conversation.messages) if m["role"] == "assistant"]
        found, spans, taken = [], [], set()
        position = 0
        pictures = iter(conversation.pictures)
        for number, part in enumerate(parts):
            known = self._said.now if part.whole else self._memory.now
            if PICTURE in part.pieces:
                ids = b"".join(
                    self._shown(next(pictures)) if piece == PICTURE else known[piece] for piece in part.pieces
                )
            else:
                ids = b"".join(map(known.__getitem__, part.pieces))
            rendered = b""
            turn, is_assistant = divmod(number, 2)
            if is_assistant:
                end = self._end_of(part.text)
                stored = conversation.stored.get(assistants[turn])
                if stored is not None and self._sampled_here(stored, conversation.messages[assistants[turn]]):
                    ids = np.array(stored, np.int32).tobytes()
                    taken.add(turn)
                    if end and stored[-1] != self.ends[end]:
                        rendered = self._bytes_of(end)  # cut off, or another end: not sampled
                elif assistants[turn] in conversation.cut and end:
                    rendered = self._bytes_of(end)
                    ids = ids.removesuffix(rendered)
                spans.append((position, position + len(ids) // _ID_BYTES))
            found += [ids, rendered]
            position += (len(ids) + len(rendered)) // _ID_BYTES
        input_ids: Ids = np.frombuffer(bytearray().join(found), np.int32)
        said: dict[int, str] = {}
        for turn, (part, place) in enumerate(zip(parts[1::2], assistants, strict=True)):
            if turn not in taken and not self._is_sure(part):
                text = _unmarked(part)
                said[turn] = text.removesuffix(self._end_of(text)) if place in conversation.cut else text
        wrong = self._wrong(input_ids, spans, said)
        if wrong is not None:
            return MaskError(
                f"example {conversation.name}: the tokens of assistant message {wrong} do not decode to its "
                f"text with tokenizer {self.name}: use a tokenizer without loss, such as a byte-level one"
            )
        return Encoded(input_ids, tuple(spans), frozenset(taken))

    def _end_of(self, answer: str) -> str:
        return next(filter(answer.endswith, self.ends), "")

    def _bytes_of(self, end: str) -> bytes:
        return np.array([self.ends[end]], np.int32).tobytes()

    def _prove(self, parts: Sequence[_Part]) -> None:
        """Compare some context tokenized whole with its pieces. Raises DatasetError where the ids differ."""
        context = [part for part in parts if not part.marked and PICTURE not in part.pieces]
        found = self._backend.encode_batch_fast([part.text for part in context], add_special_tokens=False)
        for part, encoding in zip(context, found, strict=True):
            known = self._said.now if part.whole else self._memory.now
            if b"".join(map(known.__getitem__, part.pieces)) != np.array(encoding.ids, np.int32).tobytes():
                raise DatasetError(
                    f"a text that tokenizer {self.name} was given in pieces has other tokens as a whole: "
                    "this is a defect of Orchard, please report it with the tokenizer's name"
                )

    def _shown(self, tokens: int) -> bytes:
        """The tokens of a picture, between the marks of its begin and end."""
        begin, token, end = self._frame
        return np.array([begin, *[token] * tokens, end], np.int32).tobytes()

    def _is_sure(self, part: _Part) -> bool:
        """Whether each piece's tokens are known to stand for its very bytes, so that together they do."""
        return self._lines is not None and not part.marked and self._lossy.isdisjoint(part.pieces)

    def _wrong(self, ids: Ids, spans: list[tuple[int, int]], said: Mapping[int, str]) -> int | None:
        """The first turn whose trained tokens do not decode to what the assistant said, None where all
        do. The form of accented letters is ignored: some tokenizers know one alone."""
        for turn, text in said.items():
            first, end = spans[turn]
            part = ids[first:end].tolist()
            decoded = self._lines.decode(part) if self._lines else self.decode(part)
            if decoded != text and decoded != unicodedata.normalize("NFC", text):
                return turn
        return None

    def _sampled_here(self, ids: Sequence[int], message: Message) -> bool:
        """Whether sampled ids are of this vocabulary: they decode to a text that holds the message. Else
        the text is tokenized."""
        size = len(self.tokenizer)
        if not ids or min(ids) < 0 or max(ids) >= size:
            return False
        text = self.decode(ids)
        said = [message.get("content") or "", message.get("reasoning_content") or ""]
        said += [call["function"]["name"] for call in message.get("tool_calls") or ()]
        return all(words.strip() in text for words in said)

    def _check_pieces(self) -> None:
        """Check that the tokenizer adds nothing at the beginning of a text, since parts are tokenized
        apart."""
        ids = [i for text in _PROBES for i in self._backend.encode(text, add_special_tokens=False).ids]
        if self._backend.decode(ids, skip_special_tokens=False) != "".join(_PROBES):
            raise DatasetError(
                f"tokenizer {self.name} does not give texts back as they were when they are tokenized in "
                "parts: use a byte-level one"
            )


def _unmarked(part: _Part) -> str:
    return part.text.replace(START, "").replace(END, "") if part.marked else part.text
