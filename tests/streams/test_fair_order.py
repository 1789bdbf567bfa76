"""Whose request a free slot takes when several teams wait: by order, never by the clock."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import msgspec
import pytest

from orchard.schemas.queues import Queue
from orchard.streams import names
from orchard.streams.claims import Claim, Claims
from orchard.streams.connection import Connection
from orchard.streams.delayed import Delayed
from orchard.streams.fair_order import FairOrder
from orchard.streams.publisher import Publisher
from orchard.streams.settings import NatsSettings, TeamSettings
from orchard.streams.tasks import end
from orchard.streams.topology import declare
from tests.entries import named

TEAMS = {"big": TeamSettings(), "small": TeamSettings(), "few": TeamSettings(slots=2)}
BIG, SMALL, FEW = (Queue(team=team) for team in TEAMS)
QUEUES = [Queue(), BIG, SMALL, FEW]


def claimed_in_order(order: FairOrder[str], among: list[str], number: int, slots: int = 1) -> list[str]:
    """Teams of so many claims, each in the slot whose claim is the oldest."""
    found: list[str] = []
    for _ in range(number):
        if len(found) >= slots:
            order.release(found[-slots])
        found.append(order.take(among))
        order.claimed(found[-1])
    return found


def test_slots_are_divided_by_the_shares() -> None:
    order = FairOrder({"a": 3.0, "b": 1.0})
    assert Counter(claimed_in_order(order, ["a", "b"], 8, slots=8)) == {"a": 6, "b": 2}


def test_the_claims_of_one_slot_are_divided_by_the_shares() -> None:
    order = FairOrder({"a": 2.0, "b": 1.0})
    assert Counter(claimed_in_order(order, ["a", "b"], 30)) == {"a": 20, "b": 10}


def test_a_team_that_was_away_gets_no_credit_for_it() -> None:
    order = FairOrder({"a": 1.0, "b": 1.0})
    claimed_in_order(order, ["a"], 1000)
    order.release("a")
    assert Counter(claimed_in_order(order, ["a", "b"], 20)) == {"a": 10, "b": 10}


def test_who_has_fewer_slots_is_next_however_long_the_others_run() -> None:
    order = FairOrder({"a": 1.0, "b": 1.0})
    claimed_in_order(order, ["a"], 4, slots=4)
    assert [order.take(["a", "b"]) for _ in range(4)] == ["b"] * 4


@pytest.fixture
async def claims(connection: Connection, settings: NatsSettings) -> AsyncIterator[Claims]:
    await declare(connection, settings, QUEUES, TEAMS)
    async with Claims(connection, QUEUES[0], QUEUES[1:], TEAMS) as opened:
        yield opened


async def offer(connection: Connection, queue: Queue, number: int) -> None:
    entries = [named(queue, f"{queue.team or 'none'}-{one}", b"{}") for one in range(number)]
    await Publisher(connection).offer_all(entries)


async def claimed(claims: Claims) -> Claim:
    claim = await claims.next(10.0)
    assert claim is not None
    return claim


async def test_a_few_requests_begin_soon_behind_thousands_of_another_team(
    connection: Connection, claims: Claims
) -> None:
    await offer(connection, BIG, 10_000)
    slots = [await claimed(claims) for _ in range(8)]
    assert {claim.queue.team for claim in slots} == {"big"}
    await offer(connection, SMALL, 20)
    order = []
    for _ in range(44):
        done = slots.pop(0)
        await done.complete()
        slots.append(await claimed(claims))
        order.append(slots[-1].queue.team)
    assert order.count("small") == 20
    info = await connection.jetstream.consumer_info(names.WORK, SMALL.consumer)
    assert info.num_pending == 0, "what a scaler reads of a team is the team's own"
    await asyncio.gather(*(claim.complete() for claim in slots))


async def test_requests_of_no_team_have_their_turn(connection: Connection, claims: Claims) -> None:
    for queue in (BIG, SMALL, Queue()):
        await offer(connection, queue, 10)
    found = [await claimed(claims) for _ in range(9)]
    assert Counter(claim.queue.team for claim in found) == {"big": 3, "small": 3, "": 3}
    await asyncio.gather(*(claim.complete() for claim in found))


async def test_what_is_beyond_a_quota_waits_and_lets_others_pass(
    connection: Connection, claims: Claims
) -> None:
    await offer(connection, FEW, 5)
    open_ = [await claimed(claims) for _ in range(2)]
    assert await claims.next(1.0) is None
    await offer(connection, BIG, 1)
    other = await claimed(claims)
    assert other.queue == BIG
    await open_[0].complete()
    again = await claimed(claims)
    assert (again.queue, again.deliveries) == (FEW, 1), "waiting costs no delivery"
    await asyncio.gather(*(claim.complete() for claim in (open_[1], other, again)))


async def test_a_retry_comes_back_to_the_queue_of_its_team(connection: Connection, claims: Claims) -> None:
    await offer(connection, SMALL, 1)
    first = await claimed(claims)
    forwarding = asyncio.create_task(Delayed(connection).run())
    again = msgspec.structs.replace(named(SMALL, "small-0", b"{}"), name="again")
    await first.retry_later(again, 0.1, "a test")
    second = await claimed(claims)
    assert second.queue == SMALL
    await second.complete()
    await end(forwarding)


def test_a_team_is_a_part_of_the_queue_and_no_further_token() -> None:
    assert BIG.subject == "orchard.work.rollout.swe.normal:big"
    assert Queue.of_subject(f"{BIG.subject}.demo.ab.abcd.0") == BIG
    assert BIG.consumer == "rollout-swe-normal:big"
