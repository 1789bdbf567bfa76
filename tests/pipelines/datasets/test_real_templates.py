"""Random conversations in real chat templates: rows, prompts and the tokenizer's own ids are one."""

import json
from functools import partial
from random import Random
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from orchard.pipelines.datasets.errors import DatasetError
from orchard.pipelines.datasets.templates import DATE, ChatTemplate
from orchard.pipelines.datasets.tokenization import ChatTokenizer, Conversation
from orchard.pipelines.policy.conversations import Prompts
from orchard.workers.harnesses.bash_prompts import BASH_TOOL
from tests.chat_templates import FAMILIES, with_family
from tests.real_tokenizers import ALWAYS, CHAT, real_tokenizer

WORDS = ("é", "漢字", "`x = 1`", "a\n\nb", "<|im_end|>", "</s>", '{"a": "\\n"}', "12 345", "\tif x:\n", "ok")
COUNT = 12
"""Conversations for each template."""


def load(name: str) -> ChatTokenizer:
    family, _, vocabulary = name.partition(" on ")
    directory = real_tokenizer(vocabulary or name)
    try:
        made = AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
    except (ValueError, AttributeError):  # a class of its own, in code that the package lacks
        made = PreTrainedTokenizerFast.from_pretrained(directory)
    if isinstance(made.chat_template, dict):
        made.chat_template = made.chat_template["default"]
    if vocabulary:
        with_family(made, family)
    return ChatTokenizer(made, name)


NAMES = (*CHAT, *(f"{family} on gpt2" for family in FAMILIES), "harmony on gptoss")
GUARDING = (*ALWAYS, *(f"{family} on gpt2" for family in FAMILIES))


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[] if name in GUARDING else [pytest.mark.slow]) for name in NAMES],
)
def chat(request: pytest.FixtureRequest) -> ChatTokenizer:
    return load(request.param)


def text(random: Random) -> str:
    return " ".join(random.choices(WORDS, k=random.randint(1, 6))).strip()


def talk(random: Random, several: bool) -> list[dict[str, Any]]:
    """A question and answers to the results of calls, and to a user who asks again; some have reasoning."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"Ask {text(random)}"}]
    for turn in range(random.randint(1, 4)):
        said: dict[str, Any] = {"role": "assistant", "content": f"Say {text(random)} now"}
        if random.random() < 0.4:
            said["reasoning_content"] = f"Hm {text(random)} so"
        if calls := random.choice((0, 1, 1, 1 + several)):
            said["tool_calls"] = [
                {
                    "id": f"call0{turn:02}{number:02}"[:9],
                    "type": "function",
                    "function": {"name": "bash", "arguments": json.dumps({"command": text(random)})},
                }
                for number in range(calls)
            ]
            answers = [
                {"role": "tool", "content": f"Found {text(random)}", "tool_call_id": call["id"]}
                for call in said["tool_calls"]
            ]
        else:
            answers = [{"role": "user", "content": f"More {text(random)}"}]
        messages += [said, *answers]
    return messages


@pytest.mark.long
def test_prompts_are_rows_and_answers_are_read_back(chat: ChatTokenizer) -> None:
    random = Random(7)
    for number in range(COUNT):
        # An answer of gpt-oss has one call.
        several = "<|call|>" not in chat.ends
        messages, tools = talk(random, several), [BASH_TOOL] * (number % 3 > 0)
        (row,) = chat.encode([Conversation("x", messages, tools)])
        ids = row.input_ids.tolist()
        prompts = Prompts(chat)
        turns = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
        for at, (first, end) in zip(turns, row.spans, strict=True):
            prompt = prompts.prompt(messages[:at], tools)
            assert prompt == ids[:first]
            found = prompts.answer(messages[:at], tools, prompt, ids[first:end])
            said = messages[at]
            assert found.content.strip() == said["content"]
            assert found.reasoning == said.get("reasoning_content", "")
            assert ids[end - 1] in prompts.stop_ids
            assert [(call.name, json.loads(call.arguments)) for call in found.tool_calls] == [
                (call["function"]["name"], json.loads(call["function"]["arguments"]))
                for call in said.get("tool_calls", ())
            ]


@pytest.mark.long
def test_what_a_template_does_not_rewrite_has_the_tokenizers_own_ids(chat: ChatTokenizer) -> None:
    """Text alone, without words that are control tokens."""
    random = Random(8)
    for _ in range(COUNT):
        messages: list[dict[str, Any]] = []
        for turn in range(random.randint(1, 3)):
            words = [text(random).replace("<|im_end|>", "it").replace("</s>", "it") for _ in range(2)]
            messages += [
                {"role": "user", "content": f"{turn} {words[0]}."},
                {"role": "assistant", "content": f"{turn} {words[1]}."},
            ]
        own: Any = partial(chat.tokenizer.apply_chat_template, date_string=DATE.strftime("%d %b %Y"))
        (row,) = chat.encode([Conversation("x", messages)])
        # Templates with thoughts drop empty ones of earlier turns; ours with other ends write an end that the
        # newest answer has.
        if "</think>" not in chat.template.source and " on " not in chat.template.name:
            assert row.input_ids.tolist() == own(messages, tokenize=True, return_dict=False)
        asked = own(messages[:1], add_generation_prompt=True, tokenize=True, return_dict=False)
        assert Prompts(chat).prompt(messages[:1], []) == asked


@pytest.mark.parametrize(
    ("family", "own"),
    [
        ("nemotron-3", {"content": "Plain.", "reasoning_content": "Why"}),
        ("nemotron-nano", {"content": "Why\n</think>\n\nPlain."}),  # it has no field for reasoning
    ],
)
def test_reasoning_that_the_prompt_opens_is_written_as_the_template_has_it(
    family: str, own: dict[str, str]
) -> None:
    """The prompt has the tokenizer's own ids; what follows is tokenized apart, since a model samples it."""
    chat = load(f"{family} on gpt2")
    prompts, ask = Prompts(chat), {"role": "user", "content": "Ask."}
    by_template: Any = partial(chat.tokenizer.apply_chat_template, return_dict=False)
    asked = by_template([ask], add_generation_prompt=True, tokenize=True)
    assert prompts.prompt([ask], []) == asked
    for reasoning in ("Why", ""):
        said = {"role": "assistant", "content": "Plain.", "reasoning_content": reasoning}
        (row,) = chat.encode([Conversation("x", [ask, said])])
        ids, ((first, end),) = row.input_ids.tolist(), row.spans
        assert ids[:first] == asked
        found = prompts.answer([ask], [], asked, ids[first:end])
        assert (found.reasoning, found.content.strip()) == (reasoning, "Plain.")
        if reasoning:
            assert chat.decode(ids) == by_template([ask, {"role": "assistant", **own}], tokenize=False)
        else:
            assert chat.decode(ids[first:end]).lstrip().startswith("</think>"), "no text is in the reasoning"


@pytest.mark.slow
def test_chatglm3_ends_an_answer_with_the_token_that_opens_the_next_message_and_is_refused() -> None:
    made = PreTrainedTokenizerFast.from_pretrained(real_tokenizer("chatglm3"))
    assert ChatTemplate(made, "chatglm3").ends == ("<|user|>",)
    with pytest.raises(DatasetError, match="chatglm3 does not give texts back as they were"):
        ChatTokenizer(made, "chatglm3")  # it puts a space before each text
