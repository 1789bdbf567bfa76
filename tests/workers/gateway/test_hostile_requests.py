"""Requests that no client makes, on every wire: nothing of them is dropped in silence. Each text and number
in a request is its own. So it is found in what the model is sent, or the request is refused, or a field or a
part around it is counted by name. Streams that overlap and end in the middle do not mix.
"""

import asyncio
import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from orchard.schemas.campaigns import Budget, ModelSpec
from orchard.schemas.llm_calls import LLMCall
from orchard.schemas.messages import MessageNode
from orchard.workers.episode.message_tree import MessageTree
from orchard.workers.gateway.recording import Recording
from orchard.workers.gateway.server import Gateway
from orchard.workers.gateway.wire_types import LABELS
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.settings import EndpointSettings

MARKED = re.compile(r"tok\d{7}")
FIRST = 7_000_000
TOLD_APART = LABELS | {"id", "status", "model", "signature", "thoughtSignature", "generateContentRequest"}
"""Fields that docs/gateway.md names as read for other purposes, or not at all."""
CALLS = ("tool_use", "arguments", "args", "action", "custom", "custom_tool_call", "call_id")
ALIASES = {"encrypted_content": "encrypted_reasoning"} | dict.fromkeys(CALLS, "call_without_result")
"""Names in the counts that are not those of the field."""
Path = tuple[str | int, ...]


class Marks:
    """Texts and numbers, each of which is used once."""

    def __init__(self) -> None:
        self.number = FIRST

    def text(self) -> str:
        self.number += 1
        return f"tok{self.number} é"

    def __call__(self) -> int:
        self.number += 1
        return self.number


def schema(mark: Marks) -> dict[str, Any]:
    return {"type": "object", "properties": {"n": {"type": "integer", "description": mark.text()}}}


def arguments(mark: Marks, size: int) -> str:
    return json.dumps({"n": mark.text() + "x" * size})


def chat(mark: Marks, size: int) -> dict[str, Any]:
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments(mark, size)}},
        {"id": "c2", "type": "custom", "custom": {"name": "patch", "input": mark.text()}},
        {"id": "c3", "type": "function", "function": {"name": "f", "arguments": arguments(mark, 0)}},
    ]
    said = [{"type": "text", "text": mark.text()}]
    picture = {"type": "image_url", "image_url": {"url": f"http://x/{mark.text()}", "detail": mark.text()}}
    return {
        "messages": [
            {"role": "system", "content": [{"type": "image_url", "image_url": f"http://x/{mark.text()}"}]},
            {"role": "user", "name": mark.text(), "content": [*said, picture]},
            {"role": "assistant", "content": mark.text(), "reasoning": mark.text(), "tool_calls": calls},
            {"role": "tool", "tool_call_id": "c3", "content": mark.text()},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": mark.text()}]},
            {"role": "tool", "tool_call_id": "c2", "content": mark.text()},
            {"role": "developer", "content": mark.text()},
            {"role": "assistant", "content": [], "refusal": mark.text()},
            {"role": "user", "content": [{"type": "file", "file": {"file_data": mark.text()}}]},
        ],
        "tools": [
            {
                "type": "function",
                "function": {"name": "f", "description": mark.text(), "parameters": schema(mark)},
            },
            {"type": "custom", "custom": {"name": "patch", "description": mark.text()}},
        ],
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema(mark)}},
        "stop": [mark.text()],
        "logprobs": True,
        "top_logprobs": mark(),
        "seed": mark(),
    }


def completions(mark: Marks, size: int) -> dict[str, Any]:
    return {"prompt": mark.text() + "x" * size, "stop": [mark.text()], "logprobs": mark(), "seed": mark()}


def responses(mark: Marks, size: int) -> dict[str, Any]:
    def part(kind: str) -> list[dict[str, Any]]:
        return [{"type": kind, "text": mark.text()}]

    return {
        "instructions": mark.text(),
        "input": [
            {
                "role": "user",
                "content": [*part("input_text"), {"type": "input_file", "file_data": mark.text()}],
            },
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": arguments(mark, size)},
            {"type": "reasoning", "summary": part("summary_text"), "encrypted_content": mark.text()},
            {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": mark.text()},
            {"type": "shell_call", "call_id": "c3", "action": {"commands": [mark.text()]}},
            {"type": "shell_call_output", "call_id": "c3", "output": [{"stdout": mark.text()}]},
            {"type": "function_call_output", "call_id": "c1", "output": part("input_text")},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": mark.text()},
            {"type": "function_call_output", "call_id": "c9", "output": mark.text()},
            {"role": "developer", "content": part("input_text")},
            {"type": "message", "role": "assistant", "content": part("output_text")},
            {"type": "reasoning", "content": part("reasoning_text"), "summary": part("summary_text")},
            {"type": "web_search_call", "id": "w", "action": {"query": mark.text()}},
            {"role": "user", "content": [{"type": "input_image", "image_url": f"http://x/{mark.text()}"}]},
        ],
        "tools": [
            {
                "type": "function",
                "name": "f",
                "description": mark.text(),
                "parameters": schema(mark),
                "strict": True,
            },
            {
                "type": "custom",
                "name": "patch",
                "description": mark.text(),
                "format": {"definition": mark.text()},
            },
            {"type": "shell", "environment": {"type": "local", "skills": [mark.text()]}},
            {"type": "web_search", "filters": [mark.text()]},
            {"type": "namespace", "name": "n", "description": mark.text(), "tools": []},
        ],
        "text": {"format": {"type": "json_schema", "name": mark.text(), "schema": schema(mark)}},
        "reasoning": {"effort": mark.text()},
        "top_logprobs": mark(),
    }


def anthropic(mark: Marks, size: int) -> dict[str, Any]:
    def text() -> dict[str, Any]:
        return {"type": "text", "text": mark.text()}

    pdf = {"type": "base64", "media_type": "application/pdf", "data": mark.text()}
    plain = {"type": "text", "media_type": "text/plain", "data": mark.text()}
    large = {"type": "tool_use", "id": "c1", "name": "f", "input": {"n": mark.text() + "x" * size}}
    return {
        "system": [text(), text()],
        "messages": [
            {"role": "user", "content": [text(), {"type": "document", "source": pdf}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": mark.text(), "signature": "s"},
                    text(),
                    large,
                    {"type": "tool_use", "id": "c2", "name": "f", "input": {"n": mark.text()}},
                    {"type": "redacted_thinking", "data": mark.text()},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c2", "content": mark.text(), "is_error": True},
                    text(),
                    {"type": "tool_result", "tool_use_id": "c1", "content": [text()]},
                    {"type": "tool_result", "tool_use_id": "c8", "content": mark.text()},
                ],
            },
            {"role": "system", "content": [text()]},
            {"role": "assistant", "content": [text()]},
            {"role": "user", "content": []},
            {
                "role": "user",
                "content": [
                    {"type": "document", "title": mark.text(), "source": plain, "citations": {"a": mark()}}
                ],
            },
        ],
        "tools": [
            {
                "name": "f",
                "description": mark.text(),
                "input_schema": schema(mark),
                "input_examples": [mark.text()],
            },
            {"type": "text_editor_20250728", "name": "edit", "max_characters": mark()},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": mark()},
        ],
        "thinking": {"type": "enabled", "budget_tokens": mark()},
        "output_config": {"effort": mark.text(), "format": {"type": "json_schema", "schema": schema(mark)}},
        "stop_sequences": [mark.text()],
        "max_tokens": 99,
        "top_k": mark(),
    }


def gemini(mark: Marks, size: int) -> dict[str, Any]:
    declared = {"name": "f", "description": mark.text(), "parameters": {"type": "OBJECT", "properties": {}}}
    declared["parameters"]["properties"]["n"] = {"type": "STRING", "description": mark.text()}
    wav = {"mimeType": "audio/wav", "data": mark.text()}
    return {
        "systemInstruction": {"parts": [{"text": mark.text()}]},
        "contents": [
            {"role": "user", "parts": [{"text": mark.text()}, {"inlineData": wav}]},
            {
                "role": "model",
                "parts": [
                    {"functionCall": {"name": "f", "args": {"n": mark.text() + "x" * size}}},
                    {"text": mark.text(), "thought": True, "thoughtSignature": "s"},
                    {"text": mark.text()},
                    {"functionCall": {"name": "f", "args": {"n": mark.text()}}},
                ],
            },
            {
                "role": "user",
                "parts": [
                    {"text": mark.text()},
                    {"functionResponse": {"name": "f", "response": {"output": mark.text()}}},
                    {"functionResponse": {"name": "f", "response": {"error": mark.text(), "code": mark()}}},
                ],
            },
            {"role": "model", "parts": [{"executableCode": {"code": mark.text()}}]},
            {"role": "user", "parts": []},
            {
                "role": "user",
                "parts": [{"fileData": {"mimeType": "image/png", "fileUri": f"http://x/{mark.text()}"}}],
            },
        ],
        "tools": [
            {"functionDeclarations": [declared | {"response": {"title": mark.text()}}]},
            {"googleSearch": {}},
        ],
        "generationConfig": {
            "seed": mark(),
            "stopSequences": [mark.text()],
            "responseMimeType": "application/json",
            "responseSchema": {"type": "OBJECT", "properties": {}, "title": mark.text()},
            "thinkingConfig": {"includeThoughts": True, "thinkingBudget": mark()},
        },
        "safetySettings": [{"category": mark.text()}],
    }


WIRES: dict[str, tuple[str, Callable[[Marks, int], dict[str, Any]]]] = {
    "chat": ("/v1/chat/completions", chat),
    "completions": ("/v1/completions", completions),
    "responses": ("/v1/responses", responses),
    "anthropic": ("/v1/messages", anthropic),
    "gemini": ("/v1beta/models/m:generateContent", gemini),
}


# --- what is done to them --------------------------------------------------------------------------


def odd(rng: random.Random, mark: Marks) -> Any:
    """A value where another was expected."""
    text = mark.text()
    return rng.choice(
        [
            *(
                text,
                mark(),
                mark() + 0.5,
                [text],
                {text: text},
                [[text]],
                [{"type": text, "text": mark.text()}],
            ),
            *(
                {"type": "text", "text": text},
                {"type": text, "data": mark.text()},
                f"{text}\ud83d",
                f"\x00{text}",
            ),
            *(None, True, False, "", [], {}, [None]),
        ]
    )


def places(value: Any) -> Iterator[dict[str, Any] | list[Any]]:
    if isinstance(value, dict | list):
        yield value
        for each in value.values() if isinstance(value, dict) else value:
            yield from places(each)


def change(rng: random.Random, body: dict[str, Any], mark: Marks) -> None:
    found = [*places(body)]
    place, other = rng.choice(found), rng.choice(found)
    if isinstance(place, dict):
        names = [*place] or ["type"]
        match rng.randrange(4):
            case 0:
                place[rng.choice([mark.text().split()[0], "name", "text", "content", "type"])] = odd(
                    rng, mark
                )
            case 1:
                place[rng.choice(names)] = odd(rng, mark)
            case 2:
                place.pop(rng.choice(names), None)
            case 3:
                place |= json.loads(json.dumps(other)) if isinstance(other, dict) else {}
    else:
        at = rng.randrange(len(place) + 1)
        match rng.randrange(4):
            case 0:
                place.insert(at, odd(rng, mark))
            case 1:
                rng.shuffle(place)
            case 2:
                place.extend(json.loads(json.dumps(place[:at])))
            case 3:
                place.insert(
                    at, json.loads(json.dumps(rng.choice(other))) if isinstance(other, list) and other else {}
                )


def written(rng: random.Random, body: dict[str, Any]) -> bytes:
    """The body as bytes, in which a character may be cut in two."""
    raw = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
    at = raw.find("é".encode(), rng.randrange(len(raw)))
    return raw[:at] + raw[at + 1 :] if at >= 0 and rng.random() < 0.2 else raw


# --- what became of them ---------------------------------------------------------------------------


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Each mark in a body, with the names and the types around it."""
    if isinstance(value, dict):
        kind = value.get("type")
        own = (kind[:60] if isinstance(kind, str) and kind else "part", next(iter(value), ""))
        for name, each in value.items():
            if each not in (None, False, "", [], {}):
                yield from ((((*path, *own, name)), found) for found in MARKED.findall(name))
            yield from leaves(each, (*path, *own, name[:60]))
    elif isinstance(value, list):
        for each in value:
            yield from leaves(each, path)
    elif isinstance(value, str):
        yield from ((path, found) for found in MARKED.findall(value))
    elif isinstance(value, int | float) and not isinstance(value, bool) and value >= FIRST:
        yield path, str(int(value))


def camel(name: str) -> str:
    return re.sub(r"_([a-z])", lambda found: found[1].upper(), name)


def lost(body: dict[str, Any], sent: str, counted: set[str]) -> list[tuple[tuple[str, ...], str]]:
    """The marks of which nothing tells what became of them."""
    return [
        (path, found)
        for path, found in leaves(body)
        if found not in sent
        and not counted.intersection([*path, *map(camel, path), *(ALIASES.get(name, "") for name in path)])
        and not any(mark in name for name in counted for mark in MARKED.findall(" ".join(path)))
        and not TOLD_APART.intersection(path)
    ]


class Echo:
    """The fake upstream: it answers with the marks of the newest message, when the test lets it."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.go = asyncio.Event()
        self.go.set()

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        await self.go.wait()
        said = " ".join(MARKED.findall(str(body["messages"][-1]["content"])))
        message = {"role": "assistant", "content": said or "ok"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response({"model": "served", "choices": [choice], "usage": usage})


@pytest.fixture
async def echo():
    made, app = Echo(), web.Application(client_max_size=2**26)
    app.router.add_post("/v1/chat/completions", made.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield made
    made.go.set()
    await runner.cleanup()


def recording_of(models: ModelClient, blobs: Any) -> tuple[Recording, list[Any]]:
    published: list[Any] = []

    async def publish(data: object) -> None:
        published.append(data)

    model = ModelSpec(name="small")
    tree = MessageTree(publish, blobs)
    return Recording(tree, models, lambda: model, Budget(), seed=7, timeout=60.0), published


async def attack(seeds: range, echo: Echo, blobs: Any) -> dict[str, int]:
    """Returns how many requests were answered and refused."""
    found = {"answered": 0, "refused": 0}
    async with (
        ModelClient({"default": EndpointSettings(base_url=echo.url)}) as models,
        aiohttp.ClientSession() as http,
    ):
        for seed in seeds:
            rng, mark = random.Random(seed), Marks()
            name = [*WIRES][seed % len(WIRES)]
            address, make = WIRES[name]
            recording, published = recording_of(models, blobs)
            async with Gateway().open("rollout.1", recording) as access:
                for number in range(4):
                    body = make(mark, 100_000 if rng.random() < 0.05 else 0)
                    for _ in range(number):
                        change(rng, body, mark)
                    raw = written(rng, body)
                    async with http.post(access.url + address, data=raw) as reply:
                        told = json.loads(await reply.read()) if "stream" not in body else await reply.read()
                    place = f"seed {seed}, {name}, request {number}: {told!s:.300}"
                    assert reply.status in ({200} if number == 0 else {200, 400}), place
                    if reply.status == 400:
                        assert told["error"]["message"], place
                        found["refused"] += 1
                        continue
                    found["answered"] += 1
                    (sent,) = echo.asked
                    echo.asked.clear()
                    call = [data for data in published if isinstance(data, LLMCall)][-1]
                    counted = set(call.not_shown or ())
                    missing = lost(body, json.dumps(sent, ensure_ascii=False), counted)
                    assert not missing, f"{place}\n{missing}\n{counted}"
                assert recording.check() is None
    return found


# --- streams that overlap --------------------------------------------------------------------------


QUESTIONS = {
    "chat": lambda text: {"messages": [{"role": "user", "content": text}], "stream": True},
    "completions": lambda text: {"prompt": text, "stream": True},
    "responses": lambda text: {"input": text, "stream": True},
    "anthropic": lambda text: {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 9,
        "stream": True,
    },
    "gemini": lambda text: {"contents": [{"parts": [{"text": text}]}]},
}


async def test_streams_that_overlap_and_end_in_the_middle_do_not_mix(echo, blobs):
    """Four times, each wire asks three times at once: one disconnects at once, one in the silence of a stream
    that has begun, one reads to the end."""
    mark, texts = Marks(), dict[str, str]()
    async with ModelClient({"default": EndpointSettings(base_url=echo.url)}) as models:
        recording, published = recording_of(models, blobs)
        async with Gateway(quiet_seconds=0.01).open("rollout.1", recording) as access:
            for _ in range(4):
                echo.go.clear()
                texts |= await overlapping(access.url, mark, echo)
    for text, raw in texts.items():
        assert set(MARKED.findall(raw)) == {text.split()[0]}
    nodes = {data.node_id: data for data in published if isinstance(data, MessageNode)}
    calls = [data for data in published if isinstance(data, LLMCall)]
    assert [nodes[call.node].content for call in calls] == [
        nodes[call.parent].content.split()[0] for call in calls
    ]
    questions = [nodes[call.parent].content for call in calls]
    assert len(texts) == 20 and len(questions) == len({*questions})
    assert texts.keys() <= {*questions}


async def overlapping(url: str, mark: Marks, echo: Echo) -> dict[str, str]:
    """Returns what those read that read to the end, by question."""

    async def asked(name: str, text: str, begun: asyncio.Event) -> str:
        address = WIRES[name][0].replace("generateContent", "streamGenerateContent?alt=sse")
        async with http.post(url + address, json=QUESTIONS[name](text)) as reply:
            assert reply.status == 200
            raw = await reply.content.readany()
            begun.set()
            return (raw + await reply.content.read()).decode()

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        calls = []
        for name in [*WIRES] * 3:
            text, begun = mark.text(), asyncio.Event()
            calls.append((text, begun, asyncio.create_task(asked(name, text, begun))))
        await asyncio.gather(*(begun.wait() for _, begun, _ in calls[5:]))
        for _, _, call in calls[:10]:
            call.cancel()
        echo.go.set()
        return {text: await call for text, _, call in calls[10:]}


@pytest.mark.long
async def test_nothing_of_three_hundred_hostile_programs_is_dropped_in_silence(echo, blobs):
    found = await attack(range(300), echo, blobs)
    assert found["answered"] > 400 and found["refused"] > 200


@pytest.mark.slow
async def test_nothing_of_five_thousand_hostile_programs_is_dropped_in_silence(echo, blobs):
    found = await attack(range(1000, 6000), echo, blobs)
    assert found["answered"] > 6000 and found["refused"] > 3000
