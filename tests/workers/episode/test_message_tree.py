"""The message tree: what is published, what is summed, what the model is shown."""

import json

import msgspec
import pytest

from orchard.schemas.blobs import INLINE_LIMIT
from orchard.schemas.events import encode_event, make_event
from orchard.schemas.llm_calls import CallKind, LLMCall, ModelKind, Usage
from orchard.schemas.messages import MessageNode, NodeRest, Role, TokenRecord, ToolCall
from orchard.schemas.outcomes import AbortCause
from orchard.storage.blobs import BlobStore
from orchard.workers.episode.machine import CommandOutcome
from orchard.workers.episode.message_tree import MessageTree
from orchard.workers.failures import InfrastructureError
from orchard.workers.llm.answers import Completion

LS = ToolCall(id="1", name="bash", arguments='{"command":"ls"}')


@pytest.fixture
def published():
    return []


@pytest.fixture
def trace(published, blobs):
    async def publish(data):
        published.append(data)

    return MessageTree(publish, blobs)


def outcome(output="", returncode=0, seconds=0.5):
    return CommandOutcome(output=output, returncode=returncode, seconds=seconds)


async def test_each_message_is_published_as_it_happens_with_its_parent(trace, published):
    root = await trace.system("be good")
    asked = await trace.user(root, "do it")
    said = await trace.answered(asked, Completion(text="ok", tool_calls=(LS,)))
    await trace.result(said, LS, "a b", outcome("a b"))
    nodes = [data for data in published if isinstance(data, MessageNode)]
    assert [node.role for node in nodes] == [Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.TOOL]
    assert [node.parent for node in nodes] == [None, *(node.node_id for node in nodes[:-1])]
    assert [node.turn for node in nodes] == [0, 0, 1, 1]
    call = published[2]
    assert isinstance(call, LLMCall)
    assert (call.parent, call.node, call.answer) == (asked, said, nodes[2])


async def test_two_samples_of_one_text_are_two_nodes(trace, published):
    """Reasoning and sampled tokens tell them apart; a sample that is equal in all is one node."""
    root = await trace.user(None, "do it")
    samples = [
        Completion(text="ok"),
        Completion(text="ok", reasoning="one way"),
        Completion(text="ok", reasoning="another way"),
        Completion(text="ok", tokens=TokenRecord(ids=(1, 2))),
        Completion(text="ok", tokens=TokenRecord(ids=(1, 3))),
    ]
    found = [await trace.answered(root, sample) for sample in (*samples, samples[1])]
    assert len(set(found)) == 5 and found[5] == found[1]
    nodes = [data for data in published if isinstance(data, MessageNode)]
    assert [(node.reasoning, node.tokens) for node in nodes[1:]] == [
        (sample.reasoning, sample.tokens) for sample in samples
    ]


async def test_messages_that_a_program_wrote_are_those_of_its_model(trace, published):
    """A path has the same ids whoever wrote it, and a call says what it was for."""
    root = await trace.said(None, Role.SYSTEM, "be good")
    asked = await trace.said(root, Role.USER, "do it")
    answer = Completion(text="ok", tool_calls=(LS,), reasoning="r")
    said = await trace.answered(asked, answer, call_kind=CallKind.SUBAGENT, derived_from="n")
    shown = await trace.said(said, Role.TOOL, "a b", tool_call_id=LS.id)
    assert await trace.system("be good") == root and await trace.user(root, "do it") == asked
    assert await trace.said(asked, Role.ASSISTANT, "ok", tool_calls=(LS,), reasoning="r") == said
    assert [message.get("reasoning_content") for message in trace.messages(shown)] == [None, None, "r", None]
    (call,) = [data for data in published if isinstance(data, LLMCall)]
    assert (call.call_kind, call.derived_from) == (CallKind.SUBAGENT, "n")
    assert len(published) == 5


async def test_the_model_is_shown_openai_messages(trace):
    said = await trace.answered(
        await trace.user(await trace.system("s"), "u"), Completion(text="t", tool_calls=(LS,), reasoning="r")
    )
    leaf = await trace.result(said, LS, "out", outcome())
    assert trace.messages(leaf) == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {
            "role": "assistant",
            "content": "t",
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "bash", "arguments": '{"command":"ls"}'}}
            ],
            "reasoning_content": "r",
        },
        {"role": "tool", "content": "out", "tool_call_id": "1"},
    ]


async def test_a_call_that_was_not_executed_is_shown_in_words(trace):
    """Endpoints refuse a call without a result and arguments that are not JSON."""
    bad = ToolCall(id="1", name="bash", arguments="{")
    said = await trace.answered(await trace.system("s"), Completion(text="t", tool_calls=(bad,)))
    message = trace.messages(await trace.user(said, "format error"))[1]
    assert message == {"role": "assistant", "content": "t\n[call not executed: bash {]"}


@pytest.mark.parametrize("written", ["{", "[]", "", "[" * 5000])
async def test_what_was_executed_is_shown_with_arguments_that_endpoints_accept(trace, written):
    """A service may answer a call that it could not read; the record has what the model wrote."""
    call = ToolCall(id="1", name="mail", arguments=written)
    said = await trace.answered(await trace.system("s"), Completion(text="", tool_calls=(call,)))
    leaf = await trace.result(said, call, "not JSON", outcome("not JSON"))
    (sent,) = trace.messages(leaf)[1]["tool_calls"]
    assert json.loads(sent["function"]["arguments"]) == ({"unparsed_arguments": written} if written else {})
    assert trace.path(leaf)[1].tool_calls == (call,)


async def test_half_a_character_is_shown_as_it_was_written(trace):
    """Servers read it, and the real mini-swe-agent sends it."""
    call = ToolCall(id="1", name="bash", arguments='{"command": "echo \\ud800"}')
    said = await trace.answered(await trace.system("s"), Completion(text="", tool_calls=(call,)))
    leaf = await trace.result(said, call, "?", outcome("?"))
    assert trace.messages(leaf)[1]["tool_calls"][0]["function"]["arguments"] == call.arguments


async def test_an_empty_answer_is_shown_as_one(trace):
    said = await trace.answered(await trace.system("s"), Completion(text=""))
    assert trace.messages(said)[1]["content"] == "[empty message]"


async def test_branches_share_their_trunk(trace, published):
    root = await trace.system("s")
    left, right = await trace.user(root, "left"), await trace.user(root, "right")
    assert [message["content"] for message in trace.messages(left)] == ["s", "left"]
    assert [message["content"] for message in trace.messages(right)] == ["s", "right"]
    assert await trace.user(root, "left") == left
    assert len(published) == 3


async def test_totals(trace):
    at = await trace.system("s")
    usage = Usage(prompt_tokens=100, completion_tokens=10)
    for cost in (0.5, 0.25):
        at = await trace.answered(at, Completion(text="t", usage=usage, cost_usd=cost, seconds=2.0))
    await trace.result(at, LS, "", outcome(seconds=3.0))
    totals = trace.totals
    assert (totals.turns, totals.calls, totals.tokens, totals.cost_usd) == (2, 2, 220, 0.75)
    assert (totals.seconds_llm, totals.seconds_commands, totals.seconds) == (4.0, 3.0, 7.0)


async def test_one_unknown_cost_makes_the_sum_unknown(trace):
    at = await trace.system("s")
    for cost in (0.5, None, 0.5):
        at = await trace.answered(at, Completion(text="t", cost_usd=cost))
    assert trace.totals.cost_usd is None


async def test_one_answer_of_an_oracle_marks_the_whole(trace):
    at = await trace.system("s")
    for kind in (ModelKind.ORACLE, ModelKind.MODEL):
        at = await trace.answered(at, Completion(text="t", model_kind=kind))
    assert trace.totals.model_kind is ModelKind.ORACLE


@pytest.mark.parametrize("text", ["x" * (INLINE_LIMIT + 1), "\x00" * (INLINE_LIMIT // 4)])
async def test_a_text_over_the_limit_goes_into_a_blob(trace, published, blobs, text):
    """Counted as it is written: a control character takes six bytes of JSON."""
    leaf = await trace.user(None, text)
    node = published[0]
    assert node.content == ""
    assert blobs.get(node.content_blob).decode() == text
    assert trace.messages(leaf)[0]["content"] == text


async def test_tokens_and_calls_over_the_limit_go_into_a_blob(trace, published, blobs):
    tokens = TokenRecord(ids=tuple(range(100_000)))
    await trace.answered(await trace.system("s"), Completion(text="t", tool_calls=(LS,), tokens=tokens))
    node = published[2]
    assert (node.content, node.tool_calls, node.tokens) == ("t", (), None)
    assert published[1].answer == node
    rest = msgspec.json.decode(blobs.get(node.rest_blob), type=NodeRest)
    assert (rest.tool_calls, rest.tokens) == ((LS,), tokens)
    assert len(encode_event(make_event(node, id="1", source="s", campaign="c"))) < INLINE_LIMIT


async def test_a_blob_that_cannot_be_stored_is_our_failure(tmp_path, published):
    async def publish(data):
        published.append(data)

    store = tmp_path / "file"
    store.write_text("not a directory")
    with pytest.raises(InfrastructureError) as caught:
        await MessageTree(publish, BlobStore(store)).user(None, "x" * (INLINE_LIMIT + 1))
    assert caught.value.cause is AbortCause.STORE_FAILED
    assert published == []
