"""A hundred rollouts of a program while all around it is killed: each has one outcome, nothing stays."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from orchard.injector.client import AsyncSandboxClient
from orchard.injector.errors import SandboxError
from orchard.schemas.campaigns import Timeouts
from orchard.schemas.events import RolloutFinished, payload
from orchard.schemas.outcomes import ExitStatus
from orchard.streams.server import EmbeddedServer
from tests.attempts_world import World, world
from tests.killing import Fault, survived
from tests.sandbox_service import LocalService
from tests.tiny_tasks import tiny_service, tiny_task
from tests.workers.harnesses.test_programs import FIX
from tests.workers.harnesses.tiny_program import install_tiny

ROLLOUTS, FAULTS, SECONDS = 100, 24, 1700.0
KILL = """\
for process in /proc/[0-9]*; do
  if grep -aqs '[b]in/tiny' $process/cmdline; then kill -9 ${process#/proc/}; fi
done
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalService]:
    place = tmp_path_factory.mktemp("killed")
    async with tiny_service(place / "state") as service, AsyncSandboxClient(service.url) as client:
        await install_tiny(client, place)
        yield service


@pytest.fixture
async def place(
    nats_server: EmbeddedServer, service: LocalService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    configuration = tmp_path / "orchard.toml"
    configuration.write_text('[plugins.harnesses]\ntiny = "tests.workers.harnesses.tiny_program:HARNESS"\n')
    monkeypatch.setenv("ORCHARD_CONFIG", str(configuration))
    monkeypatch.setenv("ORCHARD_WORKER__SLOTS", "3")
    monkeypatch.setenv("ORCHARD_ENDPOINTS__DEFAULT__MAX_TRIES", "2")
    async with world(nats_server.url, service.url, tmp_path / "store", ("true", FIX)) as made:
        yield made


async def _refused(_: int) -> None:
    raise RuntimeError("the endpoint is cut off")


def _faults(place: World) -> dict[str, Fault]:
    async def endpoint(_: random.Random) -> bool:
        place.model.hooks = {1: _refused, 2: _refused}
        await asyncio.sleep(2.0)
        place.model.hooks = {}
        return True

    async def sandbox(chance: random.Random, script: str = "") -> bool:
        there = await place.sandboxes.list_sandboxes({"purpose": "rollout"})
        if not there:
            return False
        victim = chance.choice(there).sandbox_id
        with suppress(SandboxError):  # it has gone meanwhile
            if script:
                await (await place.sandboxes.get_sandbox(victim)).exec(script)
            else:
                await place.sandboxes.delete_sandbox(victim)
        return True

    return {"endpoint": endpoint, "sandbox": sandbox, "program": partial(sandbox, script=KILL)}


@pytest.mark.slow
@pytest.mark.timeout(2000)
async def test_a_hundred_rollouts_of_a_program_survive_whatever_dies(
    place: World, service: LocalService
) -> None:
    rollouts = await place.submit(
        *(tiny_task(1),),
        samples=ROLLOUTS,
        harnesses=("tiny",),
        max_tries=30,
        timeouts=Timeouts(command=20.0, creation=60.0, grading=60.0, rollout=240.0),
    )
    order = random.Random(17).sample(["worker", "program", "sandbox", "endpoint"] * 6, FAULTS)
    outcomes, came = await survived(place, rollouts, order, _faults(place), seconds=SECONDS)
    assert came.total() == FAULTS and set(came) == set(order), came
    assert len(outcomes) == ROLLOUTS
    ended: Counter[ExitStatus] = Counter()
    for event in outcomes.values():
        data = payload(event)
        assert isinstance(data, RolloutFinished), data
        assert data.reward == (1.0 if "left + right" in data.submission else -1.0)
        assert data.reward == 1.0 or data.exit_status is ExitStatus.PROGRAM_FAILED
        ended[data.exit_status] += 1
    assert set(ended) <= {ExitStatus.FINISHED, ExitStatus.PROGRAM_FAILED}, ended
    twice = "select rollout_id from rollouts_all group by 1 having count(*) <> 1"
    assert await place.rows(twice) == []
    assert len(await place.rows("select rollout_id from rewards")) == ROLLOUTS
    async with asyncio.timeout(60.0):
        while await place.sandboxes.list_sandboxes():
            await asyncio.sleep(0.1)
    assert service.cgroups() == []
