"""What counts as an answer of the model: its end is known, and nothing in the reply says an error."""

import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from orchard.schemas.campaigns import ModelSpec
from orchard.schemas.decoding import TooDeep
from orchard.schemas.llm_calls import Usage
from orchard.schemas.outcomes import AbortCause
from orchard.workers.failures import InfrastructureError
from orchard.workers.llm.answers import Completion, MalformedAnswer, read_completion, usage_of
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.replies import begun
from orchard.workers.llm.settings import EndpointSettings
from orchard.workers.llm.streamed import assembled, is_stream
from tests.workers.conftest import Endpoint
from tests.workers.llm.test_llm_upstream import chunk, events

Json = Any
WHOLE = Endpoint.completion("half an answ")
DOWN = {"message": "the engine went down", "type": "server_error"}
CALL = {"index": 0, "id": "x", "function": {"name": "bash", "arguments": '{"comm'}}


def read(raw: bytes) -> Completion:
    return read_completion(assembled(raw) if is_stream(raw) else raw)


def whole(**choice: Any) -> dict[str, Any]:
    return WHOLE | {"choices": [WHOLE["choices"][0] | choice]}


def message(**fields: Any) -> dict[str, Any]:
    return whole(message={"role": "assistant", "content": "half an answ"} | fields)


ENDS = {
    **{word: word for word in ("stop", "length", "tool_calls", "function_call", "content_filter")},
    "STOP": "stop",
    "eos": "stop",
    "end_turn": "stop",
    "MAX_TOKENS": "length",
    "tool_use": "tool_calls",
}
NO_ENDS = [None, "", "null", "abort", "error", "load", "unload", "network_error", "cancelled", 0, 1, True, []]
NO_ENDS += [{}, {"type": "abort", "message": "Aborted"}, "insufficient_system_resource", "stop ", "x" * 10**6]


@pytest.mark.parametrize("word", ENDS)
def test_an_ending_that_a_server_writes_is_known_by_openais_word(word: str) -> None:
    assert read(json.dumps(whole(finish_reason=word)).encode()).finish_reason == ENDS[word]
    assert read(events(chunk({"content": "a"}), chunk(finish_reason=word))).finish_reason == ENDS[word]
    assert read(json.dumps(whole(finish_reason={"type": word, "matched": 2})).encode()).text == "half an answ"


@pytest.mark.parametrize("word", NO_ENDS, ids=lambda word: repr(word)[:20])
def test_any_other_ending_is_none(word: Json) -> None:
    with pytest.raises(MalformedAnswer, match="half an answ"):
        read(json.dumps(whole(finish_reason=word)).encode())
    said = chunk({"content": "half"}), chunk({}, finish_reason=word), {"choices": [], "usage": {}}
    with pytest.raises(MalformedAnswer):
        read(events(*said))


@pytest.mark.parametrize("after", [[], [chunk(finish_reason="stop")]], ids=["last", "then stop"])
def test_an_ending_that_is_none_holds_whatever_comes_after_it(after: list[Json]) -> None:
    with pytest.raises(MalformedAnswer, match="'abort'"):
        read(events(chunk({"content": "half"}), chunk(finish_reason="abort"), *after))


ERRORS = {
    "beside the choices": WHOLE | {"error": DOWN},
    "in the choice": whole(error=DOWN),
    "in another choice": WHOLE | {"choices": [*WHOLE["choices"], {"index": 1, "error": DOWN}]},
    "in the message": message(error=DOWN),
    "of a choice without a message": WHOLE | {"choices": [{"error": DOWN, "message": None}]},
    "instead": {"error": DOWN},
    "in words": WHOLE | {"error": DOWN["message"]},
    "as vLLM had it": {"object": "error", **DOWN},
}


@pytest.mark.parametrize("where", ERRORS)
def test_an_error_anywhere_in_a_reply_wins(where: str) -> None:
    with pytest.raises(MalformedAnswer) as caught:
        read(json.dumps(ERRORS[where]).encode())
    assert DOWN["message"] in json.dumps(caught.value.error)


@pytest.mark.parametrize("none", [None, "", {}, False, {"code": 0, "message": ""}], ids=repr)
def test_an_error_that_says_that_there_is_none_is_none(none: Json) -> None:
    assert read(json.dumps(message(error=none) | {"error": none}).encode()).text == "half an answ"


GOOD = [chunk({"content": "an "}), chunk({"content": "answer"}), chunk(finish_reason="stop")]
STREAMED_ERRORS = {
    "as a chunk": b"data: " + json.dumps({"error": DOWN}).encode(),
    "in a choice": b"data: " + json.dumps(chunk(error=DOWN)).encode(),
    "in a delta": b"data: " + json.dumps(chunk({"error": DOWN})).encode(),
    "as vLLM had it": b"data: " + json.dumps({"object": "error", **DOWN}).encode(),
    "by the event's name": b"event: error\ndata: " + json.dumps(DOWN).encode(),
    "as a field": b"error: " + json.dumps(DOWN).encode(),
    "in words": b"event: error\ndata: the engine went down",
}


@pytest.mark.parametrize("where", STREAMED_ERRORS)
@pytest.mark.parametrize("at", range(5))
def test_an_error_anywhere_in_a_stream_wins(where: str, at: int) -> None:
    """Before the first chunk, between them, behind the ending, and behind `[DONE]`."""
    pieces = [b"data: " + json.dumps(one).encode() for one in GOOD] + [b"data: [DONE]"]
    pieces.insert(at, STREAMED_ERRORS[where])
    with pytest.raises(MalformedAnswer) as caught:
        read(b"\n\n".join(pieces) + b"\n\n")
    assert DOWN["message"] in json.dumps(caught.value.error)


BODIES: dict[str, bytes] = {
    "nothing": b"",
    "blanks": b" \n" * 100,
    "HTML": b"<html><body>502 Bad Gateway</body></html>",
    "half": json.dumps(WHOLE).encode()[:-20],
    "a number": b"7",
    "a list": b"[]",
    "no choices": b'{"id": "c", "usage": {"prompt_tokens": 1}}',
    "empty choices": json.dumps(WHOLE | {"choices": []}).encode(),
    "choices as an object": json.dumps(WHOLE | {"choices": {"0": WHOLE["choices"][0]}}).encode(),
    "choices as a text": json.dumps(WHOLE | {"choices": "stop"}).encode(),
    "no message": b'{"choices": [{"index": 0, "finish_reason": "stop", "text": "of another API"}]}',
    "a content that is no text": json.dumps(message(content=7)).encode(),
    "a message that is none": json.dumps(WHOLE | {"choices": [{"index": 0, "message": "hi"}]}).encode(),
    "only [DONE]": b"data: [DONE]\n\n",
    "[DONE] inside a call's arguments": events(chunk({"content": "x"}), chunk({"tool_calls": [CALL]})),
    "pings": b": ping\n\n" * 50,
    "no chunks": b"data: 7\n\ndata: [DONE]\n\n",
    "choices of a chunk as a number": b'data: {"choices": 7}\n\ndata: [DONE]\n\n',
    "no delta": events({"choices": [{"index": 0, "finish_reason": "stop"}]}),
    "content of a chunk as a number": events(chunk({"content": 7})),
    "calls of a chunk as a number": events(chunk({"tool_calls": 7})),
}


@pytest.mark.parametrize("body", BODIES)
async def test_a_reply_that_is_no_answer_is_a_failure_of_the_endpoint_and_quoted(
    endpoint: Endpoint, body: str
) -> None:
    endpoint.answer(BODIES[body])
    settings = EndpointSettings(base_url=endpoint.url, max_tries=1)
    async with ModelClient({"default": settings}) as client:
        with pytest.raises(InfrastructureError) as caught:
            await client.complete(ModelSpec(name="m"), [], [], seed=1, timeout=30.0)
    assert caught.value.cause is AbortCause.LLM_UNAVAILABLE
    said = " ".join(BODIES[body].decode()[:40].split())
    told = said, "without a finish_reason", "a chat completion", "of a completion: 7", "should be"
    assert any(one in caught.value.detail for one in told)


async def test_what_the_endpoint_says_of_its_failure_is_quoted(endpoint: Endpoint) -> None:
    endpoint.answer(whole(error=DOWN, finish_reason="error"))
    settings = EndpointSettings(base_url=endpoint.url, max_tries=1)
    async with ModelClient({"default": settings}) as client:
        with pytest.raises(InfrastructureError, match="the engine went down") as caught:
            await client.complete(ModelSpec(name="m"), [], [], seed=1, timeout=30.0)
    assert caught.value.cause is AbortCause.LLM_UNAVAILABLE


OPEN = '{"id": "c", "choices": [{"index": 0, "message": {"role": "assistant", '
ENDLESS: dict[str, tuple[bytes, bytes, bool]] = {
    "text": (OPEN.encode() + b'"content": "', b"again ", True),
    "thoughts": (OPEN.encode() + b'"content": null, "reasoning": "', b"hm ", True),
    "a call": (OPEN.encode() + b'"tool_calls": [{"function": {"name": "f", "arguments": "', b"x", True),
    "arguments in depth": (
        OPEN.encode() + b'"tool_calls": [{"function": {"name": "f", "a": ',
        b'{"a": ',
        True,
    ),
    "a stream of text": (b"", events(chunk({"content": "again"}), done=False), True),
    "an error": (b'{"error": {"message": "', b"no ", False),
    "an error in depth": (b'{"error": ', b"[", False),
    "an error that quotes an answer": (b'{"error": ' + OPEN.encode() + b'"content": "a', b"a", False),
    "an error in a text": (b'{"error": "\\"choices\\":[{\\"message\\":{\\"content\\":\\"a', b"a", False),
    "an error behind the text": (
        OPEN.encode() + b'"content": "a"}, "error": "down"}], "x": "',
        b"a",
        False,
    ),
    "an answer that says nothing": (OPEN.encode() + b'"content": "", "x": "', b"a", False),
    "HTML": (b"<html>", b"<p>no</p>", False),
    "blanks": (b"", b" \n", False),
    "lists": (b"", b"[", False),
    "pings": (b"", b": ping\n\n", False),
    "empty chunks": (b"", events(chunk({"content": ""}), done=False), False),
    "a stream of errors": (b"", events({"error": DOWN}, done=False), False),
    "another choice": (b'{"results": [{"message": {"content": "', b"a", False),
}


@pytest.mark.parametrize("packed", [bytes, gzip.compress], ids=["plain", "packed"])
@pytest.mark.parametrize("what", ENDLESS)
async def test_a_reply_without_an_end_is_the_models_only_where_it_has_begun_to_speak(
    endpoint: Endpoint, what: str, packed: Callable[[bytes], bytes]
) -> None:
    start, more, is_answer = ENDLESS[what]
    headers = {} if packed is bytes else {"Content-Encoding": "gzip"}

    async def reply(_: web.Request) -> web.Response:
        body = packed(start + more * (400_000 // len(more)))
        return web.Response(body=body, headers=headers, content_type="application/json")

    endpoint.replies.append(reply)
    settings = EndpointSettings(base_url=endpoint.url, max_tries=1, max_reply_bytes=300_000)
    async with ModelClient({"default": settings}) as client:
        call = client.complete(ModelSpec(name="m"), [], [], seed=1, timeout=30.0)
        if is_answer:
            answer = await call
            assert (answer.text, answer.finish_reason, answer.usage) == ("", "length", Usage())
            return
        with pytest.raises(InfrastructureError) as caught:
            await call
    assert caught.value.cause is AbortCause.LLM_UNAVAILABLE


@pytest.mark.parametrize("what", ENDLESS)
def test_the_same_for_a_reply_that_is_too_deep_or_breaks_off_anywhere(what: str) -> None:
    start, more, is_answer = ENDLESS[what]
    assert begun(start + more * 1000) is is_answer
    for length in range(len(start)):
        begun(start[:length])


def test_a_depth_that_cannot_be_read_is_no_answer_by_itself() -> None:
    with pytest.raises(TooDeep):
        read(b'{"error": ' + b"[" * 2000 + b"]" * 2000 + b"}")


@pytest.mark.parametrize(
    ("fields", "text", "calls"),
    [
        ({"content": None}, "", []),
        ({"content": None, "refusal": "I will not."}, "I will not.", []),
        ({"content": None, "function_call": {"name": "bash", "arguments": "{"}}, "", [("bash", "{")]),
        ({"content": "", "tool_calls": [CALL]}, "", [("bash", '{"comm')]),
    ],
)
def test_what_the_model_did_badly_is_its_answer(fields: Json, text: str, calls: list[Json]) -> None:
    """No text, a refusal, arguments that break off: the ending is known, so nobody failed."""
    raw = json.dumps(message(**fields)).encode()
    streamed = events(chunk(fields), chunk(finish_reason="stop"))
    for found in (read(raw), read(streamed)):
        assert (found.text, [(one.name, one.arguments) for one in found.tool_calls]) == (text, calls)


USAGES: dict[str, tuple[Json, tuple[int | None, ...]]] = {
    "openai": (
        {
            "prompt_tokens": 9,
            "completion_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 5},
            "completion_tokens_details": {"reasoning_tokens": 3},
        },
        (9, 4, 5, 3),
    ),
    "anthropic": (
        {
            "input_tokens": 2,
            "output_tokens": 4,
            "cache_read_input_tokens": 5,
            "cache_creation_input_tokens": 1,
        },
        (8, 4, 5, None),
    ),
    "responses": (
        {"input_tokens": 9, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 5}},
        (9, 4, 5, None),
    ),
    "missing": (None, (None,) * 4),
    "empty": ({}, (None,) * 4),
    "a text": ("12", (None,) * 4),
    "texts": ({"prompt_tokens": "9", "completion_tokens": "4"}, (None,) * 4),
    "fractions": ({"prompt_tokens": 9.5, "completion_tokens": 4.0}, (None,) * 4),
    "below zero": ({"prompt_tokens": -9, "completion_tokens": -1}, (None,) * 4),
    "flags": ({"prompt_tokens": True, "completion_tokens": False}, (None,) * 4),
    "too many": ({"prompt_tokens": 10**12, "completion_tokens": 4}, (None, 4, None, None)),
    "total only": ({"total_tokens": 13}, (None,) * 4),
    "zeros": ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, (None,) * 4),
    "half": ({"prompt_tokens": 9}, (9, None, None, None)),
    "no thoughts": (
        {
            "prompt_tokens": 9,
            "completion_tokens": 4,
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
        (9, 4, None, 0),
    ),
    "details of nothing": (
        {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": 7},
        (9, 4, None, None),
    ),
}


@pytest.mark.parametrize("form", USAGES)
def test_tokens_that_are_not_said_or_cannot_be_true_are_not_known(form: str) -> None:
    raw, expected = USAGES[form]
    found = usage_of(raw, said=True)
    assert (
        *(found.prompt_tokens, found.completion_tokens),
        *(found.cached_tokens, found.reasoning_tokens),
    ) == expected


@pytest.mark.parametrize("form", USAGES)
def test_a_usage_that_cannot_be_read_costs_no_token_ids(form: str) -> None:
    logprobs = {"content": [{"token": "a", "logprob": -0.5}]}
    raw = json.dumps(whole(token_ids=[7], logprobs=logprobs) | {"usage": USAGES[form][0]})
    tokens = read(raw.encode()).tokens
    assert tokens is not None and (tokens.ids, tokens.logprobs) == ((7,), (-0.5,))


def test_an_answer_of_nothing_may_have_no_tokens() -> None:
    raw = {"prompt_tokens": 9, "completion_tokens": 0}
    assert usage_of(raw, said=False).completion_tokens == 0
    assert usage_of(raw, said=True).completion_tokens is None
