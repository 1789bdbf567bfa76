"""The pipeline's tax: processor time of a campaign over that of a plain script that does the same work.

A running `orchard up` with its page plays a campaign of small repairs by the oracle. A plain script
(`plain_campaign`) then makes the same sandboxes through the same sandbox service, asks the same oracle, runs
the same commands and grades in the same way, without queue, log and page. Both alternate for some rounds.
Counted are whole process trees: for the campaign all of `up`, for the script it and the sandbox service; the
oracle, which stands in for a model, on neither side. Goal: 1.15. Prints one JSON line for each figure. Run as
`python -m tests.benchmarks.bench_tax`.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec
import psutil
import uvloop

from orchard.actions.session import Session
from orchard.configuration.config import load
from orchard.configuration.run_files import RunFiles, UpRecord
from orchard.pipelines.campaigns.commands import Campaigns
from orchard.pipelines.tasks.registry import TaskRegistry
from orchard.schemas.campaigns import CampaignSpec, ModelSpec, TaskRef, Timeouts, rollout_requests
from orchard.schemas.llm_calls import ModelKind
from orchard.storage.reader import open_tables
from orchard.streams.publisher import Publisher
from orchard.workers.harnesses.module_prompts import ModulePrompts
from tests.benchmarks.plain_campaign import COMMAND_SECONDS, GRADING_SECONDS, Played, Rollout, Services
from tests.tiny_tasks import build_tiny_image, tiny_task

GOAL = 1.15
MODEL = ModelSpec(name="oracle/resolves", endpoint="oracle", kind=ModelKind.ORACLE)
HARNESS = "orchard-bash"
_TICK = os.sysconf("SC_CLK_TCK")


class Times(NamedTuple):
    """Seconds of processor time of a process: its own, and of its ended children that it has waited for."""

    parent: int
    own: float
    children: float


def process_times() -> dict[int, Times]:
    """Of all processes, by id."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            user, system, ended_user, ended_system = (int(field) / _TICK for field in fields[11:15])
            found[int(entry.name)] = Times(int(fields[1]), user + system, ended_user + ended_system)
    return found


def tree(times: Mapping[int, Times], root: int) -> set[int]:
    """A process and its descendants."""
    children = defaultdict(list)
    for pid, each in times.items():
        children[each.parent].append(pid)
    found, waiting = set(), [root]
    while waiting:
        pid = waiting.pop()
        found.add(pid)
        waiting += children[pid]
    return found


def spent(before: Mapping[int, Times], after: Mapping[int, Times], root: int) -> tuple[float, float]:
    """Seconds that a process and its descendants took between two readings: those that lived at both, and
    the others."""
    lasting = [pid for pid in tree(after, root) if pid in before]
    own = sum(after[pid].own - before[pid].own for pid in lasting)
    ended = sum(after[pid].children - before[pid].children for pid in lasting)
    new = sum(after[pid].own + after[pid].children for pid in tree(after, root) if pid not in before)
    return own, ended + new


class Clock:
    """Processor seconds of parts of the pipeline since it was made."""

    def __init__(self, roots: Mapping[str, int]) -> None:
        self._roots = roots
        self._before = process_times()

    def read(self) -> dict[str, float]:
        after, parts = process_times(), {}
        for name, root in self._roots.items():
            own, ended = spent(self._before, after, root)
            part = name.partition("-")[0]
            parts[part] = parts.get(part, 0.0) + own + (0.0 if name == "agent" else ended)
            if name == "agent":
                parts["commands in sandboxes"] = ended
        return parts


def _apart(parts: Mapping[str, float]) -> dict[str, float]:
    """Parts with `up` on its own, whose children the others are."""
    return {**parts, "up": 2 * parts["up"] - sum(parts.values())}


class Script:
    """The plain script, a process that stays for all rounds."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    async def play(self, rollouts: list[Rollout]) -> Played:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(rollouts) + b"\n")
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("the plain script ended: read what it wrote above")
        return msgspec.json.decode(line, type=Played)


@asynccontextmanager
async def script(services: Services) -> AsyncIterator[Script]:
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "tests.benchmarks.plain_campaign"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(services) + b"\n")
    yield Script(process)
    process.stdin.close()
    await process.wait()


@asynccontextmanager
async def up(directory: Path, workers: int, slots: int) -> AsyncIterator[tuple[Session, UpRecord]]:
    """`orchard up` as a user starts it, with the default settings."""
    store, log = directory / "store", directory / "up.log"
    command = [sys.executable, "-m", "orchard", "--store", str(store), "up"]
    command += ["--workers", str(workers), "--slots", str(slots)]
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output)
    session = Session(load({"store": str(store)}))
    try:
        while (record := session.up()) is None or f"worker-{workers}" not in record.children:
            if process.returncode is not None:
                raise RuntimeError(f"orchard up ended: {log.read_text()[-1000:]}")
            await asyncio.sleep(0.1)
        yield session, record
    finally:
        process.send_signal(signal.SIGINT)
        await process.wait()


class Bench:
    """Both sides on one running pipeline."""

    def __init__(self, session: Session, record: UpRecord, workers: int, slots: int, samples: int) -> None:
        self._session, self._record = session, record
        self._at_once, self._samples = workers * slots, samples
        self._refs: list[TaskRef] = []

    async def prepare(self, tasks: int) -> None:
        """Makes the image and the tasks, and plays each task once: its question sheet is there then."""
        async with self._session.sandboxes() as client:
            await build_tiny_image(client, tasks)
        async with self._session.connection("bench") as connection:
            registry = TaskRegistry(Publisher(connection), self._session.blobs)
            self._refs = await registry.register(map(tiny_task, range(tasks)))
            await self._session.committed(connection)  # the oracle reads tasks from the tables
        await self.campaign("warm", samples=1)

    def spec(self, name: str, samples: int) -> CampaignSpec:
        return CampaignSpec(
            name=name,
            tasks=tuple(self._refs),
            harnesses=(HARNESS,),
            models=(MODEL,),
            samples=samples,
            timeouts=Timeouts(command=COMMAND_SECONDS, grading=GRADING_SECONDS),
        )

    def services(self) -> Services:
        """With what the script plays."""
        assert self._record.oracle_url is not None
        return Services(
            sandbox_url=self._record.sandbox_url,
            sandbox_key=RunFiles(self._session.directory).key.read_text(),
            model_url=self._record.oracle_url,
            model=MODEL.name,
            store=self._session.config.store,
            slots=self._at_once,
            environment=dict(ModulePrompts.environment),
        )

    def rollouts(self, name: str) -> list[Rollout]:
        """Those of a campaign, for the script."""
        tasks = {ref.task_id: tiny_task(number) for number, ref in enumerate(self._refs)}
        requests = rollout_requests(self.spec(name, self._samples))
        return [Rollout(tasks[each.task.task_id], int(each.rollout_id[:7], 16)) for each in requests]

    async def idle(self, seconds: float) -> None:
        """Prints what the parts take in a second without work: a campaign that lasts pays it too."""
        clock = Clock({**self._record.children, "up": self._record.pid})
        await asyncio.sleep(seconds)
        parts = _apart(clock.read())
        figure("idle pipeline, of a second", 1e3 * sum(parts.values()) / seconds, "ms")
        figure("idle writer, of a second", 1e3 * parts["writer"] / seconds, "ms")

    async def campaign(self, name: str, samples: int) -> tuple[Played, dict[str, float]]:
        """Plays a campaign until its events are in the tables; what came of it, and each part's seconds."""
        spec = self.spec(name, samples)
        children = {part: pid for part, pid in self._record.children.items() if part != "oracle"}
        clock, before = Clock({**children, "up": self._record.pid}), time.process_time()
        async with self._session.connection("bench") as connection:
            async for _ in Campaigns(connection, self._session.blobs).submit(spec):
                pass
            submitting = time.process_time() - before
            while (played := await asyncio.to_thread(self._played, name, spec.size)) is None:
                await asyncio.sleep(0.2)
            await self._session.committed(connection)
        return played, {**_apart(clock.read()), "submit": submitting}

    def _played(self, name: str, size: int) -> Played | None:
        """What came of a campaign, once it is over."""
        query = (
            "select resolved, turns, (select count(*) from messages m where m.rollout_id = r.rollout_id "
            f"and role = 'tool') from rollouts r where campaign = '{name}'"
        )
        with open_tables(self._session.config.store, views=query) as tables:
            rows = tables.sql(query).fetchall()
        if len(rows) < size:
            return None
        if not all(row[0] for row in rows):
            raise RuntimeError(f"not all rollouts of the campaign {name} were resolved: {rows}")
        return Played(*map(sum, zip(*rows, strict=True)))

    async def plain(self, script: Script, name: str) -> tuple[Played, dict[str, float]]:
        """The same by the script."""
        services = {part: self._record.children[part] for part in ("agent", "orchestrator")}
        rollouts = self.rollouts(name)
        clock = Clock({**services, "script": script.pid})
        return await script.play(rollouts), clock.read()


def figure(name: str, value: float, unit: str, ceiling: float | None = None) -> None:
    """One line of results."""
    beside = {} if ceiling is None else {"ceiling": ceiling, "ratio": value / ceiling}
    print(json.dumps({"name": name, "value": value, "unit": unit, **beside}), flush=True)  # noqa: T201


def tell(
    campaigns: list[dict[str, float]], plain: list[dict[str, float]], clock: list[float], rollouts: int
) -> None:
    """Prints all figures: medians over the rounds, for one rollout in milliseconds. `clock` has the seconds
    of each campaign by the wall clock."""

    def of_rollout(values: Iterable[float]) -> float:
        return 1e3 * median(values) / rollouts

    totals = [sum(each.values()) for each in campaigns], [sum(each.values()) for each in plain]
    ratio = median(one / other for one, other in zip(*totals, strict=True))
    figure("campaign over plain script", ratio, "", GOAL)
    figure("wall clock of a rollout", of_rollout(clock), "ms")
    figure("processor time of a rollout", of_rollout(totals[0]), "ms", of_rollout(totals[1]))
    for part in campaigns[0]:
        beside = of_rollout(each[part] for each in plain) if part in plain[0] else None
        figure(f"campaign: {part}", of_rollout(each[part] for each in campaigns), "ms", beside)
    figure("plain: script", of_rollout(each["script"] for each in plain), "ms")


async def measure(directory: Path, options: argparse.Namespace) -> None:
    """Alternates the rounds."""
    async with up(directory, options.workers, options.slots) as (session, record):
        bench = Bench(session, record, options.workers, options.slots, options.samples)
        await bench.prepare(options.tasks)
        await bench.idle(options.idle)
        campaigns, plain, clock = [], [], []
        async with script(bench.services()) as alone:
            await bench.plain(alone, "warm")
            for number in range(options.rounds):
                name = f"campaign-{number}"
                began = time.perf_counter()
                done, parts = await bench.campaign(name, options.samples)
                clock.append(time.perf_counter() - began)
                campaigns.append(parts)
                also_done, parts = await bench.plain(alone, name)
                plain.append(parts)
                if done != also_done:
                    raise RuntimeError(f"the campaign came to {done}, the script to {also_done}")
        tell(campaigns, plain, clock, options.tasks * options.samples)


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=10)
    parser.add_argument("--samples", type=int, default=6, help="rollouts of each task in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle", type=float, default=10.0, help="seconds that the pipeline is watched idle")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--slots", type=int, default=2, help="rollouts of a worker at the same time")
    options = parser.parse_args()
    figure("load of the machine before", psutil.getloadavg()[0], "processes")
    with tempfile.TemporaryDirectory() as directory:
        uvloop.run(measure(Path(directory), options))


if __name__ == "__main__":
    main()
