"""Browsers of GUI tasks: memory of eight at once, first screenshot, steps, bytes of an episode (a script).

Eight attempts on the generated shop at once: the memory of all their processes, shared pages counted once
(goal: within 8 GiB). Then episodes one after the other, with a spare browser and without: seconds from the
claim to the first screenshot (goal with a spare one: p50 under 1 s), seconds for a step with its screenshot,
bytes of the screenshots of 30 steps. Prints one JSON line for each figure.
"""

import argparse
import asyncio
import json
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import psutil
import uvloop

from orchard.schemas.campaigns import Timeouts
from orchard.schemas.gui import GuiWorld, SiteSpec
from orchard.schemas.tasks import Task, WorldUse
from orchard.streams.server import embedded
from orchard.streams.settings import NatsSettings
from orchard.workers.domains.gui.sites.engine import open_site
from tests.attempts_world import World, world
from tests.gui_world import Call, Clicker, gui_task
from tests.sandbox_service import LocalService

AT_ONCE = 8
EPISODES = 8
STEPS = 30
PLAN: dict[str, Any] = {"harnesses": ("browser",), "timeouts": Timeouts()}
SHOP = SiteSpec(name="shop", seed=3, layout="top-cards", theme="plain")
DONE: list[Call] = [("done", {"response": "."})]
SHORT = [[("scroll", {"amount": 0.3})], DONE]
"""An episode of which the beginning is measured."""


def figure(name: str, value: float, unit: str, **more: Any) -> None:
    """Print one."""
    print(json.dumps({"name": name, "value": round(value, 3), "unit": unit, **more}), flush=True)  # noqa: T201


def shop_task(number: int) -> Task:
    """A task on the shop."""
    at = GuiWorld(start_url=f"http://{open_site(SHOP).host}/", site=SHOP)
    task = gui_task(number)
    return msgspec.structs.replace(task, world=WorldUse(kind="browser", settings=msgspec.to_builtins(at)))


def wandering(steps: int) -> list[list[Call]]:
    """Scrolls, clicks and hovers over the shop, then the end."""
    kinds: list[Call] = [
        ("scroll", {"amount": 0.4}),
        ("click", {"point_2d": [300, 400]}),
        ("hover", {"point_2d": [600, 300]}),
        ("go_back", {}),
    ]
    return [*([kinds[number % len(kinds)]] for number in range(steps - 1)), DONE]


def resident(service: LocalService) -> float:
    """GiB of all processes in the sandboxes, shared pages counted once."""
    total = 0
    for process in psutil.Process(service.agent_pid).children(recursive=True):
        try:
            if "chromium" in " ".join(process.cmdline()):
                total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total / 2**30


async def memory(here: World, service: LocalService, model: Clicker) -> None:
    """Eight browsers, all of which have done two steps and wait for the model."""
    waiting = asyncio.Barrier(AT_ONCE + 1)
    go_on = asyncio.Event()

    async def wait(_: int) -> None:
        await waiting.wait()
        await go_on.wait()

    model.steps, model.hooks = wandering(4), {3: wait}
    rollouts = await here.submit(*map(shop_task, range(AT_ONCE)), name="memory", **PLAN)
    async with here.working(slots=AT_ONCE):
        await waiting.wait()
        used = resident(service)
        go_on.set()
        await here.outcomes(*rollouts)
    model.hooks = {}
    figure("memory of 8 browsers", used, "GiB", goal=8)
    figure("memory of one browser", used / AT_ONCE, "GiB")


async def beginnings(here: World, model: Clicker, spare: int) -> None:
    """From the claim to the first screenshot in the log."""
    model.steps = SHORT
    name = "spare" if spare else "cold"
    async with here.working(spare_browsers=spare) as own:
        for number in range(EPISODES + 1):  # the first tells the pool what to keep
            while number and own.waiting < spare:
                await asyncio.sleep(0.05)
            rollouts = await here.submit(shop_task(100 + number), name=f"{name}-{number}", **PLAN)
            await here.outcomes(*rollouts)
    rows = await here.rows(
        "select epoch(min(m.time)) - epoch(min(r.started_at)) from rollouts r join messages_all m "
        f"using (rollout_id) where r.campaign like '{name}-%' and r.campaign <> '{name}-0' "
        "and m.images is not null group by rollout_id"
    )
    goal = {"goal": 1.0} if spare else {}
    with_spare = "with a spare browser" if spare else "without one"
    figure(f"first screenshot {with_spare}, p50", median(seconds for (seconds,) in rows), "s", **goal)


async def steps(here: World, model: Clicker) -> None:
    """One whole episode."""
    model.steps = wandering(STEPS)
    rollouts = await here.submit(shop_task(999), name="steps", **PLAN)
    async with here.working():
        await here.outcomes(*rollouts)
    [(seconds, turns)] = await here.rows(
        "select seconds_commands, turns from rollouts where campaign = 'steps'"
    )
    figure("a step with its screenshot", seconds / (turns - 1), "s")
    [(size, count)] = await here.rows(
        "select sum(i.size), count(*) from "
        "(select unnest(images) i from messages_all where campaign = 'steps')"
    )
    figure(f"screenshots of {turns} steps", size / 1e6, "MB", goal=2, screenshots=count)


async def main() -> None:
    """All figures."""
    with tempfile.TemporaryDirectory(prefix="bench-gui-") as place:
        service = LocalService(Path(place) / "state")
        try:
            async with (
                embedded(Path(place) / "nats", NatsSettings()) as server,
                world(server.url, service.url, Path(place) / "store", ()) as here,
                Clicker().served() as model,
            ):
                here.model = model
                await beginnings(here, model, 1)
                await beginnings(here, model, 0)
                await steps(here, model)
                await memory(here, service, model)
        finally:
            service.stop()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    uvloop.run(main())
