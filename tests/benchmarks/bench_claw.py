"""Worlds of services: tool calls through sandboxes with 64 worlds at once, resets, episodes (a script).

64 sandboxes, each with a world, its faces and a tunnel; a client in each calls a tool once in about two
seconds, as an agent does that thinks, and measures the call from inside. Each call's audit entry is stored by
a real NATS server before it is answered (goal: p50 under 5 ms). The same with one world, where nothing else
is in a call's way; the fastest tenth says what a call takes that need not wait for a core. A reset is a new
world of all services with 20 records in each collection (50 ms). Episodes are whole rollouts with a model
that answers at once: sandbox, four turns, bundle, grade in a sandbox of its own (500 an hour). Prints one
JSON line for each figure.
"""

import argparse
import asyncio
import json
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import msgspec
import psutil
import uvloop

from orchard.schemas.campaigns import Timeouts
from orchard.schemas.events import make_event
from orchard.storage.blobs import BlobStore
from orchard.streams.publisher import Publisher
from orchard.streams.server import embedded
from orchard.streams.settings import NatsSettings
from orchard.workers.domains.claw.engine import Services
from orchard.workers.domains.claw.services import SERVICES
from orchard.workers.domains.claw.world import ClawServices
from orchard.workers.episode.sandboxes import SandboxMachine
from orchard.workers.episode.worlds import WorldContext
from tests.attempts_world import World, world
from tests.claw_world import Assistant, desk, desk_task
from tests.sandbox_service import LocalService

WORLDS = 64
CALLS = 15
"""Of each world; of a single one ten times as many."""
PAUSE = 2.0
"""Seconds between two calls of one agent, on average."""
RECORDS = 20
CLIENT = """
import http.client, json, random, sys, time
host, path, calls, pause = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
line, took = http.client.HTTPConnection(host), []
for _ in range(calls):
    time.sleep(random.uniform(0, 2 * pause))
    begun = time.perf_counter()
    line.request("POST", path, json.dumps({"query": "rotation"}), {"Content-Type": "application/json"})
    reply = line.getresponse()
    reply.read()
    took.append(time.perf_counter() - begun)
    assert reply.status == 200
print(json.dumps(took))
"""


def figure(name: str, value: float, unit: str, **more: Any) -> None:
    """One line of results."""
    print(json.dumps({"name": name, "value": value, "unit": unit, **more}), flush=True)  # noqa: T201


def full() -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Fixtures with records in every collection."""
    made: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for service in SERVICES.values():
        made[service.name] = {
            each.name: [
                {name: _value(each.fields[name], number) for name in each.required}
                for number in range(RECORDS)
            ]
            for each in service.collections
        }
    return made


def _value(schema: dict[str, Any], number: int) -> Any:
    if schema.get("format") == "date-time":
        return f"now-{number}d"
    kind = {"string": f"text {number}", "integer": number + 1, "number": number + 1.0, "array": []}
    return schema["enum"][0] if "enum" in schema else kind[schema["type"]]


def processor_seconds() -> float:
    """Of this process and all below it, those that have ended included."""
    here = psutil.Process()
    return sum(sum(each.cpu_times()[:4]) for each in [here, *here.children(recursive=True)])


async def calls(here: World, worlds: int) -> None:
    """Tool calls through the sandbox, all worlds at once."""
    publisher = Publisher(here.connection)
    counter = iter(range(10**9))

    async def publish(data: msgspec.Struct) -> None:
        name = f"bench.{worlds}.{next(counter)}"
        await publisher.event(
            make_event(data, id=name, source="bench", campaign="bench", rollout_id="ab" * 12, attempt=1)
        )

    def no_sandbox(_image: str, _purpose: str) -> Any:
        raise AssertionError

    rounds, pause = (CALLS, PAUSE) if worlds > 1 else (10 * CALLS, PAUSE / 20)
    async with AsyncExitStack() as stack:
        places = []
        opened = []
        for number in range(worlds):
            sandbox = await stack.enter_async_context(
                await here.sandboxes.create_sandbox("host", memory="256Mi", cpu="1", ttl_seconds=3600)
            )
            machine = SandboxMachine(sandbox)
            opening = WorldContext(
                task=desk_task(),
                machine=machine,
                seed=number,
                name=f"bench-{number}.1",
                publish=publish,
                blobs=BlobStore(str(here.store)),
                sandbox=no_sandbox,
                command_seconds=60.0,
            )
            begun = time.perf_counter()
            made = await stack.enter_async_context(ClawServices().open(desk(), opening))
            opened.append(time.perf_counter() - begun)
            port, path = await stack.enter_async_context(made.door())
            tunnel = await stack.enter_async_context(machine.reverse(port))
            await machine.write("/client.py", CLIENT.encode())
            url = path.removesuffix("/mcp") + "/tools/mail_list_messages"
            places.append((machine, f"python3 /client.py 127.0.0.1:{tunnel.port} {url} {rounds} {pause}"))
        psutil.cpu_percent(None)
        everywhere, cpu = processor_seconds(), time.process_time()
        found = await asyncio.gather(*(machine.run(line, timeout=600.0, cwd="/") for machine, line in places))
        busy, cpu = psutil.cpu_percent(None), time.process_time() - cpu
        everywhere = processor_seconds() - everywhere
    took = sorted(second * 1000 for each in found for second in json.loads(each.output))
    tenths = quantiles(took, n=20)
    figure("tool call through the sandbox, p50", median(took), "ms", goal=5.0, worlds=worlds, busy=busy)
    figure("tool call through the sandbox, p10", tenths[1], "ms", worlds=worlds)
    figure("tool call through the sandbox, p95", tenths[-1], "ms", worlds=worlds)
    figure("tool call, CPU of the worker", cpu / len(took) * 1000, "ms", worlds=worlds)
    figure("tool call, CPU of all processes", everywhere / len(took) * 1000, "ms", worlds=worlds)
    figure("opening a world in a sandbox that runs, p50", median(opened) * 1000, "ms")


def resets(count: int = 200) -> None:
    """New worlds of all services."""
    settings = desk(services=full())
    took, cpu = [], time.process_time()
    for number in range(count):
        begun = time.perf_counter()
        Services(settings, number)
        took.append((time.perf_counter() - begun) * 1000)
    figure("reset of all services, p50", median(took), "ms", goal=50.0)
    figure("reset of all services, CPU", (time.process_time() - cpu) / count * 1000, "ms")


async def episodes(here: World, count: int, slots: int) -> None:
    """Whole rollouts."""
    rollouts = await here.submit(desk_task(), samples=count, harnesses=("claw-react",), timeouts=Timeouts())
    begun = time.perf_counter()
    async with here.working(slots=slots):
        await here.outcomes(*rollouts, seconds=3000.0)
    seconds = time.perf_counter() - begun
    ended = await here.rows(
        "select coalesce(cause, exit_status), reward, count(*), any_value(detail) from rollouts group by 1, 2"
    )
    figure("episodes in an hour", count / seconds * 3600, "1/h", goal=500, ended=ended)


async def main(worlds: int, count: int) -> None:
    resets()
    with tempfile.TemporaryDirectory(prefix="orchard-bench-") as place:
        service = LocalService(Path(place) / "state")
        try:
            async with (
                embedded(Path(place) / "nats", NatsSettings()) as server,
                world(server.url, service.url, Path(place) / "store", ()) as here,
                Assistant().served() as model,
            ):
                here.model = model
                for number in (1, worlds):
                    await calls(here, number)
                await episodes(here, count, min(64, count))
        finally:
            service.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--worlds", type=int, default=WORLDS)
    parser.add_argument("--episodes", type=int, default=64)
    arguments = parser.parse_args()
    uvloop.run(main(arguments.worlds, arguments.episodes))
