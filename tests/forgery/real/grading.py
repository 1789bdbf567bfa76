"""Submissions of real tasks through the real grader and, where that is the measure, the tests alone."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import msgspec

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.domains.swe.packages import PackageCache
from orchard.pipelines.tasks.sandboxes import open_sandbox
from orchard.schemas.outcomes import Reward
from orchard.workers.domains.swe.verdict import MISSING, PASSING
from orchard.workers.failures import InfrastructureError
from orchard.workers.graders import grade
from tests.forgery.real.forgers import FORGERS
from tests.forgery.real.forgers.rote import ROTE, known_of
from tests.forgery.real.others import others
from tests.forgery.real.submissions import Source, source_of
from tests.forgery.real.tasks import RealTask, TaskDirectory
from tests.forgery.real.variants import honest_variants, mutants
from tests.forgery.records import GUESSED, Group, Record, layer

GRADING_SECONDS = 300.0
TRIES = 2
"""Runs of the tests alone where they disagree with the grader: what changes between them is unsteady."""


@dataclass(frozen=True)
class Job:
    """One submission of one task."""

    task: RealTask
    group: Group
    family: str
    name: str
    submission: str

    @property
    def key(self) -> str:
        return f"{self.task.task.task_id} {self.group} {self.family} {self.name}"

    @property
    def rank(self) -> bytes:
        """Orders jobs as if by chance, always alike: the first of them are a sample of all."""
        return hashlib.sha256(self.key.encode()).digest()


def jobs_of(
    task: RealTask, packages: PackageCache, known: Mapping[str, list[str]] | None = None
) -> Iterator[Job]:
    """All submissions of a task; with `known` also those of forgers that have it by rote."""
    source = source_of(task.task, packages)
    for forger in ROTE if known else ():
        yield Job(task, Group.FORGER, forger.family, forger.name, source.by_rote(forger, known or {}))
    for forger in FORGERS:
        yield Job(task, Group.FORGER, forger.family, forger.name, source.forged(forger))
    yield Job(task, Group.UNCHANGED, "unchanged", "nothing", source.submission(_comment(source)))
    for name, submission in honest_variants(source).items():
        yield Job(task, Group.HONEST, "rewritten", name, submission)
    for name, submission in others(source).items():
        yield Job(task, Group.HONEST, "by hand", name, submission)
    for name, submission in mutants(source).items():
        yield Job(task, Group.MUTANT, "mutant", name, submission)


def _comment(source: Source) -> dict[str, str]:
    path = source.modules[0]
    return {path: source.base[path] + "\n# nothing\n"}


class RealBench:
    def __init__(self, client: AsyncSandboxClient, directory: TaskDirectory) -> None:
        self._client = client
        self._directory = directory

    async def one(self, job: Job) -> Record:
        """Grades a job; all but forgers are also judged by the tests alone."""
        record, reward = await self._graded(job)
        if job.group is Group.FORGER or reward is None:
            return record
        for _ in range(TRIES):
            plain = await self._grade(job, published=True)
            reached = {test for test, status in plain.tests.items() if status != MISSING or _ended(plain)}
            laxer = {test for test in reached if _passes(reward, test) and not _passes(plain, test)}
            stricter = {test for test in plain.tests if _passes(plain, test) and not _passes(reward, test)}
            if record.plain is not None:
                laxer &= set(record.laxer)
                stricter &= set(record.stricter)
            record = _compared(record, plain, laxer, stricter)
            if not laxer and not stricter:
                break
        return record

    async def known(self, task: RealTask, packages: PackageCache) -> dict[str, list[str]]:
        """What the known solution answers to the tests, of a task that guessing may solve."""
        if task.protected not in GUESSED:
            return {}
        submission = source_of(task.task, packages).recorded()
        reward = await self._grade(Job(task, Group.HONEST, "", "", submission))
        return known_of(self._directory.blobs.get(reward.log).decode(errors="replace"))

    async def _graded(self, job: Job) -> tuple[Record, Reward | None]:
        reward: Reward | None = None
        try:
            reward = await self._grade(job)
            became, detail = layer(reward), reward.detail
        except InfrastructureError as error:
            became, detail = f"abort: {error.cause.value}", error.detail
        record = Record(
            task=job.task.task.task_id,
            kind=job.task.kind,
            protected=job.task.protected,
            group=job.group,
            family=job.family,
            name=job.name,
            rewarded=reward is not None and reward.value > 0,
            layer=became,
            detail=detail[:500],
            seconds=reward.seconds if reward else 0.0,
            sandboxes=1 + ((reward.extra_sandboxes or 0) if reward else 0),
        )
        return record, reward

    async def _grade(self, job: Job, *, published: bool = False) -> Reward:
        task = job.task.task
        fresh = partial(
            open_sandbox,
            self._client,
            task.image,
            purpose="forgery",
            cpu=task.cpu,
            memory=task.memory,
            timeout=120.0,
        )
        async with fresh() as machine:
            return await grade(
                task,
                job.submission,
                machine,
                timeout=GRADING_SECONDS,
                blobs=self._directory.blobs,
                pristine=fresh,
                published=published,
            )


def _passes(reward: Reward, test: str) -> bool:
    return reward.tests.get(test) in {*PASSING, "SKIPPED"}


def _ended(plain: Reward) -> bool:
    """Whether the tests alone ran to their end; where they hang, those behind have no verdict."""
    return "never end" not in plain.detail


def _compared(record: Record, plain: Reward, laxer: set[str], stricter: set[str]) -> Record:
    return msgspec.structs.replace(
        record,
        plain=plain.resolved,
        verdicts=len(plain.tests),
        laxer=tuple(sorted(laxer)),
        stricter=tuple(sorted(stricter)),
    )
