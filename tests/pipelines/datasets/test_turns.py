"""Conversations with the tokenizers and templates of real models: no turn is rewritten by a later one."""

from collections.abc import Iterator
from typing import Any

import pytest

from orchard.pipelines.datasets import templates
from orchard.pipelines.datasets.errors import ExampleError
from orchard.pipelines.datasets.lines import LineCutter
from orchard.pipelines.datasets.tokenization import ChatTokenizer, Conversation
from orchard.workers.harnesses.bash_prompts import BASH_TOOL
from tests.real_conversations import KINDS, MODELS, conversation, load


@pytest.fixture(scope="module")
def chats() -> dict[str, ChatTokenizer]:
    return {model: ChatTokenizer(load(model), model) for model in MODELS}


def turns_of(messages: list[dict[str, Any]]) -> Iterator[tuple[int, dict[str, Any]]]:
    return ((at, message) for at, message in enumerate(messages) if message["role"] == "assistant")


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", MODELS)
def test_each_prompt_is_the_beginning_of_the_next_and_each_turn_trains_whole(
    chats: dict[str, ChatTokenizer], model: str, kind: str
) -> None:
    chat, messages = chats[model], conversation(kind)
    encoded = chat.encode([Conversation("x", messages, (BASH_TOOL,))])[0]
    ids = encoded.input_ids.tolist()
    end = chat.tokenizer.eos_token_id
    for (at, said), (first, stop) in zip(turns_of(messages), encoded.spans, strict=True):
        before = chat.encode([Conversation("x", messages[: at + 1], (BASH_TOOL,))])[0]
        assert ids[:stop] == before.input_ids.tolist()[: before.spans[-1][1]]
        text = chat.decode(ids[first:stop])
        words = [said["content"], said.get("reasoning_content", ""), f"ls {messages.index(said) // 2 - 1}"]
        assert all(word in text for word in words if said.get("tool_calls") or "ls" not in word)
        assert [place for place in range(first, stop) if ids[place] == end] == [stop - 1]
        assert chat.decode(ids[:first]).endswith(("assistant\n", "<think>\n", "<|end_header_id|>\n\n", "｜>"))
    whole = chat.decode(ids)
    seen = [message["content"] for message in messages if message["role"] != "assistant"]
    assert all(words in whole for words in seen) and '"description": "Run a bash command."' in whole


def own(chat: ChatTokenizer, messages: list[dict[str, Any]], tools: list[Any] | None) -> str:
    text: str = chat.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
    return text


@pytest.mark.long
@pytest.mark.parametrize("model", MODELS)
def test_what_the_models_own_template_does_not_rewrite_is_equal_to_it(
    chats: dict[str, ChatTokenizer], model: str
) -> None:
    """Qwen's keeps reasoning as long as no user asks again; the others here have words for neither tools
    nor reasoning."""
    chat = chats[model]
    thinks = model.startswith("qwen3")
    tools = (BASH_TOOL,) if thinks else ()
    for messages in (
        conversation("always" if thinks else "never", calls=thinks),
        conversation("never", calls=thinks)[:3],
        conversation("never", calls=False)[:3],
    ):
        messages = [{**each, "content": each["content"].replace("<|im_end|>", "it")} for each in messages]
        assert chat.render(Conversation("x", messages, tools))[0] == own(chat, messages, list(tools) or None)


def test_a_turn_that_was_cut_off_keeps_its_end_mark_which_does_not_train(
    chats: dict[str, ChatTokenizer],
) -> None:
    chat, messages = chats["qwen3"], conversation("asked-again")
    whole = chat.encode([Conversation("x", messages)])[0]
    for turn in (0, 5):
        first, stop = whole.spans[turn]
        sampled = whole.input_ids[first : stop - 1].tolist()
        place = [at for at, _ in turns_of(messages)][turn]
        cut = chat.encode([Conversation("x", messages, stored={place: sampled})])[0]
        assert cut.input_ids.tolist() == whole.input_ids.tolist()
        assert cut.spans[turn] == (first, stop - 1)


def test_accented_letters_written_in_two_parts_are_no_fault(chats: dict[str, ChatTokenizer]) -> None:
    """Qwen's tokenizers bring every text to Unicode's form NFC."""
    said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "cafe\u0301 is\nok"}]
    found = chats["qwen3"].encode([Conversation("x", said)])[0]
    assert "café is\nok" in chats["qwen3"].decode(found.input_ids.tolist())


def test_lines_of_qwens_tokenizers_are_tokenized_apart(chats: dict[str, ChatTokenizer]) -> None:
    backend = chats["qwen3"].tokenizer.backend_tokenizer
    cutter = LineCutter.of(chats["qwen3"].tokenizer)
    assert cutter is not None
    for text in (
        "def f():\n\treturn 12\n\n  # é\n",
        "\n\u0301a\r\n e\u0301\n\u1100\u1161\n\u11a8",
        "a\n\n\u0300",
    ):
        apart = [i for line in cutter.cut(text) for i in backend.encode(line, add_special_tokens=False).ids]
        assert apart == backend.encode(text, add_special_tokens=False).ids
    assert cutter.words("return 12") == ["return", " ", "1", "2"]


def test_a_template_is_asked_for_little_more_than_each_message_once(
    chats: dict[str, ChatTokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for the whole conversation at each turn: 47 turns cost what 47 single turns do."""
    seen = 0
    aliased = templates._alias_reasoning_fields

    def counted(messages: list[Any]) -> Any:
        nonlocal seen
        seen += len(messages)
        return aliased(messages)

    monkeypatch.setattr(templates, "_alias_reasoning_fields", counted)
    messages = conversation("sometimes")
    long = messages[:2] + messages[2:] * 8
    chats["qwen3"].render(Conversation("x", long))
    assert seen < 4 * len(long)


def test_a_conversation_that_a_template_refuses_costs_itself_alone(chats: dict[str, ChatTokenizer]) -> None:
    good = Conversation("good", conversation("never"))
    bad = Conversation("bad", conversation("never")[2:])  # Qwen's own template needs a first question
    chat = chats["qwen3"]
    first, found, last = chat.encode_each([good, bad, good])
    assert isinstance(found, ExampleError) and "bad" in str(found)
    assert not isinstance(first, ExampleError) and not isinstance(last, ExampleError)
    assert first.input_ids.tolist() == last.input_ids.tolist()
