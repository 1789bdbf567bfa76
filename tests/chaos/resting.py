"""An endpoint that refuses for long while many rollouts are queued: what it costs, and how soon all goes on.

`python -m tests.chaos.resting --rollouts 5000 --throttled 1200 --down 600`: a real queue, real sandboxes,
workers in processes of their own, and a model that answers at once until it answers 429 and then 503. A
worker is killed in the rest. Afterwards it looks for `--after` seconds how fast the rollouts go."""

import argparse
import asyncio
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
from aiohttp import web

from orchard.schemas.events import TERMINAL_TYPES
from orchard.streams.queued import queued
from orchard.streams.replay import replay
from orchard.streams.server import EmbeddedServer
from tests.attempts_world import World, world
from tests.tiny_tasks import tiny_service, tiny_task

WINDOW = 10.0
"""Seconds after its return in which the endpoint must be at full work again."""


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """How much of everything; times in seconds."""

    rollouts: int
    throttled: float
    down: float
    before: float = 20.0
    after: float = 60.0
    workers: int = 2
    slots: int = 4


class Report(msgspec.Struct, kw_only=True):
    """What was seen."""

    calls: int = 0
    """Refused, in the outage."""
    calls_a_second: float = 0.0
    most_in_a_minute: int = 0
    """Of them, after the first minute."""
    sandboxes: int = 0
    """There a minute after it began, or at its end."""
    queued_in_outage: int = 0
    """On the work queue at its end."""
    per_second_before: float = 0.0
    per_second_in_window: float = 0.0
    """Answers in the seconds WINDOW to 2 * WINDOW after its return."""
    per_second_after: float = 0.0
    first_answer: float = 0.0
    """Seconds after its return."""
    finished: int = 0
    aborted: int = 0
    open: int = 0
    """In a queue at the end."""
    lost: int = 0


def refusal(status: int, said: str) -> Callable[[], web.Response]:
    """An answer that says no, and not for how long."""
    return lambda: web.json_response({"error": {"message": said}}, status=status)


async def run(place: Path, size: Size) -> Report:
    """One outage."""
    report = Report()
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(EmbeddedServer(place / "nats"))
        service = await stack.enter_async_context(tiny_service(place / "state"))
        here = await stack.enter_async_context(world(server.url, service.url, place / "store", ()))
        await stack.enter_async_context(here.kept())
        rollouts = await here.submit(tiny_task(1), samples=size.rollouts)
        line = ("--slots", str(size.slots))
        workers = {name: here.process("worker", "--name", name, *line) for name in _names(size.workers)}
        try:
            await _outage(here, size, report, workers)
        finally:
            for worker in workers.values():
                worker.terminate()
            for worker in workers.values():
                await asyncio.to_thread(worker.wait)
        found = await queued(here.connection, "demo")
        done = {event.rollout_id: event.type async for event in _ended(here)}
        report.finished = sum(kind == "rollout.finished" for kind in done.values())
        report.aborted = len(done) - report.finished
        open_ = found.everything - done.keys()
        report.open, report.lost = len(open_), len(set(rollouts) - done.keys() - open_)
    return report


def _names(count: int) -> list[str]:
    return [f"worker-{number}" for number in range(count)]


async def _ended(here: World):
    async for stored in replay(here.connection, subjects="orchard.events.done.>"):
        if stored.event is not None and stored.event.type in TERMINAL_TYPES:
            yield stored.event


async def _outage(here: World, size: Size, report: Report, workers: dict) -> None:
    model = here.model
    while not model.asked.total():
        await asyncio.sleep(0.05)
    report.per_second_before = await _rate(here, size.before)
    minutes, began = [], time.monotonic()
    model.refuses = refusal(429, "Rate limit reached")
    killed = False
    while (passed := time.monotonic() - began) < size.throttled + size.down:
        if passed >= size.throttled:
            model.refuses = refusal(503, "Loading model")
        if not killed and passed > size.throttled / 2:
            name, killed = next(iter(workers)), True
            workers[name].send_signal(signal.SIGKILL)
            await asyncio.to_thread(workers[name].wait)
            workers[name] = here.process("worker", "--name", f"{name}-again", "--slots", str(size.slots))
        start = model.refused
        await asyncio.sleep(min(60.0, size.throttled / 2, size.throttled + size.down - passed))
        minutes.append(model.refused - start)
    report.calls = model.refused
    report.calls_a_second = model.refused / (time.monotonic() - began)
    report.most_in_a_minute = max(minutes[1:], default=0)
    report.sandboxes = len(await here.sandboxes.list_sandboxes())
    report.queued_in_outage = len((await queued(here.connection, "demo")).waiting)
    model.refuses, answered = None, model.asked.total()
    back = time.monotonic()
    while model.asked.total() == answered:
        await asyncio.sleep(0.05)
    report.first_answer = time.monotonic() - back
    await asyncio.sleep(max(WINDOW - report.first_answer, 0.0))
    report.per_second_in_window = await _rate(here, WINDOW)
    report.per_second_after = await _rate(here, size.after)


async def _rate(here: World, seconds: float) -> float:
    start, began = here.model.asked.total(), time.monotonic()
    await asyncio.sleep(seconds)
    return (here.model.asked.total() - start) / (time.monotonic() - began)


def main() -> None:
    """Run it and print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, kind, default in (
        ("rollouts", int, 5000),
        ("throttled", float, 1200.0),
        ("down", float, 600.0),
        ("after", float, 120.0),
        ("workers", int, 2),
        ("slots", int, 4),
    ):
        parser.add_argument(f"--{name}", type=kind, default=default)
    size = msgspec.convert(vars(parser.parse_args()), Size)
    with tempfile.TemporaryDirectory() as place:
        report = asyncio.run(run(Path(place), size))
    print(msgspec.json.format(msgspec.json.encode(report)).decode())  # noqa: T201


if __name__ == "__main__":
    main()
