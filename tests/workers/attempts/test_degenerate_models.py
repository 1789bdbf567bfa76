"""What a model does wrong is answered, truncated and graded: over a real wire, nothing of it is an abort."""

import asyncio
import zlib

import msgspec
import pytest
from aiohttp import web

from orchard.schemas.blobs import INLINE_LIMIT
from orchard.schemas.campaigns import Budget, ModelSpec, Timeouts
from orchard.schemas.llm_calls import LLMCall
from orchard.schemas.messages import MessageNode, Role
from orchard.schemas.outcomes import AbortCause, ExitStatus
from orchard.workers.domains.swe.harnesses import orchard_bash_prompts
from orchard.workers.episode import patches
from orchard.workers.episode.budgets import within
from orchard.workers.episode.message_tree import MessageTree
from orchard.workers.failures import InfrastructureError
from orchard.workers.harnesses import get_harness
from orchard.workers.harnesses.bash_loop import LONGEST_COMMAND, BashLoop
from orchard.workers.harnesses.interface import Episode
from orchard.workers.harnesses.module_prompts import ModulePrompts
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.errors import OutOfTime
from orchard.workers.llm.settings import EndpointSettings

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
HELLO = [{"role": "user", "content": "hello"}]
MODEL = ModelSpec(name="m")


@pytest.fixture
def run(task, machine, models, blobs):
    """Run the harness; its result, and all that it published."""

    async def run(*, budget=None, harness=None, seen=None):
        published = []

        async def publish(data):
            assert len(msgspec.json.encode(data)) < 2 * INLINE_LIMIT
            published.append(data)

        episode = Episode(
            task=task,
            machine=machine,
            model=models,
            student=MODEL,
            trace=MessageTree(publish, blobs),
            budget=budget or Budget(),
            timeouts=Timeouts(),
            seed=1,
        )
        if seen is not None:
            seen.append(episode.trace)
        return await (harness or get_harness("orchard-bash")).run(episode), published

    return run


def call(arguments, name="bash", **fields):
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}, **fields}


def command(text):
    return msgspec.json.encode({"command": text}).decode()


def of_role(published, role):
    return [node for node in published if isinstance(node, MessageNode) and node.role is role]


DEGENERATE = {
    "deep text": [call("[" * 100_000)],
    "deep and closed": [call('{"command":' * 3000 + "1" + "}" * 3000)],
    "deep JSON": [call(msgspec.Raw(b"[" * 500 + b"]" * 500))],
    "huge": [call(command("x" * 3_000_000))],
    "long": [call(command("x" * (LONGEST_COMMAND + 1)))],
    "NUL": [call(command("echo a\x00b"))],
    "lone surrogate": [call('{"command": "echo \\ud800"}')],
    "tool name of 1 MB": [call(command("ls"), name="b" * 1_000_000)],
    "no name": [call(command("ls"), name=None)],
    "a number as name": [call(command("ls"), name=7)],
    "call is a string": ["bash ls"],
    "call is null": [None],
    "function is a string": [{"id": "1", "function": "ls"}],
}


@pytest.mark.parametrize("kind", DEGENERATE)
async def test_degenerate_calls_are_format_errors(run, endpoint, kind):
    endpoint.answer(endpoint.completion("Let me see.", DEGENERATE[kind]))
    endpoint.says("", SUBMIT)
    result, published = await run()
    assert result.exit_status is ExitStatus.SUBMITTED
    answer = of_role(published, Role.USER)[1]
    assert len(answer.content) < 5000
    assert "error" in answer.content
    assert len(msgspec.json.encode(endpoint.requests[1])) < 50_000


ODD_REPLIES = {
    "arguments nested too deep": b'{"choices":[{"message":{"content":"x","tool_calls":[{"id":"1","function":'
    b'{"name":"bash","arguments":' + b"[" * 3000 + b"]" * 3000 + b"}}]}}]}",
    "lone surrogate": b'{"choices":[{"message":{"content":"a \\ud800 b"},"finish_reason":"stop"}]}',
    "not UTF-8": b'{"choices":[{"message":{"content":"a \xff b"},"finish_reason":"stop"}]}',
    "empty": b'{"choices":[{"message":{"content":null},"finish_reason":"length"}]}',
}


@pytest.mark.parametrize("kind", ODD_REPLIES)
async def test_odd_messages_are_answered_and_three_in_a_row_truncate(run, endpoint, kind):
    endpoint.answer(ODD_REPLIES[kind])
    result, published = await run()
    assert result.exit_status is ExitStatus.FORMAT_FAILURE
    assert len(of_role(published, Role.ASSISTANT)) == 3
    assert len(endpoint.requests) == 3


async def test_ids_that_cannot_be_sent_back_are_replaced(run, endpoint):
    calls = [call(command("echo one"), id="x" * 1_000_000), call(command("echo two"), id="call_0")]
    endpoint.answer(endpoint.completion("", [*calls, call(command("echo three"), id=7)]))
    endpoint.says("", SUBMIT)
    _, published = await run()
    assert [node.tool_call_id for node in of_role(published, Role.TOOL)][:3] == ["call_0", "call_1", "call_2"]


async def test_of_twenty_thousand_calls_some_run_and_the_model_is_told_of_the_rest(run, endpoint, machine):
    many = [call(command("true"), id=f"c{number}") for number in range(20_000)]
    endpoint.answer(endpoint.completion("", many))
    endpoint.says("", SUBMIT)
    result, published = await run(
        harness=BashLoop(ModulePrompts("orchard-bash", orchard_bash_prompts, calls_per_message=3))
    )
    assert result.exit_status is ExitStatus.SUBMITTED
    assert machine.commands == ["true"] * 3 + [SUBMIT]
    assert "19997 calls too many" in of_role(published, Role.USER)[1].content


async def test_the_wall_clock_is_looked_at_before_each_call(run, endpoint, machine):
    machine.takes = 100.0
    endpoint.says("", "echo '# edited' >> shop/sums.py", "echo never", "echo never")
    result, _ = await run(budget=Budget(wall_seconds=60.0))
    assert result.exit_status is ExitStatus.TIME_LIMIT
    assert "echo never" not in machine.commands
    assert "+# edited" in result.submission


async def test_the_wall_clock_holds_during_a_call(run, endpoint, machine):
    """Whatever the time-out of a call is; and where the seconds went is known."""

    async def never(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    machine.takes = 59.9
    endpoint.says("", "true")
    endpoint.replies.append(never)
    seen = []
    with pytest.raises(OutOfTime):
        await run(budget=Budget(wall_seconds=60.0), seen=seen)
    (trace,) = seen
    assert (trace.own.turns, trace.own.seconds_commands) == (1, 59.9)
    assert trace.own.seconds_waiting > 0 and trace.own.seconds < 60.0


def test_the_wall_clock_of_an_agent_leaves_time_for_its_sandbox_and_its_grade() -> None:
    timeouts = Timeouts()
    assert within(Budget(), timeouts) == Budget()
    for endless in (0.0, 1e6):
        wall = within(Budget(wall_seconds=endless), timeouts).wall_seconds
        others = timeouts.command + timeouts.shutdown + 2 * timeouts.creation + timeouts.grading
        assert timeouts.command < wall <= timeouts.rollout - others
    for short in (5.0, others + 1.0):
        assert within(Budget(), Timeouts(rollout=short)) == Budget()


async def test_more_left_behind_than_any_patch_is_an_empty_submission(run, endpoint, monkeypatch):
    monkeypatch.setattr(patches, "LARGEST_DIFF", 100_000)
    endpoint.says("", "head -c 1000000 /dev/urandom > data.bin")
    result, _ = await run(budget=Budget(steps=1))
    assert (result.exit_status, result.submission) == (ExitStatus.STEP_LIMIT, "")


UNUSABLE_USAGE = {
    "over 64 bits": {"prompt_tokens": msgspec.Raw(b"99999999999999999999"), "completion_tokens": 2},
    "64 bits": {"prompt_tokens": 2**63 - 1, "completion_tokens": 2},
    "negative": {"prompt_tokens": -5, "completion_tokens": 2},
    "real": {"prompt_tokens": 1.5},
    "infinite": {"prompt_tokens": msgspec.Raw(b"1e999"), "completion_tokens": 2},
    "text": {"prompt_tokens": "many"},
    "a list": [1, 2],
    "more cached than read": {"prompt_tokens": 0, "prompt_tokens_details": {"cached_tokens": 10**9}},
}


@pytest.mark.parametrize("kind", UNUSABLE_USAGE)
async def test_unusable_counts_are_left_out_and_the_answer_counts(run, endpoint, kind):
    endpoint.answer(endpoint.completion("", [call(command(SUBMIT))], usage=UNUSABLE_USAGE[kind]))
    result, published = await run()
    assert result.exit_status is ExitStatus.SUBMITTED
    (record,) = [data for data in published if isinstance(data, LLMCall)]
    assert (record.usage.prompt_tokens, record.cost_usd) == (None, None)
    assert record.usage.completion_tokens in (None, 2)


ODD_TOKENS = {
    "an id over 64 bits": {"token_ids": [1, msgspec.Raw(b"99999999999999999999")]},
    "a negative id": {"token_ids": [-1, 2]},
    "ids are text": {"token_ids": "1 2"},
    "logprobs are text": {"logprobs": {"content": [{"logprob": "x"}]}},
    "logprob over range": {"logprobs": {"content": [{"logprob": msgspec.Raw(b"-1e999")}]}},
    "a digit that is none": {"logprobs": {"content": [{"logprob": -1.0, "token": "token_id:²"}]}},
}


@pytest.mark.parametrize("kind", ODD_TOKENS)
async def test_tokens_that_are_none_are_left_out(run, endpoint, kind):
    reply = endpoint.completion("", [call(command(SUBMIT))])
    reply["choices"][0] |= ODD_TOKENS[kind]
    endpoint.answer(reply)
    result, published = await run()
    assert result.exit_status is ExitStatus.SUBMITTED
    (answer,) = of_role(published, Role.ASSISTANT)
    assert answer.tokens is None or answer.tokens.ids == ()


def endless(begin: bytes, piece: bytes, status: int = 200, **headers: str):
    """A body that begins so and never ends; how many bytes of it were sent."""
    sent = [0]

    async def reply(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status, headers={"Content-Type": "application/json", **headers})
        await response.prepare(request)
        await response.write(begin)
        while True:
            await response.write(piece)
            sent[0] += len(piece)

    return reply, sent


@pytest.fixture
async def small(endpoint):
    """A client that reads replies of at most a megabyte, and tries twice."""
    settings = EndpointSettings(base_url=endpoint.url, max_reply_bytes=1_000_000, max_tries=2)
    async with ModelClient({"default": settings}) as client:
        yield client


async def test_a_completion_without_an_end_is_cut_short(endpoint, small):
    reply, sent = endless(b'{"choices":[{"message":{"content":"', b"x" * 65536)
    endpoint.replies.append(reply)
    answer = await small.complete(MODEL, HELLO, [], seed=1, timeout=30)
    assert (answer.text, answer.finish_reason, answer.tries) == ("", "length", 1)
    assert sent[0] < 20_000_000


@pytest.mark.long
async def test_a_packed_completion_without_an_end_is_cut_short_before_it_is_unpacked(endpoint, small):
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    bomb = packer.compress(b'{"choices":[{"message":{"content":"' + b" " * 300_000_000) + packer.flush()
    endpoint.answer(bomb, headers={"Content-Encoding": "gzip"})
    answer = await small.complete(MODEL, HELLO, [], seed=1, timeout=30)
    assert answer.finish_reason == "length"


async def test_a_packed_completion_is_read(endpoint, small):
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    body = packer.compress(msgspec.json.encode(endpoint.completion("hi"))) + packer.flush()
    endpoint.answer(body, headers={"Content-Encoding": "gzip"})
    assert (await small.complete(MODEL, HELLO, [], seed=1, timeout=30)).text == "hi"


@pytest.mark.parametrize(
    ("begin", "status", "headers", "cause"),
    [
        (b"<html>", 200, {}, AbortCause.LLM_UNAVAILABLE),
        (b'{"error": "', 500, {}, AbortCause.LLM_UNAVAILABLE),
        (b'{"error": "', 404, {}, AbortCause.LLM_REFUSED),
        (b"x", 200, {"Content-Encoding": "br"}, AbortCause.LLM_UNAVAILABLE),
        (b"x", 200, {"Content-Encoding": "gzip"}, AbortCause.LLM_UNAVAILABLE),
    ],
)
async def test_any_other_body_without_an_end_is_the_endpoints_failure(
    endpoint, small, begin, status, headers, cause
):
    reply, sent = endless(begin, b"x" * 65536, status, **headers)
    endpoint.replies.append(reply)
    with pytest.raises(InfrastructureError) as caught:
        await small.complete(MODEL, HELLO, [], seed=1, timeout=30)
    assert caught.value.cause is cause
    assert sent[0] < 40_000_000


async def test_errors_of_any_depth_and_length_are_quoted_in_small(endpoint, small):
    endpoint.answer(b'{"error":{"message":' + b"[" * 900 + b"]" * 900 + b',"code":"\xc2\xb2"}}', status=500)
    with pytest.raises(InfrastructureError) as caught:
        await small.complete(MODEL, HELLO, [], seed=1, timeout=30)
    assert len(caught.value.detail) < 1000


async def test_a_conversation_too_large_for_the_endpoint_is_the_token_limit(run, endpoint):
    endpoint.says("", "true")
    endpoint.answer(b"Payload Too Large", status=413)
    result, _ = await asyncio.wait_for(run(), 60)
    assert result.exit_status is ExitStatus.TOKEN_LIMIT
