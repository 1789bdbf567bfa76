"""A cap on the cost of a campaign: whoever dies, it is paused once, told once, and goes on when raised."""

import asyncio
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from orchard.pipelines.campaigns.commands import CampaignError, Campaigns, OfferProgress
from orchard.pipelines.campaigns.spending import CostWatch, pause_reason
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import (
    CampaignRecord,
    CampaignSpec,
    CampaignState,
    ModelSpec,
    TaskRef,
    rollout_requests,
    spec_hash,
)
from orchard.schemas.events import CampaignStateChanged, Event, encode_event, make_event, payload
from orchard.schemas.llm_calls import ModelKind, Usage
from orchard.schemas.queues import Queue
from orchard.schemas.subjects import event_subject
from orchard.storage.blobs import BlobStore
from orchard.storage.campaigns import restore_campaigns
from orchard.storage.errors import StorageError
from orchard.storage.spending import Spent, dollars, spent_now
from orchard.streams import names
from orchard.streams.campaigns import CampaignBook, CampaignEntry, state_changed
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher
from orchard.streams.queued import queued
from orchard.streams.replay import replay
from orchard.streams.server import EmbeddedServer
from orchard.streams.topology import declare
from tests.trajectory_log import llm_call

SPEC = CampaignSpec(
    name="demo",
    tasks=(TaskRef(task_id="t", source="s", repo="a/b", blob=BlobRef(sha256="0" * 64, size=1)),),
    harnesses=("orchard-bash",),
    models=(ModelSpec(name="m"),),
    samples=4,
    max_cost_usd=1.0,
)
ROLLOUTS = [request.rollout_id for request in rollout_requests(SPEC)]
Write = Callable[[], Awaitable[str]]


def call(number: int, attempt: int = 1, rollout: str = ROLLOUTS[0], **facts: object) -> Event:
    """A model call of 0.25 USD."""
    return make_event(
        llm_call(number, **facts),
        id=f"{rollout}.{attempt}.{number:05d}",
        source="orchard/test",
        campaign="demo",
        rollout_id=rollout,
        attempt=attempt,
    )


async def everything(steps: AsyncIterator[OfferProgress]) -> OfferProgress:
    """The last step."""
    return [step async for step in steps][-1]


@pytest.fixture
async def campaigns(connection: Connection, tmp_path: Path) -> Campaigns:
    """With the campaign, all of it on the queue."""
    await declare(connection, connection.settings, [Queue()])
    campaigns = Campaigns(connection, BlobStore(str(tmp_path / "store")))
    await everything(campaigns.submit(SPEC))
    return campaigns


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "store")


async def record_of(connection: Connection) -> CampaignRecord:
    known = await CampaignBook(connection).get("demo")
    assert known is not None
    return known[0]


async def told(connection: Connection) -> list[CampaignStateChanged]:
    """What the log has of the campaign's states."""
    pattern = "orchard.events.demo.*.campaign.state_changed"
    return [payload(one.event) async for one in replay(connection, subjects=pattern) if one.event]


@pytest.mark.long
async def test_a_campaign_pauses_at_its_cap_and_goes_on_when_it_is_raised(
    connection: Connection, campaigns: Campaigns, committed: Write, store: str
) -> None:
    publisher = Publisher(connection)
    dead = [call(1), call(2)]
    await publisher.events(dead)
    watch = CostWatch(connection, store)
    await watch.look()
    await committed()
    await publisher.event(call(1, attempt=2))
    await watch.look()
    assert (await record_of(connection)).state is CampaignState.RUNNING

    await publisher.event(call(1, rollout=ROLLOUTS[1]))
    await CostWatch(connection, store).look()  # another steward, which has seen nothing yet

    record = await record_of(connection)
    assert record.state is CampaignState.PAUSED
    assert record.reason == "its model calls have cost 1.00 USD and its cap is 1.00 USD"
    for refused in (None, 0.5, 1.0):
        with pytest.raises(CampaignError, match=r"have cost 1\.00 USD and its cap .* --max-cost USD"):
            await everything(campaigns.resume("demo", max_cost_usd=refused))
    with pytest.raises(CampaignError, match="must be more than 0 USD"):
        await everything(campaigns.resume("demo", max_cost_usd=float("nan")))
    with pytest.raises(CampaignError, match=r"because its model calls .*orchard resume demo --max-cost USD"):
        await everything(campaigns.submit(SPEC))

    await connection.jetstream.purge_stream(names.WORK)  # as workers let go what is paused
    assert (await everything(campaigns.resume("demo", max_cost_usd=1.2))).offered == SPEC.samples
    await watch.look()
    assert (await record_of(connection)).state is CampaignState.RUNNING
    assert (await queued(connection, "demo")).waiting == set(ROLLOUTS)

    await publisher.event(call(2, rollout=ROLLOUTS[1]))
    await watch.look()
    assert (await record_of(connection)).state is CampaignState.PAUSED
    assert (await everything(campaigns.resume("demo", max_cost_usd=0))).done == SPEC.samples
    await watch.look()
    record = await record_of(connection)
    assert (record.state, record.reason, record.max_cost_usd) == (CampaignState.RUNNING, None, None)


@pytest.mark.long
@pytest.mark.usefixtures("campaigns")
async def test_a_steward_that_is_killed_between_the_pause_and_its_event_leaves_the_event_to_the_next(
    connection: Connection, store: str
) -> None:
    await Publisher(connection).events([call(number) for number in range(5)])
    program = str(Path(__file__).with_name("spending_process.py"))
    steward = await asyncio.create_subprocess_exec(sys.executable, program, store, connection.url)
    try:
        assert await asyncio.wait_for(steward.wait(), 60) == -signal.SIGKILL
    finally:
        if steward.returncode is None:
            steward.kill()
    known = await CampaignBook(connection).get("demo")
    assert known is not None and known[0].state is CampaignState.PAUSED
    assert await told(connection) == []

    watches = [CostWatch(connection, store) for _ in range(2)]
    await asyncio.gather(*(watch.look() for watch in watches))
    await asyncio.gather(*(watch.look() for watch in (*watches, CostWatch(connection, store))))

    [pause] = await told(connection)
    assert (pause.state, pause.revision, pause.max_cost_usd) == (CampaignState.PAUSED, known[1], 1.0)
    assert pause.reason == known[0].reason == "its model calls have cost 1.25 USD and its cap is 1.00 USD"


async def test_a_submission_to_a_capped_campaign_that_is_paused_for_a_wrong_key_does_not_name_the_cap(
    connection: Connection, campaigns: Campaigns
) -> None:
    known = await CampaignBook(connection).get("demo")
    assert known is not None and known[0].max_cost_usd is not None
    paused = msgspec.structs.replace(known[0], state=CampaignState.PAUSED, reason="5 rollouts were refused")
    await CampaignBook(connection).update("demo", paused, known[1])
    with pytest.raises(CampaignError, match=r"`orchard resume demo` continues it once that is mended"):
        await everything(campaigns.submit(SPEC))


@pytest.mark.usefixtures("campaigns")
async def test_a_pause_that_the_log_has_is_not_told_again_when_the_stream_has_forgotten_its_id(
    connection: Connection, store: str
) -> None:
    record = msgspec.structs.replace(await record_of(connection), state=CampaignState.PAUSED, reason="cost")
    known = await CampaignBook(connection).get("demo")
    assert known is not None
    entry = CampaignEntry("demo", record, await CampaignBook(connection).update("demo", record, known[1]))
    event = state_changed(entry, CampaignState.RUNNING, "test")
    await connection.jetstream.publish(event_subject(event), encode_event(event))

    await CostWatch(connection, store).look()

    assert [one.reason for one in await told(connection)] == ["cost"]


async def test_a_cap_holds_where_the_tables_cannot_be_read(
    connection: Connection, campaigns: Campaigns, committed: Write, store: str
) -> None:
    await Publisher(connection).events([call(number) for number in range(5)])
    for log in (Path(await committed()) / "tables").glob("*/_delta_log/*.json"):
        log.write_bytes(b"damaged")
    with pytest.raises(StorageError):
        await everything(campaigns.resume("demo"))

    await CostWatch(connection, store).look()

    assert (await record_of(connection)).state is CampaignState.PAUSED


@pytest.mark.usefixtures("campaigns")
async def test_a_call_counts_once_and_what_is_no_call_or_an_oracles_counts_nothing(
    connection: Connection, committed: Write, store: str
) -> None:
    again = call(1, cost_usd=0.6)
    for raw in (encode_event(again), encode_event(again), b"no event"):
        await connection.jetstream.publish(event_subject(again), raw)
    await Publisher(connection).event(call(3, cost_usd=None, model_kind=ModelKind.ORACLE))
    await committed()

    await CostWatch(connection, store).look()

    assert (await record_of(connection)).state is CampaignState.RUNNING
    found = await spent_now(connection, store, "demo")
    assert (found.usd, found.unpriced) == (0.6, 0)


@pytest.mark.long
@pytest.mark.parametrize("in_tables", [True, False])
async def test_a_call_without_a_known_cost_pauses_a_campaign_with_a_cap_until_it_is_let_pass(
    connection: Connection, campaigns: Campaigns, committed: Write, store: str, in_tables: bool
) -> None:
    publisher, watch = Publisher(connection), CostWatch(connection, store)
    await publisher.events([call(1), call(2, cost_usd=None, usage=Usage())])
    if in_tables:
        await committed()
    await watch.look()
    record = await record_of(connection)
    assert record.state is CampaignState.PAUSED
    assert record.reason is not None and record.reason.startswith("1 of its model calls have no known cost")

    await everything(campaigns.resume("demo"))
    await watch.look()
    assert (await record_of(connection)).state is CampaignState.RUNNING

    await publisher.event(call(3, cost_usd=None))
    await watch.look()
    record = await record_of(connection)
    assert record.reason is not None and record.reason.startswith("2 of its model calls have no known cost")

    await everything(campaigns.resume("demo", max_cost_usd=0))
    await publisher.event(call(4, cost_usd=None))
    await watch.look()
    assert (await record_of(connection)).state is CampaignState.RUNNING


@pytest.mark.usefixtures("campaigns")
async def test_a_watch_that_saw_a_call_twice_asks_the_tables_before_it_pauses(
    connection: Connection, committed: Write, store: str
) -> None:
    watch = CostWatch(connection, store)
    await watch.look()
    again = call(1, cost_usd=0.6)
    for _ in range(2):
        await connection.jetstream.publish(event_subject(again), encode_event(again))
    await committed()

    await watch.look()

    assert (await record_of(connection)).state is CampaignState.RUNNING


async def test_a_record_that_was_lost_comes_back_from_the_log_with_its_cap_and_reason(
    connection: Connection, campaigns: Campaigns, committed: Write, store: str
) -> None:
    await everything(campaigns.resume("demo", max_cost_usd=2.0))
    await Publisher(connection).event(call(1, cost_usd=2.5))
    watch = CostWatch(connection, store)
    for _ in range(2):
        await watch.look()
    before = await record_of(connection)
    await committed()
    await connection.jetstream.purge_stream(names.CAMPAIGNS_STREAM)

    assert await restore_campaigns(store, connection) == ["demo"]

    after = await record_of(connection)
    assert (after.state, after.reason, after.max_cost_usd) == (CampaignState.PAUSED, before.reason, 2.0)


@pytest.mark.usefixtures("campaigns")
async def test_a_server_that_has_lost_the_tail_of_its_book_is_read_anew(
    nats_server: EmbeddedServer, connection: Connection, store: str
) -> None:
    """The sequences of what was lost are given again: no change would be seen until they are passed."""
    book = CampaignBook(connection)
    known = await book.get("demo")
    assert known is not None
    for number in range(5):
        await book.create(f"other-{number}", known[0])
    watch = CostWatch(connection, store)
    await watch.look()
    await nats_server.stop()
    [directory] = nats_server.store.glob(f"jetstream/*/streams/{names.CAMPAIGNS_STREAM}")
    shutil.rmtree(directory)
    await nats_server.start()
    await declare(connection, connection.settings, [Queue()])
    await book.create("demo", known[0])
    await Publisher(connection).events([call(number) for number in range(5)])

    await watch.look()

    assert (await record_of(connection)).state is CampaignState.PAUSED


async def test_two_slots_that_would_be_one_rollout_are_refused(campaigns: Campaigns) -> None:
    """The id of a rollout has the model's name and not its endpoint."""
    models = (ModelSpec(name="m"), ModelSpec(name="m", endpoint="other"))
    with pytest.raises(CampaignError, match="the model 'm' is in campaign 'other' twice"):
        await everything(campaigns.submit(msgspec.structs.replace(SPEC, name="other", models=models)))


def test_a_cap_is_a_part_of_the_plan_and_plans_without_one_keep_their_hash() -> None:
    without = msgspec.structs.replace(SPEC, max_cost_usd=None)
    assert "max_cost_usd" in msgspec.to_builtins(without)
    assert spec_hash(without) == "fdb60002e6c1e2ae02ddf79d79821d0d"
    assert spec_hash(SPEC) != spec_hash(without)
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="more than 0 USD"):
            msgspec.structs.replace(SPEC, max_cost_usd=wrong)


def test_a_cap_is_reached_when_as_much_is_spent() -> None:
    record = CampaignRecord(spec=SPEC.tasks[0].blob, spec_hash="h", size=1, max_cost_usd=0.01)
    assert not pause_reason(record, Spent(0.0099))
    assert pause_reason(record, Spent(0.01)) == "its model calls have cost 0.01 USD and its cap is 0.01 USD"
    assert not pause_reason(msgspec.structs.replace(record, max_cost_usd=None), Spent(1e9))
    assert [dollars(usd) for usd in (0, 0.00123456, 12345.678)] == [
        "0.00 USD",
        "0.001235 USD",
        "12,345.68 USD",
    ]
