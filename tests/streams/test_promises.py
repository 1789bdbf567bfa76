"""The promises of the wire together: whatever dies, one outcome a rollout and every attempt visible."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from orchard.schemas.campaigns import RolloutRequest
from orchard.schemas.events import Event, RolloutStarted, make_event
from orchard.schemas.queues import Queue
from orchard.streams import names
from orchard.streams.claims import Claims
from orchard.streams.connection import Connection, connect
from orchard.streams.entries import FIRST, rollout_entry
from orchard.streams.errors import OutcomeRefused
from orchard.streams.publisher import Publisher
from orchard.streams.reading import bounds
from orchard.streams.replay import replay
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from orchard.workers.attempts.queue_maintenance import maintain_queues

pytestmark = pytest.mark.long

ROLLOUTS = 100
SLOTS = 6


async def test_a_server_killed_again_and_again_costs_no_rollout_and_no_attempt(
    server: EmbeddedServer,
    connection: Connection,
    settings: NatsSettings,
    queue: Queue,
    make_request: Callable[[int], RolloutRequest],
    make_terminal: Callable[..., Event],
    kill_server: Callable[[EmbeddedServer], Awaitable[None]],
) -> None:
    settings = msgspec.structs.replace(settings, max_deliver=20)
    await declare(connection, settings, [queue])
    publisher = Publisher(connection)
    requests = [make_request(sample) for sample in range(ROLLOUTS)]
    await publisher.offer_all([rollout_entry(one, FIRST) for one in requests])
    taken: Counter[tuple[str, int]] = Counter()
    done = 0

    async def work(claims: Claims) -> None:
        nonlocal done
        while (await bounds(connection, names.WORK)).messages:
            claim = await claims.next(1.0)
            if claim is None:
                continue
            rollout = msgspec.json.decode(claim.body, type=RolloutRequest).rollout_id
            data = RolloutStarted(worker="w", request_sequence=claim.sequence, deliveries=claim.deliveries)

            def started(number: int, rollout: str = rollout, data: RolloutStarted = data) -> Event:
                name = f"{rollout}.{number}.started"
                source = "orchard/test"
                return make_event(
                    data, id=name, source=source, campaign="demo", rollout_id=rollout, attempt=number
                )

            attempt = await publisher.start(rollout, claim.deliveries, started)
            taken[rollout, attempt] += 1
            try:
                await publisher.terminal(make_terminal(attempt, rollout))
            except OutcomeRefused as refused:
                assert refused.event is not None and refused.event.attempt != attempt
            await claim.complete()
            done += 1

    async def kill_often() -> None:
        for share in (0.2, 0.4, 0.6, 0.8):
            while done < share * ROLLOUTS:
                await asyncio.sleep(0.01)
            await kill_server(server)
            await server.start()

    async with connect(settings, name="worker", url=server.url) as other, Claims(other, queue) as claims:
        keeper = asyncio.create_task(maintain_queues(connection))
        await asyncio.gather(*(work(claims) for _ in range(SLOTS)), kill_often())
        keeper.cancel()

    events = [stored.event async for stored in replay(connection) if stored.event]
    outcomes = Counter(event.rollout_id for event in events if event.type == "rollout.aborted")
    started = Counter(
        (event.rollout_id, event.attempt) for event in events if event.type == "rollout.started"
    )
    assert outcomes == {one.rollout_id: 1 for one in requests}
    assert set(taken.values()) == {1}
    assert started == taken
