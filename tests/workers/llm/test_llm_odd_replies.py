"""Replies that no specification describes: each is an answer, or a failure told by what the endpoint said."""

import asyncio
import gzip
import json
import zlib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import web

from orchard.schemas.campaigns import ModelSpec
from orchard.schemas.outcomes import AbortCause
from orchard.workers.failures import InfrastructureError
from orchard.workers.llm.answers import Completion, MalformedAnswer, read_completion, usage_of
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.errors import ContextLengthExceeded
from orchard.workers.llm.refusals import retry_after
from orchard.workers.llm.settings import EndpointSettings, Price, cost_usd
from orchard.workers.llm.streamed import assembled
from tests.workers.conftest import Endpoint
from tests.workers.llm.test_llm_upstream import chunk, events

GOOD = json.dumps(Endpoint.completion("fine")).encode()
FULL = b'{"error": {"code": "context_length_exceeded", "message": "no"}}'
CALL = {"id": "a", "function": {"name": "bash", "arguments": "{}"}}
NOW = datetime(2026, 1, 1, tzinfo=UTC)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def ask(endpoint: Endpoint, **settings: Any) -> Completion:
    named = EndpointSettings(**{"base_url": endpoint.url, "max_tries": 1} | settings)
    async with ModelClient({"default": named}) as client:
        return await client.complete(ModelSpec(name="m"), [], [], seed=1, timeout=30.0)


def message(reason: str = "stop", **fields: Any) -> bytes:
    said = {"role": "assistant", "content": None} | fields
    return json.dumps({"choices": [{"index": 0, "message": said, "finish_reason": reason}]}).encode()


def sent(body: bytes, encoding: str, status: int = 200) -> Handler:
    async def reply(_: web.Request) -> web.Response:
        return web.Response(body=body, status=status, headers={"Content-Encoding": encoding})

    return reply


async def broken_off(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(status=401, headers={"Content-Length": "500"})
    await response.prepare(request)
    await response.write(b'{"error": {"message": "no such k')
    assert request.transport is not None
    request.transport.close()
    return response


async def without_end(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(status=401)
    await response.prepare(request)
    await asyncio.Event().wait()
    return response


UNREADABLE = {
    "an encoding that nobody asked for": sent(b"\x1b\x03", "br", 401),
    "not packed as it says": sent(b'{"error": {"message": "no"}}', "gzip", 401),
    "broken off": broken_off,
    "without an end": without_end,
    "too large": sent(b"no " * 200_000, "identity", 401),
}


@pytest.mark.parametrize("body", UNREADABLE)
async def test_a_status_holds_whether_or_not_its_body_can_be_read(
    endpoint: Endpoint, body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchard.workers.llm.replies._ERROR_SECONDS", 0.2)
    endpoint.replies.append(UNREADABLE[body])
    with pytest.raises(InfrastructureError, match="answered 401") as caught:
        await ask(endpoint, max_reply_bytes=300_000)
    assert caught.value.cause is AbortCause.LLM_REFUSED


async def test_what_can_be_read_of_an_error_decides(endpoint: Endpoint) -> None:
    endpoint.replies.append(sent(gzip.compress(FULL)[:-6], "gzip", 400))
    with pytest.raises(ContextLengthExceeded):
        await ask(endpoint)


@pytest.mark.parametrize("status", [101, 302, 304])
async def test_what_is_neither_an_answer_nor_a_refusal_is_no_refusal(endpoint: Endpoint, status: int) -> None:
    endpoint.answer(b"", status=status)
    with pytest.raises(InfrastructureError, match=str(status)) as caught:
        await ask(endpoint)
    assert caught.value.cause is AbortCause.LLM_UNAVAILABLE


@pytest.mark.parametrize("host", ["a..b", "a" * 300])
async def test_a_redirection_to_a_name_that_is_none_is_the_endpoints(endpoint: Endpoint, host: str) -> None:
    endpoint.answer(b"", status=307, headers={"Location": f"http://{host}/"})
    with pytest.raises(InfrastructureError, match="could not be reached") as caught:
        await ask(endpoint)
    assert caught.value.cause is AbortCause.LLM_UNAVAILABLE


PACKED = {
    "in parts": ("gzip", gzip.compress(GOOD[:20]) + gzip.compress(GOOD[20:])),
    "by an old name": ("x-gzip", gzip.compress(GOOD)),
    "not at all": ("", GOOD),
    "as zlib does": ("DEFLATE ", zlib.compress(GOOD)),
}


@pytest.mark.parametrize("how", PACKED)
async def test_bodies_are_unpacked(endpoint: Endpoint, how: str) -> None:
    encoding, body = PACKED[how]
    endpoint.replies.append(sent(body, encoding))
    assert (await ask(endpoint)).text == "fine"


@pytest.mark.parametrize("after", [b"", b": ping\n\n"], ids=["silence", "pings"])
async def test_a_stream_that_is_done_ends_though_its_connection_stays_open(
    endpoint: Endpoint, after: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchard.workers.llm.replies._DONE_SECONDS", 0.1)
    body = events(chunk({"content": "data: [DONE]"}), chunk(finish_reason="stop"))

    async def reply(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for byte in range(len(body)):
            await response.write(body[byte : byte + 1])
        await response.write(after)
        await asyncio.Event().wait()
        return response

    endpoint.replies.append(reply)
    assert (await ask(endpoint)).text == "data: [DONE]"


LOST: dict[str, bytes] = {
    "an end of calls without any": message("tool_calls"),
    "calls that are an object": message("tool_calls", content="so", tool_calls=CALL),
    "calls that are a text": message("stop", content="so", tool_calls=json.dumps([CALL])),
    "a part of another API": message(content=[{"type": "output_text", "output_text": "hi"}]),
    "a text that is an object": message(content=[{"type": "text", "text": {"value": "hi"}}]),
    "a key in escapes": message(content="hi")[:-1] + b', "\\u0065rror": {"message": "down"}}',
}


@pytest.mark.parametrize("what", LOST)
def test_an_answer_of_which_something_cannot_be_read_is_not_the_models(what: str) -> None:
    with pytest.raises(MalformedAnswer):
        read_completion(LOST[what])


@pytest.mark.parametrize(
    ("content", "text"),
    [(["a", "b"], "ab"), ([], ""), ([{"type": "thinking", "thinking": "hm"}], ""), ([{"text": ""}], "")],
)
def test_parts_that_can_be_read_are_the_models_words(content: list[Any], text: str) -> None:
    assert read_completion(message(content=content)).text == text


def test_a_stream_with_calls_that_are_no_list_is_no_answer() -> None:
    with pytest.raises(MalformedAnswer, match="where calls should be"):
        assembled(events(chunk({"content": "so", "tool_calls": CALL}), chunk(finish_reason="stop")))


@pytest.mark.parametrize(
    "more", [{"content": "b"}, {"reasoning": "b"}, {"tool_calls": [{"index": 0} | CALL]}]
)
def test_an_ending_with_something_behind_it_was_none(more: dict[str, Any]) -> None:
    said = chunk({"content": "a"}, finish_reason="stop"), chunk(more)
    with pytest.raises(MalformedAnswer, match="without a finish_reason"):
        assembled(events(*said, done=False))
    read_completion(assembled(events(*said, chunk(finish_reason="stop"))))
    read_completion(assembled(events(*said[:1], chunk({"content": ""}))))


def test_what_a_stream_counts_before_its_end_is_not_the_whole() -> None:
    early = chunk({"content": "a"}) | {"usage": {"prompt_tokens": 9, "completion_tokens": 1}}
    late = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 70}}
    stream = early, chunk({"content": "b" * 300}), chunk(finish_reason="stop")
    assert read_completion(assembled(events(*stream))).usage.completion_tokens is None
    assert read_completion(assembled(events(*stream, late))).usage.completion_tokens == 70


CONTRADICTIONS = {
    "more from the cache than there is": {
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 500},
    },
    "more thoughts than tokens": {
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "completion_tokens_details": {"reasoning_tokens": 50},
    },
    "a part of the prompt as text": {
        "input_tokens": 9,
        "output_tokens": 4,
        "cache_read_input_tokens": "900",
    },
}


@pytest.mark.parametrize("what", CONTRADICTIONS)
def test_counts_that_contradict_each_other_have_no_known_cost(what: str) -> None:
    settings = EndpointSettings(base_url="http://a", prices={"m": Price(prompt=1, completion=1)})
    assert cost_usd(settings, "m", usage_of(CONTRADICTIONS[what], said=True)) is None


def test_thoughts_that_only_the_total_counts_were_sampled() -> None:
    """As Gemini and xAI count."""
    counts = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 850}
    assert usage_of(counts, said=True).completion_tokens == 750


async def test_a_reply_that_says_an_error_is_asked_for_with_another_seed(endpoint: Endpoint) -> None:
    endpoint.answer({"error": {"message": "the engine went down"}})
    endpoint.answer(Endpoint.completion("fine"))
    assert (await ask(endpoint, max_tries=2)).seed == 2
    assert [request["seed"] for request in endpoint.requests] == [1, 2]


@pytest.mark.parametrize("header", ["retry-after", "retry-after-ms"])
def test_a_wait_is_a_number_that_an_event_can_hold(header: str) -> None:
    asked = retry_after({header: "9" * 400}, NOW)
    assert asked is not None and json.loads(json.dumps(asked, allow_nan=False)) == asked


@pytest.mark.parametrize("ahead", [-1.0, 1.0], ids=["its clock is behind", "its clock is ahead"])
def test_a_date_to_wait_for_counts_by_the_endpoints_own_clock(ahead: float) -> None:
    form = "%a, %d %b %Y %H:%M:%S GMT"
    theirs = NOW + timedelta(hours=ahead)
    headers = {
        "date": theirs.strftime(form),
        "retry-after": (theirs + timedelta(seconds=90)).strftime(form),
    }
    assert retry_after(headers, NOW) == 90.0
