"""Sixty episodes while workers and browsers are killed: nothing lost or twice, no browser left behind."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from orchard.schemas.campaigns import Timeouts
from orchard.schemas.events import RolloutFinished, payload
from orchard.storage.blobs import BlobStore
from orchard.streams.server import EmbeddedServer
from orchard.workers.attempts import retries
from tests.attempts_world import QUICK_RETRIES, World, world
from tests.gui_world import Clicker, browser_processes, gui_task
from tests.killing import survived
from tests.sandbox_service import LocalService

EPISODES = 60
KILLS = 15
SECONDS = 1500.0
WHOLE = ("system", "user", "assistant", "tool", "assistant", "tool")
"""Messages of an episode: a click, and the end."""


@pytest.fixture
async def place(
    nats_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[World, LocalService]]:
    monkeypatch.setattr(retries, "ROLLOUTS", QUICK_RETRIES)
    service = LocalService(tmp_path / "state")
    try:
        async with (
            world(nats_server.url, service.url, tmp_path / "store", ()) as made,
            Clicker(
                steps=[[("click", {"point_2d": [500, 500]})], [("done", {"response": "."})]]
            ).served() as model,
        ):
            made.model = model
            yield made, service
    finally:
        service.stop()


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_sixty_episodes_survive_fifteen_kills(place: tuple[World, LocalService]) -> None:
    here, service = place
    tasks = [gui_task(number, site=True) for number in range(EPISODES)]
    rollouts = await here.submit(*tasks, harnesses=("browser",), timeouts=Timeouts(), max_tries=50)

    async def kill_browser(chance: random.Random) -> bool:
        browsers = browser_processes(service)
        if browsers:
            chance.choice(browsers).kill()
        return bool(browsers)

    order = ["worker" if number % 3 == 0 else "browser" for number in range(KILLS)]
    outcomes, killed = await survived(here, rollouts, order, {"browser": kill_browser}, seconds=SECONDS)
    assert killed.total() == KILLS and killed["browser"] >= 8, killed
    ended = {rollout: payload(event) for rollout, event in outcomes.items()}
    assert Counter(map(type, ended.values())) == {RolloutFinished: EPISODES}
    again = await here.rows("select rollout_id, count(*) from rollouts group by 1 having count(*) > 1")
    assert again == []
    said = await here.rows("select list(role order by sequence) from messages group by rollout_id")
    assert Counter(tuple(roles) for (roles,) in said) == {WHOLE: EPISODES}
    graded = await here.rows("select rollout_id, count(*), min(value) from rewards group by 1")
    assert sorted(graded) == sorted(
        (rollout, 1, getattr(end, "reward", None)) for rollout, end in ended.items()
    )
    shown = await here.rows("select distinct sha256, size from images")
    assert {len(BlobStore(here.store).read(sha256)) - size for sha256, size in shown} == {0}
    async with asyncio.timeout(60.0):  # those of killed workers go with their time to live
        while await here.sandboxes.list_sandboxes():
            await asyncio.sleep(0.2)
    assert browser_processes(service) == []
    agent = psutil.Process(service.agent_pid)
    left = [each for each in agent.children(recursive=True) if "chromium" in " ".join(each.cmdline())]
    assert left == []
    assert not list(service.state.rglob("orchard-browser")), "profiles go with their sandboxes"
    drivers = [each for each in psutil.process_iter(["cmdline", "environ"]) if _is_driver(each, here.store)]
    assert psutil.wait_procs(drivers, timeout=30.0)[1] == []


def _is_driver(process: psutil.Process, store: Path) -> bool:
    """A driver of Playwright that a worker of this store started."""
    line = " ".join(process.info["cmdline"] or [])
    own = (process.info["environ"] or {}).get("ORCHARD_STORE") == str(store)
    return own and "playwright" in line and "run-driver" in line
