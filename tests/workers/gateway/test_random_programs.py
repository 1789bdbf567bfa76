"""Random programs on every wire, against records that this test keeps of its own: what was sent to the model,
what was recorded, what the program reads, and what is counted differ in nothing."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
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
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.settings import EndpointSettings
from tests.workers.gateway import small_clients
from tests.workers.gateway.small_clients import Ask, Read, Said

WIRES = ("chat", "completions", "responses", "anthropic", "gemini")
OWN_TOOLS = {"chat": ["patch"], "responses": ["patch", "shell"], "anthropic": ["bash"]}
ARGUMENTS = {
    "patch": '{"input": "*** Begin"}',
    "shell": '{"commands": ["ls" ], "timeout_ms":5}',
    "bash": '{"command":  "ls"}',
}
"""Arguments as no encoder lays them out."""


@dataclass(eq=False)
class Node:
    """A message of the test's own record."""

    parent: "Node | None"
    said: Said
    tokens: tuple[int, ...] = ()
    children: list["Node"] = field(default_factory=list)

    def path(self) -> list["Node"]:
        return [*(self.parent.path() if self.parent else ()), self]

    @property
    def content(self) -> tuple[Any, ...]:
        said = self.said
        return said.role, said.text, said.reasoning, said.calls, said.answers[0], self.tokens


class Script:
    """The fake upstream: it answers what the test has prepared, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.reply: dict[str, Any] = {}
        self.status = 200

    async def handle(self, request: web.Request) -> web.Response:
        self.asked.append(await request.json())
        return web.json_response(self.reply, status=self.status)


class Program:
    """A random program of one wire, with the test's own record of all that it does."""

    def __init__(self, rng: random.Random, wire: str) -> None:
        self.rng, self.wire = rng, wire
        self.roots: list[Node] = []
        self.answers: list[Node] = []
        self.calls: list[tuple[Node, Node, dict[str, int], dict[str, int]]] = []
        """Question, answer, usage and what was not shown, of each answered call."""
        self.number = 0
        tools = ["f", "g", *OWN_TOOLS.get(wire, ())]
        self.tools = [] if wire == "completions" else rng.sample(tools, rng.randrange(len(tools) + 1))
        self.hosted = wire in small_clients.HOSTED and rng.random() < 0.3
        self.odd = small_clients.ODD[wire] if rng.random() < 0.3 else {}
        self.thinks, self.ids = rng.random() < 0.5, rng.random() < 0.5

    def add(self, parent: Node | None, said: Said, tokens: tuple[int, ...] = ()) -> Node:
        """The node of a message; an equal one of the same parent is the same node."""
        siblings = parent.children if parent else self.roots
        made = Node(parent, said, tokens)
        found = next((node for node in siblings if node.content == made.content), None)
        if found is None:
            siblings.append(made)
        return found or made

    def question(self) -> Node:
        """What the program asks next: a first message, the same again, or more after an answer."""
        choice = self.rng.random()
        if self.calls and choice < 0.35:
            return self.calls[-1][0]
        if not self.answers or choice < 0.45 or self.wire == "completions":
            parent = None
            if self.wire != "completions" and self.rng.random() < 0.7:
                parent = self.add(None, Said("system", "be good"))
            return self.add(parent, self.words())
        return self.more(self.rng.choice(self.answers) if choice < 0.8 else self.answers[-1])

    def more(self, answer: Node) -> Node:
        """What follows an answer: results of all its calls, or the user's words."""
        node = self.meant(answer)
        for call_id, name, _ in node.said.calls:
            self.number += 1
            text = f"result {self.number}"
            if name == "shell":
                text = f'[{{"stdout":"{self.number}","stderr":"","outcome":{{"type":"timeout"}}}}]'
            node = self.add(node, Said("tool", text, answers=(call_id, name)))
        if not answer.said.calls or (self.wire not in ("anthropic", "gemini") and self.rng.random() < 0.2):
            node = self.add(node, self.words())
        return node

    def meant(self, answer: Node) -> Node:
        """The answer that a reader of the program's request takes for it: of those that look alike, the
        newest."""
        assert answer.parent is not None
        alike = [node for node in answer.parent.children if self.looks(node) == self.looks(answer)]
        thought = [node for node in alike if node.said.reasoning == answer.said.reasoning]
        shown = self.thinks and answer.said.reasoning
        return max(thought if shown else alike, key=self.answers.index)

    def looks(self, node: Node) -> tuple[Any, ...]:
        ids = self.wire != "gemini" or self.ids
        return node.said.text, [call if ids else call[1:] for call in node.said.calls]

    def words(self) -> Said:
        self.number += 1
        unseen = self.wire != "completions" and self.rng.random() < 0.2
        return Said("user", f"say {self.number} é", unseen=unseen)

    def shown(self, said: Said) -> str:
        """The text that the model reads."""
        if not said.unseen:
            return said.text
        mark = f"[{small_clients.UNSEEN_KIND[self.wire]}: not shown]"
        return said.text + small_clients.BETWEEN[self.wire] + mark

    def ask(self, question: Node) -> Ask:
        return Ask(
            [node.said for node in question.path()],
            self.rng.random() < 0.5,
            self.tools,
            self.hosted,
            self.thinks,
            self.ids,
            self.odd,
        )

    def not_shown(self, question: Node) -> dict[str, int]:
        found = Counter(small_clients.UNSEEN_KIND[self.wire] for node in question.path() if node.said.unseen)
        found.update([small_clients.HOSTED[self.wire][1]] if self.hosted else [])
        found.update(["budget_tokens"] if self.wire == "anthropic" and self.thinks else [])
        found.update(list(self.odd))
        return dict(found)

    def sample(self, number: int) -> tuple[Said, tuple[int, ...], dict[str, int], dict[str, Any]]:
        """A random answer of the model: as a message, its tokens, its usage, and as the upstream's JSON. Few
        different ones, so that equal texts are sampled often."""
        rng = self.rng
        text, thought = rng.choice(["ok", "ok", "", "é\n\nx"]), rng.choice(["", "hm", "so"])
        tokens = rng.choice([(), (1, 2), (1, 3)])
        calls = tuple(
            (f"call-{number}-{at}", name, ARGUMENTS.get(name, f'{{"n": {at} }}'))
            for at, name in enumerate(
                rng.choices(self.tools, k=max(0, rng.randrange(-1, 3))) if self.tools else []
            )
        )
        prompt, completion = rng.randrange(1, 1000), rng.randrange(2, 100)
        usage = {"prompt": prompt, "completion": completion}
        usage |= {"cached": rng.randrange(prompt), "reasoning": rng.randrange(1, completion)}
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if thought:
            message["reasoning_content"] = thought
        if calls:
            message["tool_calls"] = [
                {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
                for call_id, name, arguments in calls
            ]
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
        body = {
            "model": "served",
            "choices": [choice | ({"token_ids": tokens} if tokens else {})],
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": completion,
                "total_tokens": prompt + completion,
                "prompt_tokens_details": {"cached_tokens": usage["cached"]},
                "completion_tokens_details": {"reasoning_tokens": usage["reasoning"]},
            },
        }
        return Said("assistant", text, thought, calls), tokens, usage, body

    def reads(self, said: Said, usage: dict[str, int]) -> Read:
        """What the program is to read of an answer."""
        shows = self.wire in ("chat", "responses") or (self.wire in ("anthropic", "gemini") and self.thinks)
        calls = [(call_id, name, json.loads(arguments)) for call_id, name, arguments in said.calls]
        if self.wire == "anthropic":
            usage = {name: usage[name] for name in ("prompt", "completion", "cached")}
        return Read(said.text, said.reasoning if shows else "", calls, usage)

    def sends(self, question: Node) -> list[dict[str, Any]]:
        """What the model is to read: the recorded path."""
        messages = []
        for node in question.path():
            said = node.said
            message: dict[str, Any] = {"role": said.role, "content": self.shown(said)}
            if said.role == "assistant" and not said.calls:
                message["content"] = said.text or "[empty message]"
            if said.reasoning:
                message["reasoning_content"] = said.reasoning
            if said.calls:
                message["tool_calls"] = [
                    {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
                    for call_id, name, arguments in said.calls
                ]
            if said.role == "tool":
                message["tool_call_id"] = said.answers[0]
            messages.append(message)
        return messages

    def nodes(self) -> Iterator[Node]:
        waiting = [*self.roots]
        while waiting:
            yield (node := waiting.pop())
            waiting += node.children


async def run(
    program: Program, script: Script, models: ModelClient, blobs: Any, http: aiohttp.ClientSession
) -> int:
    """Runs one program and compares it with its records. Returns the number of its calls."""
    published: list[Any] = []

    async def publish(data: object) -> None:
        published.append(data)

    tree = MessageTree(publish, blobs)
    model = ModelSpec(name="small")
    recording = Recording(tree, models, lambda: model, Budget(), seed=7, timeout=60.0)
    rng, wire = program.rng, program.wire
    asked = rng.randrange(3, 12)
    async with Gateway().open("rollout.1", recording) as access:
        for number in range(asked):
            if rng.random() < 0.05:
                before = len(script.asked), len(published)
                state = Ask([program.words()], False, [], False, False, True, small_clients.STATE[wire])
                path, body = small_clients.request(wire, state)
                async with http.post(access.url + path, json=body) as reply:
                    assert reply.status == 400 and next(iter(state.more)) in await reply.text()
                assert (len(script.asked), len(published)) == before
            question = program.question()
            ask = program.ask(question)
            said, tokens, usage, script.reply = program.sample(number)
            refused = rng.random() < 0.05
            script.status = 400 if refused else 200
            path, body = small_clients.request(wire, ask)
            async with http.post(access.url + path, json=body) as reply:
                raw = await reply.read()
                assert reply.status == script.status, raw
            sent = script.asked.pop()
            assert not script.asked
            assert sent["messages"] == program.sends(question)
            assert [tool["function"]["name"] for tool in sent.get("tools", [])] == program.tools
            assert (sent["model"], sent["seed"]) == ("small", 7)
            if refused:
                continue
            assert small_clients.read(wire, ask, raw) == program.reads(said, usage)
            answer = program.add(question, said, tokens)
            program.answers += [] if answer in program.answers else [answer]
            program.calls.append((question, answer, usage, program.not_shown(question)))
    compare(program, published)
    assert tree.totals.turns == len(program.calls)
    assert tree.totals.tokens == sum(
        usage["prompt"] + usage["completion"] for _, _, usage, _ in program.calls
    )
    return asked


def compare(program: Program, published: list[Any]) -> None:
    """Compares the events with the test's own record: messages with their paths, and calls in their order."""
    nodes = {data.node_id: data for data in published if isinstance(data, MessageNode)}
    assert len(nodes) == sum(isinstance(data, MessageNode) for data in published)

    def recorded(name: str) -> tuple[Any, ...]:
        node = nodes[name]
        calls = tuple((call.id, call.name, call.arguments) for call in node.tool_calls)
        tokens = node.tokens.ids if node.tokens else ()
        own = (node.role.value, node.content, node.reasoning, calls, node.tool_call_id, tokens)
        return (*(recorded(node.parent) if node.parent else ()), own)

    def expected(node: Node) -> tuple[Any, ...]:
        return tuple((each.said.role, program.shown(each.said), *each.content[2:]) for each in node.path())

    assert sorted(map(recorded, nodes), key=repr) == sorted(map(expected, program.nodes()), key=repr)
    made = [data for data in published if isinstance(data, LLMCall)]
    assert [
        (
            recorded(call.parent),
            recorded(call.node),
            call.usage.prompt_tokens,
            call.usage.completion_tokens,
            call.usage.cached_tokens,
            call.usage.reasoning_tokens,
            call.not_shown or {},
        )
        for call in made
    ] == [
        (expected(question), expected(answer), *usage.values(), unseen)
        for question, answer, usage, unseen in program.calls
    ]


async def run_many(seeds: range, blobs: Any) -> int:
    script = Script()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", script.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    calls = 0
    async with (
        ModelClient({"default": EndpointSettings(base_url=url)}) as models,
        aiohttp.ClientSession() as http,
    ):
        for seed in seeds:
            program = Program(random.Random(seed), WIRES[seed % len(WIRES)])
            try:
                calls += await run(program, script, models, blobs, http)
            except AssertionError as error:
                error.add_note(f"seed {seed}, wire {program.wire}")
                raise
    await runner.cleanup()
    return calls


@pytest.mark.long
async def test_one_hundred_random_programs_are_sent_recorded_answered_and_counted(blobs):
    assert await run_many(range(100), blobs) > 300


@pytest.mark.slow
async def test_one_thousand_random_programs_are_sent_recorded_answered_and_counted(blobs):
    assert await run_many(range(1000), blobs) > 3000
