"""A world in which attempts die: a real queue, real sandboxes, a scripted model over HTTP, real workers."""

import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.campaigns.commands import Campaigns
from orchard.pipelines.tasks.registry import TaskRegistry
from orchard.schemas.campaigns import Budget, CampaignSpec, ModelSpec, Timeouts, rollout_requests
from orchard.schemas.events import TERMINAL_TYPES, AttemptReleased, Event, payload
from orchard.schemas.queues import Queue
from orchard.schemas.tasks import Task
from orchard.storage.blobs import BlobStore
from orchard.storage.reader import open_tables
from orchard.storage.writing.writer import Writer
from orchard.streams.campaigns import CampaignBook
from orchard.streams.claims import Claims
from orchard.streams.connection import Connection, connect
from orchard.streams.consumer import RetryPolicy
from orchard.streams.publisher import Publisher
from orchard.streams.replay import replay
from orchard.streams.settings import NatsSettings
from orchard.streams.tasks import end
from orchard.streams.topology import declare
from orchard.workers.attempts.dependencies import AttemptDependencies
from orchard.workers.attempts.queue_maintenance import maintain_queues
from orchard.workers.attempts.worker import Worker, WorkerSettings
from orchard.workers.domains.gui.browser.pool import Browsers, browsers
from orchard.workers.episode.sandboxes import SandboxSettings
from orchard.workers.episode.settings import JudgeSettings
from orchard.workers.episode.worlds import SharedResources, standbys
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.endpoint_rests import RestTracker
from orchard.workers.llm.settings import EndpointSettings, Price

QUEUE = Queue()
SETTINGS = NatsSettings(ack_wait=2.0, heartbeat=0.5, max_deliver=5)
SANDBOX = SandboxSettings()
PRICE = Price(prompt=1.0, completion=4.0)
SUBMIT = "git diff > patch.txt; echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat patch.txt"
QUICK_RETRIES = RetryPolicy(first=0.05)
SECONDS = 200.0
"""Anything waited for takes less; a test that hangs says where."""


@dataclass
class Script:
    """An endpoint whose model runs the next of `commands`, then submits. Prices count by characters."""

    commands: Sequence[str]
    url: str = ""
    asked: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Requests by rollout, as its seed names it, and turn, from 1."""
    hooks: dict[int, Callable[[int], Awaitable[None]]] = field(default_factory=dict)
    """By turn: awaited with the seed before each answer of that turn."""
    seconds: float = 0.0
    """Of thinking, for each answer."""
    refuses: Callable[[], web.Response] | None = None
    """What it answers while it is out of order."""
    refused: int = 0
    """Requests that it has answered so."""
    questions: int = 0
    """That were answered, and asked whether it answers."""

    async def chat(self, request: web.Request) -> web.Response:
        """One completion."""
        raw = await request.read()
        body = msgspec.json.decode(raw)
        turn = 1 + sum(message["role"] == "assistant" for message in body["messages"])
        if self.refuses is not None:
            self.refused += 1
            return self.refuses()
        if body.get("max_tokens") == 1:
            self.questions += 1
            return web.json_response({"choices": [{"message": {"content": "y"}, "finish_reason": "length"}]})
        self.asked[body["seed"], turn] += 1
        if (hook := self.hooks.get(turn)) is not None:
            await hook(body["seed"])
        await asyncio.sleep(self.seconds)
        command = self.commands[turn - 1] if turn <= len(self.commands) else SUBMIT
        arguments = msgspec.json.encode({"command": command}).decode()
        call = {
            "id": f"c{turn}",
            "type": "function",
            "function": {"name": "bash", "arguments": arguments},
        }
        message: dict[str, Any] = {"role": "assistant", "content": f"Step {turn}.", "tool_calls": [call]}
        if not body.get("tools"):
            fenced = f"```mswea_bash_command\n{command}\n```"
            message = {"role": "assistant", "content": f"Step {turn}.\n\n{fenced}"}
        usage = {"prompt_tokens": len(raw) // 4, "completion_tokens": 20 + len(command) // 4}
        return web.json_response(
            {
                "id": "x",
                "object": "chat.completion",
                "model": "script",
                "choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}],
                "usage": usage | {"total_tokens": sum(usage.values())},
            }
        )

    def turns(self, seed: int | None = None) -> Counter[int]:
        """Requests by turn, of one rollout or of all."""
        found: Counter[int] = Counter()
        for (one, turn), count in self.asked.items():
            if seed in (None, one):
                found[turn] += count
        return found

    @asynccontextmanager
    async def served(self) -> AsyncIterator["Script"]:
        """Listen on a free port."""
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", self.chat)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        try:
            yield self
        finally:
            await runner.cleanup()


def seed_of(rollout_id: str) -> int:
    """The seed under which a rollout asks."""
    return int(rollout_id[:7], 16)


@dataclass
class World:
    """The queue, the log, the sandboxes and the model; workers are started by the test."""

    connection: Connection
    store: Path
    sandboxes: AsyncSandboxClient
    model: Script
    nats_url: str
    sandbox_url: str

    @property
    def blobs(self) -> BlobStore:
        return BlobStore(str(self.store))

    async def submit(self, *tasks: Task, name: str = "demo", samples: int = 1, **changes: Any) -> list[str]:
        """Offer a campaign of the tasks; its rollout ids."""
        refs = await TaskRegistry(Publisher(self.connection), self.blobs).register(tasks)
        spec = CampaignSpec(
            name=name,
            tasks=tuple(refs),
            samples=samples,
            **{
                "models": (ModelSpec(name="script"),),
                "harnesses": ("orchard-bash",),
                "budget": Budget(steps=60),
                "timeouts": Timeouts(command=100.0, creation=60.0, grading=60.0, rollout=300.0),
                **changes,
            },
        )
        async for _ in Campaigns(self.connection, self.blobs).submit(spec):
            pass
        return [request.rollout_id for request in rollout_requests(spec)]

    @asynccontextmanager
    async def working(
        self,
        slots: int = 1,
        judge: JudgeSettings | None = None,
        spare_browsers: int = 0,
        others: Mapping[str, EndpointSettings] | None = None,
        sandbox: SandboxSettings = SANDBOX,
        **endpoint: Any,
    ) -> AsyncIterator[Browsers]:
        """A worker and a steward in this process; a worker that fails fails the test. Its browsers."""
        settings = {
            "default": EndpointSettings(
                **{"base_url": self.model.url, "prices": {"script": PRICE}, "concurrency": slots, **endpoint}
            ),
            **(others or {}),
        }
        async with (
            RestTracker(self.connection, "test") as rests,
            ModelClient(settings, rests) as models,
            Claims(self.connection, QUEUE) as claims,
        ):
            shared = SharedResources()
            settled = WorkerSettings(slots=slots, spare_browsers=spare_browsers)
            dependencies = AttemptDependencies(
                shared=shared,
                standbys=await standbys(shared, self.sandboxes, SandboxSettings(), settled),
                worker="test",
                publisher=Publisher(self.connection),
                blobs=self.blobs,
                sandboxes=self.sandboxes,
                sandbox_settings=sandbox,
                models=models,
                judge=judge or JudgeSettings(),
            )
            worker = Worker(
                dependencies,
                claims,
                CampaignBook(self.connection),
                settled,
                shutdown_seconds=0.0,
            )
            tasks = [asyncio.create_task(worker.run()), asyncio.create_task(maintain_queues(self.connection))]
            try:
                yield await shared.of(browsers)
            finally:
                for task in tasks:
                    task.cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
                await shared.close()
                for error in ended:
                    if isinstance(error, Exception):
                        raise error

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """A steward in this process, for workers in processes of their own."""
        keeping = asyncio.create_task(maintain_queues(self.connection))
        try:
            yield
        finally:
            await end(keeping)

    def worker_process(self, name: str) -> subprocess.Popen[bytes]:
        """A worker in a process of its own, to be killed."""
        return self.process("worker", "--name", name)

    def process(self, *words: str) -> subprocess.Popen[bytes]:
        """An `orchard` command in a process of its own."""
        line = [sys.executable, "-m", "orchard", *words]
        return subprocess.Popen(line, env={**os.environ, **self.environment}, stdin=subprocess.DEVNULL)

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which a command finds this world."""
        return {
            "ORCHARD_STORE": str(self.store),
            "ORCHARD_NATS__URL": self.nats_url,
            "ORCHARD_NATS__ACK_WAIT": str(SETTINGS.ack_wait),
            "ORCHARD_NATS__HEARTBEAT": str(SETTINGS.heartbeat),
            "ORCHARD_NATS__MAX_DELIVER": str(SETTINGS.max_deliver),
            "ORCHARD_SANDBOX__URL": self.sandbox_url,
            "ORCHARD_SANDBOX__TTL_SECONDS": "4",
            "ORCHARD_SANDBOX__HEARTBEAT_SECONDS": "1",
            "ORCHARD_ENDPOINTS__DEFAULT__BASE_URL": self.model.url,
        }

    async def outcomes(self, *rollouts: str, seconds: float = SECONDS) -> dict[str, Event]:
        """The terminal event of each rollout, waited for."""
        found: dict[str, Event] = {}
        async with asyncio.timeout(seconds):
            async for stored in replay(self.connection, subjects="orchard.events.done.>", follow=True):
                event = stored.event
                if event is not None and event.type in TERMINAL_TYPES and event.rollout_id in rollouts:
                    found[event.rollout_id] = event
                    if len(found) == len(rollouts):
                        break
        return found

    async def released(self, campaign: str = "demo") -> list[AttemptReleased]:
        """Attempts of a campaign that ended without an outcome so far."""
        subjects = f"orchard.events.{campaign}.*.attempt.released"
        found = [payload(one.event) async for one in replay(self.connection, subjects=subjects) if one.event]
        return [one for one in found if isinstance(one, AttemptReleased)]

    async def left(self, rollout: str, answers: int) -> None:
        """Wait until the rollout's trail leads to so many messages and calls of `answers` turns."""
        events = 2 + 3 * answers - 2  # system, task; of each turn call, message, result, of the last its call
        async with asyncio.timeout(SECONDS):
            while True:
                trail = await Publisher(self.connection).replay_pointers.find(rollout)
                if trail is not None and len(trail.events) >= events:
                    return
                await asyncio.sleep(0.01)

    async def end_sandbox(self, rollout: str) -> None:
        """Delete the rollout's sandbox under it."""
        (sandbox,) = await self.sandboxes.list_sandboxes({"rollout": rollout})
        await self.sandboxes.delete_sandbox(sandbox.sandbox_id)

    async def rows(self, query: str) -> list[Any]:
        """Rows of a query over all that is in the stream."""
        stop = asyncio.Event()
        stop.set()
        await Writer(str(self.store), self.connection).run(stop)
        with open_tables(str(self.store), views=query) as tables:
            return tables.sql(query).fetchall()


@asynccontextmanager
async def world(
    nats_url: str, sandbox_url: str, store: Path, commands: Sequence[str]
) -> AsyncIterator[World]:
    """A world around a server and a sandbox service that run."""
    settings = msgspec.structs.replace(SETTINGS, url=nats_url)
    async with (
        connect(settings, name="world", url=nats_url) as connection,
        AsyncSandboxClient(sandbox_url) as client,
        Script(commands).served() as model,
    ):
        await declare(connection, settings, [QUEUE])
        yield World(connection, store, client, model, nats_url, sandbox_url)
        for left in await client.list_sandboxes():  # a killed worker's
            await client.delete_sandbox(left.sandbox_id)
