"""Answers that come as streams, and endpoints of several servers: over real HTTP."""

import socket
from collections import Counter
from typing import Any

import msgspec
import pytest
from aiohttp import web

from orchard.schemas.campaigns import ModelSpec
from orchard.schemas.llm_calls import Usage
from orchard.workers.failures import InfrastructureError
from orchard.workers.llm.answers import MalformedAnswer, read_completion
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.errors import RequestRefused
from orchard.workers.llm.replicas import FIRST_REST, LONGEST_REST, Replica, choose
from orchard.workers.llm.settings import EndpointSettings
from orchard.workers.llm.streamed import assembled
from tests.workers.conftest import Endpoint

HELLO = [{"role": "user", "content": "hello"}]
MODEL = ModelSpec(name="m", logprobs=True)
USAGE = {"prompt_tokens": 10, "completion_tokens": 3}
SAMPLED = [{"token": text, "logprob": -0.5} for text in ("a", "b", "c")]
WHOLE: dict[str, Any] = {
    "model": "served",
    "system_fingerprint": "fp",
    "prompt_token_ids": [7, 8],
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {
                "content": "Ich prüfe\u2028das.",
                "reasoning": "So, so.",
                "tool_calls": [
                    {"id": "x", "function": {"name": "bash", "arguments": '{"command": "ls -l"}'}},
                    {"id": "y", "function": {"name": "bash", "arguments": '{"command": "pwd"}'}},
                ],
            },
            "logprobs": {"content": SAMPLED},
            "token_ids": [1, 2, 3],
        }
    ],
    "usage": USAGE,
}


def chunk(delta: Any = None, **fields: Any) -> dict[str, Any]:
    return {"model": "served", "choices": [{"index": 0, "delta": delta or {}, **fields}]}


def called(index: int, arguments: str, **function: Any) -> dict[str, Any]:
    more = {"id": function.pop("id")} if "id" in function else {}
    return {"tool_calls": [{"index": index, **more, "function": {"arguments": arguments, **function}}]}


CHUNKS = [
    {**chunk({"role": "assistant", "content": ""}), "prompt_token_ids": [7, 8], "system_fingerprint": "fp"},
    chunk({"reasoning": "So, "}, token_ids=[1], logprobs={"content": SAMPLED[:1]}),
    chunk({"reasoning": "so."}, token_ids=[2], logprobs={"content": SAMPLED[1:2]}),
    chunk({"content": "Ich prüfe\u2028"}, token_ids=[3], logprobs={"content": SAMPLED[2:]}),
    chunk({"content": "das."}),
    chunk(called(0, "", id="x", name="bash")),
    chunk(called(0, '{"command": ')),
    chunk(called(1, '{"command"', id="y", name="bash")),
    chunk(called(0, '"ls -l"}')),
    chunk(called(1, ': "pwd"}')),
    {"choices": [{"index": 1, "delta": {"content": "another answer"}}]},
    chunk(finish_reason="tool_calls"),
    {"choices": [], "usage": USAGE},
]


def events(*chunks: Any, done: bool = True, line: bytes = b"\n") -> bytes:
    data = [b"data: " + msgspec.json.encode(one) + 2 * line for one in chunks]
    return b": a comment" + 2 * line + b"".join(data) + (b"data: [DONE]" + 2 * line if done else b"")


def streams(endpoint: Endpoint, body: bytes, *, cut: int | None = None) -> None:
    """Queue a stream, sent in pieces of 50 bytes; `cut` ends the connection after so many bytes."""

    async def reply(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for at in range(0, len(body) if cut is None else cut, 50):
            await response.write(body[at : at + 50])
        if cut is not None and request.transport is not None:
            request.transport.abort()
        return response

    endpoint.replies.append(reply)


async def complete(endpoint: Endpoint, **settings: Any) -> Any:
    named = EndpointSettings(base_url=endpoint.url, stream=True, **settings)
    async with ModelClient({"default": named}) as client:
        return await client.complete(MODEL, HELLO, [], seed=7, timeout=60.0)


@pytest.mark.parametrize("line", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("done", [True, False])
def test_a_stream_is_the_completion_that_it_is_the_parts_of(line: bytes, done: bool) -> None:
    whole = read_completion(msgspec.json.encode(WHOLE))
    assert read_completion(assembled(events(*CHUNKS, line=line, done=done))) == whole
    assert whole.tokens is not None and whole.tokens.logprobs == (-0.5, -0.5, -0.5)


def test_calls_without_an_index_are_told_by_their_ids() -> None:
    """As some servers send them, each call in one piece or with parts behind it."""
    parts = [{"id": "x", "function": {"name": "bash", "arguments": {"command": "ls"}}}]
    parts += [
        {"id": "y", "function": {"name": "bash", "arguments": '{"com'}},
        {"function": {"arguments": '":1}'}},
    ]
    said = [chunk({"tool_calls": [one]}) for one in parts]
    found = read_completion(assembled(events(*said, chunk(finish_reason="tool_calls"))))
    assert [(one.id, one.arguments) for one in found.tool_calls] == [
        ("x", '{"command":"ls"}'),
        ("y", '{"com":1}'),
    ]


def test_calls_that_are_all_numbered_0_are_told_by_their_ids() -> None:
    """As some adapters send them, whole; an id that is said again with each part is one call."""
    said = [
        chunk(called(0, '{"a":1}', id="x", name="bash")),
        chunk(called(0, '{"b":', id="y", name="bash")),
        chunk(called(0, "2}", id="y", name="bash")),
        chunk(called(0, "", id="other")),
    ]
    found = read_completion(assembled(events(*said, chunk(finish_reason="tool_calls"))))
    assert [(one.id, one.arguments) for one in found.tool_calls] == [("x", '{"a":1}'), ("y", '{"b":2}')]


ENDED = next(number for number, one in enumerate(CHUNKS) if one["choices"][0].get("finish_reason"))


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("length", range(ENDED + 1))
def test_no_part_of_a_stream_is_an_answer(length: int, done: bool) -> None:
    """`[DONE]` is no word on how the answer ended."""
    with pytest.raises(MalformedAnswer, match="without a finish_reason"):
        read_completion(assembled(events(*CHUNKS[:length], done=done)))


def test_a_stream_that_ends_with_a_reason_is_an_answer_whatever_else_it_lacks() -> None:
    found = read_completion(assembled(events(*CHUNKS[: ENDED + 1], done=False)))
    assert (found.finish_reason, found.usage) == ("tool_calls", Usage())


async def test_a_stream_is_asked_for_and_read(endpoint: Endpoint) -> None:
    streams(endpoint, events(*CHUNKS))
    answer = await complete(endpoint)
    assert (answer.text, answer.reasoning, len(answer.tool_calls)) == ("Ich prüfe\u2028das.", "So, so.", 2)
    assert answer.usage.completion_tokens == 3
    asked = endpoint.requests[0]
    assert (asked["stream"], asked["stream_options"]) == (True, {"include_usage": True})
    assert endpoint.headers[0]["Accept"] == "text/event-stream"


async def test_an_endpoint_that_answers_whole_all_the_same_is_read(endpoint: Endpoint) -> None:
    endpoint.says("whole")
    assert (await complete(endpoint)).text == "whole"


@pytest.mark.parametrize("cut", [0, 200, 500])
async def test_a_stream_that_is_cut_is_asked_for_again_and_never_half_an_answer(
    endpoint: Endpoint, cut: int
) -> None:
    streams(endpoint, events(*CHUNKS), cut=cut)
    streams(endpoint, events(*CHUNKS[:9], done=False))
    streams(endpoint, events(*CHUNKS))
    answer = await complete(endpoint)
    assert (answer.text, answer.tries) == ("Ich prüfe\u2028das.", 3)


async def test_an_error_inside_a_stream_means_what_it_means_elsewhere(endpoint: Endpoint) -> None:
    streams(endpoint, events(CHUNKS[0], {"error": {"message": "overloaded", "code": 503}}))
    streams(endpoint, events({"error": {"message": "no such field", "code": 400}}))
    with pytest.raises(RequestRefused, match="no such field"):
        await complete(endpoint)
    assert len(endpoint.requests) == 2


async def test_a_stream_without_an_end_is_cut_short(endpoint: Endpoint) -> None:
    streams(endpoint, events(*[chunk({"content": "again and "})] * 1000, done=False))
    answer = await complete(endpoint, max_reply_bytes=10_000)
    assert (answer.text, answer.finish_reason) == ("", "length")


async def test_a_reply_that_is_too_large_with_its_experts_is_not_the_models_doing(endpoint: Endpoint) -> None:
    streams(endpoint, events(*[chunk({"content": "again and "})] * 1000, done=False))
    with pytest.raises(InfrastructureError, match="raise max_reply_bytes"):
        await complete(endpoint, max_reply_bytes=10_000, extra_body={"return_routed_experts": True})


def test_a_session_stays_where_it_is_and_few_move() -> None:
    four = [Replica(f"http://host-{number}/v1") for number in range(4)]
    sessions = [str(number) for number in range(2000)]
    before = {session: choose(four, session, 0.0).url for session in sessions}
    assert min(Counter(before.values()).values()) > 400
    four[1].failed(0.0)
    for session in sessions:
        now = choose(four, session, 1.0)
        assert now.url != four[1].url
        assert before[session] in (now.url, four[1].url)


def test_one_call_shows_that_a_replica_is_back_and_then_its_sessions_come() -> None:
    two = [Replica("http://a"), Replica("http://b")]
    session = next(str(number) for number in range(100) if choose(two, str(number), 0.0).url == "http://a")
    two[0].failed(0.0)
    assert choose(two, session, FIRST_REST - 0.1).url == "http://b"
    assert [choose(two, session, FIRST_REST).url for _ in range(3)] == ["http://a", "http://b", "http://b"]
    two[0].answered()
    assert [choose(two, session, FIRST_REST).url for _ in range(3)] == ["http://a"] * 3
    for _ in range(50):
        two[0].failed(100.0)
    assert two[0].rests_until == 100.0 + LONGEST_REST
    two[1].failed(100.0)
    assert choose(two, session, 101.0).url == "http://a"  # all rest: better asked than not


async def test_calls_of_one_rollout_go_to_one_server_and_move_when_it_dies(endpoint: Endpoint) -> None:
    endpoint.says("here")
    with socket.create_server(("127.0.0.1", 0)) as free:
        dead = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    settings = EndpointSettings(base_url=dead, replicas=(endpoint.url,))
    async with ModelClient({"default": settings}) as client:
        two = [Replica(dead), Replica(endpoint.url)]
        seed = next(number for number in range(1000) if choose(two, str(number), 0.0).url == dead)
        answers = [await client.complete(MODEL, HELLO, [], seed=seed, timeout=60.0) for _ in range(2)]
        assert [one.text for one in answers] == ["here", "here"]
        assert answers[0].tries == 2
        assert len(endpoint.requests) == 2
        assert dead not in str(answers)
