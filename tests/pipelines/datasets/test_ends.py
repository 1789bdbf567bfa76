"""Answers that end as GLM's and gpt-oss's do: by their kind, replaced later, or by what follows."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from orchard.pipelines.datasets.errors import DatasetError, ExampleError
from orchard.pipelines.datasets.tokenization import ChatTokenizer, Conversation
from orchard.pipelines.policy.conversations import Prompts
from tests.chat_templates import with_family
from tests.pipelines.datasets.test_templates import ASK, OBJECTS, result, said, with_template

CALL = '{"command": "ls"}'


def of_family(tokenizer: str, family: str, out: Path) -> ChatTokenizer:
    made = AutoTokenizer.from_pretrained(tokenizer)
    with_family(made, family)
    made.save_pretrained(out)
    return ChatTokenizer(made, family)


def rendered(chat: ChatTokenizer, messages: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """The answers and what stands behind each."""
    text, spans = chat.render(Conversation("x", messages))
    starts = [*(first for first, _ in spans[1:]), len(text)]
    return [text[first:end] for first, end in spans], [
        text[end:start] for (_, end), start in zip(spans, starts, strict=True)
    ]


TALK = [ASK, said("a", CALL), result("1"), said("b"), ASK, said("c")]


def test_the_token_that_opens_the_next_message_ends_an_answer(tokenizer: str, tmp_path: Path) -> None:
    answers, rests = rendered(of_family(tokenizer, "glm", tmp_path), TALK)
    assert [each.rpartition("<|")[2] for each in answers] == ["observation|>", "user|>", "user|>"]
    assert rests == [
        "\n<tool_response>\n1\n</tool_response><|assistant|>",
        "\n?<|assistant|>",
        "",
    ]


def test_what_follows_in_place_of_results_is_written_whole(tokenizer: str, tmp_path: Path) -> None:
    answers, rests = rendered(of_family(tokenizer, "glm", tmp_path), [ASK, said("a", CALL), ASK, said("b")])
    assert answers[0].endswith("</tool_call><|observation|>") and rests[0] == "<|user|>\n?<|assistant|>"


def test_an_earlier_answer_ends_as_it_was_sampled(tokenizer: str, tmp_path: Path) -> None:
    answers, rests = rendered(of_family(tokenizer, "harmony", tmp_path), TALK)
    assert [each.rpartition("<|")[2] for each in answers] == ["call|>", "return|>", "return|>"]
    assert rests == [
        '<|start|>functions.bash to=assistant<|channel|>commentary<|message|>"1"<|end|><|start|>assistant',
        "<|start|>user<|message|>?<|end|><|start|>assistant",
        "",
    ]


def test_the_text_beside_a_call_is_no_reasoning(tokenizer: str, tmp_path: Path) -> None:
    chat = of_family(tokenizer, "harmony", tmp_path)
    (answer,), _ = rendered(chat, [ASK, {**said("a", CALL), "reasoning_content": "b"}])
    assert answer == (
        "<|channel|>analysis<|message|>b<|end|><|start|>assistant<|channel|>commentary<|message|>a<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.bash <|constrain|>json<|message|>"
        f"{CALL}<|call|>"
    )
    twice = said("", CALL)
    twice["tool_calls"] *= 2
    (found,) = chat.encode_each([Conversation("one", [ASK, twice])])
    assert isinstance(found, ExampleError) and "has one call" in str(found)


def test_another_end_than_the_templates_stays_before_what_follows(tokenizer: str, tmp_path: Path) -> None:
    chat = of_family(tokenizer, "glm", tmp_path)
    known = chat.tokenizer.convert_tokens_to_ids
    other = [*chat.tokenizer.encode("a", add_special_tokens=False), known("<|endoftext|>")]
    (row,) = chat.encode([Conversation("x", [ASK, said("a"), ASK, said("b")], stored={1: other})])
    first, end = row.spans[0]
    assert row.input_ids[first:end].tolist() == other
    assert row.input_ids[end] == known("<|user|>")


@pytest.mark.parametrize(
    ("family", "eos", "expected"),
    [
        ("glm", ["<|user|>", "<|system|>", "<|im_end|>"], {"<|user|>", "<|observation|>", "<|endoftext|>"}),
        ("harmony", ["<|return|>", "<|end|>"], {"<|return|>", "<|call|>", "<|end|>"}),
    ],
)
def test_a_server_stops_at_all_ends(
    tokenizer: str, tmp_path: Path, family: str, eos: list[str], expected: set[str]
) -> None:
    """Those of the template, the tokenizer and, if the template writes them, the configuration."""
    known = of_family(tokenizer, family, tmp_path).tokenizer.convert_tokens_to_ids
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": known(eos)}))
    assert Prompts.load(tmp_path).stop_ids == set(known(sorted(expected)))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": "x"}')
    with pytest.raises(DatasetError, match="restore it"):
        Prompts.load(tmp_path)


def test_values_have_the_types_of_the_tool(tokenizer: str, tmp_path: Path) -> None:
    prompts = Prompts(of_family(tokenizer, "glm", tmp_path))
    types = {"a": {"type": "string"}, "b": {"type": "integer"}, "c": {"anyOf": [{"type": "array"}]}}
    tools = [{"type": "function", "function": {"name": "t", "parameters": {"properties": types}}}]
    given = {"a": "12", "b": 12, "c": [None, "é"], "d": "[1]"}
    text = "".join(
        f"\n<arg_key>{key}</arg_key>\n<arg_value>"
        f"{value if isinstance(value, str) else json.dumps(value)}</arg_value>"
        for key, value in given.items()
    )
    ids = prompts.tokens(f"\n<think></think>\nI.\n<tool_call>t{text}\n</tool_call><|observation|>")
    answer = prompts.answer([ASK], tools, prompts.prompt([ASK], tools), ids)
    assert answer.content == "I." and json.loads(answer.tool_calls[0].arguments) == given


def test_calls_that_cannot_be_read_back_are_refused(tokenizer: str) -> None:
    chat = with_template(
        tokenizer, OBJECTS.replace("(value if value is string else value | tojson)", "(value ~ value)")
    )
    with pytest.raises(DatasetError, match="in a form that the policy server does not read"):
        Prompts(chat)
