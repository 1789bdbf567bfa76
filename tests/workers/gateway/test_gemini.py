"""The wire of Gemini's generateContent: what is asked, recorded and answered, over real HTTP."""

import json

import pytest

from orchard.schemas.campaigns import Budget
from orchard.schemas.messages import Role, ToolCall
from orchard.workers.gateway.gemini import GEMINI
from orchard.workers.gateway.wire_types import BadProgramRequest, ProgramMessage, image_mark
from tests.workers.gateway.test_gateway_server import LS, held, program, thoughtful  # noqa: F401 (fixtures)
from tests.workers.gateway.test_gateway_wires import PICTURE, ask

DECLARED = {
    "name": "bash",
    "description": "Run.",
    "parameters": {
        "type": "OBJECT",
        "properties": {
            "command": {"type": "STRING", "nullable": True},
            "type": {"type": "ARRAY", "items": {"type": "INTEGER"}, "minItems": "1"},
        },
        "required": ["command"],
    },
}
PLAIN = {
    "type": "object",
    "properties": {
        "command": {"type": ["string", "null"]},
        "type": {"type": "array", "items": {"type": "integer"}, "minItems": 1},
    },
    "required": ["command"],
}
HI = {"role": "user", "parts": [{"text": "hi"}]}


async def ask_gemini(mine, contents, *, streamed=False, **fields):
    """The parts, the reason of the end and the usage of an answer, from all of its chunks."""
    method = "streamGenerateContent?alt=sse" if streamed else "generateContent"
    body = {"contents": contents, "tools": [{"functionDeclarations": [DECLARED]}], **fields}
    reply = await mine.http.post(f"{mine.door.url}/v1beta/models/gemini-x:{method}", json=body)
    assert reply.status_code == 200, reply.text
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line]
    chunks = [json.loads(line) for line in lines]
    parts = [part for chunk in chunks for part in chunk["candidates"][0]["content"]["parts"]]
    assert all(chunk["modelVersion"] == "gemini-x" for chunk in chunks)
    return parts, chunks[-1]["candidates"][0]["finishReason"], chunks[-1]["usageMetadata"]


@pytest.mark.parametrize("ids", ["kept", "dropped"])
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
async def test_a_conversation_is_one_path(program, endpoint, streamed, ids):  # noqa: F811
    """Some clients send calls and results back without ids, and thoughts without being asked."""
    endpoint.answer(thoughtful(endpoint))
    endpoint.says("done")
    system = {"systemInstruction": {"parts": [{"text": "be good"}]}}
    thinking = {"generationConfig": {"thinkingConfig": {"includeThoughts": True}}}
    async with program() as mine:
        said, ended, used = await ask_gemini(mine, [HI], streamed=streamed, **system, **thinking)
        thought, text, call = [part for part in said if part != {"text": ""}]
        assert (thought["text"], thought["thought"], text["text"]) == ("Where am I?", True, "I look.")
        assert call["functionCall"] == {"id": "call-0", "name": "bash", "args": {"command": "ls"}}
        assert ended == "STOP" and used["totalTokenCount"] == sum(
            used[name] for name in ("promptTokenCount", "candidatesTokenCount", "thoughtsTokenCount")
        )
        result = {"id": "call-0", "name": "bash", "response": {"output": "a b"}}
        if ids == "dropped":
            del call["functionCall"]["id"], result["id"]
        history = [HI, {"role": "model", "parts": [thought, text, call]}]
        history += [{"role": "user", "parts": [{"functionResponse": result}]}]
        said, _, _ = await ask_gemini(mine, history, streamed=streamed, **system)
        assert "".join(part["text"] for part in said) == "done"
        mine.recording.check()
    assert [(node.role.value, node.content) for node in mine.nodes] == [
        ("system", "be good"),
        ("user", "hi"),
        ("assistant", "I look."),
        ("tool", "a b"),
        ("assistant", "done"),
    ]
    names = [node.node_id for node in mine.nodes]
    assert [node.parent for node in mine.nodes] == [None, *names[:-1]]
    sent = endpoint.requests[1]["messages"]
    assert sent[2]["reasoning_content"] == "Where am I?"
    assert sent[2]["tool_calls"][0]["function"]["arguments"] == LS
    assert sent[3] == {"role": "tool", "content": "a b", "tool_call_id": "call-0"}
    (tool,) = endpoint.requests[0]["tools"]
    assert tool["function"] == {"name": "bash", "description": "Run.", "parameters": PLAIN}


def test_parts_are_read_in_both_spellings():
    """The camel case of JSON and the snake case of protocol buffers; names inside of arguments stay."""
    args = {"a_b": 1}
    camel = ask(
        GEMINI,
        systemInstruction={"parts": [{"text": "be good"}]},
        contents=[
            {"role": "user", "parts": [{"inlineData": {"mimeType": "image/png", "data": "aGVsbG8="}}]},
            {"role": "model", "parts": [{"functionCall": {"name": "f", "args": args}}]},
        ],
        generationConfig={"maxOutputTokens": 7, "topP": 0.5, "stopSequences": ["x"]},
    )
    snake = ask(
        GEMINI,
        system_instruction={"parts": [{"text": "be good"}]},
        contents=[
            {"role": "user", "parts": [{"inline_data": {"mime_type": "image/png", "data": "aGVsbG8="}}]},
            {"role": "model", "parts": [{"function_call": {"name": "f", "args": args}}]},
        ],
        generation_config={"max_output_tokens": 7, "top_p": 0.5, "stop_sequences": ["x"]},
    )
    assert camel == snake
    assert (camel.max_tokens, camel.top_p, camel.fields) == (7, 0.5, {"stop": ["x"]})
    assert camel.messages == (
        ProgramMessage(role=Role.SYSTEM, text="be good"),
        ProgramMessage(role=Role.USER, text=image_mark(PICTURE), images=(PICTURE,)),
        ProgramMessage(
            role=Role.ASSISTANT, tool_calls=(ToolCall(id="unnamed-0", name="f", arguments='{"a_b":1}'),)
        ),
    )


def test_schemas_are_read_in_both_spellings():
    """Names of properties, and values that a schema gives as examples, stay."""
    inner = {
        "type": "ARRAY",
        "min_items": "3",
        "items": {"any_of": [{"type": "STRING"}]},
        "default": {"a_b": 1},
    }
    declared = {"name": "f", "parameters": {"type": "OBJECT", "properties": {"x_y": inner}}}
    [tool] = ask(
        GEMINI, contents=[{"parts": [{"text": "x"}]}], tools=[{"function_declarations": [declared]}]
    ).tools
    assert tool["function"]["parameters"]["properties"] == {
        "x_y": {
            "type": "array",
            "minItems": 3,
            "items": {"anyOf": [{"type": "string"}]},
            "default": {"a_b": 1},
        }
    }


def test_results_answer_the_first_open_call_of_their_name():
    calls = [{"functionCall": {"name": name, "args": {}}} for name in ("f", "g", "f")]
    answers = [{"functionResponse": {"name": name, "response": {"n": n}}} for n, name in enumerate("ffg")]
    asked = ask(
        GEMINI, contents=[HI, {"role": "model", "parts": calls}, {"role": "function", "parts": answers}]
    )
    assert [(said.tool_call_id, said.text) for said in asked.messages[2:]] == [
        ("unnamed-0", '{"n":0}'),
        ("unnamed-2", '{"n":1}'),
        ("unnamed-1", '{"n":2}'),
    ]


@pytest.mark.parametrize(
    ("config", "offered", "choice"),
    [
        ({"mode": "ANY"}, ["f", "g"], "required"),
        ({"mode": "NONE"}, ["f", "g"], "none"),
        ({"mode": "AUTO"}, ["f", "g"], None),
        ({"mode": "ANY", "allowedFunctionNames": ["g"]}, ["g"], "required"),
    ],
)
def test_a_choice_among_functions_is_carried(config, offered, choice):
    tools = [{"functionDeclarations": [{"name": "f"}, {"name": "g"}]}, {"googleSearch": {}}]
    asked = ask(GEMINI, contents=[HI], tools=tools, toolConfig={"functionCallingConfig": config})
    assert [tool["function"]["name"] for tool in asked.tools] == offered
    assert (asked.fields.get("tool_choice"), asked.left_out) == (choice, ("googleSearch",))


@pytest.mark.parametrize(
    ("config", "form"),
    [
        ({"responseMimeType": "application/json"}, {"type": "json_object"}),
        (
            {"responseMimeType": "application/json", "responseSchema": {"type": "STRING"}},
            {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "string"}}},
        ),
        (
            {"responseJsonSchema": {"type": "string"}},
            {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "string"}}},
        ),
    ],
)
def test_a_form_of_the_answer_is_carried(config, form):
    assert ask(GEMINI, contents=[HI], generationConfig=config).fields == {"response_format": form}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({}, "contents must not be empty"),
        ({"contents": [{"role": "tool", "parts": []}]}, "the role 'tool'"),
        ({"contents": [{"parts": [{"functionCall": {"name": "f"}}]}]}, "use the role model"),
        ({"contents": [{"parts": [{"functionResponse": {"name": "f"}}]}]}, "no call of 'f'"),
        ({"contents": [HI], "tools": [{"functionDeclarations": [{}]}]}, "name of a tool"),
        (
            {"contents": [HI], "toolConfig": {"functionCallingConfig": {"allowedFunctionNames": ["f"]}}},
            "no function is called 'f'",
        ),
    ],
)
def test_what_it_does_not_allow_is_refused_in_a_sentence(body, why):
    with pytest.raises(BadProgramRequest, match=why):
        ask(GEMINI, **body)


async def test_a_stream_that_is_no_stream_of_events_is_an_array(program, endpoint):  # noqa: F811
    endpoint.says("ok")
    async with program() as mine:
        url = f"{mine.door.url}/v1beta/models/m:streamGenerateContent"
        (chunk,) = (await mine.http.post(url, json={"contents": [HI]})).json()
    assert chunk["candidates"][0]["content"]["parts"] == [{"text": "ok"}]


async def test_a_slow_stream_is_kept_awake_by_lines_that_its_clients_skip(program, held):  # noqa: F811
    body = {"contents": [HI]}
    async with program(quiet=0.01) as mine:
        url = f"{mine.door.url}/v1beta/models/m:streamGenerateContent?alt=sse"
        async with mine.http.stream("POST", url, json=body) as reply:
            lines = reply.aiter_lines()
            assert await anext(lines) == ""
            held.release.set()
            data = [line async for line in lines if line]
    assert all(line.startswith("data: {") for line in data) and "late" in data[0]


async def test_its_errors_and_models_have_its_form(program, endpoint):  # noqa: F811
    endpoint.says("ok")
    async with program(budget=Budget(steps=1)) as mine:
        url = f"{mine.door.url}/v1beta/models"
        assert (await mine.http.get(url)).json()["models"][0]["name"] == "models/small"
        assert (await mine.http.get(f"{url}/m")).json()["name"] == "models/m"
        key = {"x-goog-api-key": "k"}
        listed = await mine.http.get(f"{mine.door.url}/v1/models", headers=key)
        assert listed.json()["models"][0]["name"] == "models/small"
        unknown = await mine.http.post(f"{url}/m:embedContent", json={})
        assert (unknown.status_code, unknown.json()["error"]["status"]) == (404, "NOT_FOUND")
        bad = await mine.http.post(f"{url}/m:generateContent", json={})
        assert (bad.status_code, bad.json()["error"]["status"]) == (400, "INVALID_ARGUMENT")
        await ask_gemini(mine, [HI])
        spent = await mine.http.post(f"{url}/m:generateContent", json={"contents": [HI]})
        assert (spent.status_code, spent.json()["error"]["status"]) == (403, "PERMISSION_DENIED")
        assert "step_limit" in spent.json()["error"]["message"]
