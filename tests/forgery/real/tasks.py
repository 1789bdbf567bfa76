"""Tasks of package releases and of the repair family: made once, proven for each state of the grader."""

import hashlib
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import Progress

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.domains.swe.packages import PackageCache
from orchard.pipelines.domains.swe.releases import catalogue
from orchard.pipelines.domains.swe.repairs import Split, build_repair_image, repair_tasks
from orchard.pipelines.domains.swe.synthesize import Rejection, Synthesizer
from orchard.pipelines.tasks.proving import ValidationSettings
from orchard.pipelines.tasks.sandboxes import as_ready
from orchard.pipelines.tasks.validate import Validator
from orchard.schemas.events import TaskRejected, TaskValidated
from orchard.schemas.tasks import SWETests, Task
from orchard.storage.blobs import BlobStore
from tests.sandbox_service import LocalService

RELEASES = 20
REPAIRS = 20
SEED = 35
TEST_SECONDS = 60.0
"""Limit of a test run; those of the catalogue take a few seconds."""
ORCHARD = Path(__file__).parents[3] / "orchard"
JUDGES = ("workers/domains/swe", "workers/graders", "pipelines/domains/swe")
"""Source on which figures depend."""


class RealTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task, what its proof told, or why it was rejected."""

    task: Task
    event: TaskValidated | None = None
    rejected: str = ""

    @property
    def kind(self) -> str:
        return "repair" if self.task.source == "repairs" else "release"

    @property
    def protected(self) -> str:
        """The task's label; "none" by a grader that gives none."""
        return (self.event and self.event.protected) or "none"


def grader_digest() -> str:
    """Names the state of the grader, so that figures of two graders are never mixed."""
    source = (path for part in JUDGES for path in sorted((ORCHARD / part).rglob("*.py")))
    return hashlib.sha256(b"".join(path.read_bytes() for path in source)).hexdigest()[:12]


class TaskDirectory:
    """Holds packages, the images of a sandbox service, tasks as made, and a store for each grader."""

    def __init__(self, directory: Path, console: Console) -> None:
        self.directory = directory
        self._console = console
        directory.mkdir(parents=True, exist_ok=True)
        self.of_grader = directory / grader_digest()
        self.of_grader.mkdir(exist_ok=True)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[AsyncSandboxClient]:
        """Starts the service whose state is kept here."""
        service = LocalService(self.directory / "state")
        try:
            async with AsyncSandboxClient(service.url) as client:
                yield client
        finally:
            service.stop()

    @property
    def blobs(self) -> BlobStore:
        return BlobStore(str(self.of_grader / "store"))

    async def proven(
        self,
        client: AsyncSandboxClient,
        releases: int,
        repairs: int,
        *,
        packages: Collection[str] = (),
        concurrency: int = 2,
    ) -> list[RealTask]:
        """The first so many tasks of each kind that the grader proves; what is on disk is not made again.
        With `packages`, release tasks are made of these alone."""
        kept = self.of_grader / "proven.jsonl"
        validator = Validator(client, self.blobs, ValidationSettings(runs=2))
        known = {each.task.task_id: each for each in _read(kept)}

        async def prove(task: Task) -> RealTask:
            verdict = await validator.validate(task)
            if isinstance(verdict.event, TaskRejected):
                return RealTask(task=task, rejected=f"{verdict.event.reason}: {verdict.event.detail}")
            return RealTask(task=verdict.task, event=verdict.event)

        found: list[RealTask] = []
        with Progress(console=self._console, transient=True) as bar:
            row = bar.add_task("proving tasks", total=releases + repairs)
            wanted = 0
            for count, tasks in (
                (releases, self._releases(client, packages)),
                (repairs, self._repairs(client, repairs)),
            ):
                wanted += count
                while wave := [task async for task in _first(tasks, wanted - len(found))]:
                    missing = [task for task in wave if task.task_id not in known]
                    async for made in as_ready(missing, prove, concurrency=concurrency):
                        known[made.task.task_id] = made
                        _append(kept, made)
                        bar.advance(row)
                        if made.rejected:
                            bar.console.print(
                                f"{made.task.task_id} is rejected: {made.rejected}", markup=False
                            )
                    found += [known[task.task_id] for task in wave if not known[task.task_id].rejected]
                    bar.update(row, completed=len(found))
        return found

    async def _releases(self, client: AsyncSandboxClient, packages: Collection[str]) -> AsyncIterator[Task]:
        """Tasks of the catalogue in its order, each made once."""
        kept = self.directory / "made.jsonl"
        known = {each.task.task_id: each.task for each in _read(kept)}
        synthesizer = Synthesizer(client, PackageCache(self.directory / "packages"))
        for pair in catalogue(packages):
            if pair.task_id not in known:
                made = await synthesizer.synthesize(pair)
                if isinstance(made, Rejection):
                    self._console.print(f"no task from {pair.task_id}: {made.detail}", highlight=False)
                    continue
                known[pair.task_id] = _limited(made)
                _append(kept, RealTask(task=known[pair.task_id]))
            yield known[pair.task_id]

    async def _repairs(self, client: AsyncSandboxClient, count: int) -> AsyncIterator[Task]:
        tasks = [_limited(task) for task in repair_tasks(2 * REPAIRS, SEED, Split.TRAIN) if count]
        built = self.directory / "repairs.built"
        if tasks and not built.exists():
            await build_repair_image(client, PackageCache(self.directory / "packages"), tasks)
            built.touch()
        for task in tasks:
            yield task


async def _first(tasks: AsyncIterator[Task], count: int) -> AsyncIterator[Task]:
    for _ in range(count):
        task = await anext(tasks, None)
        if task is None:
            return
        yield task


def _limited(task: Task) -> Task:
    assert isinstance(task.grading, SWETests)
    grading = msgspec.structs.replace(task.grading, timeout_seconds=TEST_SECONDS)
    return msgspec.structs.replace(task, grading=grading)


def _read(path: Path) -> list[RealTask]:
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=RealTask) for line in lines]


def _append(path: Path, made: RealTask) -> None:
    with path.open("ab") as file:
        file.write(msgspec.json.encode(made) + b"\n")
