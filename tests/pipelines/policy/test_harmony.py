"""Answers of gpt-oss in channels."""

import pytest

from orchard.pipelines.policy.harmony import read_harmony

ANALYSIS = "<|channel|>analysis<|message|>b<|end|><|start|>assistant"
CALLS = (
    "<|channel|>commentary to=functions.bash <|constrain|>json<|message|>{}",
    " to=functions.bash<|channel|>commentary json<|message|>{}",
)


@pytest.mark.parametrize("call", CALLS)
def test_reasoning_text_and_a_call_are_told_apart(call: str) -> None:
    preamble = "<|channel|>commentary<|message|>a<|end|><|start|>assistant"
    found = read_harmony(ANALYSIS + preamble + call)
    assert found is not None
    assert (found.reasoning, found.content) == ("b", "a")
    assert [(name, bytes(raw)) for name, raw in found.calls] == [("bash", b"{}")]


@pytest.mark.parametrize(
    "text", ["plain", ANALYSIS, "<|channel|>other<|message|>a", CALLS[0].replace("functions.", "browser.")]
)
def test_what_does_not_follow_the_format_is_no_answer(text: str) -> None:
    assert read_harmony(text) is None
