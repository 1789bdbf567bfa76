"""A real world to measure values in: sandboxes, tiny tasks, policies over HTTP, recorded rollouts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from orchard.injector.client import AsyncSandboxClient
from orchard.injector.errors import REASON_HEADER
from orchard.pipelines.campaigns.commands import requested_event
from orchard.pipelines.values.continuations import MeasuredPoint
from orchard.pipelines.values.recorded import Recorded, read_recorded
from orchard.schemas.campaigns import Budget, ModelSpec, RolloutRequest, TaskRef, Timeouts
from orchard.schemas.identity import rollout_id
from orchard.schemas.tasks import Task
from orchard.storage.reader import open_tables
from orchard.workers.attempts.dependencies import AttemptDependencies
from orchard.workers.attempts.rollout import Attempt
from orchard.workers.episode.sandboxes import SandboxSettings
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.settings import EndpointSettings
from tests.tiny_tasks import tiny_task

TASK = tiny_task(1)
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
GONE = "http://127.0.0.1:9/v1"
"""Nobody listens there."""


@dataclass
class Policy:
    """An endpoint whose model `script` runs the next of `commands`, whatever it is told, then submits."""

    commands: list[str] = field(default_factory=list)
    url: str = ""
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by each request."""
    answering: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared: requests wait."""
    requests: int = 0
    silent: int = 0
    """Number of the next requests that get no answer."""

    async def chat(self, request: web.Request) -> web.Response:
        """One completion."""
        body = msgspec.json.decode(await request.read())
        self.requests += 1
        self.asked.set()
        await self.answering.wait()
        if self.silent:
            self.silent -= 1
            await asyncio.Event().wait()
        number = sum(message["role"] == "assistant" for message in body["messages"])
        command = self.commands[number] if number < len(self.commands) else SUBMIT
        call = {
            "id": f"c{number}",
            "type": "function",
            "function": {"name": "bash", "arguments": msgspec.json.encode({"command": command}).decode()},
        }
        message = {"role": "assistant", "content": f"Step {number}.", "tool_calls": [call]}
        return web.json_response(
            {
                "id": "x",
                "object": "chat.completion",
                "model": "script",
                "choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}],
                "usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12},
            }
        )

    @asynccontextmanager
    async def served(self) -> AsyncIterator["Policy"]:
        """Listen on a free port."""
        self.answering.set()
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.chat)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        try:
            yield self
        finally:
            await runner.cleanup()


_SAID = ("Content-Type", REASON_HEADER)


@asynccontextmanager
async def without_forks(url: str) -> AsyncIterator[str]:
    """The sandbox service behind a proxy that answers forks as a backend does that has none; its URL."""
    async with aiohttp.ClientSession() as session:

        async def forward(request: web.Request) -> web.Response:
            if request.path.endswith("/fork"):
                headers = {REASON_HEADER: "unsupported"}
                return web.json_response({"detail": "no forks here"}, status=501, headers=headers)
            body = await request.read()
            async with session.request(
                request.method, url + request.path_qs, data=body, headers=request.headers
            ) as reply:
                said = {name: reply.headers[name] for name in _SAID if name in reply.headers}
                return web.Response(status=reply.status, body=await reply.read(), headers=said)

        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", forward)
        runner = web.AppRunner(app, shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        await runner.cleanup()


@dataclass
class World:
    """A pipeline with sandboxes, the oracle and a scripted policy."""

    pipeline: Any
    sandboxes: AsyncSandboxClient
    policy: Policy
    oracle_url: str

    @asynccontextmanager
    async def dependencies(self, **urls: str) -> AsyncIterator[AttemptDependencies]:
        """What attempts run with; endpoints `oracle` and `script`, and others by their URL."""
        named = {"oracle": self.oracle_url, "script": self.policy.url, **urls}
        settings = {name: EndpointSettings(base_url=url, max_tries=1) for name, url in named.items()}
        async with ModelClient(settings) as models:
            yield AttemptDependencies(
                worker="test",
                publisher=self.pipeline.publisher,
                blobs=self.pipeline.blobs,
                sandboxes=self.sandboxes,
                sandbox_settings=SandboxSettings(),
                models=models,
            )

    async def record(
        self, model: str, *, budget: Budget | None = None, task: Task = TASK, sample: int = 0
    ) -> Recorded:
        """Run a rollout to its outcome, and read it back."""
        blob = self.pipeline.blobs.put(msgspec.json.encode(task))
        spec = ModelSpec(name=model, endpoint="oracle" if model.startswith("oracle") else "script")
        name = rollout_id("demo", task.task_id, "mini-swe-agent", model, sample)
        request = RolloutRequest(
            rollout_id=name,
            campaign="demo",
            task=TaskRef(task_id=task.task_id, source=task.source, repo=task.repo, blob=blob),
            harness="mini-swe-agent",
            model=spec,
            sample=sample,
            budget=budget or Budget(steps=12),
            timeouts=Timeouts(command=20.0, creation=60.0, grading=60.0, rollout=200.0),
            max_tries=1,
        )
        async with self.dependencies() as dependencies:
            await dependencies.publisher.event(requested_event(request))
            attempt = await Attempt.begin(dependencies, request, sequence=1, deliveries=1)
            outcome = await attempt.run()
            await dependencies.publisher.terminal(attempt.event(outcome, "done"))
        return await self.read(name)

    async def play(self, *commands: str, **options: Any) -> Recorded:
        """Record a rollout of these commands."""
        self.policy.commands = list(commands)
        return await self.record("script", **options)

    async def read(self, name: str) -> Recorded:
        """What the tables say of a rollout."""
        await self.pipeline.keep()
        with open_tables(self.pipeline.store) as tables:
            return read_recorded(tables, self.pipeline.blobs, name)

    def point(
        self, recorded: Recorded, at: int, model: str, samples: int = 1, **options: Any
    ) -> MeasuredPoint:
        """A point to measure; `endpoint` names another than the model's."""
        own = "oracle" if model.startswith("oracle") else "script"
        spec = ModelSpec(name=model, endpoint=options.pop("endpoint", own))
        return MeasuredPoint(recorded=recorded, at=at, model=spec, samples=samples, **options)

    async def rows(self, query: str) -> list[Any]:
        """Rows of a query over all that is in the stream."""
        await self.pipeline.keep()
        with open_tables(self.pipeline.store, views=query) as tables:
            return tables.sql(query).fetchall()
