"""Tasks from package releases, made in sandboxes: fetch two sdists, build the image, run the tests twice.

A pair of releases goes through: sdists (no code of theirs runs on this machine), `releases.analyse`, an image
with the older release and its test dependencies, the newer tests before and after the gold patch. What
cannot become a task comes back as a Rejection with a reason.
"""

import asyncio
import shlex
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from pathlib import Path

import msgspec

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.domains.swe import layout, releases
from orchard.pipelines.domains.swe.before_after import SuiteCommand, run_before_and_after
from orchard.pipelines.domains.swe.environments import Environments, SynthesisSettings, done, snapshot
from orchard.pipelines.domains.swe.packages import PackageCache
from orchard.pipelines.domains.swe.releases import ReleaseDiff, ReleasePair
from orchard.pipelines.tasks.errors import NotATask
from orchard.pipelines.tasks.sandboxes import as_ready
from orchard.pipelines.tasks.trees import Tree, pack, read_sdist
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.tasks import SWETests, Task
from orchard.workers.episode.sandboxes import SandboxMachine
from orchard.workers.failures import InfrastructureError


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    pair: ReleasePair
    reason: str
    detail: str


Made = Task | Rejection


class Synthesizer:
    """Makes tasks; pairs share images and downloads."""

    def __init__(
        self, client: AsyncSandboxClient, cache: PackageCache, settings: SynthesisSettings | None = None
    ) -> None:
        self.settings = settings or SynthesisSettings()
        self._cache = cache
        self._environments = Environments(client, cache, self.settings)

    async def many(
        self,
        pairs: Iterable[ReleasePair],
        *,
        known: Collection[str] = (),
        limit: int | None = None,
        started: Callable[[ReleasePair], None] = lambda _: None,
    ) -> AsyncIterator[Made]:
        """Yield each pair's task or rejection as it is ready, until there are `limit` tasks.

        Pairs whose task id is in `known` are left out and count as made, so that a killed run resumes.
        Raises what `synthesize` raises.
        """
        wanted = list(dict.fromkeys(pairs))
        waiting = [pair for pair in wanted if pair.task_id not in known]
        missing = len(waiting) if limit is None else limit - (len(wanted) - len(waiting))
        while waiting and missing > 0:
            wave, waiting = waiting[:missing], waiting[missing:]
            await self._cache.fetch((pair.package, v) for pair in wave for v in (pair.old, pair.new))
            async for made in as_ready(
                wave, self.synthesize, concurrency=self.settings.concurrency, started=started
            ):
                missing -= isinstance(made, Task)
                yield made

    async def synthesize(self, pair: ReleasePair) -> Made:
        """The task of one pair, its image left in the sandbox service.

        Raises InfrastructureError when the service fails, IndexFailed when pip does, IndexUnreachable, and
        TaskError when the base image cannot hold an environment.
        """
        try:
            return await self._synthesize(pair)
        except NotATask as refusal:
            return Rejection(pair=pair, reason=refusal.reason, detail=refusal.detail)
        except InfrastructureError as error:
            if error.cause is not AbortCause.SANDBOX_OUT_OF_MEMORY:
                raise
            return Rejection(pair=pair, reason=error.cause.value, detail=error.detail)

    async def _synthesize(self, pair: ReleasePair) -> Task:
        old, new = await self._trees(pair)
        change = await asyncio.to_thread(releases.analyse, pair, old, new)
        environment = await self._environments.image(
            [self.settings.pytest, *pair.requires, *layout.declared_requirements(old)]
        )
        image = f"pypi/{pair.package.lower()}:{pair.old}"
        command = (
            f"{layout.PYTHON} -m pytest -rA --tb=short -p no:cacheprovider --continue-on-collection-errors "
            f"-o addopts= {shlex.join(change.run_files)}"
        )
        suite = SuiteCommand(command=command, workdir=layout.WORKDIR, seconds=self.settings.test_seconds)
        async with self._environments.open(environment) as machine:
            commit = await self._install(machine, pair, old, change)
            await snapshot(machine, image)
            found = await run_before_and_after(suite, machine, change.test_patch, change.gold_patch)
        return Task(
            task_id=pair.task_id,
            source=releases.SOURCE,
            repo=f"pypi/{pair.package.lower()}",
            image=image,
            statement=releases.statement(
                pair,
                change,
                found.fail_to_pass,
                found.messages,
                workdir=layout.WORKDIR,
                python=layout.PYTHON,
            ),
            grading=SWETests(
                test_patch=change.test_patch,
                test_command=command,
                fail_to_pass=found.fail_to_pass,
                pass_to_pass=found.pass_to_pass,
                test_files=change.test_files,
                timeout_seconds=5 * self.settings.test_seconds,
            ),
            base_commit=commit,
            workdir=layout.WORKDIR,
            gold_patch=change.gold_patch,
            version=pair.old,
            cpu=self.settings.cpu,
            memory=self.settings.memory,
            labels={"package": pair.package, "old": pair.old, "new": pair.new},
        )

    async def _trees(self, pair: ReleasePair) -> tuple[Tree, Tree]:
        failed = await self._cache.fetch([(pair.package, pair.old), (pair.package, pair.new)])
        for (_, version), reason in failed.items():
            raise NotATask("sdist_missing", f"{pair.package} {version} cannot be fetched: {reason}")
        paths = [self._cache.sdist(pair.package, version) for version in (pair.old, pair.new)]
        old, new = [await asyncio.to_thread(_read, path) for path in paths if path is not None]
        return old, new

    async def _install(
        self, machine: SandboxMachine, pair: ReleasePair, old: Tree, change: ReleaseDiff
    ) -> str:
        await machine.write("/tmp/source.tar", pack(change.base))
        await machine.write("/tmp/metadata.tar", pack(layout.installed_metadata(pair.package, pair.old, old)))
        script = layout.repository_script(pair.package, "/tmp/source.tar", "/tmp/metadata.tar")
        output = await done(machine, script, f"the repository of {pair.package} {pair.old}", 120.0)
        return output.strip().splitlines()[-1]


def _read(path: Path) -> dict[str, bytes]:
    return read_sdist(path.read_bytes(), path.name)
