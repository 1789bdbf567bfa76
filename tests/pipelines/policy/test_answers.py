"""Generated text read back into messages: what the template writes, and nothing that it would not."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchard.pipelines.datasets.forms import THINK
from orchard.pipelines.policy.answers import AssistantMessage, read_message
from orchard.pipelines.policy.call_forms import TAGGED, form_of
from orchard.pipelines.policy.learned_forms import learned_form


def read(text, **options):
    return read_message(text, **({"calls": [TAGGED], "tags": THINK, "source": "s"} | options))


def call(name="bash", arguments='{"command": "ls"}'):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def test_text_calls_and_thinking_are_told_apart():
    message = read(f"<think>\nhm\n</think>\nLet me look.\n{call()}\n{call('edit', '{}')}")
    assert (message.reasoning, message.content) == ("hm", "Let me look.")
    assert [(each.name, each.arguments) for each in message.tool_calls] == [
        ("bash", '{"command": "ls"}'),
        ("edit", "{}"),
    ]


_ONE = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"
DEEPSEEK = (
    "<｜tool▁calls▁begin｜>"
    + "\n".join((_ONE.format("bash", "{}"), _ONE.format("edit", '{"a": 1}')))
    + "<｜tool▁calls▁end｜>"
)


@pytest.mark.parametrize(
    "written",
    [
        '[TOOL_CALLS][{"name": "bash", "arguments": {}, "id": "a"}, {"name": "edit", "arguments": {"a": 1}}]',
        DEEPSEEK,
        '{"name": "bash", "parameters": {}}; {"name": "edit", "parameters": {"a": 1}}',
    ],
)
def test_calls_are_read_in_the_form_of_each_family(written):
    form = form_of(written)
    message = read(f"I look.\n{written}", calls=[form])
    assert message.content == "I look."
    assert [(each.name, each.arguments) for each in message.tool_calls] == [
        ("bash", "{}"),
        ("edit", '{"a": 1}'),
    ]
    for broken in (written[:-1], written + " and more", written.replace("{}", "[]")):
        assert read(broken, calls=[form]) == AssistantMessage(content=broken)


def test_thinking_that_the_prompt_has_begun_ends_where_it_ends():
    message = read(f"hm\n</think>\n\nLet me look.\n{call()}", opened=True)
    assert (message.reasoning, message.content, len(message.tool_calls)) == ("hm", "Let me look.", 1)
    assert read("hm, cut", opened=True).content == "hm, cut"


def test_ids_follow_from_the_answer():
    first, second = read(call() + call()).tool_calls
    assert first.id != second.id
    assert read(call() + call()).tool_calls[0].id == first.id
    assert read(call(), source="other").tool_calls[0].id != first.id


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        call().removesuffix("</tool_call>"),
        call() + " and more",
        call() + "<tool_call>",
        call(arguments='{"command": "ls"'),
        call(arguments='"ls"'),
        call(arguments="[]"),
        call(name='x", "other": "y'),
        '<tool_call>{"name": "bash"}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        "<tool_call>bash</tool_call>",
        "</tool_call>" + call().removeprefix("<tool_call>"),
    ],
)
def test_what_is_not_a_whole_call_stays_text(text):
    message = read(text)
    assert (message.content, message.tool_calls) == (text, ())


def test_a_template_without_calls_or_thinking_has_none():
    text = f"<think>\nhm\n</think>\n{call()}"
    assert read(text, calls=[], tags=None).content == text


@given(st.text(), st.dictionaries(st.text(), st.text() | st.integers()))
def test_arguments_come_back_as_they_were_written(content, arguments):
    if "<tool_call>" in content or "<think>" in content:
        return
    written = msgspec.json.encode(arguments).decode()
    message = read(f"{content}\n{call(arguments=written)}" if content else call(arguments=written))
    if "</tool_call>" in written:
        return
    assert (message.content, message.tool_calls[0].arguments) == (content, written)


@given(st.text())
def test_no_text_is_lost_or_raises(text):
    message = read(text)
    assert message.tool_calls or message.reasoning or message.content == text


def written(separator):
    def write(calls):
        texts = []
        for name, arguments in calls:
            values = [
                (key, each if isinstance(each, str) else json.dumps(each)) for key, each in arguments.items()
            ]
            texts.append(f"{name}:" + "".join(f"<k>{key}=<v>{value}</v>" for key, value in values))
        return f"<calls>{separator.join(texts)}</calls>" if calls else ""

    return write


def test_a_form_in_which_two_calls_are_read_as_something_else_is_not_taken():
    assert learned_form(written("<next>"), "an id")
    assert learned_form(written("<k>"), "an id") is None
