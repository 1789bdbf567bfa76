"""The closed loop of queue, KEDA and workers: a real server's queue and monitoring port, simulated time.

A step is one poll of the scaler. Requests are published, claimed and acknowledged for real; the only models
are KEDA, which is `tests/infra/scaling.py`, and a worker's Pod: it takes a step to start, claims one request
after the other, works on each for some steps, and ends after IDLE_STEPS without one.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from orchard.streams import names
from orchard.streams.claims import Claim, Claims
from orchard.streams.connection import Connection, connect
from orchard.streams.publisher import Publisher
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings, Queue
from orchard.streams.topology import declare
from tests.entries import named
from tests.infra.scaling import Strategy, Trigger, jobs_to_create, lag

QUEUE = Queue()
MAX_REPLICAS = 8
IDLE_STEPS = 2
START_STEPS = 1
STEPS = 60
BURSTS = {0: 12, 1: 1, 9: 3, 30: 5, 32: 5}
"""Requests that come at a step: more than Pods may be, some into the midst of it, and again after a pause."""


def work_steps(request: int) -> int:
    """How long a request takes."""
    return 2 + request % 4


@dataclass
class Pod:
    """One worker: what it works on until when, and how it went."""

    ready: int
    claim: Claim | None = None
    until: int = 0
    claimed: int = 0
    idle: int = 0


@dataclass
class Loop:
    """The queue, the scaler's view of it, and the Pods."""

    publisher: Publisher
    claims: Claims
    http: aiohttp.ClientSession
    trigger: Trigger
    strategy: Strategy
    pods: list[Pod] = field(default_factory=list)
    ended: list[Pod] = field(default_factory=list)
    published: dict[str, int] = field(default_factory=dict)
    waited: dict[str, int] = field(default_factory=dict)
    """Steps between publication and claim of each request."""
    done: int = 0
    peak: int = 0
    surplus: int = 0
    """Pods created though each open request had one already."""

    async def step(self, now: int) -> None:
        """Publish, poll, scale, work."""
        for _ in range(BURSTS.get(now, 0)):
            name = f"r{len(self.published)}"
            self.published[name] = now
            await self.publisher.offer(named(QUEUE, name, name.encode()))
        open_requests = await self.poll()
        created = jobs_to_create(
            open_requests,
            trigger=self.trigger,
            running=len(self.pods),
            pending=sum(now < pod.ready for pod in self.pods),
            max_replicas=MAX_REPLICAS,
            strategy=self.strategy,
        )
        self.surplus += min(created, max(0, len(self.pods) + created - open_requests))
        self.pods += [Pod(ready=now + START_STEPS) for _ in range(created)]
        self.peak = max(self.peak, len(self.pods))
        for pod in [pod for pod in self.pods if now >= pod.ready]:
            await self.work(pod, now)

    async def poll(self) -> int:
        """The scaler's request; waits until the server shows what was published and acknowledged."""
        async with asyncio.timeout(20):
            while True:
                async with self.http.get(self.trigger.url) as reply:
                    seen = lag(await reply.read(), self.trigger)
                if seen == len(self.published) - self.done:
                    return seen
                await asyncio.sleep(0.01)

    async def work(self, pod: Pod, now: int) -> None:
        """One Pod's step: finish, claim, or be idle."""
        if pod.claim is not None:
            if now < pod.until:
                return
            await pod.claim.complete()
            pod.claim = None
            self.done += 1
        if len(self.waited) == len(self.published):  # the queue is empty: a claim would wait in vain
            pod.idle += 1
            if pod.idle > IDLE_STEPS:
                self.pods.remove(pod)
                self.ended.append(pod)
            return
        claim = await self.claims.next(timeout=20)
        assert claim is not None, "a request waits and no worker gets it"
        name = claim.body.decode()
        self.waited[name] = now - self.published[name]
        pod.claim, pod.until, pod.idle = claim, now + work_steps(int(name[1:])), 0
        pod.claimed += 1

    @property
    def empty_handed(self) -> int:
        """Pods that ended without ever having had a request."""
        return sum(pod.claimed == 0 for pod in self.ended)


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
def trigger(server: EmbeddedServer) -> Trigger:
    return Trigger(
        endpoint=f"127.0.0.1:{server.monitoring_port}",
        account="$G",
        stream=names.WORK,
        consumer=QUEUE.consumer,
        lag_threshold=1,
    )


async def simulate(
    connection: Connection, trigger: Trigger, strategy: Strategy, steps: Sequence[int]
) -> Loop:
    """Run the loop over these steps."""
    async with aiohttp.ClientSession() as http, Claims(connection, QUEUE) as claims:
        loop = Loop(Publisher(connection), claims, http, trigger, strategy)
        for now in steps:
            await loop.step(now)
        assert await loop.poll() == 0, "nothing is left of the queue"
        return loop


async def test_the_default_strategy_starts_what_is_needed_and_comes_down_to_zero(
    connection: Connection, trigger: Trigger
) -> None:
    loop = await simulate(connection, trigger, "default", range(STEPS))

    assert loop.done == sum(BURSTS.values()), "every request was worked on"
    assert loop.peak == MAX_REPLICAS, "the first burst takes all that may run"
    assert loop.surplus == 0, "no Pod that could not be of use"
    assert loop.empty_handed <= 1, "one may be overtaken: a worker that got free took its request"
    assert loop.pods == [], "down to zero"


async def test_nothing_starves_while_pods_are_to_be_had(connection: Connection, trigger: Trigger) -> None:
    loop = await simulate(connection, trigger, "default", range(STEPS))

    later = [loop.waited[name] for name, step in loop.published.items() if step > 1]
    assert max(later) <= START_STEPS, "a worker for each as soon as its Pod has started"
    first = [loop.waited[name] for name, step in loop.published.items() if step <= 1]
    assert max(first) <= START_STEPS + 2 * max(map(work_steps, range(4))), "the others wait for two before"


@pytest.mark.parametrize("strategy", ["accurate", "eager"])
async def test_the_other_strategies_start_pods_that_find_nothing(
    connection: Connection, trigger: Trigger, strategy: Strategy
) -> None:
    loop = await simulate(connection, trigger, strategy, range(STEPS))

    assert loop.done == sum(BURSTS.values())
    assert loop.surplus >= 10
    assert loop.empty_handed >= 3
