"""Groups for a trainer that is not ours, over a real NATS server."""

import asyncio

import pytest

from orchard.pipelines.campaigns.commands import requested_event
from orchard.pipelines.rl.coordinator import RunError, begin
from orchard.pipelines.rl.external_trainer import ExternalTrainer
from orchard.pipelines.rl.sequences import sequences
from orchard.pipelines.rl.stepping import Limits
from orchard.schemas.events import payload
from orchard.schemas.groups import DropReason, GroupDropped, PolicyUpdated
from orchard.storage.blobs import BlobStore
from orchard.streams.publisher import Publisher
from orchard.streams.replay import replay
from tests.pipelines.rl.written_log import (
    assembled,
    conversation,
    finished,
    message,
    plan_of,
    run_settings,
    whole_group,
)

PLAN = plan_of(run_settings())


@pytest.fixture
async def make(connection, tmp_path):
    """Another process's view of the run each time."""
    blobs = BlobStore(str(tmp_path / "store"))
    start = await begin(connection, blobs, PLAN)

    def made(staleness=2, one_sequence=True):
        limits = Limits(staleness, 512, whole=True, one_sequence=one_sequence)
        return ExternalTrainer(PLAN, blobs, start, limits)

    return made


async def facts(connection, kind):
    found = [stored.event async for stored in replay(connection)]
    return [fact for event in found if event and isinstance(fact := payload(event), kind)]


def names(handed):
    return [group.group_id for group, _ in handed]


async def test_steps_take_groups_in_the_order_of_the_log_and_wait_for_them(connection, make):
    publisher, handing = Publisher(connection), make()
    await publisher.events([*whole_group(PLAN, 3), *whole_group(PLAN, 0), *whole_group(PLAN, 1)])
    first = await handing.step(connection, 0)
    assert names(first) == ["run.3", "run.0"]
    assert first[0][1] == [sequences(conversation(300 + slot)) for slot in range(2)]
    waiting = asyncio.create_task(handing.step(connection, 1))
    await publisher.events(whole_group(PLAN, 2))
    assert names(await asyncio.wait_for(waiting, 20)) == ["run.1", "run.2"]
    updates = await facts(connection, PolicyUpdated)
    assert [(update.version, update.groups) for update in updates] == [
        (1, ("run.3", "run.0")),
        (2, ("run.1", "run.2")),
    ]


async def test_a_trainer_that_goes_back_is_given_the_same_again(connection, make):
    await Publisher(connection).events([e for prompt in range(6) for e in whole_group(PLAN, prompt)])
    first = make()
    given = [await first.step(connection, number) for number in range(2)]
    assert await first.step(connection, 1) == given[1], "asked twice"
    again = make()
    assert await again.step(connection, 1) == given[1], "from a checkpoint after step 0"
    assert names(await again.step(connection, 2)) == ["run.4", "run.5"]
    assert len(await facts(connection, PolicyUpdated)) == 3


async def test_what_the_trainer_cannot_use_is_dropped_with_a_reason(connection, make):
    publisher = Publisher(connection)
    events = []
    for slot in range(2):  # a harness that rewrote history
        request = PLAN.request(0, slot)
        records = [*conversation(1 + slot), *conversation(50 + slot)]
        events += [requested_event(request), *(message(request, at, each) for at, each in enumerate(records))]
        events.append(finished(request, 1.0 - 2 * slot))
    events.append(assembled(PLAN, 0, [0, 1], [1.0, -1.0]))
    await publisher.events(events)
    await publisher.events([e for prompt in (1, 2, 3, 4) for e in whole_group(PLAN, prompt)])
    handing = make(staleness=0)
    assert names(await handing.step(connection, 0)) == ["run.1", "run.2"]
    waiting = asyncio.create_task(handing.step(connection, 1))
    await publisher.events([e for prompt in (5, 6) for e in whole_group(PLAN, prompt)])
    assert names(await asyncio.wait_for(waiting, 20)) == ["run.5", "run.6"]
    drops = {drop.group_id: drop for drop in await facts(connection, GroupDropped)}
    assert "rewrote history" in drops["run.0"].detail
    assert {name for name, drop in drops.items() if drop.reason is DropReason.STALE} == {"run.3", "run.4"}


async def test_a_step_beyond_the_plan_is_refused(connection, make):
    with pytest.raises(RunError, match="raise its `steps`"):
        await make().step(connection, 3)
