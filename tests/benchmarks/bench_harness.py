"""What a turn of orchard-bash costs beside the model and the commands (a script; the goal is 5 ms).

An instant model answers over real HTTP from a process of its own, and the machine answers at once. The same
request bodies are then posted by bare aiohttp; what the harness needed above that, divided by the turns, is
its overhead. Rounds alternate and the median counts. Prints one JSON line for each figure; `ceiling` is the
goal for the overhead, and the time of the bare call for the turn as a whole. Processor time is given because
the machine is rarely alone.
"""

import asyncio
import json
import multiprocessing
import tempfile
import time
from statistics import median
from typing import Any

import aiohttp
import msgspec
import uvloop
from aiohttp import web

from orchard.schemas.campaigns import Budget, ModelSpec, Timeouts
from orchard.schemas.tasks import SWETests, Task
from orchard.storage.blobs import BlobStore
from orchard.workers.episode.machine import CommandOutcome
from orchard.workers.episode.message_tree import MessageTree
from orchard.workers.harnesses import get_harness
from orchard.workers.harnesses.bash_loop import SUBMIT_LINE
from orchard.workers.harnesses.bash_prompts import BASH_TOOL
from orchard.workers.harnesses.interface import Episode
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.settings import EndpointSettings

ROUNDS = 7
TURNS = 100
GOAL_MS = 5.0
OUTPUT = "a line of a file that somebody looked at\n" * 40
"""About 1.6 KB for each observation, so the last requests carry 200 KB."""

TASK = Task(
    task_id="bench",
    source="bench",
    repo="bench",
    image="none",
    statement="Do nothing, many times over.",
    grading=SWETests(test_patch="", test_command="true", fail_to_pass=("t",)),
)


class InstantMachine:
    """Answers at once."""

    async def run(self, command: str, **_: Any) -> CommandOutcome:
        output = f"{SUBMIT_LINE}\n" if command == "submit" else OUTPUT
        return CommandOutcome(output=output, returncode=0, seconds=0.0)

    async def write(self, path: str, content: bytes) -> None:
        raise NotImplementedError(f"{path} of {len(content)} bytes: the loop writes no files")

    async def read(self, path: str, *, limit: int = 0) -> bytes:
        raise NotImplementedError(f"{path}, {limit}: the loop reads no files")


def answer(command: str) -> bytes:
    """A completion with one call."""
    function = {"name": "bash", "arguments": json.dumps({"command": command})}
    message = {
        "role": "assistant",
        "content": "I look at the next file, because the last one did not tell.",
        "tool_calls": [{"id": "call-1", "type": "function", "function": function}],
    }
    return json.dumps(
        {
            "id": "1",
            "object": "chat.completion",
            "model": "instant",
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
        }
    ).encode()


def serve(ports: "multiprocessing.Queue[int]") -> None:
    """The instant model: the last turn submits, the others look around."""
    look, submit = answer("sed -n 1,40p file.py"), answer("submit")

    async def reply(request: web.Request) -> web.Response:
        body = await request.read()
        done = body.count(b'"role":"assistant"') >= TURNS - 1
        return web.Response(body=submit if done else look, content_type="application/json")

    async def run() -> None:
        app = web.Application(client_max_size=2**30)
        app.router.add_post("/v1/chat/completions", reply)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ports.put(runner.addresses[0][1])
        await asyncio.Event().wait()

    uvloop.run(run())


class Stopwatch:
    """Milliseconds for each turn: on the wall, and of this process's processor time."""

    def __init__(self) -> None:
        self._started = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        wall, processor = time.perf_counter() - self._started[0], time.process_time() - self._started[1]
        return wall / TURNS * 1e3, processor / TURNS * 1e3


async def harness_round(url: str, store: str) -> tuple[tuple[float, float], list[bytes]]:
    """Both times of the whole run, and the bodies of its requests."""

    async def publish(_: msgspec.Struct) -> None:
        """Nothing: the stream has its own benchmark."""

    trace = MessageTree(publish, BlobStore(store))
    async with ModelClient({"default": EndpointSettings(base_url=url)}) as models:
        episode = Episode(
            task=TASK,
            machine=InstantMachine(),
            model=models,
            student=ModelSpec(name="instant"),
            trace=trace,
            budget=Budget(steps=2 * TURNS, cost_usd=0.0),
            timeouts=Timeouts(),
            seed=1,
        )
        watch = Stopwatch()
        result = await get_harness("orchard-bash").run(episode)
        times = watch.read()
    assert trace.totals.turns == TURNS, trace.totals
    messages = trace.messages(result.leaf)
    answers = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
    body = {"model": "instant", "seed": 1, "tools": [BASH_TOOL]}
    return times, [msgspec.json.encode(body | {"messages": messages[:at]}) for at in answers]


async def bare_round(url: str, bodies: list[bytes]) -> tuple[float, float]:
    """Both times for the same requests, ready encoded, one after the other."""
    async with aiohttp.ClientSession(headers={"Content-Type": "application/json"}) as session:
        watch = Stopwatch()
        for body in bodies:
            async with session.post(f"{url}/chat/completions", data=body) as response:
                await response.read()
        return watch.read()


async def measure(url: str) -> None:
    """Alternate the rounds and print the figures."""
    ours, bare = [], []
    with tempfile.TemporaryDirectory() as store:
        for _ in range(ROUNDS):
            times, bodies = await harness_round(url, store)
            ours.append(times)
            bare.append(await bare_round(url, bodies))
    wall, processor = zip(*ours, strict=True)
    bare_wall, bare_processor = zip(*bare, strict=True)
    overhead = median(one - other for one, other in zip(wall, bare_wall, strict=True))
    figures = [
        ("harness overhead a turn", overhead, GOAL_MS),
        ("turn with an instant model", median(wall), median(bare_wall)),
        ("processor time of a turn", median(processor), median(bare_processor)),
    ]
    for name, value, ceiling in figures:
        row = {"name": name, "value": value, "unit": "ms", "ceiling": ceiling, "ratio": value / ceiling}
        print(json.dumps(row))  # noqa: T201


def main() -> None:
    """Start the instant model and measure."""
    context = multiprocessing.get_context("spawn")
    ports: multiprocessing.Queue[int] = context.Queue()
    server = context.Process(target=serve, args=(ports,), daemon=True)
    server.start()
    try:
        uvloop.run(measure(f"http://127.0.0.1:{ports.get(timeout=60)}/v1"))
    finally:
        server.terminate()
        server.join()


if __name__ == "__main__":
    main()
