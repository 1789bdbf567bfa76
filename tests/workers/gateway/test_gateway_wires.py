"""Wires of the recording gateway: what official clients send and read over real HTTP is what was meant."""

import base64
import json
from collections.abc import Iterator

import anthropic
import msgspec
import openai
import pytest
from aiohttp import web
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchard.schemas.llm_calls import Usage
from orchard.schemas.messages import Role, ToolCall
from orchard.workers.gateway.anthropic import ANTHROPIC, BILLING
from orchard.workers.gateway.chat import CHAT
from orchard.workers.gateway.completions import COMPLETIONS
from orchard.workers.gateway.counting import estimated_tokens
from orchard.workers.gateway.gemini import GEMINI
from orchard.workers.gateway.responses import COMPACT, RESPONSES
from orchard.workers.gateway.server import model_response, models_response
from orchard.workers.gateway.wire_types import (
    PIECE,
    UNPARSED,
    BadProgramRequest,
    CallError,
    ProgramMessage,
    ProgramReply,
    ProgramRequest,
    Wire,
    image_mark,
)
from orchard.workers.llm.answers import Completion

PATHS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETIONS,
    "/v1/responses": RESPONSES,
    "/v1/messages": ANTHROPIC,
}
WIRES = pytest.mark.parametrize("wire", PATHS.values(), ids=lambda wire: wire.name)
LS = ToolCall(id="call-1", name="bash", arguments='{"command": "ls"}')
PWD = ToolCall(id="call-2", name="bash", arguments='{"command":"pwd"}')
ANSWER = Completion(
    text="I look. " + "é" * PIECE,
    reasoning="Where am I?",
    tool_calls=(LS, PWD),
    usage=Usage(prompt_tokens=100, completion_tokens=20, cached_tokens=30, reasoning_tokens=5),
    finish_reason="tool_calls",
    model="m",
)
TOOL = {"name": "bash", "description": "Run.", "parameters": {"type": "object", "properties": {}}}
PICTURE = "data:image/png;base64,aGVsbG8="


class Server:
    """Reads a request by its wire and answers with `completion`, or with `trouble`."""

    def __init__(self) -> None:
        self.url = ""
        self.completion = ANSWER
        self.trouble: CallError | None = None
        self.late = False
        """Whether the trouble comes after the stream has begun."""
        self.asks: list[ProgramRequest] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        wire = PATHS[request.path]
        ask = wire.read(await request.read())
        self.asks.append(ask)
        if self.trouble and not self.late:
            status, body = wire.error(self.trouble, "no more")
            return web.json_response(body, status=status, headers={"x-should-retry": "false"})
        reply = ProgramReply(id="1", created=5, completion=self.completion)
        if not ask.stream:
            return web.json_response(wire.whole(ask, reply))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in [wire.broken(self.trouble, "no more")] if self.trouble else wire.stream(ask, reply):
            await response.write(event)
        return response

    async def models(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info.get("name")
        return web.json_response(model_response(name, 5) if name else models_response("small", 5))


@pytest.fixture
async def server():
    served = Server()
    app = web.Application()
    app.router.add_get("/v1/models", served.models)
    app.router.add_get("/v1/models/{name}", served.models)
    for path in PATHS:
        app.router.add_post(path, served.handle)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    served.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield served
    await runner.cleanup()


@pytest.fixture
async def client(server):
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0) as client:
        yield client


@pytest.fixture
async def claude(server):
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="k", max_retries=0) as client:
        yield client


def ask(wire: Wire, **body: object) -> ProgramRequest:
    return wire.read(json.dumps(body).encode())


# --- what clients read ---------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
async def test_openai_reads_a_chat_completion(client, streamed):
    asked = {"model": "theirs", "messages": [{"role": "user", "content": "hi"}]}
    if streamed:
        async with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
            found = await stream.get_final_completion()
    else:
        found = await client.chat.completions.create(**asked)
    message = found.choices[0].message
    assert (found.model, message.content, found.choices[0].finish_reason) == (
        "theirs",
        ANSWER.text,
        "tool_calls",
    )
    assert [(c.id, c.function.name, c.function.arguments) for c in message.tool_calls] == [
        (call.id, call.name, call.arguments) for call in ANSWER.tool_calls
    ]
    assert message.model_extra["reasoning_content"] == ANSWER.reasoning
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (100, 20)
    assert found.usage.prompt_tokens_details.cached_tokens == 30


async def test_the_usage_is_in_the_last_chunk_though_nobody_asked_for_it(client):
    chunks = [
        chunk
        async for chunk in await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True
        )
    ]
    assert chunks[-1].usage.total_tokens == 120
    assert all(chunk.choices for chunk in chunks), "some clients read choices[0] of every chunk"


@pytest.mark.parametrize("streamed", [False, True])
async def test_openai_reads_a_text_completion(server, client, streamed):
    found = await client.completions.create(model="m", prompt="once", stream=streamed)
    chunks = [chunk async for chunk in found] if streamed else [found]
    assert "".join(chunk.choices[0].text for chunk in chunks) == ANSWER.text
    assert (chunks[-1].choices[0].finish_reason, chunks[-1].usage.total_tokens) == ("stop", 120)
    assert server.asks[0].messages == (ProgramMessage(role=Role.USER, text="once"),)


@pytest.mark.parametrize("streamed", [False, True])
async def test_openai_reads_a_response(server, client, streamed):
    tools = [{"type": "custom", "name": "patch"}, {"type": "function", **TOOL}]
    patch = ToolCall(id="call-3", name="patch", arguments='{"input": "*** Begin"}')
    server.completion = msgspec.structs.replace(ANSWER, tool_calls=(LS, patch))
    if streamed:
        async with client.responses.stream(model="theirs", input="hi", tools=tools) as stream:
            found = await stream.get_final_response()
    else:
        found = await client.responses.create(model="theirs", input="hi", tools=tools)
    thought, said, call, custom = found.output
    assert thought.summary[0].text == ANSWER.reasoning
    assert (found.model, found.status, found.output_text) == ("theirs", "completed", ANSWER.text)
    assert (said.type, call.call_id, call.name, call.arguments) == ("message", LS.id, LS.name, LS.arguments)
    assert (custom.type, custom.call_id, custom.input) == ("custom_tool_call", "call-3", "*** Begin")
    assert (found.usage.input_tokens, found.usage.output_tokens_details.reasoning_tokens) == (100, 5)


async def test_deltas_of_a_response_make_its_texts(client):
    texts = {"response.output_text.delta": "", "response.function_call_arguments.delta": ""}
    numbers = []
    async for event in await client.responses.create(model="m", input="hi", stream=True):
        numbers.append(event.sequence_number)
        if event.type in texts:
            texts[event.type] += event.delta
    assert list(texts.values()) == [ANSWER.text, LS.arguments + PWD.arguments]
    assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("thinking", [False, True])
async def test_anthropic_reads_a_message(claude, streamed, thinking):
    asked = {"model": "theirs", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    if thinking:
        asked["thinking"] = {"type": "enabled", "budget_tokens": 1024}
    if streamed:
        async with claude.messages.stream(**asked) as stream:
            found = await stream.get_final_message()
    else:
        found = await claude.messages.create(**asked)
    blocks = {block.type: block for block in found.content}
    assert [block.type for block in found.content] == ["thinking"] * thinking + [
        "text",
        "tool_use",
        "tool_use",
    ]
    assert (found.model, found.stop_reason, blocks["text"].text) == ("theirs", "tool_use", ANSWER.text)
    assert (blocks["tool_use"].id, blocks["tool_use"].input) == ("call-2", {"command": "pwd"})
    assert not thinking or blocks["thinking"].thinking == ANSWER.reasoning
    assert (found.usage.input_tokens, found.usage.cache_read_input_tokens) == (70, 30)
    assert found.usage.output_tokens == 20


async def test_arguments_that_are_no_object_reach_a_client_that_must_have_one(server, claude):
    bad = ToolCall(id="call-1", name="bash", arguments='{"command": ')
    server.completion = Completion(text="", tool_calls=(bad,))
    async with claude.messages.stream(
        model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}]
    ) as stream:
        (block,) = (await stream.get_final_message()).content
    assert block.input == {UNPARSED: bad.arguments}


@WIRES
@pytest.mark.parametrize("reason", ["length", "content_filter", "stop", "strange"])
def test_why_an_answer_ended_is_said_in_words_of_the_wire(wire, reason):
    asked = ProgramRequest(messages=())
    completion = Completion(text="a", finish_reason=reason)
    body = wire.whole(asked, ProgramReply(id="1", created=5, completion=completion))
    said = body.get("stop_reason") or body.get("status") or body["choices"][0]["finish_reason"]
    openai_words = {"length": "length", "content_filter": "content_filter"}
    expected = {
        "chat": openai_words.get(reason, "stop"),
        "completions": openai_words.get(reason, "stop"),
        "responses": "incomplete" if reason == "length" else "completed",
        "anthropic": {"length": "max_tokens", "content_filter": "refusal"}.get(reason, "end_turn"),
    }
    assert said == expected[wire.name]


async def test_both_clients_read_the_list_of_models(client, claude):
    for found in (await client.models.list(), await claude.models.list()):
        assert [each.id async for each in found] == ["small"]
    assert (await client.models.retrieve("theirs")).id == "theirs"
    assert (await claude.models.retrieve("theirs")).created_at.year == 1970


TROUBLES = {
    CallError.INVALID: (openai.BadRequestError, anthropic.BadRequestError),
    CallError.NOT_FOUND: (openai.NotFoundError, anthropic.NotFoundError),
    CallError.TOO_LARGE: (openai.APIStatusError, anthropic.APIStatusError),
    CallError.CONTEXT: (openai.BadRequestError, anthropic.BadRequestError),
    CallError.BUDGET: (openai.APIStatusError, anthropic.APIStatusError),
    CallError.UNAVAILABLE: (openai.APIStatusError, anthropic.APIStatusError),
}


@pytest.mark.parametrize("trouble", CallError)
async def test_trouble_is_an_error_that_clients_know(server, client, claude, trouble):
    server.trouble = trouble
    hello = [{"role": "user", "content": "hi"}]
    of_openai, of_anthropic = TROUBLES[trouble]
    with pytest.raises(of_openai, match="no more") as chat:
        await client.chat.completions.create(model="m", messages=hello)
    assert (chat.value.code == "context_length_exceeded") is (trouble is CallError.CONTEXT)
    assert (chat.value.code == "insufficient_quota") is (trouble is CallError.BUDGET)
    with pytest.raises(of_openai, match="no more"):
        await client.responses.create(model="m", input="hi")
    with pytest.raises(of_anthropic, match="no more") as message:
        await claude.messages.create(model="m", max_tokens=9, messages=hello)
    assert ("prompt is too long" in str(message.value)) is (trouble is CallError.CONTEXT)
    assert len(server.asks) == 3


async def test_trouble_in_a_stream_that_has_begun_is_an_error_too(server, client, claude):
    server.trouble, server.late = CallError.UNAVAILABLE, True
    hello = [{"role": "user", "content": "hi"}]
    with pytest.raises(openai.APIError, match="no more"):
        async for _ in await client.chat.completions.create(model="m", messages=hello, stream=True):
            pass
    events = [event async for event in await client.responses.create(model="m", input="hi", stream=True)]
    assert (events[-1].type, events[-1].response.error.message) == ("response.failed", "no more")
    with pytest.raises(anthropic.APIStatusError, match="no more"):
        async with claude.messages.stream(model="m", max_tokens=9, messages=hello) as stream:
            await stream.get_final_message()


# --- what clients say ----------------------------------------------------------------------------

CONVERSATION = (
    ProgramMessage(role=Role.SYSTEM, text="be good"),
    ProgramMessage(role=Role.USER, text=f"what is this?\n{image_mark(PICTURE)}", images=(PICTURE,)),
    ProgramMessage(role=Role.ASSISTANT, text="I look.", reasoning="hm", tool_calls=(LS, PWD)),
    ProgramMessage(role=Role.TOOL, text="a b", tool_call_id="call-1"),
    ProgramMessage(role=Role.TOOL, text="/", tool_call_id="call-2"),
    ProgramMessage(role=Role.USER, text="go on"),
)


def plain(said: ProgramMessage) -> ProgramMessage:
    """Without the layout of the arguments, which Anthropic's wire parses."""
    calls = tuple(
        msgspec.structs.replace(call, arguments=json.dumps(json.loads(call.arguments)))
        for call in said.tool_calls
    )
    return msgspec.structs.replace(said, tool_calls=calls)


def test_three_wires_say_the_same_conversation():
    function = {"type": "function", "function": TOOL}
    chat = ask(
        CHAT,
        messages=[
            {"role": "developer", "content": "be good"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "what is this?\n"},
                    {"type": "image_url", "image_url": {"url": PICTURE}},
                ],
            },
            {
                "role": "assistant",
                "content": "I look.",
                "reasoning": "hm",
                "tool_calls": [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {"name": call.name, "arguments": call.arguments},
                    }
                    for call in (LS, PWD)
                ],
            },
            {"role": "tool", "tool_call_id": "call-1", "content": "a b"},
            {"role": "tool", "tool_call_id": "call-2", "content": [{"type": "text", "text": "/"}]},
            {"role": "user", "content": "go on"},
        ],
        tools=[function],
        store=True,
        unknown={"deep": [1]},
        stop=["x"],
        max_completion_tokens=7,
    )
    responses = ask(
        RESPONSES,
        instructions="be good",
        input=[
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "what is this?"},
                    {"type": "input_image", "image_url": PICTURE},
                ],
            },
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "content": None},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "I look."}],
            },
            *(
                {
                    "type": "function_call",
                    "call_id": call.id,
                    "name": call.name,
                    "arguments": call.arguments,
                }
                for call in (LS, PWD)
            ),
            {"type": "function_call_output", "call_id": "call-1", "output": "a b"},
            {
                "type": "function_call_output",
                "call_id": "call-2",
                "output": [{"type": "input_text", "text": "/"}],
            },
            {"role": "user", "content": "go on"},
        ],
        tools=[{"type": "function", **TOOL, "strict": False}, {"type": "web_search"}],
        include=["reasoning.encrypted_content"],
        max_output_tokens=7,
    )
    messages = ask(
        ANTHROPIC,
        system=[
            {"type": "text", "text": f"{BILLING} cch=123"},
            {"type": "text", "text": "be good", "cache_control": {"type": "ephemeral"}},
        ],
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "what is this?"},
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="},
                    },
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "I look."},
                    *(
                        {
                            "type": "tool_use",
                            "id": call.id,
                            "name": "bash",
                            "input": json.loads(call.arguments),
                        }
                        for call in (LS, PWD)
                    ),
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "go on"},
                    {"type": "tool_result", "tool_use_id": "call-1", "content": "a b"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "call-2",
                        "content": [{"type": "text", "text": "/"}],
                        "is_error": True,
                    },
                ],
            },
        ],
        tools=[
            {"name": "bash", "description": "Run.", "input_schema": TOOL["parameters"]},
            {"type": "web_search_20250305", "name": "web_search"},
        ],
        context_management={"edits": []},
        stop_sequences=["x"],
        max_tokens=7,
    )
    for asked in (chat, responses, messages):
        assert [plain(said) for said in asked.messages] == [plain(said) for said in CONVERSATION]
        assert (asked.tools, asked.max_tokens) == ((function,), 7)
    assert chat.fields == messages.fields == {"stop": ["x"]}


@pytest.mark.parametrize(
    ("wire", "body"),
    [
        (
            ANTHROPIC,
            {
                "system": "one",
                "messages": [
                    {"role": "system", "content": "two"},
                    {"role": "user", "content": "hi"},
                    {"role": "system", "content": [{"type": "text", "text": "later"}]},
                ],
            },
        ),
        (
            RESPONSES,
            {
                "instructions": "one",
                "input": [
                    {"role": "developer", "content": "two"},
                    {"role": "user", "content": "hi"},
                    {"role": "developer", "content": "later"},
                ],
            },
        ),
    ],
    ids=["anthropic", "responses"],
)
def test_system_texts_open_a_conversation_and_later_ones_are_the_users(wire, body):
    """Chat templates refuse a system message anywhere but at the beginning."""
    assert ask(wire, **body).messages == (
        ProgramMessage(role=Role.SYSTEM, text="one\n\ntwo"),
        ProgramMessage(role=Role.USER, text="hi"),
        ProgramMessage(role=Role.USER, text="later"),
    )


def test_a_custom_tool_is_a_function_of_one_text():
    asked = ask(
        RESPONSES,
        input=[
            {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "***"},
            {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"},
        ],
        tools=[{"type": "custom", "name": "patch", "format": {"type": "grammar"}}],
    )
    (call,) = asked.messages[0].tool_calls
    assert (call.name, json.loads(call.arguments)) == ("patch", {"input": "***"})
    assert asked.tools[0]["function"]["parameters"]["required"] == ["input"]


def test_a_part_that_is_neither_text_nor_image_leaves_a_mark():
    content = [{"type": "document", "source": {"type": "file"}}, {"type": "text", "text": "read it"}]
    asked = ask(ANTHROPIC, messages=[{"role": "user", "content": content}])
    assert asked.messages[0].text == "[document: not shown]\nread it"


def test_text_that_is_no_unicode_is_read_with_a_mark_in_its_place():
    """Programs in JavaScript cut texts between the halves of an emoji."""
    asked = CHAT.read(rb'{"messages": [{"role": "user", "content": "cut \ud83d"}]}')
    assert asked.messages[0].text == "cut \ufffd"


def test_tokens_are_counted_about():
    body = {"system": "s" * 400, "messages": [{"role": "user", "content": "u" * 400}]}
    assert 200 <= estimated_tokens(ask(ANTHROPIC, **body)) <= 210


def test_pictures_count_by_their_size_and_never_as_text():
    data = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (1280).to_bytes(4) + (1000).to_bytes(4) + bytes(60_000)
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(data).decode()}
    body = {"messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]}
    assert 1700 <= estimated_tokens(ask(ANTHROPIC, **body)) <= 1730


HELLO = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("wire", "body", "why"),
    [
        (CHAT, [], "JSON object"),
        (CHAT, {}, "messages must not be empty"),
        (CHAT, {"messages": "hi"}, "list of objects"),
        (CHAT, {"messages": [{"role": ["user"]}]}, "role"),
        (CHAT, {"messages": HELLO, "n": 2}, "n must be 1"),
        (CHAT, {"messages": HELLO, "temperature": "hot"}, "temperature"),
        (CHAT, {"messages": HELLO, "temperature": 10**400}, "too large"),
        (CHAT, {"messages": HELLO, "max_tokens": 0}, "max_tokens"),
        (CHAT, {"messages": [{"role": "assistant", "tool_calls": [{"id": 1}]}]}, "id of a tool call"),
        (COMPLETIONS, {"prompt": [1, 2]}, "one text"),
        (COMPLETIONS, {"prompt": "a", "echo": True}, "echo"),
        (RESPONSES, {}, "input must not be empty"),
        (RESPONSES, {"input": "hi", "previous_response_id": "r"}, "send the whole input"),
        (RESPONSES, {"input": [{"type": "item_reference", "id": "i"}]}, "send the item itself"),
        (ANTHROPIC, {"messages": [{"role": "tool"}]}, "role"),
        (ANTHROPIC, {"messages": [{"role": "system", "content": ""}]}, "say something"),
        (ANTHROPIC, {"messages": HELLO, "tools": [{"input_schema": {}}]}, "name of a tool"),
    ],
)
def test_what_a_wire_does_not_allow_is_refused_in_a_sentence(wire, body, why):
    with pytest.raises(BadProgramRequest, match=why):
        wire.read(json.dumps(body).encode())


# --- what nobody should send ---------------------------------------------------------------------

KEYS = st.sampled_from(
    [
        *("messages", "input", "prompt", "system", "instructions", "tools", "tool_choice", "content", "role"),
        *("type", "text", "tool_calls", "function", "arguments", "id", "call_id", "tool_use_id", "name"),
        *("image_url", "source", "url", "output", "summary", "thinking", "format", "stop", "max_tokens"),
        *("input_schema", "parameters", "stream_options", "output_config", "schema", "n", "model"),
        *("contents", "parts", "functionCall", "function_response", "functionDeclarations", "thought"),
        *("args", "response", "inlineData", "generationConfig", "responseSchema", "custom", "action"),
        *("operation", "encrypted_content", "compaction", "context_management", "edits", "environment"),
    ]
)
WORDS = st.sampled_from(
    [
        *("user", "assistant", "system", "tool", "developer", "message", "function_call", "reasoning"),
        *("function_call_output", "custom_tool_call", "custom", "function", "tool_use", "tool_result"),
        *("image", "base64", "text", "json_schema", "enabled", "any", "\x00", "é", ""),
        *("model", "shell", "shell_call", "shell_call_output", "local_shell_call_output", "compaction"),
        *("compaction_trigger", "additional_tools", "apply_patch_call", "document", "allowed_tools"),
    ]
)
VALUES = st.recursive(
    WORDS | st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=30,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": WORDS, "content": VALUES}, optional={"type": WORDS, "tool_calls": VALUES, "parts": VALUES}
    ),
    max_size=4,
)
BODIES = st.dictionaries(KEYS, VALUES, max_size=6) | st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("messages", "input", "contents", "system", "tools"), MESSAGES | VALUES)
)


def answers(wire: Wire, raw: bytes) -> Iterator[bytes]:
    """The answer of a wire in both forms, or its refusal, as bytes."""
    try:
        asked = wire.read(raw)
    except BadProgramRequest as error:
        status, body = wire.error(CallError.INVALID, str(error))
        assert status == 400
        yield msgspec.json.encode(body)
        return
    assert asked.messages
    reply = ProgramReply(id="1", created=5, completion=ANSWER)
    yield msgspec.json.encode(wire.whole(asked, reply))
    yield from wire.stream(asked, reply)
    yield msgspec.json.encode(asked)  # what goes upstream can be written


def check(raw: bytes) -> None:
    for wire in (*PATHS.values(), COMPACT, GEMINI):
        assert all(answers(wire, raw))


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(BODIES.map(lambda body: json.dumps(body).encode()))
@example(b'{"messages":' + b"[" * 5000 + b"]" * 5000 + b"}")
@example(b"\xff\xfe{}")
@example(b'{"messages": [{"role": "user", "content": 1' + b"0" * 5000 + b"}]}")
def test_whatever_is_sent_is_answered_or_refused(raw):
    check(raw)


@pytest.mark.slow
@settings(max_examples=10_000, deadline=None)
@given(BODIES.map(lambda body: json.dumps(body).encode()) | st.binary(max_size=200), st.data())
def test_ten_thousand_malformed_requests(raw, data):
    """Also cut off anywhere, as by a connection that broke."""
    check(raw[: data.draw(st.integers(0, len(raw)))])
    check(raw)
