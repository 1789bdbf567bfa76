"""Rollouts whose endpoint rests: real queues and sandboxes, a scripted model over HTTP, workers that are
killed."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web

from orchard.pipelines.campaigns.breaking import BREAKS_AT, Breaker
from orchard.schemas.campaigns import CampaignState, ModelSpec
from orchard.schemas.events import RolloutFinished, payload
from orchard.streams import names
from orchard.streams.campaigns import CampaignBook
from orchard.streams.endpoints import EndpointBook
from orchard.streams.queued import queued
from orchard.streams.reading import bounds
from orchard.streams.server import EmbeddedServer
from orchard.workers.llm import endpoint_rests, rest_policy
from orchard.workers.llm.settings import EndpointSettings
from tests.attempts_world import SECONDS, Script, World, seed_of, world
from tests.sandbox_service import LocalService
from tests.tiny_tasks import tiny_service, tiny_task

COMMANDS = ("ls arithmetic", "sed -i 's/left - right/left + right/' arithmetic/mod_1.py", "git diff --stat")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalService]:
    async with tiny_service(tmp_path_factory.mktemp("resting") / "state") as service:
        yield service


@pytest.fixture
async def place(nats_server: EmbeddedServer, service: LocalService, tmp_path: Path) -> AsyncIterator[World]:
    async with world(nats_server.url, service.url, tmp_path / "store", COMMANDS) as made:
        yield made


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "HELD_SECONDS": 0.5,
        "FIRST_PAUSE": 0.2,
        "LONGEST_PAUSE": 0.5,
        "GRACE_SECONDS": 0.5,
    }.items():
        monkeypatch.setattr(rest_policy, name, value)
    monkeypatch.setattr(endpoint_rests, "POLL_SECONDS", 0.2)


def says(status: int, text: str, **headers: str) -> Callable[[], web.Response]:
    return lambda: web.json_response({"error": {"message": text}}, status=status, headers=headers)


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(SECONDS):
        while not true():
            await asyncio.sleep(0.02)


async def asleep(place: World, campaign: str, count: int) -> None:
    """Wait until so many rollouts wait for an endpoint, and nothing runs."""
    async with asyncio.timeout(SECONDS):
        while True:
            found = await queued(place.connection, campaign)
            if len(found.delayed) == count and not found.running:
                return
            await asyncio.sleep(0.05)


@pytest.mark.long
@pytest.mark.usefixtures("quick")
async def test_an_outage_costs_no_rollout_no_try_and_no_answer(place: World) -> None:
    """Refused with 429, then with 503, in the middle of some rollouts and before others begin."""
    rollouts = await place.submit(tiny_task(1), samples=3, max_tries=1)

    async def break_down(_seed: int) -> None:
        place.model.refuses = says(429, "quota")

    async with place.working(slots=2, max_tries=2):
        place.model.hooks[3] = break_down
        await until(lambda: place.model.refuses)
        del place.model.hooks[3]
        await asleep(place, "demo", 3)
        assert await place.sandboxes.list_sandboxes() == []
        assert (await bounds(place.connection, names.WORK)).messages == 0
        place.model.refuses = says(503, "Loading model")
        refused = place.model.refused
        await until(lambda: place.model.refused >= refused + 3)  # asked on and on, by one
        place.model.refuses = None
        outcomes = await place.outcomes(*rollouts)
    ended = [payload(event) for event in outcomes.values()]
    assert all(isinstance(one, RolloutFinished) and one.resolved for one in ended)
    assert {(one.reason, one.cause) for one in await place.released()} <= {("resting", "llm_unavailable")}
    # What was answered before is not asked again: the hook let that answer through.
    assert {turn: count for turn, count in place.model.turns().items() if count != 3} == {}
    assert place.model.questions == 1


@pytest.mark.long
@pytest.mark.usefixtures("quick")
async def test_requests_of_other_endpoints_pass_those_that_wait(place: World) -> None:
    async with Script(COMMANDS).served() as down:
        down.refuses = says(429, "come back later", **{"Retry-After": "3600"})
        far = ModelSpec(name="script", endpoint="down")
        await place.submit(tiny_task(1), name="waits", samples=12, models=(far,))
        rollouts = await place.submit(tiny_task(1), name="runs", samples=2)
        async with place.working(slots=1, others={"down": EndpointSettings(base_url=down.url)}):
            outcomes = await place.outcomes(*rollouts)
            await asleep(place, "waits", 12)
            assert down.refused == 1
    assert {event.type for event in outcomes.values()} == {"rollout.finished"}
    assert [one.reason for one in await place.released("waits")] == ["resting"]


@pytest.mark.usefixtures("quick")
async def test_a_breaker_pauses_what_a_model_refuses_again_and_again_and_says_why(place: World) -> None:
    await place.submit(tiny_task(1), samples=BREAKS_AT + 4)
    place.model.refuses = says(404, "The model `script` does not exist")
    book, breaker = CampaignBook(place.connection), Breaker(place.connection)
    async with place.working(slots=1):
        async with asyncio.timeout(SECONDS):
            while (known := await book.get("demo")) and known[0].state is CampaignState.RUNNING:
                await breaker.look()
                await asyncio.sleep(0.02)
    assert known is not None and known[0].state is CampaignState.PAUSED
    assert "does not exist" in (known[0].reason or "") and "in a row" in (known[0].reason or "")
    await breaker.look()
    assert [one.refused.count for one in await EndpointBook(place.connection).refusals()] == [0]


@pytest.mark.slow
async def test_a_worker_that_is_killed_in_a_rest_loses_nothing(place: World) -> None:
    """The one that found the rest, and asks for all, while one rollout was in its middle."""
    rollouts = await place.submit(tiny_task(1), samples=4, max_tries=1)

    async def break_down(_seed: int) -> None:
        place.model.refuses = says(429, "wait", **{"Retry-After": "12"})

    async with place.kept():
        place.model.hooks[2] = break_down
        first = place.worker_process("first")
        await until(lambda: place.model.refused)
        del place.model.hooks[2]
        await asleep(place, "demo", 4)
        first.send_signal(signal.SIGKILL)
        first.wait()
        place.model.refuses = None
        second = place.worker_process("second")
        try:
            outcomes = await place.outcomes(*rollouts)
        finally:
            second.terminate()
            second.wait()
    assert {event.type for event in outcomes.values()} == {"rollout.finished"}
    asked = [place.model.turns(seed_of(one)) for one in rollouts]
    assert all(set(turns.values()) == {1} for turns in asked)
