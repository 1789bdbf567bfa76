"""Makes tasks from releases on PyPI, and from a repository's own change."""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

from orchard.actions.reporter import SILENT, Reporter
from orchard.actions.session import Session
from orchard.actions.tasks import registry
from orchard.configuration.config import ConfigError
from orchard.pipelines.domains.swe.environments import Environments, SynthesisSettings
from orchard.pipelines.domains.swe.own_repository import CommitDiff, CommitTaskSettings, make_task
from orchard.pipelines.domains.swe.packages import PackageCache
from orchard.pipelines.domains.swe.releases import ReleasePair, catalogue, choose_pairs
from orchard.pipelines.domains.swe.synthesize import Rejection, Synthesizer
from orchard.pipelines.tasks.errors import TaskError
from orchard.pipelines.tasks.proving import ValidationSettings
from orchard.pipelines.tasks.registry import known_hashes
from orchard.pipelines.tasks.validate import Validation, Validator
from orchard.schemas.events import TaskRejected

ASKED_PACKAGE = "six"
"""Project that `doctor` asks the package index for."""
RECENT_PAIRS = 30
"""Number of neighbouring releases that --any-release tries, newest first."""


async def synthesize_tasks(
    session: Session,
    *,
    packages: Sequence[str],
    limit: int,
    concurrency: int,
    uncatalogued: bool = False,
    told: Reporter = SILENT,
) -> int:
    """Makes up to `limit` tasks, existing ones included, and returns how many are new."""
    cache = PackageCache(session.directory / "packages")
    pairs = await _recent_pairs(cache, packages) if uncatalogued else catalogue(packages)
    async with registry(session) as tasks, session.sandboxes() as client:
        known = await asyncio.to_thread(known_hashes, session.config.store)
        there = min(limit, sum(pair.task_id in known for pair in pairs))
        made = 0
        synthesizer = Synthesizer(client, cache, SynthesisSettings(concurrency=concurrency))
        told.progress("synthesizing", there, limit)
        async for result in synthesizer.many(pairs, known=known, limit=limit):
            if isinstance(result, Rejection):
                name = f"{result.pair.package} {result.pair.old} to {result.pair.new}"
                told.note(f"no task from {name}: {result.reason}, {result.detail}"[:300])
                continue
            await tasks.register([result])
            made += 1
            told.progress("synthesizing", there + made, limit)
    return made


def check_index() -> tuple[str, bool, str, str]:
    """Asks the package index of pip for one project, for `doctor`."""
    with tempfile.TemporaryDirectory() as place:
        try:
            asyncio.run(PackageCache(Path(place)).versions(ASKED_PACKAGE, ("--retries=0", "--timeout=10")))
        except TaskError as error:
            return "package index", False, "not reached; making tasks from releases needs it", str(error)
    return "package index", True, "reached", ""


async def _recent_pairs(cache: PackageCache, packages: Sequence[str]) -> list[ReleasePair]:
    if not packages:
        raise ConfigError("--any-release needs package names: orchard tasks synthesize NAME --any-release")
    return [
        pair
        for package in packages
        for pair in choose_pairs(package, await cache.versions(package), limit=RECENT_PAIRS)
    ]


async def own_task(
    session: Session, change: CommitDiff, wanted: CommitTaskSettings, *, runs: int, told: Reporter = SILENT
) -> Validation:
    """Makes and proves the task of a repository's change. Raises TaskError if the change makes no task, or
    the task is rejected."""
    settings = SynthesisSettings(cpu=wanted.cpu, memory=wanted.memory, test_seconds=wanted.seconds)
    async with registry(session) as tasks, session.sandboxes() as client:
        environments = Environments(client, PackageCache(session.directory / "packages"), settings)
        told.progress(f"running the tests of {change.name} before and after {change.gold[:12]}", 0, None)
        task = await make_task(change, wanted, environments)
        await tasks.register([task])
        told.note(f"{task.task_id} in image {task.image}", "made")
        told.progress("proving it", 0, None)
        verdict = await Validator(client, session.blobs, ValidationSettings(runs=runs)).validate(task)
        await tasks.record(verdict)
    if isinstance(verdict.event, TaskRejected):
        raise TaskError(f"{task.task_id} is rejected as {verdict.event.reason}: {verdict.event.detail}")
    return verdict
