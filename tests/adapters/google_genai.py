"""Google's own client against the wire of Gemini, over real HTTP: what it sends and what it reads."""

from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from google import genai
from google.genai import errors, types

from orchard.schemas.llm_calls import Usage
from orchard.schemas.messages import Role, ToolCall
from orchard.workers.gateway.gemini import GEMINI, model_response
from orchard.workers.gateway.routes import PATH, is_gemini, route_of
from orchard.workers.gateway.wire_types import CallError, ProgramReply, ProgramRequest
from orchard.workers.llm.answers import Completion

ANSWER = Completion(
    text="I look. " + "é" * 9000,
    reasoning="Where am I?",
    tool_calls=(ToolCall(id="call-1", name="run", arguments='{"command": "ls"}'),),
    usage=Usage(prompt_tokens=100, completion_tokens=20, cached_tokens=30, reasoning_tokens=5),
    model="m",
)
THINK = types.ThinkingConfig(include_thoughts=True)


def run(command: str, lines: int | None = None) -> str:
    """Runs a command.

    Args:
        command: What to run.
        lines: How many lines to show.
    """
    return f"ran {command} {lines}"


class Server:
    """Answers by the gateway's routes and wire."""

    def __init__(self) -> None:
        self.url = ""
        self.asks: list[ProgramRequest] = []
        self.answers = [ANSWER]
        self.trouble: CallError | None = None
        self.late = False

    async def handle(self, request: web.Request) -> web.StreamResponse:
        found = PATH.fullmatch(request.path)
        assert found and is_gemini(found[2], request.headers)
        if request.method == "GET":
            return web.json_response({"models": [model_response("small")]})
        route = route_of(found[3], request.query.get("alt", ""))
        assert route and request.headers["x-goog-api-key"] == "k"
        ask = route.read(await request.read())
        self.asks.append(ask)
        if route.counted:
            return web.json_response(route.counted(7))
        if self.trouble and not self.late:
            status, body = GEMINI.error(self.trouble, "no more")
            return web.json_response(body, status=status)
        completion = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        reply = ProgramReply(id="1", created=5, completion=completion)
        if not ask.stream:
            return web.json_response(route.wire.whole(ask, reply))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(GEMINI.waiting)
        for event in (
            [route.wire.broken(self.trouble, "no more")] if self.trouble else GEMINI.stream(ask, reply)
        ):
            await response.write(event)
        return response


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    served = Server()
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", served.handle)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    served.url = f"http://127.0.0.1:{runner.addresses[0][1]}/r/a.1.b"
    yield served
    await runner.cleanup()


@pytest.fixture
def client(server: Server) -> genai.Client:
    return genai.Client(api_key="k", http_options=types.HttpOptions(base_url=server.url))


@pytest.mark.parametrize("streamed", [False, True])
async def test_it_reads_an_answer(server: Server, client: genai.Client, streamed: bool) -> None:
    config = types.GenerateContentConfig(
        system_instruction="be good",
        thinking_config=THINK,
        max_output_tokens=9,
        stop_sequences=["x"],
        tools=[run],
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )
    asked = {"model": "theirs", "contents": "hi", "config": config}
    if streamed:
        chunks = [chunk async for chunk in await client.aio.models.generate_content_stream(**asked)]
    else:
        chunks = [await client.aio.models.generate_content(**asked)]
    parts = [part for chunk in chunks for part in chunk.candidates[0].content.parts]
    assert "".join(part.text for part in parts if part.text and not part.thought) == ANSWER.text
    assert "".join(part.text for part in parts if part.thought) == ANSWER.reasoning
    (call,) = [part.function_call for part in parts if part.function_call]
    assert (call.id, call.name, call.args) == ("call-1", "run", {"command": "ls"})
    last = chunks[-1]
    assert (last.model_version, last.candidates[0].finish_reason) == ("theirs", types.FinishReason.STOP)
    used = last.usage_metadata
    assert (used.prompt_token_count, used.candidates_token_count, used.total_token_count) == (100, 15, 120)
    assert (used.thoughts_token_count, used.cached_content_token_count) == (5, 30)
    (ask,) = server.asks
    assert [(said.role, said.text) for said in ask.messages] == [(Role.SYSTEM, "be good"), (Role.USER, "hi")]
    assert (ask.max_tokens, ask.fields["stop"], ask.stream) == (9, ["x"], streamed)
    parameters = ask.tools[0]["function"]["parameters"]
    assert parameters["properties"]["command"]["type"] == "string"
    assert parameters["required"] == ["command"]


async def test_it_calls_functions_by_itself_and_sends_their_results(
    server: Server, client: genai.Client
) -> None:
    server.answers = [ANSWER, Completion(text="done")]
    found = await client.aio.models.generate_content(
        model="m", contents="hi", config=types.GenerateContentConfig(tools=[run], thinking_config=THINK)
    )
    assert found.text == "done"
    _, said, result = server.asks[1].messages
    assert (said.text, said.reasoning, said.tool_calls[0].id) == (ANSWER.text, ANSWER.reasoning, "call-1")
    assert (result.role, result.tool_call_id) == (Role.TOOL, "call-1")
    assert "ran ls None" in result.text


async def test_it_sends_pictures_and_results_without_ids(server: Server, client: genai.Client) -> None:
    call = types.Part.from_function_call(name="run", args={"a_b": 1})
    contents = [
        types.Content(role="user", parts=[types.Part.from_bytes(data=b"hello", mime_type="image/png")]),
        types.Content(role="model", parts=[call]),
        types.Content(
            role="user", parts=[types.Part.from_function_response(name="run", response={"output": "ok"})]
        ),
    ]
    await client.aio.models.generate_content(model="m", contents=contents)
    picture, said, result = server.asks[0].messages
    assert picture.images == ("data:image/png;base64,aGVsbG8=",)
    assert said.tool_calls[0].arguments == '{"a_b":1}'
    assert (result.text, result.tool_call_id) == ("ok", said.tool_calls[0].id)


async def test_it_lists_models_and_counts_tokens(client: genai.Client) -> None:
    assert [model.name async for model in await client.aio.models.list()] == ["models/small"]
    assert (await client.aio.models.count_tokens(model="m", contents="hi")).total_tokens == 7


@pytest.mark.parametrize("late", [False, True], ids=["at once", "in a stream"])
async def test_it_reads_trouble(server: Server, client: genai.Client, late: bool) -> None:
    server.trouble, server.late = CallError.BUDGET, late
    with pytest.raises(errors.APIError, match="no more"):
        async for _ in await client.aio.models.generate_content_stream(model="m", contents="hi"):
            pass
    assert len(server.asks) == 1
