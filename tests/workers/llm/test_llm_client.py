"""The model client against a fake endpoint over real HTTP."""

import asyncio
import gzip
import json
import logging
import socket
import zlib

import msgspec
import pytest
from aiohttp import web

from orchard.schemas.campaigns import ModelSpec
from orchard.schemas.llm_calls import ModelKind
from orchard.schemas.outcomes import AbortCause
from orchard.workers.failures import InfrastructureError
from orchard.workers.llm import connection
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.errors import ContextLengthExceeded, RequestRefused
from orchard.workers.llm.settings import EndpointSettings, Price

HELLO = [{"role": "user", "content": "hello"}]
KEY = "sk-secret-0123456789"
MODEL = ModelSpec(name="m")


@pytest.fixture
def call(endpoint):
    """Complete once through a client with these settings."""

    async def run(messages=HELLO, *, spec=MODEL, timeout=20.0, fields=None, **settings):
        settings = EndpointSettings(**{"base_url": endpoint.url, **settings})
        async with ModelClient({"default": settings}) as client:
            return await client.complete(spec, messages, [], seed=7, timeout=timeout, fields=fields or {})

    return run


def error(message="no", **fields):
    return {"error": {"message": message, "type": "invalid_request_error", **fields}}


async def test_text_calls_usage_and_identity_are_read(endpoint, call):
    endpoint.says("thinking", "ls", "pwd", system_fingerprint="fp")
    answer = await call()
    assert (answer.text, answer.finish_reason) == ("thinking", "tool_calls")
    assert [(each.id, each.name) for each in answer.tool_calls] == [("call-0", "bash"), ("call-1", "bash")]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (10, 2)
    assert (answer.model, answer.served_model, answer.system_fingerprint) == ("m", "served", "fp")
    assert (answer.endpoint, answer.tries, answer.model_kind) == ("default", 1, ModelKind.MODEL)


async def test_only_what_was_asked_for_is_sent(endpoint, call):
    endpoint.says("x")
    await call(spec=ModelSpec(name="m", temperature=0.0, logprobs=True), extra_body={"n": 1})
    assert endpoint.requests == [
        {"model": "m", "messages": HELLO, "seed": 7, "temperature": 0.0, "logprobs": True, "n": 1}
    ]


async def test_tokens_that_train_are_sampled_from_the_model_itself(endpoint, call):
    """vLLM and SGLang take what a request leaves out from the model's generation_config.json."""
    training = ModelSpec(name="m", temperature=0.7, logprobs=True)
    asked = {"return_token_ids": True}
    for spec, extra in (
        (training, asked),
        (msgspec.structs.replace(training, top_p=0.9), asked | {"top_k": 20}),
        (ModelSpec(name="m"), asked),
        (ModelSpec(name="m"), asked | {"logprobs": True}),
    ):
        endpoint.says("x")
        await call(spec=spec, fields={"top_p": 0.5} if spec.logprobs else None, extra_body=extra)
    fields = ("top_p", "top_k", "min_p", "repetition_penalty")
    assert [[sent.get(field) for field in fields] for sent in endpoint.requests] == [
        [1.0, -1, 0.0, 1.0],
        [0.9, 20, 0.0, 1.0],
        [None] * 4,
        [1.0, -1, 0.0, 1.0],
    ]


async def test_further_fields_are_sent_and_win_over_nothing(endpoint, call):
    endpoint.says("x")
    fields = {"stop": ["a"], "temperature": 1.0, "model": "other", "top_k": 5, "seed": 8}
    await call(spec=ModelSpec(name="m", temperature=0.0), fields=fields, extra_body={"top_k": 1})
    ours = {"model": "m", "messages": HELLO, "seed": 7, "temperature": 0.0, "top_k": 1}
    assert endpoint.requests == [{"stop": ["a"], **ours}]


@pytest.mark.parametrize(
    ("status", "of_the_request"), [(400, True), (422, True), (401, False), (403, False), (404, False)]
)
async def test_a_refusal_says_whether_it_is_for_what_was_asked(endpoint, call, status, of_the_request):
    endpoint.answer(error("no images here"), status)
    with pytest.raises(InfrastructureError) as caught:
        await call()
    assert caught.value.cause is AbortCause.LLM_REFUSED
    assert isinstance(caught.value, RequestRefused) is of_the_request


async def test_a_refusal_that_repeats_a_picture_is_quoted_without_it(endpoint, call):
    """As vLLM quotes the input that it does not take: an error is an event, and has no pictures."""
    picture = "data:image/png;base64," + "QUJD" * 50
    endpoint.answer(error(f"1 validation error: [{{'url': '{picture}'}}] is no image"), 400)
    with pytest.raises(InfrastructureError) as caught:
        await call()
    assert (
        "data:image/png;base64,...'}] is no image" in caught.value.detail
        and "QUJD" not in caught.value.detail
    )


async def test_an_oracle_is_labelled_whatever_the_spec_says(endpoint, call):
    endpoint.says("x", system_fingerprint="orchard-oracle/resolves")
    assert (await call()).model_kind is ModelKind.ORACLE


async def test_cost_uses_the_price_table_and_cached_tokens(endpoint, call):
    usage = {
        "prompt_tokens": 1000,
        "completion_tokens": 100,
        "prompt_tokens_details": {"cached_tokens": 400},
        "completion_tokens_details": {"reasoning_tokens": 30},
    }
    endpoint.says("x", usage=usage)
    answer = await call(prices={"m": Price(prompt=1.0, cached=0.1, completion=10.0)})
    assert answer.cost_usd == pytest.approx((600 * 1 + 400 * 0.1 + 100 * 10) / 1e6)
    assert answer.usage.reasoning_tokens == 30


async def test_a_model_without_a_price_has_no_cost(endpoint, call):
    endpoint.says("x")
    assert (await call(prices={"other": Price(prompt=1, completion=1)})).cost_usd is None


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_reasoning_is_kept_apart_from_the_text(endpoint, call, field):
    reply = endpoint.completion("4")
    reply["choices"][0]["message"][field] = "2 + 2"
    endpoint.answer(reply)
    answer = await call()
    assert (answer.text, answer.reasoning) == ("4", "2 + 2")


@pytest.mark.parametrize(
    ("settings", "sent"),
    [
        ({}, {"reasoning_content": "2 + 2"}),
        ({"reasoning_field": "reasoning"}, {"reasoning": "2 + 2"}),
        ({"reasoning_field": ""}, {}),
    ],
)
async def test_earlier_reasoning_goes_back_unless_it_is_not_wanted(endpoint, call, settings, sent):
    endpoint.says("x")
    await call([*HELLO, {"role": "assistant", "content": "4", "reasoning_content": "2 + 2"}], **settings)
    assert endpoint.requests[0]["messages"][1] == {"role": "assistant", "content": "4"} | sent


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_earlier_reasoning_goes_back_under_the_name_that_it_came_under(endpoint, field):
    reply = endpoint.completion("4")
    reply["choices"][0]["message"][field] = "2 + 2"
    endpoint.answer(reply)
    endpoint.says("x")
    said = {"role": "assistant", "content": "4", "reasoning_content": "2 + 2"}
    async with ModelClient({"default": EndpointSettings(base_url=endpoint.url)}) as client:
        for messages in (HELLO, [*HELLO, said]):
            await client.complete(MODEL, messages, [], seed=1, timeout=30)
    assert endpoint.requests[1]["messages"][1] == {"role": "assistant", "content": "4", field: "2 + 2"}


def token_replies():
    """The forms in which servers give tokens: the fields of the reply, those of the choice."""
    logprobs = {"content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1.5}]}
    written = {"content": [{"token": f"token_id:{n}", "logprob": -n} for n in (1, 2)]}
    numbered = {"content": [{**one, "id": id} for id, one in enumerate(logprobs["content"], 1)]}
    triples = {"output_token_logprobs": [[-0.5, 1, "a"], [-1.5, 2, None]]}
    return {
        "openai": ({}, {"logprobs": logprobs}, ((), (-0.5, -1.5), ())),
        "vllm": (
            {"prompt_token_ids": [8, 9]},
            {"token_ids": [1, 2], "logprobs": logprobs},
            ((1, 2), (-0.5, -1.5), (8, 9)),
        ),
        "vllm written": ({}, {"logprobs": written}, ((1, 2), (-1.0, -2.0), ())),
        "llama.cpp": ({}, {"logprobs": numbered}, ((1, 2), (-0.5, -1.5), ())),
        "sglang": ({}, {"token_ids": [1, 2], "prompt_token_ids": [8, 9]}, ((1, 2), (), (8, 9))),
        "sglang meta": (
            {},
            {"prompt_token_ids": [8], "meta_info": triples},
            ((1, 2), (-0.5, -1.5), (8,)),
        ),
        "ours": (
            {"prompt_token_ids": [8]},
            {
                "token_ids": [1, 2],
                "policy_versions": [{"start": 0, "version": 3}, {"start": 1, "version": 4}],
            },
            ((1, 2), (), (8,)),
        ),
        "misaligned": ({}, {"token_ids": [1, 2, 3], "logprobs": logprobs}, ((1, 2, 3), (), ())),
    }


@pytest.mark.parametrize("form", token_replies())
async def test_tokens_are_kept_in_every_form(endpoint, call, form):
    top, choice, expected = token_replies()[form]
    reply = endpoint.completion("ab", **top)
    reply["choices"][0] |= choice
    endpoint.answer(reply)
    tokens = (await call()).tokens
    assert (tokens.ids, tokens.logprobs, tokens.prompt_ids) == expected


VERSIONS = {
    "ours": (
        {},
        {"policy_versions": [{"start": 0, "version": 3}, {"start": 1, "version": 4}]},
        [(0, 3), (1, 4)],
    ),
    "sglang spans": (
        {
            "metadata": {
                "weight_versions": [{"version": "v3", "start": 0, "end": 1}, {"version": "4", "start": 1}]
            }
        },
        {},
        [(0, 3), (1, 4)],
    ),
    "sglang extension": ({"sglext": {"weight_version": "12"}}, {}, [(0, 12)]),
    "of a run": ({"sglext": {"weight_version": "my-run_2#12"}}, {}, [(0, 12)]),
    "sglang meta": ({}, {"meta_info": {"weight_version": "v7"}}, [(0, 7)]),
    "not a number": ({"metadata": {"weight_version": "default"}}, {}, []),
    "a release": ({"metadata": {"weight_version": "1.0"}}, {}, []),
    "a model": ({"metadata": {"weight_version": "qwen2.5"}}, {}, []),
    "vllm": ({"metadata": None}, {}, []),
    "not from the start": ({}, {"policy_versions": [{"start": 1, "version": 3}]}, []),
    "beyond the end": ({}, {"policy_versions": [{"start": 0, "version": 3}, {"start": 2, "version": 4}]}, []),
}


@pytest.mark.parametrize("form", VERSIONS)
async def test_policy_versions_are_kept_in_every_form(endpoint, call, form):
    top, choice, expected = VERSIONS[form]
    reply = endpoint.completion("ab", **top)
    reply["choices"][0] |= {"token_ids": [1, 2]} | choice
    endpoint.answer(reply)
    versions = (await call()).tokens.versions
    assert [(run.start, run.version) for run in versions] == expected


async def test_no_tokens_are_made_up(endpoint, call):
    endpoint.says("x")
    assert (await call()).tokens is None


async def test_sloppy_calls_are_read(endpoint, call):
    """Ids missing or repeated, arguments already parsed, content in parts."""
    reply = endpoint.completion("")
    message = reply["choices"][0]["message"]
    message["content"] = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    message["tool_calls"] = [
        {"function": {"name": "bash", "arguments": {"command": "ls"}}},
        {"id": "x", "function": {"name": "bash", "arguments": "{"}},
        {"id": "x", "function": {"name": "bash"}},
    ]
    endpoint.answer(reply)
    answer = await call()
    assert answer.text == "ab"
    assert [each.id for each in answer.tool_calls] == ["call_0", "x", "call_2"]
    assert [each.arguments for each in answer.tool_calls] == ['{"command":"ls"}', "{", ""]


@pytest.mark.parametrize("status", [408, 409, 500, 502, 503, 529])
async def test_passing_trouble_is_tried_again(endpoint, call, status):
    endpoint.answer(error(), status=status)
    endpoint.says("at last")
    answer = await call()
    assert (answer.text, answer.tries) == ("at last", 2)


async def test_a_dropped_connection_is_tried_again(endpoint, call):
    async def drop(request):
        request.transport.abort()
        return web.Response()

    endpoint.replies.append(drop)
    endpoint.says("at last")
    assert (await call()).tries == 2


async def test_a_redirected_call_keeps_its_body_and_no_cookie_is_kept(endpoint, call):
    """A cookie would bind all rollouts to the server that a load balancer gave the first."""

    async def move(request):
        moved = web.Response(status=307, headers={"Location": str(request.url)})
        moved.set_cookie("sticky", "1")
        return moved

    endpoint.replies.append(move)
    endpoint.says("here")
    assert (await call()).text == "here"
    assert endpoint.requests[0] == endpoint.requests[1]
    assert not any("Cookie" in headers for headers in endpoint.headers)


@pytest.mark.parametrize(("packed", "tries"), [(gzip.compress, 1), (zlib.compress, 1), (bytes, 2)])
async def test_a_packed_answer_is_read_and_one_that_is_not_packed_as_it_says_is_tried_again(
    endpoint, call, packed, tries
):
    raw = json.dumps(endpoint.completion("unpacked")).encode()
    encoding = "deflate" if packed is zlib.compress else "gzip"

    async def reply(_):
        headers = {"Content-Encoding": encoding, "Content-Type": "application/json"}
        return web.Response(body=packed(raw), headers=headers)

    endpoint.replies.append(reply)
    endpoint.says("plain")
    assert (await call()).tries == tries


@pytest.mark.parametrize("body", [b"<html>", {"choices": []}, {"error": {"message": "busy", "code": 502}}])
async def test_nonsense_with_status_200_is_tried_again(endpoint, call, body):
    endpoint.answer(body)
    endpoint.says("at last")
    assert (await call()).tries == 2


async def test_a_dead_endpoint_is_unavailable(call):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(InfrastructureError, match="could not be reached") as caught:
        await call(base_url=f"http://127.0.0.1:{port}/v1", max_tries=2)
    assert caught.value.cause is AbortCause.LLM_UNAVAILABLE
    assert str(port) not in caught.value.detail


async def test_an_endpoint_that_hangs_is_unavailable_when_the_time_is_up(endpoint, call):
    async def hang(_):
        await asyncio.Event().wait()

    endpoint.replies.append(hang)
    with pytest.raises(InfrastructureError) as caught:
        await call(timeout=0.3)
    assert caught.value.cause is AbortCause.LLM_UNAVAILABLE


async def test_a_time_out_says_how_far_the_call_got(endpoint, call, monkeypatch):
    async def silent(_):
        await asyncio.Event().wait()

    async def begun(request):
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"{")
        await asyncio.Event().wait()

    monkeypatch.setattr(connection, "CONNECT_SECONDS", 0.3)
    endpoint.replies[:] = [silent, begun]
    for words in ("took the request and sent no answer within 1 s", "began to answer and did not come to an"):
        with pytest.raises(InfrastructureError, match=words):
            await call(timeout=1.0, max_tries=1)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        _, port = full.getsockname()
        waits = socket.create_connection(("127.0.0.1", port))  # nobody else is let in
        with waits, pytest.raises(InfrastructureError, match="could not be connected to within 0 s"):
            await call(base_url=f"http://127.0.0.1:{port}/v1", timeout=20.0, max_tries=1)


async def test_a_refused_key_is_told_in_the_words_of_the_endpoint_without_the_key(
    endpoint, call, monkeypatch
):
    """The key may be that of a proxy for the server behind it, which only its words tell."""
    monkeypatch.setenv("ORCHARD_TEST_KEY", KEY)
    said = f"upstream openai: invalid x-api-key {KEY[:6]}***{KEY[-4:]}, for {KEY}. Ask admin@proxy"
    endpoint.answer(error(said), 401)
    with pytest.raises(
        InfrastructureError, match="answered 401: upstream openai: invalid x-api-key"
    ) as caught:
        await call(api_key_env="ORCHARD_TEST_KEY")
    assert (
        "Ask admin@proxy" in caught.value.detail
        and "check the key in ORCHARD_TEST_KEY" in caught.value.detail
    )
    assert not any(KEY[at : at + 4] in caught.value.detail for at in range(len(KEY) - 3))


async def test_throttling_goes_on_past_the_tries_for_failures(endpoint, call):
    for _ in range(3):
        endpoint.answer(error(), status=429, headers={"Retry-After": "0"})
    endpoint.says("at last")
    assert (await call(max_tries=1)).tries == 4


async def test_a_longer_pause_than_there_is_time_for_ends_the_call(endpoint, call):
    endpoint.answer(error(), status=429, headers={"Retry-After": "3600"})
    with pytest.raises(InfrastructureError) as caught:
        await call(timeout=30.0)
    assert caught.value.cause is AbortCause.LLM_UNAVAILABLE
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize(
    ("status", "body", "fix"),
    [
        (401, error("Incorrect API key provided: sk-secret***"), "check the key in ORCHARD_TEST_KEY"),
        (403, error(), "check the key in ORCHARD_TEST_KEY"),
        (404, error("The model `m` does not exist"), "check base_url and the model name 'm'"),
        (400, error("temperature must be at most 2"), "temperature must be at most 2"),
        (429, error("You exceeded your quota", code="insufficient_quota"), "You exceeded your quota"),
        (422, {"detail": "seed: extra inputs are not permitted"}, "seed: extra inputs"),
    ],
)
async def test_what_would_be_refused_again_is_not_tried_again(endpoint, call, monkeypatch, status, body, fix):
    monkeypatch.setenv("ORCHARD_TEST_KEY", KEY)
    endpoint.answer(body, status=status)
    with pytest.raises(InfrastructureError, match=fix) as caught:
        await call(api_key_env="ORCHARD_TEST_KEY")
    assert caught.value.cause is AbortCause.LLM_REFUSED
    assert len(endpoint.requests) == 1
    assert "sk-secret" not in caught.value.detail


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, error("too long", code="context_length_exceeded")),
        (
            400,
            {"object": "error", "message": "This model's maximum context length is 64 tokens.", "code": 400},
        ),
        (400, error("The input (9 tokens) is longer than the model's context length (8 tokens).")),
        (413, error("prompt is too long: 9 tokens > 8 maximum")),
    ],
)
async def test_a_conversation_that_is_too_long_is_a_budget_not_a_failure(endpoint, call, status, body):
    endpoint.answer(body, status=status)
    with pytest.raises(ContextLengthExceeded):
        await call()


async def test_the_key_is_sent_and_shows_up_nowhere_else(endpoint, call, monkeypatch, caplog):
    monkeypatch.setenv("ORCHARD_TEST_KEY", KEY)
    endpoint.answer(error(f"upstream said: bad header Bearer {KEY}"), status=500)
    with caplog.at_level(logging.DEBUG), pytest.raises(InfrastructureError) as caught:
        await call(api_key_env="ORCHARD_TEST_KEY", max_tries=2)
    assert endpoint.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert KEY not in str(caught.value)
    assert not [
        record
        for record in caplog.records
        if record.name.startswith("workers") and KEY in record.getMessage()
    ]


async def test_a_key_that_is_not_set_is_named(call, monkeypatch):
    monkeypatch.delenv("ORCHARD_TEST_KEY", raising=False)
    with pytest.raises(InfrastructureError, match="ORCHARD_TEST_KEY: set it") as caught:
        await call(api_key_env="ORCHARD_TEST_KEY")
    assert caught.value.cause is AbortCause.LLM_REFUSED


async def test_an_endpoint_that_is_not_configured_is_named(models):
    with pytest.raises(InfrastructureError, match=r"\[endpoints.far\]") as caught:
        await models.complete(ModelSpec(name="m", endpoint="far"), HELLO, [], seed=1, timeout=1)
    assert caught.value.cause is AbortCause.LLM_REFUSED


def test_unknown_settings_are_errors():
    with pytest.raises(msgspec.ValidationError, match="unknown field `key`"):
        msgspec.convert({"base_url": "http://x", "key": "k"}, EndpointSettings)


async def test_no_more_calls_are_under_way_than_allowed(endpoint):
    under_way, most = 0, 0
    arrived = asyncio.Event()

    async def count(_):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        if under_way == 3:
            arrived.set()
        await arrived.wait()
        under_way -= 1
        return web.json_response(endpoint.completion("x"))

    endpoint.replies.append(count)
    async with ModelClient({"default": EndpointSettings(base_url=endpoint.url, concurrency=3)}) as client:
        await asyncio.gather(*(client.complete(MODEL, HELLO, [], seed=1, timeout=30) for _ in range(12)))
    assert most == 3
