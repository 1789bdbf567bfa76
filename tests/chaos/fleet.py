"""`python -m tests.chaos.fleet`: a campaign of many short rollouts over three NATS servers, with kills.

The servers have the chart's configuration: a cluster, three replicas, TLS, the accounts of each role. Workers
come by KEDA's arithmetic (tests/infra/scaling.py) and go by their age, for want of work, and by SIGKILL. Each
rollout has a sandbox of its own, one answer of a model that answers at once, and a state check. At the end
SQL over the log says whether each request has exactly one outcome. With `--store` a run that ended goes on.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from nats.errors import Error as NatsError

from orchard.actions.session import Session
from orchard.configuration.config import load
from orchard.pipelines.campaigns.commands import Campaigns, OfferProgress
from orchard.pipelines.tasks.registry import TaskRegistry
from orchard.schemas.campaigns import Budget, CampaignSpec, ModelSpec, TaskRef, Timeouts
from orchard.schemas.queues import Queue
from orchard.schemas.tasks import StateCheck, Task
from orchard.streams import names
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher
from orchard.streams.topology import declare
from orchard.terminal.console import progress
from tests.attempts_world import Script
from tests.chaos import checks
from tests.chaos.fleet_processes import Processes
from tests.chaos.fleet_report import ABORTED, MIB, Report, Size, counted, finished_before, judge
from tests.chaos.world import CAMPAIGN
from tests.infra.cluster import Member, lag_of, members, url_of
from tests.infra.conftest import INFRA, Manifests
from tests.infra.scaling import ScalingError, Trigger, jobs_to_create
from tests.infra.test_chart import CHART, rendered
from tests.sandbox_service import LocalService

COMMAND = "echo done > /tmp/done && echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
TASKS = 10
QUEUE = Queue()
KILLED = ("worker", "nats", "worker", "writer", "worker", "nats", "worker", "steward")
"""One after the other, and again."""
LOOK_SECONDS = 2.0
IDLE_SECONDS = 30


def tasks() -> list[Task]:
    """Shell on the machine's own root, and a file to be made."""
    return [
        Task(
            task_id=f"touch-{number}",
            source="fleet",
            repo="tests/fleet",
            image="host",
            workdir="/tmp",
            statement=f"Write 'done' into /tmp/done (task {number}).",
            memory="64Mi",
            cpu="1",
            grading=StateCheck(files={}, command="test $(cat /tmp/done) = done", timeout_seconds=60.0),
        )
        for number in range(TASKS)
    ]


def spec_of(refs: list[TaskRef], rollouts: int) -> CampaignSpec:
    """The campaign."""
    return CampaignSpec(
        name=CAMPAIGN,
        tasks=tuple(refs),
        harnesses=("orchard-bash",),
        models=(ModelSpec(name="instant"),),
        samples=rollouts // len(refs),
        budget=Budget(steps=3),
        timeouts=Timeouts(command=600.0),  # where everything is slow, nothing is given up for it
        max_tries=10,
    )


class Fleet:
    """The processes, who scales them, and who kills them."""

    def __init__(self, place: Path, size: Size, report: Report, cluster: list[Member]) -> None:
        self.place = place
        self.size = size
        self.report = report
        self.cluster = cluster
        self.dice = random.Random(size.seed)
        self.processes = Processes(place / "logs")
        self.environment: dict[str, str] = {}
        self.waiting = size.rollouts
        """Requests that are on the queue, or in work, as the scaler last saw."""
        self.others: dict[str, int] = {"driver": os.getpid()}
        """Processes that are measured and not started here."""
        self._done, self._started = 0, 0
        """Rollouts that were done, and workers that were started, when a server was taken away."""

    @property
    def orchard(self) -> list[str]:
        """The command."""
        return [sys.executable, "-P", "-m", "orchard"]

    def settings_of(self, role: str) -> dict[str, str]:
        """The environment of a process of this role."""
        password = self.place / "secrets" / "orchard" / "nats-users" / role
        return self.environment | {"ORCHARD_NATS__USER": role, "NATS_PASSWORD": password.read_text()}

    async def start_services(self) -> None:
        """All but the workers."""
        for member in self.cluster:
            await self.processes.start(member.name, member.command, member.environment, keep=True)
        async with aiohttp.ClientSession() as http, asyncio.timeout(120):
            while not all([await member.healthy(http) for member in self.cluster]):
                await asyncio.sleep(0.2)
        for role in ("writer", "steward"):
            await self.processes.start(role, [*self.orchard, role], self.settings_of(role), keep=True)

    async def scale(self, trigger: Trigger, polling: float) -> None:
        """KEDA, until cancelled."""
        environment = self.settings_of("worker")
        async with aiohttp.ClientSession() as http:
            while True:
                with suppress(ScalingError):  # KEDA creates nothing then
                    self.waiting = await lag_of(http, self.cluster, trigger)
                    running = len(self.processes.named("worker"))
                    self.report.workers_at_once = max(self.report.workers_at_once, running)
                    for _ in range(
                        jobs_to_create(
                            self.waiting,
                            trigger=trigger,
                            running=running,
                            pending=0,
                            max_replicas=self.size.workers,
                        )
                    ):
                        self.report.workers_started += 1
                        name = f"worker-{self.report.workers_started}"
                        words = ["worker", "--slots", str(self.size.slots), "--name", f"{name}-{os.getpid()}"]
                        words += ["--idle-exit", str(IDLE_SECONDS), "--max-age", str(self.size.max_age)]
                        await self.processes.start(name, [*self.orchard, *words], environment)
                await asyncio.sleep(polling)

    async def look(self) -> None:
        """Measure, until cancelled."""
        while True:
            self.processes.look(self.others)
            await asyncio.sleep(LOOK_SECONDS)

    def kill(self) -> None:
        """SIGKILL the next process."""
        kind = KILLED[self.report.kills.total() % len(KILLED)]
        if found := self.processes.named(kind):
            self.processes.kill(self.dice.choice(sorted(found)))
            self.report.kills[kind] += 1

    def take_away(self, done: int) -> None:
        """SIGKILL one NATS server, which comes back after the time asked for; later calls count what is done
        without it."""
        report = self.report
        if not report.away:
            report.away = self.dice.choice(sorted(self.processes.named("nats")))
            self._done, self._started = done, report.workers_started
            self.processes.kill(report.away, self.size.away * 60)
        elif not self.processes.runs(report.away):
            report.done_while_away = done - self._done
            report.started_while_away = report.workers_started - self._started


async def carry_out(fleet: Fleet, session: Session, trigger: Trigger, polling: float) -> None:
    """The campaign with its kills, until every rollout is finished and no worker runs."""
    size, report = fleet.size, fleet.report
    started = time.monotonic()
    async with session.connection("fleet", hold=True) as connection, _beside(fleet.scale(trigger, polling)):
        await declare(
            connection, session.config.nats, [QUEUE]
        )  # the writer, which does it too, is still starting
        refs = await TaskRegistry(Publisher(connection), session.blobs).register(tasks())
        campaigns = Campaigns(connection, session.blobs)
        walk = Walk(size, fleet)
        try:
            async with asyncio.timeout(size.minutes and size.minutes * 60):
                await walk.through(campaigns.submit(spec_of(refs, size.rollouts)), connection)
                await session.committed(connection)
                while aborted := counted(session.config.store, ABORTED):
                    report.resumed += aborted
                    await walk.through(campaigns.resume(CAMPAIGN), connection)
                    await session.committed(connection)
        except TimeoutError:
            await walk.through(campaigns.cancel(CAMPAIGN), connection)
        report.seconds = round(time.monotonic() - started, 1)
        while fleet.processes.named("worker"):  # down to none, for want of work
            await asyncio.sleep(LOOK_SECONDS)
        await session.committed(connection)


class Walk:
    """Follows a campaign while it is submitted and worked on, and kills by its progress."""

    def __init__(self, size: Size, fleet: Fleet) -> None:
        self._size = size
        self._fleet = fleet
        self._killed = 0
        self._offered = 0

    async def through(self, offering: AsyncIterator[OfferProgress], connection: Connection) -> None:
        """Until all that is offered is done."""
        size = self._size
        with progress("rollouts") as bar, ExitStack() as stack:
            submitting = asyncio.create_task(self._submit(offering))
            stack.callback(submitting.cancel)
            shown = bar.add_task("fleet", total=size.rollouts)
            while True:
                if over := submitting.done():
                    submitting.result()
                with suppress(NatsError):  # a server was killed
                    open_now = await left(connection)
                    done = self._offered - open_now
                    bar.update(shown, completed=done)
                    if over and not open_now:
                        return
                    due = done * (size.kills + 1) // size.rollouts
                    if self._killed < min(due, size.kills):
                        self._killed += 1
                        self._fleet.kill()
                    if size.away and 2 * done >= size.rollouts:
                        self._fleet.take_away(done)
                await asyncio.sleep(LOOK_SECONDS)

    async def _submit(self, offering: AsyncIterator[OfferProgress]) -> None:
        async for step in offering:
            self._offered = step.done


async def left(connection: Connection) -> int:
    """Requests on the queue, in work or delayed."""
    streams = [await connection.jetstream.stream_info(stream) for stream in (names.LATER, names.WORK)]
    return sum(info.state.messages for info in streams)


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs something for ever; what it raises is raised at the end."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def run(place: Path, nats: Path, size: Size) -> Report:
    """One run; whatever is found is in the report, and nothing is raised for it."""
    report = Report(size)
    values = (
        "--values",
        str(CHART / "values-cloud.yaml"),
        "--set",
        f"nats.eventStreams={size.event_streams}",
    )
    manifests = Manifests(rendered(*values))
    for directory in ("logs", "store"):
        (place / directory).mkdir(parents=True, exist_ok=True)
    secrets = place / "secrets"
    await asyncio.to_thread(
        subprocess.run, ["sh", str(INFRA / "make-secrets.sh"), str(secrets)], check=True, capture_output=True
    )
    cluster = members(manifests.one("ConfigMap", "nats")["data"], secrets, nats)
    fleet = Fleet(place, size, report, cluster)
    scaled = manifests.one("ScaledJob", QUEUE.consumer)["spec"]
    trigger = Trigger.of_metadata(scaled["triggers"][0]["metadata"] | {"lagThreshold": str(size.slots)})
    service = LocalService(place / "sandboxes")
    try:
        fleet.others |= {name: process.pid for name, process in service.processes().items()}
        async with Script([COMMAND]).served() as model:
            settings = manifests.one("ConfigMap", "settings")["data"] | {
                "ORCHARD_STORE": str(place / "store"),
                "ORCHARD_NATS__URL": url_of(cluster),
                "ORCHARD_NATS__TLS_CA": str(secrets / "orchard" / "nats-ca" / "ca.crt"),
                "ORCHARD_NATS__CONNECT_TIMEOUT": "120",
                "ORCHARD_SANDBOX__URL": service.url,
                "ORCHARD_ENDPOINTS__DEFAULT__BASE_URL": model.url,
                "ORCHARD_ENDPOINTS__DEFAULT__CONCURRENCY": str(size.slots),
            }
            fleet.environment = {**os.environ, **settings}
            os.environ.update(fleet.settings_of("operator"))
            session = Session(load())
            await fleet.start_services()
            async with _beside(fleet.look()):
                report.before = finished_before(session.config.store)
                await carry_out(fleet, session, trigger, float(scaled["pollingInterval"]))
            await fleet.processes.stop("steward", "writer")
            await fleet.processes.stop("nats")
            async with session.sandboxes() as client:
                report.findings += await checks.no_sandboxes_left(
                    client, 2 * session.config.sandbox.ttl_seconds
                )
    finally:
        await fleet.processes.stop("")
        service.stop()
    judge(place / "store", report, fleet.processes)
    report.disk_mib = {
        one.name: round(sum(p.stat().st_size for p in one.rglob("*") if p.is_file()) / MIB)
        for one in (nats / "nats-0", place / "store")
    }
    return report


def main() -> None:
    """From the command line; exit code 1 when a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--workers", type=int, default=20, help="processes at once, at most")
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--max-age", type=float, default=300.0, help="of a worker, in seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--event-streams", type=int, default=1, help="nats.event_streams")
    parser.add_argument(
        "--away",
        type=float,
        default=0.0,
        help="minutes that a NATS server is gone, from half of the rollouts on",
    )
    parser.add_argument("--minutes", type=float, help="then what is open is cancelled")
    parser.add_argument("--store", type=Path, help="kept, and gone on with; a temporary one otherwise")
    parser.add_argument(
        "--nats",
        type=Path,
        help="where the servers store, such as a folder in memory; in the store otherwise",
    )
    options = vars(parser.parse_args())
    store, nats = options.pop("store"), options.pop("nats")
    if options["rollouts"] % TASKS:
        parser.error(f"--rollouts must be a multiple of {TASKS}")
    with tempfile.TemporaryDirectory(prefix="orchard-fleet-") as temporary:
        place = (store or Path(temporary)).absolute()
        report = asyncio.run(run(place, (nats or place / "nats").absolute(), Size(**options)))
    sys.stdout.write(json.dumps(msgspec.to_builtins(report), indent=1) + "\n")
    sys.exit(1 if report.findings else 0)


if __name__ == "__main__":
    main()
