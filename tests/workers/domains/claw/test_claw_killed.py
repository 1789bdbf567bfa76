"""Sixty assistants while workers and sandboxes are killed: one outcome each, and the log of one attempt."""

import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from orchard.injector.errors import SandboxError
from orchard.schemas.campaigns import Timeouts
from orchard.schemas.claw import ClawBundle
from orchard.schemas.events import RolloutFinished, payload
from orchard.streams.server import EmbeddedServer
from orchard.workers.attempts import retries
from orchard.workers.domains.claw.engine import Services
from tests.attempts_world import QUICK_RETRIES, World, seed_of, world
from tests.claw_world import Assistant, desk, desk_task
from tests.killing import survived
from tests.sandbox_service import LocalService

EPISODES, KILLS = 60, 15
SECONDS = 1500.0
FAULTY = {"error_rate": 0.2}


@pytest.fixture
async def place(
    nats_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    monkeypatch.setattr(retries, "ROLLOUTS", QUICK_RETRIES)
    monkeypatch.setenv("ORCHARD_WORKER__SLOTS", "3")  # worlds share a process, and end with it
    service = LocalService(tmp_path / "state")
    try:
        async with (
            world(nats_server.url, service.url, tmp_path / "store", ()) as made,
            Assistant().served() as model,
        ):
            made.model = model
            yield made
    finally:
        service.stop()


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_sixty_assistants_survive_fifteen_kills(place: World) -> None:
    rollouts = await place.submit(
        desk_task(**FAULTY), samples=EPISODES, harnesses=("claw-react",), timeouts=Timeouts(), max_tries=50
    )

    async def end_sandbox(chance: random.Random) -> bool:
        sandboxes = await place.sandboxes.list_sandboxes({"purpose": "rollout"})
        if sandboxes:
            with suppress(SandboxError):  # it went by itself meanwhile
                await place.sandboxes.delete_sandbox(chance.choice(sandboxes).sandbox_id)
        return bool(sandboxes)

    order = ["worker" if number % 2 == 0 else "sandbox" for number in range(KILLS)]
    outcomes, killed = await survived(place, rollouts, order, {"sandbox": end_sandbox}, seconds=SECONDS)
    assert killed.total() == KILLS and killed["worker"] >= 8, killed
    assert Counter(type(payload(event)) for event in outcomes.values()) == {RolloutFinished: EPISODES}
    assert await place.rows("select rollout_id from rollouts group by 1 having count(*) > 1") == []
    assert await place.rows("select holds from conservation") == [(True,)]
    [(abandoned,)] = await place.rows("select count(*) from service_calls_all where abandoned")
    assert abandoned > 0, "no kill came between a call and its attempt's end"
    for rollout, event in outcomes.items():
        data = payload(event)
        assert isinstance(data, RolloutFinished)
        await _is_of_one_attempt(place, rollout, event.attempt, data)


async def _is_of_one_attempt(place: World, rollout: str, attempt: int | None, data: RolloutFinished) -> None:
    """Bundle, table and world agree: what the accepted attempt logged is all that happened in its world."""
    text = data.submission
    if data.submission_blob is not None:
        text = place.blobs.get(data.submission_blob).decode()
    bundle = msgspec.json.decode(text, type=ClawBundle)
    assert [entry.sequence for entry in bundle.audit] == list(range(1, len(bundle.audit) + 1))
    rows = await place.rows(
        "select attempt, number, tool, status, injected from service_calls "
        f"where rollout_id = '{rollout}' order by number"
    )
    assert rows == [
        (attempt, entry.sequence, entry.tool, entry.status, entry.injected) for entry in bundle.audit
    ]
    services = Services(desk(**FAULTY), seed_of(rollout))
    assert [services.call(entry.tool, entry.arguments).entry for entry in bundle.audit] == [*bundle.audit]
    assert services.state() == bundle.state
    sent = [each for each in bundle.state["mail"]["messages"] if each["folder"] == "sent"]
    done = [entry for entry in bundle.audit if entry.tool == "mail_send_message" and not entry.failed]
    assert len(sent) == len(done) <= 1
    assert (data.reward == 1.0) == (len(sent) == 1)
