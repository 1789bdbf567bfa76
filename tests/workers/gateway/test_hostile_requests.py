"""Requests that no client makes, on every wire: nothing of them is dropped in silence. Each text and number
in a request is its own. So it is found in what the model is sent, or the request is refused, or a field or a
part around it is counted by name. Streams that overlap and end in the middle do not mix.
"""

import asyncio
import json
import random
import re
from collections.abc import Iterator
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
from tests.workers.gateway.hostile_requests import FIRST, WIRES, Marks, change, written

MARKED = re.compile(r"tok\d{7}")
TOLD_APART = LABELS | {"id", "status", "model", "signature", "thoughtSignature"}
"""Fields that docs/gateway.md names as read for other purposes, or not at all."""
CALLS = ("tool_use", "arguments", "args", "action", "custom", "custom_tool_call", "call_id")
ALIASES = {"encrypted_content": "encrypted_reasoning"} | dict.fromkeys(CALLS, "call_without_result")
"""Names in the counts that are not those of the field."""


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
