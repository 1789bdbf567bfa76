"""What the recording gateway adds to a model call, with 64 streams at once (a script).

A model that thinks for a time that its prompt names answers over real HTTP. 64 programs, each with a door and
a conversation that grows, stream from it through the gateway, and in other rounds from the model itself. What
a call took beyond the thinking is its latency; the difference is what the gateway adds (goals: 2 and 5 ms).
Programs begin within a second, as sandboxes come up. Further rounds, apart, have all 64 call in the same
instant: then most wait for the processor, through the gateway or not. Model, gateway and programs are
processes of their own. Processor time is that of the gateway, whatever else the machine does. The last figure
is its memory for each of 1,024 calls under way. Prints one JSON line for each (docs/benchmarks/gateway.md).
"""

import argparse
import asyncio
import json
import multiprocessing
import random
import tempfile
import time
from contextlib import AsyncExitStack
from multiprocessing.connection import Connection
from statistics import quantiles
from typing import Any

import aiohttp
import msgspec
import psutil
import uvloop
from aiohttp import web

from orchard.schemas.campaigns import Budget, ModelSpec
from orchard.storage.blobs import BlobStore
from orchard.workers.episode.message_tree import MessageTree
from orchard.workers.gateway.recording import Recording
from orchard.workers.gateway.server import CALLS_AT_ONCE, Gateway
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.settings import EndpointSettings

PROGRAMS = 64
ROUNDS = 3
TURNS = 10
GOALS_MS = {"p50": 2.0, "p95": 5.0}
RESULT = "a line of a file that somebody looked at\n" * 40
"""About 1.6 KB for each turn."""
HEADERS = {"Content-Type": "application/json"}
LONG_SECONDS = 3600.0


def seconds_of(body: Any) -> float:
    """The time that the model is to think, from the last message."""
    return float(str(body["messages"][-1]["content"]).split(maxsplit=1)[0])


async def think(request: web.Request) -> web.StreamResponse:
    """The model: plain for the gateway, a stream of one piece for programs that ask it themselves."""
    body = msgspec.json.decode(await request.read())
    await asyncio.sleep(seconds_of(body))
    message = {"role": "assistant", "content": "I look at the next file, because the last one did not tell."}
    if not body.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
        return web.json_response({"id": "1", "model": "m", "choices": [choice], "usage": usage})
    stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await stream.prepare(request)
    choice = {"index": 0, "delta": message, "finish_reason": "stop"}
    await stream.write(b"data: " + json.dumps({"id": "1", "choices": [choice]}).encode() + b"\n\n")
    await stream.write(b"data: [DONE]\n\n")
    return stream


def serve_model(line: Connection) -> None:
    """Answer until killed; the URL is told."""

    async def run() -> None:
        app = web.Application(client_max_size=2**30)
        app.router.add_post("/v1/chat/completions", think)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=2048).start()
        line.send(f"http://127.0.0.1:{runner.addresses[0][1]}/v1")
        await asyncio.Event().wait()

    uvloop.run(run())


def serve_gateway(line: Connection, model: str) -> None:
    """Open a door for each program, tell their URLs, and record until killed."""

    async def publish(_: msgspec.Struct) -> None:
        """Nothing: the stream has its own benchmark."""

    async def run(store: str) -> None:
        settings = {"default": EndpointSettings(base_url=model, concurrency=4096)}
        gateway, urls = Gateway(), []
        async with ModelClient(settings) as models, AsyncExitStack() as doors:
            for number in range(PROGRAMS):
                recording = Recording(
                    MessageTree(publish, BlobStore(store)),
                    models,
                    lambda: ModelSpec(name="m"),
                    Budget(steps=0, cost_usd=0.0, wall_seconds=0.0),
                    seed=number,
                    timeout=2 * LONG_SECONDS,
                )
                door = await doors.enter_async_context(gateway.open(f"bench-{number}.1", recording))
                urls.append(f"{door.url}/v1")
            line.send(urls)
            await asyncio.Event().wait()

    with tempfile.TemporaryDirectory() as store:
        uvloop.run(run(store))


async def talk(
    session: aiohttp.ClientSession, url: str, name: str, turns: int, *, at_once: bool
) -> list[float]:
    """Milliseconds beyond the thinking of each call of one conversation."""
    rng, added = random.Random(name), []
    messages = [{"role": "system", "content": f"You are program {name}."}]
    await asyncio.sleep(0.0 if at_once else rng.random())
    for _ in range(turns):
        seconds = 1.0 if at_once else rng.uniform(0.5, 1.5)
        messages.append({"role": "user", "content": f"{seconds} {RESULT}"})
        body = msgspec.json.encode({"model": "any", "messages": messages, "stream": True})
        begun = time.perf_counter()
        async with session.post(f"{url}/chat/completions", data=body) as reply:
            events = (await reply.read()).split(b"\n\n")
        lines = [event for event in events if not event.startswith(b":")]
        added.append((time.perf_counter() - begun - seconds) * 1e3)
        assert lines[-2] == b"data: [DONE]", lines
        deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in lines[:-2]]
        said = "".join(delta.get("content") or "" for delta in deltas)
        messages.append({"role": "assistant", "content": said})
    return added


async def round_of(urls: list[str], name: str, turns: int = TURNS, *, at_once: bool = False) -> list[float]:
    """One conversation at each URL, all at the same time; `at_once`: to the millisecond."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(headers=HEADERS, connector=connector) as session:
        talks = [
            talk(session, url, f"{name}-{number}", turns, at_once=at_once) for number, url in enumerate(urls)
        ]
        return [one for each in await asyncio.gather(*talks) for one in each]


async def kilobytes_in_flight(urls: list[str], gateway: psutil.Process) -> float:
    """Memory of the gateway for each call that waits for its model, with 16 KB of conversation."""
    before = gateway.memory_info().rss
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(headers=HEADERS, connector=connector) as session:

        async def wait(url: str, number: int) -> None:
            text = f"{LONG_SECONDS} {number} {RESULT * 10}"
            body = {"messages": [{"role": "user", "content": text}], "stream": True}
            async with session.post(f"{url}/chat/completions", json=body):
                raise AssertionError("the model has answered")

        calls = [asyncio.create_task(wait(url, number)) for url in urls for number in range(CALLS_AT_ONCE)]
        sizes = [0, 1]
        while sizes[-1] != sizes[-2]:  # until all have come
            await asyncio.sleep(2.0)
            sizes.append(gateway.memory_info().rss)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
    return (sizes[-1] - before) / len(calls) / 1e3


async def measure(model: str, urls: list[str], gateway: psutil.Process, rounds: int) -> None:
    """Alternate the rounds and print the figures."""
    steady, direct, cpu = list[float](), list[float](), 0.0
    burst, direct_burst = list[float](), list[float]()
    straight = [model] * len(urls)
    await round_of(urls, "warm", turns=1)
    for number in range(rounds):
        before = cpu_seconds(gateway)
        steady += await round_of(urls, f"gateway-{number}")
        cpu += cpu_seconds(gateway) - before
        direct += await round_of(straight, f"direct-{number}")
        burst += await round_of(urls, f"burst-{number}", turns=1, at_once=True)
        direct_burst += await round_of(straight, f"direct-burst-{number}", turns=1, at_once=True)
    compare("", steady, direct, GOALS_MS)
    compare("64 in the same instant: ", burst, direct_burst, {})
    figure("processor time of the gateway for each call", cpu / len(steady) * 1e3, "ms", None)
    figure("memory for each call under way", await kilobytes_in_flight(urls, gateway), "kB", None)


def cpu_seconds(process: psutil.Process) -> float:
    """Processor time of a process since it began."""
    times = process.cpu_times()
    return float(times.user + times.system)


def compare(name: str, ours: list[float], direct: list[float], goals: dict[str, float]) -> None:
    """What the gateway adds at two quantiles."""
    for quantile, at in (("p50", 49), ("p95", 94)):
        through, without = (quantiles(each, n=100)[at] for each in (ours, direct))
        figure(
            f"{name}gateway adds, {quantile} of {len(ours)} calls",
            through - without,
            "ms",
            goals.get(quantile),
        )
        figure(f"{name}call without thinking, {quantile}", through, "ms", without)


def figure(name: str, value: float, unit: str, ceiling: float | None) -> None:
    """One line; `ceiling` is the goal, or the figure without the gateway."""
    ratio = value / ceiling if ceiling else None
    row = {"name": name, "value": value, "unit": unit, "ceiling": ceiling, "ratio": ratio}
    print(json.dumps(row), flush=True)  # noqa: T201


def main() -> None:
    """Start model and gateway, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    model = context.Process(target=serve_model, args=(there,), daemon=True)
    model.start()
    url = here.recv()
    gateway = context.Process(target=serve_gateway, args=(there, url), daemon=True)
    gateway.start()
    try:
        uvloop.run(measure(url, here.recv(), psutil.Process(gateway.pid), rounds))
    finally:
        for process in (gateway, model):
            process.kill()
            process.join()


if __name__ == "__main__":
    main()
