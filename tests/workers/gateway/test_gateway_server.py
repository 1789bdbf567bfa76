"""The recording gateway end to end: official clients, a scripted upstream, real HTTP, and the record."""

import asyncio
import base64
import gzip
import json
import random
import socket
import ssl
from collections import Counter
from contextlib import asynccontextmanager
from itertools import pairwise

import anthropic
import httpx
import openai
import pytest
from aiohttp import web

from orchard.schemas.campaigns import Budget, ModelSpec, Timeouts
from orchard.schemas.llm_calls import CallKind, LLMCall
from orchard.schemas.messages import MessageNode, Role
from orchard.schemas.outcomes import AbortCause, ExitStatus
from orchard.workers.episode.message_tree import MessageTree
from orchard.workers.failures import InfrastructureError
from orchard.workers.gateway import recording, server
from orchard.workers.gateway.forest import superseded
from orchard.workers.gateway.server import Gateway
from orchard.workers.gateway.wire_types import UNPARSED, image_mark
from orchard.workers.harnesses.interface import Episode
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.settings import EndpointSettings, Price

LS = '{"command": "ls" }'
"""Arguments as no encoder lays them out."""
TOOL = {"name": "bash", "description": "Run.", "parameters": {"type": "object", "properties": {}}}
FUNCTION = {"type": "function", "function": {**TOOL, "strict": True}}
HELLO = [{"role": "user", "content": "hi"}]
PICTURE = "data:image/png;base64,aGVsbG8="
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
"""A PNG of one pixel."""
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Clients read the certificates of all authorities otherwise, each its own copy."""
KEY = "ghp_" + "a1B2" * 9


class Program:
    """What a program of one attempt has, and what was recorded of it."""

    def __init__(self, door):
        self.door = door
        self.recording = door.recording
        self.published = []
        self.http = httpx.AsyncClient(base_url=door.url, timeout=60, verify=NO_TLS)
        self.openai = openai.AsyncOpenAI(base_url=f"{door.url}/v1", api_key="k", http_client=self.http)
        plain = anthropic.DefaultAsyncHttpxClient(verify=NO_TLS)
        self.claude = anthropic.AsyncAnthropic(base_url=door.url, api_key="k", http_client=plain)

    @property
    def nodes(self):
        return [data for data in self.published if isinstance(data, MessageNode)]

    @property
    def calls(self):
        return [data for data in self.published if isinstance(data, LLMCall)]

    async def chat(self, messages=HELLO, **fields):
        return await self.openai.chat.completions.create(model="theirs", messages=messages, **fields)

    async def says(self, messages=HELLO, **fields):
        """The text of the model's answer."""
        return (await self.chat(messages, **fields)).choices[0].message.content


@pytest.fixture
def program(endpoint, blobs, task):
    """Open a door of an episode whose model is the scripted upstream."""

    @asynccontextmanager
    async def opened(*, budget=None, quiet=60.0, publish=None, spec=None, gateway=None, **settings):
        published = []

        async def kept(data):
            await asyncio.sleep(0)  # as one that takes its time
            published.append(data)

        settings = {"base_url": endpoint.url, "concurrency": 500, **settings}
        async with ModelClient({"default": EndpointSettings(**settings)}) as models:
            episode = Episode(
                task=task,
                machine=None,
                model=models,
                student=spec or ModelSpec(name="small"),
                trace=MessageTree(publish or kept, blobs),
                budget=budget or Budget(),
                timeouts=Timeouts(),
                seed=7,
                name="rollout.2",
                gateway=gateway or Gateway(quiet),
            )
            async with episode.door() as door:
                program = Program(door)
                program.published = published
                async with program.openai, program.claude:
                    yield program

    return opened


@pytest.fixture
def held(endpoint):
    """The upstream's next answer waits for `release`; `came` is set when it is asked, `left` when it is given
    up."""

    class Held:
        came, release, left = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def reply(_):
        Held.came.set()
        try:
            await Held.release.wait()
        except asyncio.CancelledError:
            Held.left.set()
            raise
        return web.json_response(endpoint.completion("late"))

    endpoint.replies.append(reply)
    return Held


async def until(condition):
    """Return when the condition holds."""
    while not condition():
        await asyncio.sleep(0.005)


# --- a conversation in each API --------------------------------------------------------------------


async def speak_chat(program, streamed):
    """Two calls, with a call of a tool between them; the text of the second answer."""
    messages = [{"role": "system", "content": "be good"}, *HELLO]
    for _ in range(2):
        if streamed:
            async with program.openai.chat.completions.stream(
                model="theirs", messages=messages, tools=[FUNCTION]
            ) as stream:
                found = await stream.get_final_completion()
        else:
            found = await program.chat(messages, tools=[FUNCTION])
        said = found.choices[0].message
        messages.append({"role": "assistant", "content": said.content})
        if said.tool_calls:
            messages[-1]["tool_calls"] = [call.model_dump() for call in said.tool_calls]
            messages.append({"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "a b"})
    return said.content


async def speak_responses(program, streamed):
    items = [{"role": "user", "content": "hi"}]
    asked = {"model": "theirs", "instructions": "be good", "tools": [{"type": "function", **TOOL}]}
    for _ in range(2):
        if streamed:
            async with program.openai.responses.stream(input=items, **asked) as stream:
                found = await stream.get_final_response()
        else:
            found = await program.openai.responses.create(input=items, **asked)
        items += [item.model_dump(exclude_none=True) for item in found.output]
        items += [
            {"type": "function_call_output", "call_id": item.call_id, "output": "a b"}
            for item in found.output
            if item.type == "function_call"
        ]
    return found.output_text


async def speak_anthropic(program, streamed):
    messages = [*HELLO]
    tools = [{"name": "bash", "description": "Run.", "input_schema": TOOL["parameters"]}]
    asked = {"model": "theirs", "max_tokens": 99, "system": "be good", "tools": tools}
    for _ in range(2):
        if streamed:
            async with program.claude.messages.stream(messages=messages, **asked) as stream:
                found = await stream.get_final_message()
        else:
            found = await program.claude.messages.create(messages=messages, **asked)
        messages.append({"role": "assistant", "content": [block.model_dump() for block in found.content]})
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": "a b"}
            for block in found.content
            if block.type == "tool_use"
        ]
        messages.append({"role": "user", "content": results})
    return found.content[0].text


def thoughtful(endpoint):
    """A call of a tool, with reasoning, tokens and their experts."""
    call = {"id": "call-0", "type": "function", "function": {"name": "bash", "arguments": LS}}
    reply = endpoint.completion("I look.", [call], prompt_token_ids=[8, 9])
    reply["choices"][0]["message"]["reasoning_content"] = "Where am I?"
    reply["choices"][0]["token_ids"] = [1, 2]
    reply["choices"][0]["routed_experts"] = [[[0, 1]], [[2, 3]], [[4, 5]]]
    return reply


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("speak", [speak_chat, speak_responses, speak_anthropic])
async def test_a_conversation_is_one_path_in_any_api(program, endpoint, speak, streamed):
    """What goes upstream is the record: reasoning and arguments as the model wrote them, sent back or not."""
    endpoint.answer(thoughtful(endpoint))
    endpoint.says("done")
    async with program() as mine:
        assert await speak(mine, streamed) == "done"
        mine.recording.check()
    assert [(node.role.value, node.content) for node in mine.nodes] == [
        ("system", "be good"),
        ("user", "hi"),
        ("assistant", "I look."),
        ("tool", "a b"),
        ("assistant", "done"),
    ]
    ids = [node.node_id for node in mine.nodes]
    assert [node.parent for node in mine.nodes] == [None, *ids[:-1]]
    assert (mine.nodes[2].tokens.ids, mine.nodes[2].tokens.prompt_ids) == ((1, 2), (8, 9))
    experts = mine.nodes[2].tokens.experts
    assert (experts.first, experts.width, experts.blob.size) == (0, 2, 6)
    assert [(call.parent, call.node, call.call_kind) for call in mine.calls] == [
        (ids[1], ids[2], CallKind.MAIN),
        (ids[3], ids[4], CallKind.MAIN),
    ]
    assert (mine.recording.leaf, mine.recording.ended) == (ids[4], None)
    sent = endpoint.requests[1]
    assert sent["messages"][2:] == [
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Where am I?",
            "tool_calls": [
                {"id": "call-0", "type": "function", "function": {"name": "bash", "arguments": LS}}
            ],
        },
        {"role": "tool", "content": "a b", "tool_call_id": "call-0"},
    ]
    assert (sent["model"], sent["seed"], sent["tools"][0]["function"]["name"]) == ("small", 7, "bash")


async def test_a_completion_of_a_text_is_recorded_too(program, endpoint):
    endpoint.says("upon a time")
    async with program() as mine:
        found = await mine.openai.completions.create(model="theirs", prompt="once")
        assert (found.choices[0].text, found.model) == ("upon a time", "theirs")
    assert [node.role for node in mine.nodes] == [Role.USER, Role.ASSISTANT]


async def test_models_and_counts_need_no_upstream(program, endpoint):
    async with program() as mine:
        assert [each.id async for each in await mine.openai.models.list()] == ["small"]
        assert (await mine.http.get("/api/v1/models")).json()["data"][0]["id"] == "small"
        counted = await mine.claude.messages.count_tokens(model="m", messages=HELLO)
        assert counted.input_tokens > 0
    assert endpoint.requests == mine.published == []


@pytest.mark.parametrize(
    "path", ["/chat/completions", "/v1/v1/chat/completions", "//api/v1/chat/completions/"]
)
async def test_paths_and_queries_that_clients_make_are_understood(program, endpoint, path):
    endpoint.says("ok")
    async with program() as mine:
        reply = await mine.http.post(mine.door.url + path + "?beta=true", json={"messages": HELLO})
    assert reply.status_code == 200


async def test_the_campaigns_limits_win_over_the_programs(program, endpoint):
    endpoint.says("ok")
    spec = ModelSpec(name="small", temperature=0.5, max_tokens=50)
    async with program(spec=spec) as mine:
        await mine.chat(temperature=0.9, top_p=0.3, max_tokens=100, stop=["x"])
        await mine.chat(max_tokens=1)
    names = ("temperature", "top_p", "max_tokens", "stop")
    sent = [[request.get(name) for name in names] for request in endpoint.requests]
    assert sent == [[0.5, 0.3, 50, ["x"]], [0.5, None, 1, None]]


# --- whose door it is ------------------------------------------------------------------------------


async def test_who_does_not_know_the_secret_gets_nothing(program, endpoint):
    endpoint.says("ok")
    gateway = Gateway()
    async with program(gateway=gateway) as mine, program(gateway=gateway) as other:
        assert mine.door.port == other.door.port
        own = mine.door.path.removeprefix("/r/")
        secret = own.rpartition(".")[2]
        guesses = [f"rollout.3.{secret}", f"{own}0", own[:-1], secret, "rollout.2.", "é", "%00"]
        for path in [
            *(f"/r/{guess}/v1/models" for guess in guesses),
            "/v1/models",
            "/",
            "/r",
            mine.door.path,
        ]:
            reply = await other.http.get(f"http://127.0.0.1:{mine.door.port}{path}")
            assert (reply.status_code, "small" in reply.text) == (404, False), path
        assert await mine.says() == "ok"
        assert other.published == []


async def test_a_closed_door_is_no_door_and_the_last_ends_the_server(program):
    gateway = Gateway()
    async with program(gateway=gateway) as staying:
        async with program(gateway=gateway) as mine:
            url = f"{mine.door.url}/v1/models"
        assert (await staying.http.get(url)).status_code == 404
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(url)


async def test_a_call_under_way_ends_with_its_door_and_is_recorded_no_more(program, held):
    """Though the client stays, and the server for another program."""
    gateway = Gateway()
    body = {"messages": HELLO}
    async with program(gateway=gateway), httpx.AsyncClient(verify=NO_TLS, timeout=600) as client:
        async with program(gateway=gateway) as mine:
            asking = asyncio.create_task(client.post(f"{mine.door.url}/chat/completions", json=body))
            await held.came.wait()
        assert not mine.door.calls
        await held.left.wait()
        with pytest.raises(httpx.TransportError):
            await asking
    assert [node.content for node in mine.nodes] == ["hi"]
    assert mine.calls == []


# --- budgets and failures --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "ended"),
    [
        (Budget(steps=1), ExitStatus.STEP_LIMIT),
        (Budget(tokens=12), ExitStatus.TOKEN_LIMIT),
        (Budget(cost_usd=1e-6), ExitStatus.COST_LIMIT),
    ],
    ids=["steps", "tokens", "cost"],
)
async def test_a_budget_that_ran_out_is_final_in_each_api(program, endpoint, budget, ended):
    """Clients with their usual retries ask once."""
    endpoint.says("ok")
    asked = []
    async with program(budget=budget, prices={"small": Price(prompt=1.0, completion=1.0)}) as mine:
        assert await mine.says() == "ok"
        assert mine.recording.ended is None

        answer = mine.recording.answer

        async def noted(ask, headers):
            asked.append(ask)
            return await answer(ask, headers)

        mine.recording.answer = noted
        with pytest.raises(openai.PermissionDeniedError, match=ended.value) as chat:
            await mine.says()
        with pytest.raises(openai.RateLimitError, match=ended.value):
            await mine.openai.responses.create(model="m", input="hi")
        with pytest.raises(anthropic.APIStatusError, match=ended.value):
            await mine.claude.messages.create(model="m", max_tokens=9, messages=HELLO)
        assert chat.value.response.headers["x-should-retry"] == "false"
        mine.recording.check()
        assert (mine.recording.ended, len(asked), len(endpoint.requests)) == (ended, 3, 1)


async def test_a_call_that_would_be_a_step_too_many_waits_for_those_under_way(program, endpoint, held):
    endpoint.says("ok")
    async with program(budget=Budget(steps=1)) as mine:
        first = asyncio.create_task(mine.says())
        await held.came.wait()
        second = asyncio.create_task(mine.says([{"role": "user", "content": "another"}]))
        await until(lambda: len(mine.door.calls) == 4)  # two requests, and an answer to each
        held.release.set()
        assert await first == "late"
        with pytest.raises(openai.PermissionDeniedError):
            await second
        assert (len(endpoint.requests), len(mine.calls)) == (1, 1)


async def test_a_step_that_was_given_up_is_free_again(program, endpoint, held):
    endpoint.says("ok")
    async with program(budget=Budget(steps=1)) as mine:
        first = asyncio.create_task(mine.says())
        await held.came.wait()
        second = asyncio.create_task(mine.says())
        await until(lambda: len(mine.door.calls) == 4)
        first.cancel()
        assert await second == "ok"
        await held.left.wait()
        assert (mine.recording.ended, len(mine.nodes), len(mine.calls)) == (None, 2, 1)


async def test_a_dead_endpoint_is_a_failure_that_lasts(program, endpoint):
    endpoint.answer({"error": "down"}, 500)
    endpoint.says("ok")
    async with program(max_tries=1) as mine:
        for _ in range(2):
            with pytest.raises(openai.InternalServerError, match="cannot be reached") as told:
                await mine.says()
            assert told.value.response.headers["x-should-retry"] == "false"
            assert "down" not in str(told.value)
        assert len(endpoint.requests) == 1
        with pytest.raises(InfrastructureError) as caught:
            mine.recording.check()
    assert caught.value.cause is AbortCause.LLM_UNAVAILABLE
    assert mine.calls == []


@pytest.mark.parametrize("kind", [MessageNode, LLMCall])
async def test_what_cannot_be_recorded_is_not_answered(program, endpoint, kind):
    endpoint.says("ok")

    async def publish(data):
        if isinstance(data, kind):
            raise RuntimeError("no stream")

    async with program(publish=publish) as mine:
        for _ in range(2):
            with pytest.raises(openai.InternalServerError):
                await mine.says()
        with pytest.raises(RuntimeError, match="no stream"):
            mine.recording.check()
    assert len(endpoint.requests) == (kind is LLMCall)


async def test_an_endpoint_that_never_takes_the_main_conversation_has_failed(program, endpoint):
    refusal = {"error": {"message": "tools are not enabled"}}
    endpoint.says("a title")
    endpoint.answer(refusal, 400)
    endpoint.says("ok")
    async with program() as mine:
        await mine.says()  # without tools
        with pytest.raises(openai.BadRequestError, match="tools are not enabled"):
            await mine.says(tools=[FUNCTION])
        with pytest.raises(InfrastructureError) as caught:
            mine.recording.check()
        assert caught.value.cause is AbortCause.LLM_REFUSED
        await mine.says(tools=[FUNCTION])  # the program has found a form that is taken
        mine.recording.check()


async def test_what_an_endpoint_refuses_of_a_conversation_is_the_programs(program, endpoint):
    endpoint.says("ok")
    endpoint.answer({"error": {"message": "no images"}}, 400)
    async with program() as mine:
        await mine.says(tools=[FUNCTION])
        with pytest.raises(openai.BadRequestError, match="no images"):
            await mine.says([{"role": "user", "content": "see"}], tools=[FUNCTION])
        mine.recording.check()
        assert mine.recording.ended is None


async def test_a_conversation_that_is_too_long_may_be_made_shorter(program, endpoint):
    endpoint.answer({"error": {"message": "maximum context length is 9"}}, 400)
    endpoint.says("ok")
    async with program() as mine:
        with pytest.raises(openai.BadRequestError) as told:
            await mine.says(tools=[FUNCTION])
        assert told.value.code == "context_length_exceeded"
        assert mine.recording.ended is ExitStatus.TOKEN_LIMIT
        await mine.says([{"role": "user", "content": "short"}], tools=[FUNCTION])
        assert mine.recording.ended is None
        mine.recording.check()


async def test_a_program_whose_first_prompt_does_not_fit_has_no_outcome(program, endpoint):
    endpoint.answer({"error": {"message": "maximum context length is 9"}}, 400)
    async with program() as mine:
        with pytest.raises(openai.BadRequestError):
            await mine.says(tools=[FUNCTION])
        with pytest.raises(InfrastructureError, match="maximum context length is 9") as caught:
            mine.recording.check()
        assert caught.value.cause is AbortCause.CONTEXT_TOO_SMALL


async def test_a_conversation_that_grew_too_long_is_the_token_limit(program, endpoint):
    endpoint.says("ok")
    endpoint.answer({"error": {"message": "maximum context length is 9"}}, 400)
    async with program() as mine:
        await mine.says(tools=[FUNCTION])
        with pytest.raises(openai.BadRequestError):
            await mine.says([{"role": "user", "content": "more"}], tools=[FUNCTION])
        mine.recording.check()
        assert mine.recording.ended is ExitStatus.TOKEN_LIMIT


# --- lines that break, and that are slow -----------------------------------------------------------


async def test_a_client_that_goes_away_ends_its_call_and_may_ask_again(program, endpoint, held):
    endpoint.says("ok")
    async with program() as mine:
        asking = asyncio.create_task(mine.chat(stream=True))
        await held.came.wait()
        asking.cancel()
        await held.left.wait()
        assert await mine.says() == "ok"
        await until(lambda: not mine.door.calls)
    assert [node.content for node in mine.nodes] == ["hi", "ok"]
    assert len(mine.calls) == 1


async def test_an_answer_that_came_is_recorded_though_nobody_waits_for_it(program, endpoint):
    """The record of an answer is cut off in its middle, by a client that went away."""
    endpoint.says("ok")
    recording, go_on, published = asyncio.Event(), asyncio.Event(), []

    async def publish(data):
        if isinstance(data, MessageNode) and data.role is Role.ASSISTANT:
            recording.set()
            await go_on.wait()
        published.append(data)

    async with program(publish=publish) as mine:
        asking = asyncio.create_task(mine.says())
        await recording.wait()
        (answer,) = [call for call in mine.door.calls if "Recording.answer" in repr(call)]
        asking.cancel()
        await until(answer.cancelling)
        go_on.set()
        await until(lambda: not mine.door.calls)
        mine.recording.check()
    assert [type(data) for data in published] == [MessageNode, LLMCall, MessageNode]


async def test_a_reply_that_was_not_consumed_is_superseded(program, endpoint):
    """A stream that was given up, and the same asked plainly: two calls to one path."""
    for text in ("first", "second", "third"):
        endpoint.says(text)
    async with program() as mine:
        await mine.chat(stream=True)
        assert await mine.says() == "second"
        await mine.says(
            [*HELLO, {"role": "assistant", "content": "second"}, {"role": "user", "content": "go on"}]
        )
    assert mine.calls[0].parent == mine.calls[1].parent
    parents = {node.parent for node in mine.nodes}
    assert superseded([(call.parent, call.node) for call in mine.calls], parents) == {mine.calls[0].node}


async def test_a_stream_is_kept_awake_by_comments(program, held):
    async with program(quiet=0.01) as mine:
        body = {"messages": HELLO, "stream": True}
        async with mine.http.stream("POST", f"{mine.door.url}/v1/chat/completions", json=body) as reply:
            lines = reply.aiter_lines()
            assert (await anext(lines)).startswith(":")
            held.release.set()
            data = [line async for line in lines if line.startswith("data: ")]
        assert (reply.status_code, data[-1]) == (200, "data: [DONE]")
        assert "late" in "".join(data)


@pytest.mark.parametrize("speak", [speak_chat, speak_responses, speak_anthropic])
async def test_clients_read_a_stream_with_comments(program, endpoint, speak):
    endpoint.says("done")
    async with program(quiet=0.0) as mine:  # so that each stream begins with one
        assert await speak(mine, True) == "done"


async def test_a_failure_after_comments_is_told_in_the_stream(program, endpoint):
    begun = asyncio.Event()

    async def dead(_):
        await begun.wait()
        return web.json_response({"error": "down"}, status=500)

    endpoint.replies.append(dead)
    async with program(quiet=0.01, max_tries=1) as mine:
        stream = await mine.chat(stream=True)  # its headers came, so a comment was sent
        begun.set()
        with pytest.raises(openai.APIError, match="cannot be reached"):
            async for _ in stream:
                pass
        with pytest.raises(InfrastructureError):
            mine.recording.check()


@pytest.mark.parametrize("api", ["chat", "responses", "anthropic"])
async def test_a_budget_that_runs_out_after_comments_is_told_in_the_stream(program, endpoint, held, api):
    async with program(budget=Budget(steps=1), quiet=0.01) as mine:
        first = asyncio.create_task(mine.says())
        await held.came.wait()
        if api == "chat":
            stream = await mine.chat([{"role": "user", "content": "another"}], stream=True)
        elif api == "responses":
            stream = await mine.openai.responses.create(model="m", input="another", stream=True)
        else:
            stream = await mine.claude.messages.create(model="m", max_tokens=9, messages=HELLO, stream=True)
        held.release.set()  # the headers of the stream came, so a comment was sent
        assert await first == "late"
        told = ""
        try:
            async for event in stream:
                told += str(event)
        except (openai.APIError, anthropic.APIError) as error:
            told += str(error)
        assert "step_limit" in told
        assert (mine.recording.ended, len(endpoint.requests)) == (ExitStatus.STEP_LIMIT, 1)


@pytest.mark.long
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
async def test_a_program_that_does_not_read_keeps_its_place_and_holds_up_nobody(program, endpoint, streamed):
    """Else its answers would pile up in memory, as many as it asks for. Its door closes all the same."""
    endpoint.says("x" * 12_000_000)
    endpoint.says("ok")
    gateway = Gateway(60.0)
    async with program(gateway=gateway) as mine, program(gateway=gateway) as other:
        body = json.dumps({"messages": HELLO, "stream": streamed}).encode()
        head = f"POST {mine.door.path}/v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect(("127.0.0.1", mine.door.port))
            slow.sendall(head.encode() + body)
            await until(lambda: any(node.role is Role.ASSISTANT for node in mine.nodes))
            assert await other.says() == "ok"
            assert len(mine.door.calls) == 1  # the answer is recorded, and not yet read
    assert not mine.door.calls


@pytest.mark.long
async def test_a_storm_of_refusals_is_answered_and_recorded_once_for_each_call(
    program, endpoint, monkeypatch
):
    """Each of 64 calls meets 429 twice, then 500, 503 or a dropped connection, then its answer."""
    monkeypatch.setattr("orchard.workers.llm.refusals.FIRST_PAUSE", 0.001)
    tries = Counter()

    async def reply(request):
        text = (await request.json())["messages"][-1]["content"]
        tries[text] += 1
        if tries[text] < 3:
            return web.json_response({"error": "slow down"}, status=429)
        if tries[text] == 3:
            if (kind := int(text) % 3) == 2:
                request.transport.abort()
            return web.json_response({"error": "down"}, status=(500, 503, 200)[kind])
        return web.json_response(endpoint.completion(f"re {text}"))

    endpoint.replies.append(reply)
    async with program(budget=Budget(steps=64)) as mine:
        asks = [mine.says([{"role": "user", "content": str(number)}]) for number in range(64)]
        assert await asyncio.gather(*asks) == [f"re {number}" for number in range(64)]
        mine.recording.check()
    assert set(tries.values()) == {4}
    assert [call.tries for call in mine.calls] == [4] * 64
    texts = {node.node_id: node.content for node in mine.nodes}
    assert all(texts[call.node] == f"re {texts[call.parent]}" for call in mine.calls)


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_a_request_may_come_in_pieces_of_any_size(program, endpoint, size):
    endpoint.says("é" * 3)
    async with program() as mine:
        body = json.dumps(
            {"messages": [{"role": "user", "content": "héllo 🙂"}]}, ensure_ascii=False
        ).encode()
        raw = (
            f"POST {mine.door.path}/v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode() + body
        reader, writer = await asyncio.open_connection("127.0.0.1", mine.door.port)
        for start in range(0, len(raw), size):
            writer.write(raw[start : start + size])
            await writer.drain()
            await asyncio.sleep(0)
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 200") and "ééé".encode() in answer
    assert mine.nodes[0].content == "héllo 🙂"


async def test_a_body_that_breaks_off_is_no_call(program, endpoint):
    async with program() as mine:
        head = f"POST {mine.door.path}/v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n"
        _, writer = await asyncio.open_connection("127.0.0.1", mine.door.port)
        writer.write(head.encode() + b'{"messages": [')
        await writer.drain()
        await until(lambda: mine.door.calls)
        writer.close()
        await until(lambda: not mine.door.calls)
        mine.recording.check()
    assert endpoint.requests == mine.published == []


async def test_bodies_that_cannot_be_read_are_refused(program, endpoint, monkeypatch):
    monkeypatch.setattr(server, "LARGEST_BODY", 5000)
    async with program() as mine:
        url = f"{mine.door.url}/v1/messages"
        zipped = {"Content-Encoding": "gzip"}
        bomb = gzip.compress(b" " * 10_000_000)
        for status, kind, content, headers in [
            (400, "invalid_request_error", b"{", {}),
            (400, "invalid_request_error", b"no gzip", zipped),
            (413, "request_too_large", b" " * 6000, {}),
            (413, "request_too_large", bomb, zipped),
            (400, "invalid_request_error", gzip.compress(b"[]"), zipped),
        ]:
            reply = await mine.http.post(url, content=content, headers=headers)
            assert (reply.status_code, reply.json()["error"]["type"]) == (status, kind)
            assert reply.headers["x-should-retry"] == "false"
        assert (await mine.http.get(url)).status_code == 404
        assert (await mine.http.post(f"{mine.door.url}/v1/embeddings", json={})).status_code == 404
    assert endpoint.requests == []


async def test_a_large_request_is_taken_and_one_of_too_many_messages_is_not(program, endpoint, monkeypatch):
    monkeypatch.setattr(server, "MOST_MESSAGES", 5)
    monkeypatch.setattr(server, "_LARGE", 1000)
    endpoint.says("ok")
    async with program() as mine:
        assert await mine.says([{"role": "user", "content": "x" * 2000}] * 5) == "ok"
        with pytest.raises(openai.APIStatusError, match="more than 5 messages") as told:
            await mine.says(HELLO * 6)
    assert (told.value.status_code, len(endpoint.requests), len(mine.nodes)) == (413, 1, 6)


async def test_a_program_that_says_without_end_is_at_its_limit(program, endpoint, monkeypatch):
    """Though its model answers nothing, and no step is taken."""
    monkeypatch.setattr(recording, "MOST_RECORDED", 20_000)
    endpoint.answer({"error": {"message": "maximum context length is 9"}}, 400)
    endpoint.says("ok")
    async with program() as mine:
        with pytest.raises(openai.BadRequestError):
            await mine.says([{"role": "user", "content": "x" * 15_000}])
        with pytest.raises(openai.PermissionDeniedError, match="20000 bytes"):
            await mine.says([{"role": "user", "content": "y" * 15_000}])
        with pytest.raises(openai.PermissionDeniedError, match="token_limit"):
            await mine.says()
        assert (mine.recording.ended, len(mine.nodes)) == (ExitStatus.TOKEN_LIMIT, 1)
        mine.recording.check()


async def test_bodies_in_memory_are_bounded(program, endpoint, monkeypatch):
    """Other calls wait until there is a place, and none is left out."""
    monkeypatch.setattr(server, "CALLS_AT_ONCE", 2)
    release, busy, counts = asyncio.Event(), [], []

    async def reply(_):
        busy.append(1)
        counts.append(len(busy))
        await release.wait()
        busy.pop()
        return web.json_response(endpoint.completion("ok"))

    endpoint.replies.append(reply)
    async with program() as mine:
        asking = [asyncio.create_task(mine.says([{"role": "user", "content": each}])) for each in "abcdef"]
        await until(lambda: len(mine.door.calls) >= 6 + 2 and len(busy) >= 2)
        release.set()
        assert await asyncio.gather(*asking) == ["ok"] * 6
    assert max(counts) == 2


# --- what the record is ----------------------------------------------------------------------------


@pytest.mark.long
async def test_sixty_four_programs_at_once_are_recorded_whole(program, endpoint):
    """Each message after its parent, each answer beside its question."""

    async def echo(request):
        text = (await request.json())["messages"][-1]["content"]
        return web.json_response(endpoint.completion(f"re {text}"))

    async def publish(data):
        if not published and not waited:
            waited.append(data)  # the first message takes long, and all others come meanwhile
            await until(lambda: len(mine.door.calls) == 64 + server.CALLS_AT_ONCE)
            for _ in range(100):
                await asyncio.sleep(0)
        published.append(data)

    published, waited = [], []
    endpoint.replies.append(echo)
    async with program(budget=Budget(steps=200), publish=publish) as mine:
        mine.published = published

        async def talk(number):
            messages = [{"role": "system", "content": "be good"}]
            for turn in range(3):
                messages.append({"role": "user", "content": f"{number} {turn}"})
                messages.append({"role": "assistant", "content": await mine.says(messages)})
            return messages

        talks = await asyncio.gather(*map(talk, range(64)))
    known = {None}
    for node in mine.nodes:
        assert node.parent in known
        known.add(node.node_id)
    by_id = {node.node_id: node for node in mine.nodes}
    assert len(by_id) == len(mine.nodes) == 1 + 64 * 6
    leaves = by_id.keys() - {node.parent for node in mine.nodes}
    assert sorted(path(by_id, leaf) for leaf in leaves) == sorted(
        [message["content"] for message in talk] for talk in talks
    )
    assert len(mine.calls) == 64 * 3


def path(nodes, leaf):
    texts = []
    while leaf is not None:
        texts.append(nodes[leaf].content)
        leaf = nodes[leaf].parent
    return texts[::-1]


SUMMARY = "The test fails in parse() of shop/sums.py, line 12.\nI wrote a script that shows it, /tmp/show.py."
ERRAND = "Find every caller of parse() in the package and list their names."


async def test_the_forest_of_a_run_with_a_title_an_agent_and_a_compaction(program, endpoint):
    """Against a forest that was written by hand."""
    give = {"id": "c1", "type": "function"} | {
        "function": {"name": "agent", "arguments": json.dumps({"prompt": ERRAND})}
    }
    system = {"role": "system", "content": "You are the main one."}
    searcher = {"role": "system", "content": "You search."}
    agents = [{"type": "function", "function": {**TOOL, "name": "agent"}}]
    endpoint.says("Shop sums")
    endpoint.answer(endpoint.completion("I have it searched.", [give]))
    endpoint.says("run, main")
    endpoint.says(SUMMARY)
    endpoint.says("I go on.")
    endpoint.says("done")
    async with program() as mine:
        await mine.says([{"role": "system", "content": "Title?"}, *HELLO])
        main = [system, *HELLO]
        said = (await mine.chat(main, tools=agents)).choices[0].message
        main.append(said.model_dump(include={"role", "content", "tool_calls"}))
        found = await mine.says([searcher, {"role": "user", "content": ERRAND}], tools=[FUNCTION])
        main += [{"role": "tool", "tool_call_id": "c1", "content": found}]
        main += [{"role": "user", "content": "Sum up."}]
        summary = await mine.says(main, tools=agents)
        fresh = [system, {"role": "user", "content": f"So far:\n{summary}\nGo on."}]
        fresh += [{"role": "assistant", "content": await mine.says(fresh, tools=agents)}]
        await mine.says([*fresh, {"role": "user", "content": "more"}], tools=agents)
        leaf = mine.recording.leaf
    texts = {node.node_id: node.content for node in mine.nodes}
    assert [
        (call.call_kind.value, texts[call.node], texts.get(call.derived_from)) for call in mine.calls
    ] == [
        ("title", "Shop sums", None),
        ("main", "I have it searched.", None),
        ("subagent", "run, main", "I have it searched."),
        ("main", SUMMARY, None),
        ("compaction", "I go on.", SUMMARY),
        ("main", "done", None),
    ]
    roots = [node.content for node in mine.nodes if node.parent is None]
    assert roots == ["Title?", system["content"], "You search."]
    assert texts[leaf] == "done"


async def test_words_that_a_program_puts_into_its_models_mouth_have_no_call(program, endpoint):
    """They are messages of the conversation, not answers."""
    endpoint.says("no")
    invented = {"role": "assistant", "content": "I am sure."}
    async with program() as mine:
        await mine.says([*HELLO, invented, {"role": "user", "content": "really?"}])
    (call,) = mine.calls
    answers = [node for node in mine.nodes if node.role is Role.ASSISTANT]
    assert [(node.content, node.node_id == call.node) for node in answers] == [
        ("I am sure.", False),
        ("no", True),
    ]
    assert answers[0].tokens is None


async def test_keys_are_masked_upstream_too_and_the_path_goes_on(program, endpoint):
    endpoint.says(f"it is {KEY}")
    endpoint.says("ok")
    async with program() as mine:
        messages = [{"role": "user", "content": f"use {KEY}"}]
        said = await mine.says(messages)
        assert KEY in said  # the program's tools have to work
        await mine.says([*messages, {"role": "assistant", "content": said}, {"role": "user", "content": "x"}])
    assert KEY not in repr(mine.published) + repr(endpoint.requests)
    assert [node.parent for node in mine.nodes] == [None, *(node.node_id for node in mine.nodes[:-1])]


async def test_arguments_that_are_no_object_go_up_as_one(program, endpoint):
    """Chat templates fail on others; the record keeps what the model wrote."""
    bad = '{"command": '
    call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": bad}}
    endpoint.answer(endpoint.completion("", [call]))
    endpoint.says("ok")
    async with program() as mine:
        said = (await mine.chat(tools=[FUNCTION])).choices[0].message
        assert said.tool_calls[0].function.arguments == bad
        result = {"role": "tool", "tool_call_id": "c", "content": "not JSON"}
        await mine.says([*HELLO, said.model_dump(include={"role", "content", "tool_calls"}), result])
    assert mine.nodes[1].tool_calls[0].arguments == bad
    sent = endpoint.requests[1]["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(sent) == {UNPARSED: bad}


async def test_pictures_of_a_program_are_blobs_of_the_record(program, endpoint, blobs):
    """They go upstream as they came, those of a result after it; each is stored once, however often it is
    sent, and an answer says which it was shown."""
    endpoint.says("", "look")
    endpoint.says("ok")
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    ask = [{"role": "user", "content": [{"type": "text", "text": "see "}, image]}]
    async with program() as mine:
        said = (await mine.chat(ask, tools=[FUNCTION])).choices[0].message
        shown = [{"type": "text", "text": "here: "}, image]
        result = {"role": "tool", "tool_call_id": "call-0", "content": shown}
        await mine.says([*ask, said.model_dump(include={"role", "content", "tool_calls"}), result])
    first, *_, told, seen = endpoint.requests[1]["messages"]
    assert first == {"role": "user", "content": [{"type": "text", "text": "see "}, image]}
    assert (told["role"], told["content"]) == ("tool", "here: [picture 1]")
    assert seen == {"role": "user", "content": [{"type": "text", "text": "[picture 1]"}, image]}
    opened, _, result = mine.nodes[:3]
    assert (opened.content, opened.images[0].at) == ("see ", 4)
    assert blobs.get(opened.images[0].blob) == base64.b64decode(PIXEL)
    assert result.images[0].blob == opened.images[0].blob
    calls = [data for data in mine.published if isinstance(data, LLMCall)]
    sha256 = opened.images[0].blob.sha256
    assert [call.images_shown for call in calls] == [(sha256,), (sha256, sha256)]
    assert PIXEL not in repr(mine.published)


async def test_what_is_no_picture_goes_upstream_and_stands_in_the_record_as_a_mark(program, endpoint):
    """Those of a result follow it, since endpoints take texts as results."""
    endpoint.says("", "look")
    endpoint.says("ok")
    image = {"type": "image_url", "image_url": {"url": PICTURE}}
    ask = [{"role": "user", "content": [{"type": "text", "text": "see "}, image]}]
    async with program() as mine:
        said = (await mine.chat(ask, tools=[FUNCTION])).choices[0].message
        shown = [{"type": "text", "text": "here: "}, image]
        result = {"role": "tool", "tool_call_id": "call-0", "content": shown}
        await mine.says([*ask, said.model_dump(include={"role", "content", "tool_calls"}), result])
    first, *_, told, seen = endpoint.requests[1]["messages"]
    mark = {"type": "text", "text": image_mark(PICTURE)}
    assert first == {"role": "user", "content": [{"type": "text", "text": "see "}, image]}
    assert (told["role"], told["content"]) == ("tool", f"here: {image_mark(PICTURE)}")
    assert seen == {"role": "user", "content": [mark, image]}
    assert mine.nodes[0].content == f"see {image_mark(PICTURE)}"
    assert PICTURE not in repr(mine.published)


# --- what nobody should send -----------------------------------------------------------------------

BODIES = {
    "chat/completions": {"messages": [{"role": "system", "content": "s"}, *HELLO], "tools": [FUNCTION]},
    "completions": {"prompt": "once", "stop": ["x"]},
    "responses": {"input": [{"type": "function_call", "call_id": "c", "name": "n", "arguments": LS}]},
    "messages": {"system": "s", "messages": [{"role": "user", "content": [{"type": "text", "text": "t"}]}]},
    "messages/count_tokens": {"messages": HELLO},
    "responses/compact": {"input": HELLO},
    "models/m:generateContent": {"contents": [{"role": "user", "parts": [{"text": "t"}]}]},
}
STRANGE = [
    "",
    None,
    True,
    -1,
    1e300,
    [],
    {},
    [[]],
    "\ud800",
    "x" * 300,
    {"type": "image"},
    "tool",
    "assistant",
]


def mutated(rng, value):
    """A value with strange ones in some of its places."""
    if rng.random() < 0.15:
        return rng.choice(STRANGE)
    if isinstance(value, dict):
        return {key: mutated(rng, each) for key, each in value.items() if rng.random() < 0.95}
    return [mutated(rng, each) for each in value] if isinstance(value, list) else value


def framed(rng, path, body):
    """A request as bytes: its body whole or in chunks, its type any, its framing now and then wrong. And
    whether it breaks off."""
    kind = rng.choice(["application/json", "text/plain", "multipart/form-data; boundary=x", "\x01", ""])
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: {kind}\r\n"
    if rng.random() < 0.5:
        length = len(body) if rng.random() < 0.9 else rng.choice([0, len(body) // 2, "x", -1])
        return f"{head}Content-Length: {length}\r\n\r\n".encode() + body, False
    cuts = [*sorted(rng.sample(range(len(body) + 1), min(len(body), rng.randrange(5)))), len(body)]
    pieces = [body[start:end] for start, end in pairwise([0, *cuts]) if start < end]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    if broken := rng.random() < 0.1:
        chunks = chunks[: rng.randrange(len(chunks))] + rng.choice([b"", b"\r\n", b"zz\r\n"])
    return f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunks, broken


async def sent(rng, door, raw, broken):
    """The whole reply to bytes that are written in pieces."""
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
    cuts = sorted(rng.randrange(len(raw)) for _ in range(rng.randrange(4)))
    try:
        for start, end in pairwise([0, *cuts, len(raw)]):
            writer.write(raw[start:end])
            await writer.drain()
            await asyncio.sleep(0)
        if broken:
            writer.write_eof()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def attack(program, endpoint, seed, requests):
    """Send malformed requests, many cut off or changed in their bytes or in their framing; none may be a
    fault."""
    endpoint.says("ok")
    rng = random.Random(seed)
    statuses = Counter()
    async with program(budget=Budget(steps=0, cost_usd=0, wall_seconds=0)) as mine:
        for number in range(requests):
            address = rng.choice([*BODIES])
            body = bytearray(
                json.dumps(mutated(rng, {**BODIES[address], "stream": rng.random() < 0.3})).encode()
            )
            if rng.random() < 0.2:
                del body[rng.randrange(len(body) + 1) :]
            if body and rng.random() < 0.2:
                body[rng.randrange(len(body))] = rng.randrange(256)
            reply = await sent(rng, mine.door, *framed(rng, f"{mine.door.path}/v1/{address}", bytes(body)))
            status = reply[9:12].decode()
            assert status in ("", "200", "400"), (number, address, bytes(body), reply)
            statuses[status] += 1
        mine.recording.check()
        assert await mine.says() == "ok"
    assert statuses["200"] > requests / 10 and statuses["400"] > requests / 10


async def test_malformed_requests_are_answered_or_refused(program, endpoint):
    await attack(program, endpoint, 1, 300)


@pytest.mark.slow
async def test_ten_thousand_malformed_requests_over_http(program, endpoint):
    await attack(program, endpoint, 2, 10_000)
