"""The forest of a program's calls against expectations written by hand."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchard.schemas.llm_calls import CallKind
from orchard.schemas.messages import Role, ToolCall
from orchard.workers.gateway.call_kinds import ProgramText, delegates, kind_of, quotes, root_of
from orchard.workers.gateway.forest import Forest, RecordedPrefix, superseded
from orchard.workers.gateway.wire_types import UNPARSED, ProgramMessage, ProgramRequest, unnamed

SYSTEM = ProgramMessage(role=Role.SYSTEM, text="be good")
TASK = ProgramMessage(role=Role.USER, text="do it")
SUMMARY = "The test fails in parse() of shop/sums.py, line 12.\nI wrote a script that shows it, /tmp/show.py."
TOOLS = ({"type": "function", "function": {"name": "bash"}},)


def reply(text="", arguments=None, **fields):
    calls = () if arguments is None else (ToolCall(id="c", name="bash", arguments=arguments),)
    return ProgramMessage(role=Role.ASSISTANT, text=text, tool_calls=calls, **fields)


def result(text):
    return ProgramMessage(role=Role.TOOL, text=text, tool_call_id="c")


@pytest.fixture
def forest():
    """s - t - a1 (a call) - r1 - a2; s - t - b1 (the same call, asked again); x, a tree of its own."""
    forest = Forest()
    first, layout = '{"command":"ls","n":1}', '{"n": 1, "command": "ls"}'
    for parent, said, node in [
        (None, SYSTEM, "s"),
        ("s", TASK, "t"),
        ("t", reply("I look.", first), "a1"),
        ("a1", result("a b"), "r1"),
        ("r1", reply("done"), "a2"),
        ("t", reply("I look.", layout), "b1"),
        (None, ProgramMessage(role=Role.USER, text="another"), "x"),
    ]:
        forest.add(parent, said, node)
    return forest


LOOK = reply(" I look.\n", '{"command": "ls", "n": 1}', reasoning="thoughts that were added")


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([SYSTEM, TASK], RecordedPrefix(2, "t")),
        ([SYSTEM, TASK, LOOK], RecordedPrefix(3, "b1")),
        ([SYSTEM, TASK, LOOK, result("a b")], RecordedPrefix(4, "r1")),
        ([SYSTEM, TASK, LOOK, result("a b"), reply("done"), TASK], RecordedPrefix(5, "a2")),
        ([SYSTEM, TASK, LOOK, result("other")], RecordedPrefix(3, "b1")),
        ([SYSTEM, TASK, reply("I look.", '{"command": "pwd"}')], RecordedPrefix(2, "t")),
        ([SYSTEM, TASK, reply("I look.")], RecordedPrefix(2, "t")),
        ([ProgramMessage(role=Role.USER, text="be good"), TASK], RecordedPrefix(0, None)),
        ([TASK], RecordedPrefix(0, None)),
        ([ProgramMessage(role=Role.USER, text="another"), TASK], RecordedPrefix(1, "x")),
    ],
    ids=[
        "a retry has the same parent",
        "of two equal replies the newest",
        "the longest path, though a newer reply is equal",
        "a continuation",
        "a rewritten history branches where it differs",
        "another call is another reply",
        "a call that was left out is another reply",
        "another role is another message",
        "a message of the middle begins no path",
        "trees do not mix",
    ],
)
def test_the_parent_is_the_end_of_the_longest_recorded_path(forest, messages, expected):
    assert forest.match(messages) == expected


def test_recording_twice_changes_nothing(forest):
    forest.add("t", LOOK, "a1")
    assert forest.match([SYSTEM, TASK, LOOK]) == RecordedPrefix(3, "b1")


@pytest.mark.parametrize(
    ("sent", "node"), [("one way", "a"), (" another way\n", "b"), ("a third", "c"), ("", "c")]
)
def test_of_equal_texts_the_one_with_the_reasoning_that_is_sent_back_is_meant(sent, node):
    """Where a program sends none of a recorded reply, the newest is meant."""
    forest = Forest()
    forest.add(None, TASK, "t")
    for reasoning, name in (("one way", "a"), ("another way", "b"), ("no way", "c")):
        forest.add("t", reply("ok", reasoning=reasoning), name)
        forest.add(name, TASK, f"{name}-next")
    assert forest.match([TASK, reply("ok", reasoning=sent)]) == RecordedPrefix(2, node)
    assert forest.match([TASK, reply("ok", reasoning=sent), TASK]) == RecordedPrefix(3, f"{node}-next")


def test_a_call_without_an_id_is_any_call_of_its_name_and_arguments():
    forest = Forest()
    forest.add(None, reply("", '{"n": 1, "m": null}'), "a")
    for call_id, found in ((unnamed(0), "a"), ("c", "a"), ("d", None)):
        call = ToolCall(id=call_id, name="bash", arguments='{"n": 1}')
        said = ProgramMessage(role=Role.ASSISTANT, tool_calls=(call,))
        assert forest.match([said]).node == found


def test_arguments_that_were_mended_for_a_program_are_found_again():
    forest = Forest()
    forest.add(None, reply("", '{"command": '), "a")
    said = f'{{"{UNPARSED}": "{{\\"command\\": "}}'
    assert forest.match([reply("", said)]) == RecordedPrefix(1, "a")


@pytest.mark.parametrize(
    ("calls", "continued", "expected"),
    [
        ([("t", "a"), ("t", "b")], {"t", "b"}, {"a"}),
        ([("t", "a"), ("t", "b")], {"t", "a"}, {"b"}),
        ([("t", "a"), ("t", "b"), ("t", "c")], {"t"}, {"a", "b"}),
        ([("t", "a"), ("t", "b"), ("t", "c")], {"a", "c"}, {"b"}),
        ([("t", "a"), ("t", "a")], {"t"}, set()),
        ([("t", "a"), ("r", "b")], {"t", "r"}, set()),
    ],
    ids=["consumed second", "consumed first", "none: the last", "two agents", "equal replies", "two paths"],
)
def test_the_reply_that_was_consumed_counts(calls, continued, expected):
    assert superseded(calls, continued) == expected


MAIN = ProgramRequest(messages=(SYSTEM, TASK), tools=TOOLS)


@pytest.mark.parametrize(
    ("ask", "given", "kind"),
    [
        (MAIN, {}, CallKind.MAIN),
        (MAIN, {"main": root_of(MAIN)}, CallKind.MAIN),
        (ProgramRequest(messages=(TASK,), tools=TOOLS), {"main": root_of(MAIN)}, CallKind.SUBAGENT),
        (ProgramRequest(messages=(SYSTEM, TASK), tools=TOOLS * 2), {"main": root_of(MAIN)}, CallKind.MAIN),
        (
            ProgramRequest(messages=(SYSTEM, TASK), tools=({"function": {"name": "read"}},)),
            {"main": root_of(MAIN)},
            CallKind.SUBAGENT,
        ),
        (ProgramRequest(messages=(TASK,)), {}, CallKind.TITLE),
        (ProgramRequest(messages=(ProgramMessage(role=Role.USER, text="x" * 6001),)), {}, CallKind.MAIN),
        (ProgramRequest(messages=(TASK,)), {"continues": CallKind.TITLE}, CallKind.MAIN),
        (MAIN, {"continues": CallKind.SUBAGENT}, CallKind.SUBAGENT),
        (MAIN, {"continues": CallKind.COMPACTION}, CallKind.MAIN),
        (MAIN, {"quotes_reply": True, "main": root_of(MAIN)}, CallKind.COMPACTION),
        (ProgramRequest(messages=(TASK,), max_tokens=1), {}, CallKind.PROBE),
        (MAIN, {"headers": {"x-claude-code-agent-id": "1"}}, CallKind.SUBAGENT),
        (MAIN, {"headers": {"x-codex-parent-thread-id": "1"}}, CallKind.SUBAGENT),
        (MAIN, {"headers": {"x-parent-session-id": "1"}}, CallKind.SUBAGENT),
        (MAIN, {"headers": {"x-openai-subagent": "review"}}, CallKind.SUBAGENT),
        (MAIN, {"headers": {"x-openai-subagent": "compact"}}, CallKind.COMPACTION),
    ],
)
def test_a_call_has_the_kind_that_its_signals_say(ask, given, kind):
    headers, rest = given.get("headers", {}), {key: value for key, value in given.items() if key != "headers"}
    assert kind_of(ask, headers, **{"continues": None, "quotes_reply": False, "main": None} | rest) is kind


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([SYSTEM, ProgramMessage(role=Role.USER, text=f"Continue from here:\n{SUMMARY}")], True),
        ([ProgramMessage(role=Role.USER, text=f"<summary>{SUMMARY.splitlines()[0]}</summary>")], True),
        ([reply(SUMMARY)], False),
        ([TASK], False),
    ],
    ids=["whole", "half of it", "the reply itself", "nothing of it"],
)
def test_a_conversation_that_quotes_a_reply_is_told(messages, expected):
    assert quotes(ProgramText(messages), f"<analysis>\n{SUMMARY}") is expected


def test_a_short_reply_is_quoted_by_nobody():
    assert not quotes(ProgramText([ProgramMessage(role=Role.USER, text="ok")]), "ok")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"agent": "search", "prompt": f" {SUMMARY}"}, True),
        ({"agent": "search", "prompt": SUMMARY.upper()}, False),
        ({"agent": "search", "prompt": "short"}, False),
        ([SUMMARY], False),
    ],
    ids=["given", "other words", "too short to tell", "no object"],
)
def test_work_that_a_call_gives_to_another_conversation_is_told(arguments, expected):
    call = ToolCall(id="c", name="task", arguments=json.dumps(arguments))
    told = ProgramText(
        [ProgramMessage(role=Role.USER, text=f"You are a searcher, and short of words.\n{SUMMARY}")]
    )
    assert delegates(call, told) is expected


@given(st.text("ab \n\u2028", max_size=12), st.text("ab \n\u2028", max_size=40))
def test_what_was_told_is_found_as_any_text_in_a_text(part, text):
    assert ProgramText([ProgramMessage(role=Role.USER, text=text)]).has(part) is (part in text)
