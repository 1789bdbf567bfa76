"""`make chaos`: faults of many kinds through a campaign, then proof that nothing was lost, doubled or false.

The faults are spaced by progress, not by time: one after every few outcomes. The same code, smaller, is a
test (tests/test_chaos.py).
"""

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from orchard.pipelines.campaigns.commands import Campaigns
from orchard.pipelines.tasks.registry import TaskRegistry
from orchard.schemas.campaigns import Budget, CampaignSpec, ModelSpec, TaskRef, Timeouts
from orchard.schemas.llm_calls import ModelKind
from orchard.storage.reader import open_tables
from orchard.streams.publisher import Publisher
from orchard.workers.attempts.deadletters import DeadLetters
from tests.chaos import checks
from tests.chaos.faults import Fault, chosen, small_disk
from tests.chaos.world import CAMPAIGN, World, pipeline, session_for
from tests.tiny_tasks import build_tiny_image, tiny_task

DEADLINE_SECONDS = 7200.0


@dataclass
class Report:
    """What a run did and what was found afterwards."""

    rollouts: int
    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    """By kind: those that hit something."""
    finished: int = 0
    attempts: int = 0
    endings: dict[str, int] = field(default_factory=dict)
    """Attempts by how they ended, as the view `attempts` tells it."""
    counts: Counter[str] = field(default_factory=Counter)
    """What the faults led to."""
    seconds: float = 0.0
    findings: list[str] = field(default_factory=list)
    """Promises that were broken."""


def spec_of(refs: list[TaskRef], rollouts: int) -> CampaignSpec:
    """The campaign: the oracle's usual mix over the tiny tasks."""
    return CampaignSpec(
        name=CAMPAIGN,
        tasks=tuple(refs),
        harnesses=("orchard-bash",),
        models=(ModelSpec(name="oracle", endpoint="oracle", kind=ModelKind.ORACLE),),
        samples=rollouts // len(refs),
        budget=Budget(steps=15, wall_seconds=600.0),
        timeouts=Timeouts(command=60.0, creation=60.0, grading=60.0, rollout=900.0),
        max_tries=10,
    )


class Injecting:
    """Injects the faults of a run, one after every few outcomes: each kind once, then by weight."""

    def __init__(self, world: World, kinds: Sequence[Fault], number: int, report: Report) -> None:
        self._world, self._kinds, self._number, self._report = world, kinds, number, report
        self._beside: set[asyncio.Task[None]] = set()
        self._drawn: set[str] = set()

    async def step(self) -> None:
        """The next fault, when it is due."""
        self._beside = {task for task in self._beside if not _is_over(task)}
        done = sum(self._report.faults.values()) + len(self._beside)
        settled = self._world.outcomes.settled
        if done >= self._number or settled * (self._number + 1) < (done + 1) * self._world.rollouts * 0.9:
            return
        new = [kind for kind in self._kinds if kind.name not in self._drawn] or self._kinds
        (fault,) = self._world.chance.choices(new, [kind.weight for kind in new])
        self._drawn.add(fault.name)
        if fault.beside:
            self._beside.add(asyncio.create_task(self._inject(fault)))
        else:
            await self._inject(fault)

    async def finish(self) -> None:
        """Wait for those that take long."""
        await asyncio.gather(*self._beside)

    async def _inject(self, fault: Fault) -> None:
        sys.stderr.write(f"{self._world.outcomes.settled}/{self._world.rollouts} {fault.name}\n")
        self._report.faults[fault.name] += await fault.inject(self._world)


def _is_over(task: "asyncio.Task[None]") -> bool:
    """Raises what it has raised."""
    if task.done():
        task.result()
    return task.done()


async def run(
    store: Path,
    *,
    rollouts: int,
    workers: int,
    slots: int,
    faults: int,
    kinds: Sequence[Fault],
    tasks: int,
    seed: int,
) -> Report:
    """The whole experiment; the report's `findings` are empty when every promise held."""
    report = Report(rollouts=rollouts, seed=seed)
    started = time.monotonic()
    async with small_disk(store, wanted=any(kind.name == "disk" for kind in kinds)):
        session = session_for(store)
        async with pipeline(store, workers, slots):
            async with session.sandboxes() as client:
                await build_tiny_image(client, tasks)
            async with session.connection("chaos", hold=True) as connection:
                registry = TaskRegistry(Publisher(connection), session.blobs)
                refs = await registry.register(tiny_task(number) for number in range(tasks))
                await session.committed(connection)  # the oracle reads tasks from the tables
                async for _ in Campaigns(connection, session.blobs).submit(spec_of(refs, rollouts)):
                    pass
            world = World(store, session, rollouts, random.Random(seed), report.counts)
            await _disturb(world, Injecting(world, kinds, faults, report), started, report)
            async with world.connected() as connection:
                await session.committed(connection)
                report.counts["dead letters"] = len(await DeadLetters(connection).list())
            async with session.sandboxes() as client:
                report.findings += await checks.no_sandboxes_left(client)
            code, said = await world.orchard("store", "check")
            report.findings += [f"store check: {said}"] if code else []
        report.finished = len(world.outcomes.finished)
        report.findings += checks.no_processes(store) + checks.no_leftovers(store)
        report.findings += checks.tables_hold(store, rollouts) + checks.no_false_rewards(store)
        report.findings += await checks.rebuilds_equal(session, store)
        code, said = await world.orchard("log", "archive", CAMPAIGN)
        report.findings += [f"log archive: {said}"] if code else []
        report.findings += await checks.archive_rebuilds_equal(session, store)
    _count(store, report)
    report.seconds = time.monotonic() - started
    return report


async def _disturb(world: World, injecting: Injecting, started: float, report: Report) -> None:
    """Until every rollout is finished; what infrastructure aborted is resumed."""
    await world.follow()
    while not world.over:
        world.check_follower()
        if time.monotonic() - started > DEADLINE_SECONDS:
            number = len(world.outcomes.finished)
            report.findings.append(f"only {number} of {world.rollouts} in {DEADLINE_SECONDS:g} s")
            break
        await injecting.step()
        if world.outcomes.aborted and world.outcomes.settled == world.rollouts:
            report.counts["aborted and resumed"] += len(world.outcomes.aborted)
            await world.resume()
        await asyncio.sleep(0.05)
    await injecting.finish()
    await world.unfollow()


def _count(store: Path, report: Report) -> None:
    """What the tables say of how it went."""
    queries = {
        "reconciled": "select count(*) from events where type = 'rollout.reconciled'",
        "reopened": "select count(*) from events where type = 'rollout.reopened'",
        "events lost": "select count(*) from events where type = 'event.lost'",
        "unreadable events": "select count(*) from events where type = 'unreadable'",
        "events": "select count(*) from events",
    }
    with open_tables(str(store)) as tables:
        for what, query in queries.items():
            report.counts[what] = tables.sql(query).fetchall()[0][0]
        report.endings = dict(tables.sql("select ending, count(*) from attempts group by 1").fetchall())
    report.attempts = sum(report.endings.values())


def main() -> None:
    """Full size from the command line; exit code 1 when a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=200)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--number", type=int, default=30, help="how many faults")
    parser.add_argument("--faults", default="all", help="kinds, with commas between: kill,stop,...")
    parser.add_argument("--tasks", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--event-streams", type=int, default=1, help="nats.event_streams")
    parser.add_argument("--store", type=Path, help="kept for a look afterwards; a temporary one otherwise")
    options = vars(parser.parse_args())
    store, number = options.pop("store"), options.pop("number")
    os.environ["ORCHARD_NATS__EVENT_STREAMS"] = str(options.pop("event_streams"))
    try:
        kinds = chosen(options.pop("faults"))
    except ValueError as error:
        parser.error(str(error))
    with tempfile.TemporaryDirectory(prefix="orchard-chaos-") as temporary:
        place = (store or Path(temporary) / "store").absolute()
        report = asyncio.run(run(place, faults=number, kinds=kinds, **options))
    sys.stdout.write(json.dumps(msgspec.to_builtins(report), indent=1) + "\n")
    sys.exit(1 if report.findings else 0)


if __name__ == "__main__":
    main()
