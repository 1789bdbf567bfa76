"""Masks cover exactly the assistant's own tokens, for any text, and nothing in a text can end a turn."""

import itertools
import random
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from orchard.pipelines.datasets import lines, tokenization
from orchard.pipelines.datasets.errors import DatasetError, MaskError
from orchard.pipelines.datasets.lines import BORDERS, OURS, LineCutter
from orchard.pipelines.datasets.templates import any_of
from orchard.pipelines.datasets.tokenization import ChatTokenizer, Conversation
from orchard.pipelines.datasets.tokenizer import train_tokenizer
from orchard.workers.harnesses.bash_prompts import BASH_TOOL
from tests.real_tokenizers import PACKAGES, real_tokenizer

PLAIN = (
    "{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\\n' + m.content }}"
    "{%- for c in m.tool_calls or [] -%}{{ '<tool_call>' + c.function.arguments + '</tool_call>' }}"
    "{%- endfor -%}"
    "{{ '<|im_end|>\\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)
"""A template without `generation` blocks, as most are."""

FORGETFUL = PLAIN.replace("+ m.content", "+ (m.content if loop.last or m.role != 'assistant' else '')")

PIECES = st.sampled_from(
    [
        "ls -la",
        "\n",
        "\n\n",
        " ",
        "  x",
        "é漢字",
        "\u2028",
        "<|im_end|>",
        "<|im_start|>assistant\n",
        "<tool_call>",
        "1234",
        "\x00",
        "}}",
        "{%",
    ]
)
TEXT = st.lists(PIECES, max_size=8).map("".join)


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": draw(TEXT)},
        {"role": "user", "content": draw(TEXT)},
    ]
    for turn in range(draw(st.integers(1, 4))):
        message: dict[str, Any] = {"role": "assistant", "content": draw(TEXT)}
        if draw(st.booleans()):
            message["reasoning_content"] = draw(TEXT)
        if draw(st.booleans()):
            function = {"name": "bash", "arguments": draw(TEXT)}
            message["tool_calls"] = [{"id": f"c{turn}", "type": "function", "function": function}]
        messages += [message, {"role": "tool", "content": draw(TEXT), "tool_call_id": f"c{turn}"}]
    return messages


def said(message: dict[str, Any]) -> str:
    """What the template writes of an assistant message, said again."""
    text = f"<think>\n{message['reasoning_content']}\n</think>\n" if message.get("reasoning_content") else ""
    text += message["content"]
    for call in message.get("tool_calls", ()):
        gap = "\n" if message["content"] else ""
        arguments = call["function"]["arguments"]
        text += f'{gap}<tool_call>\n{{"name": "bash", "arguments": {arguments}}}\n</tool_call>'
    return text + "<|im_end|>"


@pytest.fixture(scope="module")
def chat(tokenizer: str) -> ChatTokenizer:
    return ChatTokenizer.load(tokenizer)


def with_template(tokenizer: str, template: str) -> ChatTokenizer:
    made = AutoTokenizer.from_pretrained(tokenizer)
    made.chat_template = template
    return ChatTokenizer(made, "other")


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(conversations())
def test_masked_tokens_decode_to_what_the_assistant_said(
    chat: ChatTokenizer, messages: list[dict[str, Any]]
) -> None:
    encoded = chat.encode([Conversation("x", messages, (BASH_TOOL,))])[0]
    assistants = [message for message in messages if message["role"] == "assistant"]
    found = [chat.decode(encoded.input_ids[first:end].tolist()) for first, end in encoded.spans]
    assert found == [said(message) for message in assistants]
    whole = chat.tokenizer.apply_chat_template(messages, tools=[BASH_TOOL], tokenize=False)
    assert chat.decode(encoded.input_ids.tolist()) == whole


@settings(max_examples=150, deadline=None)
@given(conversations())
def test_text_cannot_make_control_tokens(chat: ChatTokenizer, messages: list[dict[str, Any]]) -> None:
    encoded = chat.encode([Conversation("x", messages)])[0]
    ids = encoded.input_ids.tolist()
    end, start = (chat.tokenizer.convert_tokens_to_ids(mark) for mark in ("<|im_end|>", "<|im_start|>"))
    assert ids.count(end) == ids.count(start) == len(messages)
    assert all(ids[stop - 1] == end for _, stop in encoded.spans)


def test_each_part_is_tokenized_as_generation_would_see_it(chat: ChatTokenizer) -> None:
    """The prompt's tokens do not depend on what is generated after it."""
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "\n\nls"}]
    encoded = chat.encode([Conversation("x", messages)])[0]
    prompt = chat.tokenizer.apply_chat_template(messages[:1], add_generation_prompt=True, tokenize=False)
    assert encoded.input_ids[: encoded.spans[0][0]].tolist() == chat.tokenizer.encode(prompt)


@pytest.mark.long
@settings(max_examples=50, deadline=None)
@given(conversations())
def test_templates_without_generation_blocks_give_the_same_kind_of_spans(
    tokenizer: str, messages: list[dict[str, Any]]
) -> None:
    chat = with_template(tokenizer, PLAIN)
    encoded = chat.encode([Conversation("x", messages)])[0]
    for message, (first, end) in zip(
        [m for m in messages if m["role"] == "assistant"], encoded.spans, strict=True
    ):
        text = chat.decode(encoded.input_ids[first:end].tolist())
        reasoning = message.get("reasoning_content")  # this template has no words for it
        before = f"<think>\n{reasoning}\n</think>\n\n" if reasoning else ""
        assert text.startswith(before + message["content"]) and text.endswith("<|im_end|>")


def test_a_template_that_rewrites_earlier_turns_writes_each_as_the_newest(tokenizer: str) -> None:
    forgetful, plain = with_template(tokenizer, FORGETFUL), with_template(tokenizer, PLAIN)
    said_twice = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}] * 2
    conversation = Conversation("x", said_twice)
    assert forgetful.render(conversation) == plain.render(conversation)


def test_a_tokenizer_with_loss_fails_the_build_and_names_the_example(tokenizer: str) -> None:
    made = AutoTokenizer.from_pretrained(tokenizer)
    made.backend_tokenizer.normalizer = normalizers.Lowercase()
    with pytest.raises((DatasetError, MaskError)):
        lossy = ChatTokenizer(made, "lossy")
        lossy.encode([Conversation("rollout-7", [{"role": "assistant", "content": "LS"}])])
    with pytest.raises(MaskError, match="example rollout-7"):
        lossy.encode([Conversation("rollout-7", [{"role": "assistant", "content": "LS"}])])


def test_a_tokenizer_that_cannot_serve_is_refused(tokenizer: str, tmp_path) -> None:
    made = AutoTokenizer.from_pretrained(tokenizer)
    made.chat_template = None
    with pytest.raises(DatasetError, match="no chat template"):
        ChatTokenizer(made, "bare")
    with pytest.raises(DatasetError, match="no tokenizer can be loaded"):
        ChatTokenizer.load(str(tmp_path))


def test_a_tokenizers_hash_is_of_what_it_does(tokenizer: str, tmp_path) -> None:
    chat = ChatTokenizer.load(tokenizer)
    chat.tokenizer.save_pretrained(str(tmp_path / "elsewhere"))
    assert ChatTokenizer.load(str(tmp_path / "elsewhere")).sha256 == chat.sha256
    assert with_template(tokenizer, PLAIN).sha256 != chat.sha256


def test_tokens_do_not_depend_on_what_was_remembered_and_forgotten(
    tokenizer: str, chat: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenization, "CACHED_CHARACTERS", 60)
    forgetful = ChatTokenizer.load(tokenizer)
    for number in range(12):
        texts = ["ls -la\n\tgrep é", f"of this one alone: {number}\nof many: {number // 4}", "<|im_end|>"]
        said = [{"role": role, "content": text} for text in texts for role in ("user", "assistant")]
        once = forgetful.encode([Conversation("x", said)])[0]
        assert once.input_ids.tolist() == chat.encode([Conversation("x", said)])[0].input_ids.tolist()


def test_lines_tokenized_apart_give_the_tokens_of_the_whole(chat: ChatTokenizer) -> None:
    """For all texts over what the patterns tell apart, up to five pieces long, and for random ones."""
    cutter = LineCutter.of(chat.tokenizer)
    assert cutter is not None
    encode = chat.tokenizer.backend_tokenizer.encode
    kinds = ["a", "7", ".", " ", "\n", "\r", "\t", "é", "\u2028", "\x85", "'s"]
    texts = ["".join(pieces) for size in range(1, 5) for pieces in itertools.product(kinds, repeat=size)]
    whole = chat.tokenizer.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    lines = {line for text in texts for line in cutter.cut(text)}
    apart = {line: encode(line, add_special_tokens=False).ids for line in lines}
    words = {line: found for line in lines if (found := cutter.words(line)) is not None}
    for line, found in words.items():
        assert "".join(found) == line
        assert [token for word in found for token in encode(word, add_special_tokens=False).ids] == apart[
            line
        ]
    assert len(words) > 1000
    for text, encoding in zip(texts, whole, strict=True):
        assert [token for line in cutter.cut(text) for token in apart[line]] == encoding.ids, repr(text)
        assert cutter.decode(np.array(encoding.ids, np.int32)) == text


@pytest.mark.long
@pytest.mark.parametrize("pattern", sorted(BORDERS))
def test_a_text_that_is_cut_has_the_words_of_the_whole_for_every_known_pattern(pattern: str) -> None:
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    cutter = LineCutter([], pattern)
    kinds = ["a", "7", ".", " ", "\n", "\r", "\t", "\u2028", "'s"]
    for size in range(2, 6):
        for pieces in itertools.product(kinds, repeat=size):
            text = "".join(pieces)
            if "\n" not in text[:-1]:
                continue
            whole = [piece for piece, _ in split.pre_tokenize_str(text)]
            lines = cutter.cut(text)
            assert [piece for line in lines for piece, _ in split.pre_tokenize_str(line)] == whole, repr(text)
            if text.isascii():
                assert [word for line in lines for word in cutter.words(line) or ()] == whole, repr(text)


KINDS = [
    *("a", "bc", "S", "7", "42", ".", "/", "'s", "'S", " ", "  ", "\n", "\n\n", "\r", "\r\n", "\t", "\x1c"),
    *(
        "\x85",
        "é",
        "e\u0301",
        "\u2028",
        "漢",
        "\u0301",
        "\u00a0",
        "\u3000",
        "_",
        "\x00",
        "foo",
        "}}",
        "\U0001f600",
    ),
]


def other_tokens(tokenizer: PreTrainedTokenizerBase, texts: int) -> list[str]:
    """Of many random texts those that have other tokens in pieces than as a whole."""
    cutter, drawn, backend = LineCutter.of(tokenizer), random.Random(7), tokenizer.backend_tokenizer
    if cutter is None:
        return []  # nothing is cut for it
    kinds = [*KINDS, *list(tokenizer.added_tokens_encoder)[:3]]
    made = ["".join(drawn.choices(kinds, k=drawn.randint(1, 14))) for _ in range(texts)]
    special = any_of(tokenizer.added_tokens_encoder)
    apart = {text: cutter.cut(text) for text in made}
    words = {
        line: (None if special.search(line) else cutter.words(line)) or [line]
        for lines in apart.values()
        for line in lines
    }
    texts = list({*made, *words, *itertools.chain.from_iterable(words.values())})
    encodings = backend.encode_batch_fast(texts, add_special_tokens=False)
    ids = {text: each.ids for text, each in zip(texts, encodings, strict=True)}

    def joined(pieces: list[str]) -> list[int]:
        return [token for piece in pieces for token in ids[piece]]

    return [
        text
        for text in made
        if not joined(apart[text])
        == joined([word for line in apart[text] for word in words[line]])
        == ids[text]
    ]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    """A tokenizer trained here on text with many blank lines, which are tokens of it."""
    texts = ["def f():\n\n    return 1\n\n\ndef g():\n\n\n\n\tpass  \n\n"] * 50
    made = train_tokenizer(texts, 400, tmp_path_factory.mktemp("own"))
    assert "ĊĊ" in made.get_vocab()
    return made


def test_blank_lines_have_the_tokens_of_the_whole_text(own: PreTrainedTokenizerBase) -> None:
    assert LineCutter.of(own) is not None and other_tokens(own, 3000) == []


@pytest.mark.long
@pytest.mark.parametrize("name", ["gpt2", "qwen3", "llama3.1", "deepseek-v3"])
def test_texts_in_pieces_have_the_tokens_that_a_real_tokenizer_gives(name: str) -> None:
    made = AutoTokenizer.from_pretrained(real_tokenizer(name))
    assert (LineCutter.of(made) is None) == (name == "deepseek-v3")
    assert other_tokens(made, 2000) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PACKAGES))
def test_texts_in_pieces_have_the_tokens_of_every_real_tokenizer(name: str) -> None:
    made = PreTrainedTokenizerFast(tokenizer_file=str(real_tokenizer(name) / "tokenizer.json"))
    assert other_tokens(made, 30_000) == []


def test_a_tokenizer_that_a_rule_does_not_fit_is_not_cut_for(
    own: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(lines.BORDERS, OURS, re.compile(r"(?<=\n)(?=\S)"))
    assert LineCutter.of(own) is None


def test_rows_have_the_ids_of_the_tokenizer_and_a_build_ends_where_they_would_not(
    own: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = ChatTokenizer(own, "own")
    said = [{"role": role, "content": "a\n\nb\n\tc\n\n"} for role in ("user", "assistant")]
    encoded = chat.encode([Conversation("x", said)])[0]
    whole = own.apply_chat_template(said, tokenize=False)
    asked = own.apply_chat_template(said[:1], tokenize=False, add_generation_prompt=True)
    first, second = (
        own.encode(part, add_special_tokens=False) for part in (asked, whole.removeprefix(asked))
    )
    assert encoded.input_ids.tolist() == first + second

    forgetful = ChatTokenizer(own, "own")
    monkeypatch.setattr(LineCutter, "cut", lambda _, text: re.split(r"(?<=\n)(?=\S)", text))
    with pytest.raises(DatasetError, match="tokenizer own was given in pieces"):
        forgetful.encode([Conversation("x", said)])


def test_what_an_assistant_said_is_tokenized_whole(
    own: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No short cut stands between the ids that train and the tokenizer."""
    chat = ChatTokenizer(own, "own")
    cut: list[str] = []
    kept = LineCutter.cut
    monkeypatch.setattr(LineCutter, "cut", lambda self, text: cut.append(text) or kept(self, text))
    chat.encode(
        [Conversation("x", [{"role": "user", "content": "?\n"}, {"role": "assistant", "content": "ok\n"}])]
    )
    assert cut and not any("ok" in text for text in cut)
