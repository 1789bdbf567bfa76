"""Campaigns over a real server: whatever is done to one, each rollout is in one queue or has its end."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.campaigns import commands as module
from orchard.pipelines.campaigns.commands import Campaigns, OfferProgress
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import (
    CampaignSpec,
    CampaignState,
    ModelSpec,
    RolloutRequest,
    TaskRef,
    rollout_requests,
)
from orchard.schemas.events import RolloutAborted, RolloutStarted, make_event, payload
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.queues import Queue
from orchard.storage.blobs import BlobStore
from orchard.streams import consumer, names
from orchard.streams.campaigns import CampaignBook
from orchard.streams.claims import Claim, Claims
from orchard.streams.connection import Connection, Pending, connect
from orchard.streams.enqueue import Enqueued
from orchard.streams.entries import QueueEntry, after_attempt, rollout_entry
from orchard.streams.publisher import Publisher
from orchard.streams.queued import queued
from orchard.streams.reading import bounds, subjects
from orchard.streams.replay import replay
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.tasks import end
from orchard.streams.topology import declare
from orchard.workers.attempts import retries
from orchard.workers.attempts import worker as worker_module
from orchard.workers.attempts.queue_maintenance import maintain_queues
from orchard.workers.attempts.rollout import Attempt
from orchard.workers.failures import InfrastructureError
from tests.attempts_world import QUICK_RETRIES
from tests.pipelines.rl.working import one_worker

SPEC = CampaignSpec(
    name="demo",
    tasks=(TaskRef(task_id="t", source="s", repo="a/b", blob=BlobRef(sha256="0" * 64, size=1)),),
    harnesses=("orchard-bash",),
    models=(ModelSpec(name="m"),),
    samples=6,
    max_tries=2,
)
"""Its task is in no store, so every attempt fails at once."""
ROLLOUTS = [request.rollout_id for request in rollout_requests(SPEC)]


@pytest.fixture
async def connection(tmp_path: Path) -> AsyncIterator[Connection]:
    settings = NatsSettings(ack_wait=1.5, heartbeat=0.3)
    async with (
        EmbeddedServer(tmp_path / "nats") as server,
        connect(settings, name="test", url=server.url) as opened,
    ):
        await declare(opened, settings, [Queue()])
        yield opened


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(str(tmp_path / "store"))


@pytest.fixture
def campaigns(connection: Connection, blobs: BlobStore, monkeypatch: pytest.MonkeyPatch) -> Campaigns:
    monkeypatch.setattr(module, "BATCH", 2)
    monkeypatch.setattr(consumer, "CLAIM_WAIT_SECONDS", 0.2)
    monkeypatch.setattr(worker_module, "ROLLOUTS", QUICK_RETRIES)
    monkeypatch.setattr(retries, "ROLLOUTS", QUICK_RETRIES)
    return Campaigns(connection, blobs)


@asynccontextmanager
async def working(connection: Connection, blobs: BlobStore) -> AsyncIterator[None]:
    """A worker and the steward's housekeeping."""
    keeping = asyncio.create_task(maintain_queues(connection))
    async with (
        AsyncSandboxClient("http://127.0.0.1:9") as nowhere,
        one_worker(connection, nowhere, blobs, {}, slots=2),
    ):
        yield
    await end(keeping)


async def everything(steps: AsyncIterator[OfferProgress]) -> OfferProgress:
    """The last step."""
    last = [step async for step in steps]
    return last[-1]


async def claimed(claims: Claims) -> Claim:
    claim = await claims.next(10)
    assert claim is not None
    return claim


def request_in(claim: Claim) -> RolloutRequest:
    return msgspec.json.decode(claim.body, type=RolloutRequest)


async def history(connection: Connection, rollout: str) -> list[str]:
    """Types on the rollout's `done` subject, in order."""
    pattern = f"orchard.events.done.{rollout}"
    return [stored.event.type async for stored in replay(connection, subjects=pattern) if stored.event]


async def all_have(
    connection: Connection, wanted: list[str], rollouts: Sequence[str] = tuple(ROLLOUTS)
) -> None:
    """Wait until every rollout has this history."""
    async with asyncio.timeout(30):
        while True:
            found = [await history(connection, rollout) for rollout in rollouts]
            if all(one == wanted for one in found):
                return
            await asyncio.sleep(0.05)


def of_tasks(*ids: str) -> CampaignSpec:
    """The plan with these tasks."""
    return msgspec.structs.replace(
        SPEC, tasks=tuple(msgspec.structs.replace(SPEC.tasks[0], task_id=each) for each in ids)
    )


async def test_a_campaign_grows_by_tasks_and_offers_each_rollout_once(
    connection: Connection, blobs: BlobStore, campaigns: Campaigns
) -> None:
    """Killed in the middle it goes on; what has its end, is queued or runs is not offered again."""
    await everything(campaigns.grow(SPEC))
    async with working(connection, blobs):
        await all_have(connection, ["rollout.aborted"])
    grown = of_tasks("t", "u", "v")
    steps = campaigns.grow(grown)
    for _ in range(3):
        await anext(steps)
    await steps.aclose()

    assert (await everything(campaigns.grow(grown))).done == grown.size
    assert (await everything(campaigns.grow(grown))).offered == 0

    assert len((await queued(connection, "demo")).waiting) == grown.size - SPEC.size
    assert all([await history(connection, one) == ["rollout.aborted"] for one in ROLLOUTS])
    found = await CampaignBook(connection).get("demo")
    assert found is not None
    assert (found[0].offered, found[0].resumed, found[0].size) == (grown.size, None, grown.size)
    submitted = [
        stored.event.type
        async for stored in replay(connection)
        if stored.event and stored.event.type == "campaign.submitted"
    ]
    assert len(submitted) == 2


async def test_a_campaign_that_will_grow_says_to_how_many_rollouts(
    connection: Connection, campaigns: Campaigns
) -> None:
    """Also where only that changes: fewer tasks could be made than were wanted."""
    grown = of_tasks("t", "u")
    for spec, planned in ((SPEC, 30), (grown, 30), (grown, grown.size), (grown, None)):
        await everything(campaigns.grow(spec, planned=planned))
        found = await CampaignBook(connection).get("demo")
        assert found is not None
        assert (found[0].planned, found[0].whole) == (planned, planned or spec.size)


async def test_a_campaign_grows_by_nothing_but_tasks(campaigns: Campaigns) -> None:
    grown = of_tasks("t", "u")
    await everything(campaigns.grow(grown))
    for other in (
        SPEC,
        of_tasks("u", "t"),
        of_tasks("t", "x", "u"),
        msgspec.structs.replace(grown, samples=7),
    ):
        with pytest.raises(module.OtherPlan, match="exists with another plan"):
            await everything(campaigns.grow(other))
    with pytest.raises(module.CampaignError, match="twice"):
        await everything(campaigns.grow(of_tasks("t", "u", "t")))
    await campaigns.pause("demo")
    with pytest.raises(module.CampaignError, match="orchard resume demo"):
        await everything(campaigns.grow(of_tasks("t", "u", "v")))


async def test_a_retry_after_a_resume_is_another_request_than_the_one_before(
    connection: Connection, blobs: BlobStore, campaigns: Campaigns
) -> None:
    """Every rollout fails, aborts, is resumed, and fails again: the delayed stream has seen it all before."""
    async with working(connection, blobs):
        await everything(campaigns.submit(SPEC))
        await all_have(connection, ["rollout.aborted"])

        assert (await everything(campaigns.resume("demo"))).offered == SPEC.size

        await all_have(connection, ["rollout.aborted", "rollout.reopened", "rollout.aborted"])


async def test_a_reopened_rollout_that_a_worker_puts_off_at_once_was_offered(
    connection: Connection, blobs: BlobStore, campaigns: Campaigns, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(connection, blobs):
        await everything(campaigns.submit(SPEC))
        await all_have(connection, ["rollout.aborted"])
    offer = Publisher.offer_all
    async with Claims(connection, Queue()) as claims:

        async def and_put_off(self: Publisher, entries: Sequence[QueueEntry]) -> list[Enqueued]:
            placed = await offer(self, entries)
            for _ in placed:
                claim = await claimed(claims)
                await claim.retry_later(rollout_entry(request_in(claim), after_attempt(1)), 3600, "test")
            return placed

        monkeypatch.setattr(Publisher, "offer_all", and_put_off)
        assert (await everything(campaigns.resume("demo"))).offered == SPEC.size
    assert (await queued(connection, "demo")).delayed == set(ROLLOUTS)


async def test_pausing_and_resuming_again_and_again_leaves_one_request_for_each_open_rollout(
    connection: Connection, campaigns: Campaigns
) -> None:
    await everything(campaigns.submit(SPEC))
    async with Claims(connection, Queue()) as claims:
        running, delayed = await claimed(claims), await claimed(claims)
        again = rollout_entry(request_in(delayed), after_attempt(1))
        await delayed.retry_later(again, 3600, "test")

        for _ in range(2):
            await campaigns.pause("demo")
            assert (await everything(campaigns.resume("demo"))).offered == 0

        found = await queued(connection, "demo")
        assert (found.running, found.delayed) == (
            {request_in(running).rollout_id},
            {request_in(delayed).rollout_id},
        )
        assert found.waiting == set(ROLLOUTS) - found.running - found.delayed
        assert (await bounds(connection, names.WORK)).messages == SPEC.size - 1
        await running.complete()


async def test_a_paused_request_takes_no_attempt_and_resume_offers_what_is_on_no_queue(
    connection: Connection, blobs: BlobStore, campaigns: Campaigns
) -> None:
    await everything(campaigns.submit(SPEC))
    await campaigns.pause("demo")
    async with working(connection, blobs):
        async with asyncio.timeout(20):
            while (await bounds(connection, names.WORK)).messages:
                await asyncio.sleep(0.05)
    assert await Publisher(connection).starts(ROLLOUTS) == [None] * SPEC.size

    assert (await everything(campaigns.resume("demo"))).offered == SPEC.size

    async with Claims(connection, Queue()) as claims:
        claim = await claimed(claims)
        await claim.complete()
    assert (await bounds(connection, names.WORK)).messages == SPEC.size - 1


class RoundTrips:
    """Counts what a connection asks, and how many of these it asked one after the other's answer."""

    def __init__(self, connection: Connection) -> None:
        self.requests = self.longest = 0
        self._send = connection.send
        connection.send = self.send  # type: ignore[method-assign]

    async def send(self, *args: Any, **options: Any) -> Pending:
        self.requests += 1
        after = self.longest
        pending = await self._send(*args, **options)
        pending.future.add_done_callback(lambda _: self.answered(after + 1))
        return pending

    def answered(self, place: int) -> None:
        self.longest = max(self.longest, place)


async def test_between_a_claim_and_its_attempt_are_two_round_trips(
    connection: Connection, blobs: BlobStore, campaigns: Campaigns, monkeypatch: pytest.MonkeyPatch
) -> None:
    await everything(campaigns.submit(msgspec.structs.replace(SPEC, samples=1)))
    found = asyncio.get_running_loop().create_future()

    async def run(_: Attempt) -> None:
        found.set_result((counted.longest, counted.requests))
        raise InfrastructureError(AbortCause.INVALID_REQUEST, "enough")

    monkeypatch.setattr(Attempt, "run", run)
    async with connect(connection.settings, name="worker", url=connection.url) as own:
        counted = RoundTrips(own)
        async with (
            AsyncSandboxClient("http://127.0.0.1:9") as nowhere,
            one_worker(own, nowhere, blobs, {}, slots=1),
        ):
            assert await asyncio.wait_for(found, 20) == (2, 4)


async def test_a_resume_that_was_killed_goes_on_where_it_was_in_the_same_round(
    connection: Connection, campaigns: Campaigns
) -> None:
    await everything(campaigns.submit(SPEC))
    await campaigns.pause("demo")
    await connection.jetstream.purge_stream(names.WORK)
    steps = campaigns.resume("demo")
    while (await anext(steps)).done < 2:
        pass
    await steps.aclose()  # type: ignore[attr-defined]
    book = CampaignBook(connection)
    killed = await book.get("demo")

    last = await everything(campaigns.resume("demo"))

    over = await book.get("demo")
    assert killed is not None and over is not None
    assert (killed[0].resumed, killed[0].rounds) == (2, 1)
    assert (over[0].resumed, over[0].rounds) == (None, 1)
    assert last.offered == SPEC.size - 2
    assert (await bounds(connection, names.WORK)).messages == SPEC.size


async def test_a_worker_that_lets_a_request_go_while_the_campaign_is_resumed_offers_it_itself(
    connection: Connection, blobs: BlobStore, campaigns: Campaigns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resume looked while the request was claimed, and left it alone."""
    await everything(campaigns.submit(SPEC))
    await campaigns.pause("demo")
    complete = Claim.complete
    resumed = asyncio.Lock()

    async def resume_first(claim: Claim) -> None:
        async with resumed:
            book = CampaignBook(connection)
            known = await book.get("demo")
            if known is not None and known[0].state is CampaignState.PAUSED:
                await everything(campaigns.resume("demo"))
        await complete(claim)

    monkeypatch.setattr(Claim, "complete", resume_first)
    async with working(connection, blobs):
        await all_have(connection, ["rollout.aborted"])


async def test_cancel_ends_what_waits_and_leaves_what_runs_to_its_worker(
    connection: Connection, campaigns: Campaigns
) -> None:
    await everything(campaigns.submit(SPEC))
    async with Claims(connection, Queue()) as claims:
        running, delayed = await claimed(claims), await claimed(claims)
        again = rollout_entry(request_in(delayed), after_attempt(1))
        await delayed.retry_later(again, 3600, "test")

        assert (await everything(campaigns.cancel("demo"))).offered == SPEC.size - 1

        mine = request_in(running).rollout_id
        assert await subjects(connection, names.WORK, ">") == {running.subject: 1}
        assert (await bounds(connection, names.LATER)).messages == 0
        for rollout in ROLLOUTS:
            outcome = await Publisher(connection).outcome(rollout)
            if rollout == mine:
                assert outcome is None
            else:
                assert outcome is not None and outcome.event is not None
                data = payload(outcome.event)
                assert isinstance(data, RolloutAborted) and data.cause is AbortCause.CANCELLED
        await running.complete()


async def test_what_a_cancelled_rollout_has_cost_is_zero_only_if_no_attempt_began(
    connection: Connection, campaigns: Campaigns
) -> None:
    await everything(campaigns.submit(SPEC))
    publisher = Publisher(connection)
    begun, *others = ROLLOUTS
    started = RolloutStarted(worker="w", request_sequence=1, deliveries=1)
    await publisher.event(
        make_event(started, id="s", source="test", campaign="demo", rollout_id=begun, attempt=1)
    )

    await everything(campaigns.cancel("demo"))

    for rollout in ROLLOUTS:
        outcome = await publisher.outcome(rollout)
        assert outcome is not None and outcome.event is not None
        data = payload(outcome.event)
        assert isinstance(data, RolloutAborted)
        figures = {data.llm_calls, data.prompt_tokens, data.completion_tokens, data.cost_usd, data.seconds}
        assert figures == ({None} if rollout == begun else {0})
    await everything(campaigns.resume("demo"))
    await everything(campaigns.cancel("demo"))  # before an attempt of this round began
    outcome = await publisher.outcome(begun)
    assert outcome is not None and outcome.event is not None
    again = payload(outcome.event)
    assert isinstance(again, RolloutAborted) and again.cost_usd == 0.0 and others


async def test_a_cancel_that_was_killed_is_finished_by_another(
    connection: Connection, campaigns: Campaigns
) -> None:
    await everything(campaigns.submit(SPEC))
    steps = campaigns.cancel("demo")
    await anext(steps)
    await steps.aclose()  # type: ignore[attr-defined]
    assert (await bounds(connection, names.WORK)).messages == SPEC.size

    await everything(campaigns.cancel("demo"))

    assert (await bounds(connection, names.WORK)).messages == 0
    assert [await history(connection, rollout) for rollout in ROLLOUTS] == [["rollout.aborted"]] * SPEC.size


async def test_what_was_cancelled_comes_back_under_a_fence_of_its_own(
    connection: Connection, campaigns: Campaigns
) -> None:
    await everything(campaigns.submit(SPEC))
    await everything(campaigns.cancel("demo"))

    assert (await everything(campaigns.resume("demo"))).offered == SPEC.size

    found = await subjects(connection, names.WORK, ">")
    assert len(found) == SPEC.size
    assert not any(subject.endswith(".0") for subject in found)
