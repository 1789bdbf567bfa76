"""The closed loop of queue, KEDA and workers: a real server's queue and monitoring port, simulated time.

A step is one poll of the scaler. Requests are published, claimed and acknowledged for real; the only models
are KEDA, which is `tests/infra/scaling.py`, and a worker's Pod: it takes a step to start, its slots claim one
request after the other and work on each for some steps. A worker's own `WorkerLifetime` decides when it stops
claiming, by the loop's clock: all slots together.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import msgspec
import pytest

from orchard.schemas.queues import Queue
from orchard.streams import names
from orchard.streams.claims import Claim, Claims
from orchard.streams.connection import Connection, connect
from orchard.streams.consumer import WorkerLifetime
from orchard.streams.publisher import Publisher
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from tests.entries import named
from tests.infra.scaling import Strategy, Trigger, jobs_to_create, lag

QUEUE = Queue()
IDLE_STEPS = 2
START_STEPS = 1
LONG = 25
"""Steps that a straggler takes."""
BURSTS = {0: 12, 1: 1, 9: 3, 30: 5, 32: 5}
"""Requests that come at a step: more than Pods may be, some into the midst of it, and again after a pause."""


@dataclass
class Pod:
    """One worker: what its slots work on until when, and how it went."""

    ready: int
    lifetime: WorkerLifetime
    work: list[tuple[int, Claim, ExitStack]] = field(default_factory=list)
    claimed: int = 0


@dataclass
class Loop:
    """The queue, the scaler's view of it, and the Pods."""

    publisher: Publisher
    claims: Claims
    http: aiohttp.ClientSession
    trigger: Trigger
    bursts: Mapping[int, int]
    strategy: Strategy = "default"
    max_replicas: int = 8
    stragglers: int = 0
    """Of the first requests, so many take LONG steps."""
    age: float = 0.0
    """Steps after which a worker claims nothing more."""
    now: int = 0
    pods: list[Pod] = field(default_factory=list)
    ended: list[Pod] = field(default_factory=list)
    published: dict[str, int] = field(default_factory=dict)
    waited: dict[str, int] = field(default_factory=dict)
    """Steps between publication and claim of each request."""
    done: int = 0
    peak: int = 0
    surplus: int = 0
    """Slots created though each open request had one already, but for those of the last Pod."""

    async def step(self, now: int) -> None:
        """Publish, poll, scale, work."""
        self.now = now
        for _ in range(self.bursts.get(now, 0)):
            name = f"r{len(self.published)}"
            self.published[name] = now
            await self.publisher.offer(named(QUEUE, name, name.encode()))
        open_requests = await self.poll()
        created = jobs_to_create(
            open_requests,
            trigger=self.trigger,
            running=len(self.pods),
            pending=sum(now < pod.ready for pod in self.pods),
            max_replicas=self.max_replicas,
            strategy=self.strategy,
        )
        needed = -(-open_requests // self.slots)
        self.surplus += min(created, max(0, len(self.pods) + created - needed))
        for _ in range(created):
            lifetime = WorkerLifetime(idle=IDLE_STEPS, age=self.age, now=lambda: float(self.now))
            self.pods.append(Pod(ready=now + START_STEPS, lifetime=lifetime))
        self.peak = max(self.peak, len(self.pods))
        for pod in [pod for pod in self.pods if now >= pod.ready]:
            await self.work(pod, now)

    @property
    def slots(self) -> int:
        """Of each worker: as many as a Job stands for."""
        return self.trigger.lag_threshold

    async def poll(self) -> int:
        """The scaler's request; waits until the server shows what was published and acknowledged."""
        async with asyncio.timeout(20):
            while True:
                async with self.http.get(self.trigger.url) as reply:
                    seen = lag(await reply.read(), self.trigger)
                if seen == len(self.published) - self.done:
                    return seen
                await asyncio.sleep(0.01)

    def steps_of(self, request: int) -> int:
        """How long a request takes."""
        return LONG if request < self.stragglers else 2 + request % 4

    async def work(self, pod: Pod, now: int) -> None:
        """One Pod's step: finish what is done, claim for each free slot, end."""
        for entry in [entry for entry in pod.work if now >= entry[0]]:
            pod.work.remove(entry)
            await entry[1].complete()
            entry[2].close()
            self.done += 1
        while len(pod.work) < self.slots and pod.lifetime.go_on() and len(self.waited) < len(self.published):
            claim = await self.claims.next(timeout=20)
            assert claim is not None, "a request waits and no worker gets it"
            name = claim.body.decode()
            self.waited[name] = now - self.published[name]
            busy = ExitStack()
            busy.enter_context(pod.lifetime.at_work())
            pod.work.append((now + self.steps_of(int(name[1:])), claim, busy))
            pod.claimed += 1
        if not pod.work and not pod.lifetime.go_on():
            self.pods.remove(pod)
            self.ended.append(pod)

    @property
    def empty_handed(self) -> int:
        """Pods that ended without ever having had a request."""
        return sum(pod.claimed == 0 for pod in self.ended)

    def longest_wait(self, first: int, last: int) -> int:
        """Steps until the last of the requests that came at these steps was claimed."""
        return max(self.waited[name] for name, step in self.published.items() if first <= step <= last)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    async with EmbeddedServer(tmp_path / "nats", monitoring=True) as server:
        yield server


@pytest.fixture
async def connection(server: EmbeddedServer) -> AsyncIterator[Connection]:
    settings = NatsSettings()
    async with connect(settings, name="scaler", url=server.url) as connection:
        await declare(connection, settings, [QUEUE])
        yield connection


@pytest.fixture
async def loop(server: EmbeddedServer, connection: Connection) -> AsyncIterator[Loop]:
    """A loop of workers of one slot each, not begun."""
    trigger = Trigger(
        endpoint=f"127.0.0.1:{server.monitoring_port}",
        account="$G",
        stream=names.WORK,
        consumer=QUEUE.consumer,
        lag_threshold=1,
    )
    async with aiohttp.ClientSession() as http, Claims(connection, QUEUE) as claims:
        yield Loop(Publisher(connection), claims, http, trigger, BURSTS)


def with_slots(loop: Loop, slots: int) -> None:
    loop.trigger = msgspec.structs.replace(loop.trigger, lag_threshold=slots)


async def run(loop: Loop, steps: int = 60) -> None:
    for now in range(steps):
        await loop.step(now)
    assert loop.done == len(loop.published), "every request was worked on"
    assert await loop.poll() == 0, "nothing is left of the queue"


async def test_workers_of_one_slot_start_as_needed_and_come_down_to_zero(loop: Loop) -> None:
    await run(loop)

    assert loop.peak == loop.max_replicas, "the first burst takes all that may run"
    assert loop.surplus == 0, "no Pod that could not be of use"
    assert loop.empty_handed <= 1, "one may be overtaken: a worker that got free took its request"
    assert loop.pods == [], "down to zero"
    assert loop.longest_wait(2, 60) <= START_STEPS, "a worker for each as soon as its Pod has started"
    assert loop.longest_wait(0, 1) <= START_STEPS + 2 * 5, "the others wait for two before"


async def test_the_lag_of_a_team_is_its_own(connection: Connection, loop: Loop) -> None:
    """Beside thousands of another team, and with what is in work."""
    vision = Queue(team="vision")
    await declare(connection, connection.settings, [vision])
    entries = [named(QUEUE, f"other-{one}", b"") for one in range(2000)]
    await loop.publisher.offer_all([*entries, named(vision, "v1", b""), named(vision, "v2", b"")])
    async with Claims(connection, QUEUE, [vision]) as claims:
        claimed = [claim.queue for _ in range(2) if (claim := await claims.next(10.0))]
        assert claimed == [QUEUE, vision]
        trigger = msgspec.structs.replace(loop.trigger, consumer=vision.consumer)
        seen = -1
        async with asyncio.timeout(20):
            while seen != 2:  # the server shows it a moment later
                async with loop.http.get(trigger.url) as reply:
                    seen = lag(await reply.read(), trigger)


@pytest.mark.parametrize("slots", [4, 16])
async def test_nothing_starves_beside_stragglers(loop: Loop, slots: int) -> None:
    """As many long ones as there are workers, spread over them, and then more requests than they have slots:
    workers that had closed their idle slots would count in full and leave the new requests to wait."""
    with_slots(loop, slots)
    loop.stragglers, loop.bursts = slots + 2, {0: 3 * slots, 12: 4 * slots}
    await run(loop)

    assert loop.surplus == 0 and loop.pods == []
    assert loop.longest_wait(12, 12) <= START_STEPS, "stragglers keep no slot of the others closed"


async def test_old_workers_that_leave_are_replaced_by_new_ones(loop: Loop) -> None:
    with_slots(loop, 4)
    loop.age, loop.bursts = 10.0, dict.fromkeys(range(0, 40, 2), 4)
    await run(loop)

    assert len(loop.ended) >= 4, "workers came and went"
    assert loop.longest_wait(0, 60) <= START_STEPS + 5, (
        "at most until the last work of one that leaves has ended"
    )


@pytest.mark.parametrize("strategy", ["accurate", "eager"])
async def test_the_other_strategies_start_pods_that_find_nothing(loop: Loop, strategy: Strategy) -> None:
    loop.strategy = strategy
    await run(loop)

    assert loop.surplus >= 10
    assert loop.empty_handed >= 3
