"""Tasks from package releases, made in sandboxes: fetch two sdists, build the image, run the tests twice.

A pair of releases goes through: sdists (no code of theirs runs on this machine), `releases.analyse`, an image
with the older release and its test dependencies, the newer tests before and after the gold patch. What
cannot become a task comes back as a Rejection with a reason.
"""

import asyncio
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.tasks import layout, outcomes, releases
from orchard.pipelines.tasks.errors import IndexFailed, NotATask, TaskError
from orchard.pipelines.tasks.packages import PackageCache
from orchard.pipelines.tasks.releases import Change, Pair
from orchard.pipelines.tasks.trees import Tree, pack, read_sdist
from orchard.pipelines.tasks.workshop import as_ready, open_sandbox
from orchard.schemas.identity import digest
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.tasks import SWETests, Task
from orchard.workers.failures import InfrastructureError
from orchard.workers.graders.parsers import parse
from orchard.workers.sandboxes import SandboxMachine, classified

PASS_TO_PASS_LIMIT = 300
"""Tests that must keep passing, at most: every graded rollout reports each of them."""


class SynthesisSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How tasks are made (configuration section `[synthesis]`)."""

    base_image: str = "host"
    """Image that environments are built on; it needs git and Python."""
    interpreter: str = "python3"
    """Python in that image, of the version that runs this: `host` has the very same one."""
    pytest: str = "pytest==9.2.0"
    """Requirement for the test runner."""
    cpu: str = "1"
    memory: str = "1Gi"
    test_seconds: float = 60.0
    """Limit of one test run; a slower suite makes no task."""
    creation_seconds: float = 120.0
    concurrency: int = 3
    """Pairs worked on at once."""


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    """Why a pair is no task."""

    pair: Pair
    reason: str
    detail: str


Made = Task | Rejection


class Synthesizer:
    """Makes tasks; images and downloads are shared between pairs."""

    def __init__(
        self, client: AsyncSandboxClient, cache: PackageCache, settings: SynthesisSettings | None = None
    ) -> None:
        self.settings = settings or SynthesisSettings()
        self._client = client
        self._cache = cache
        self._building: dict[str, asyncio.Lock] = {}

    async def many(
        self,
        pairs: Iterable[Pair],
        *,
        known: Collection[str] = (),
        limit: int | None = None,
        started: Callable[[Pair], None] = lambda _: None,
    ) -> AsyncIterator[Made]:
        """Each pair's task or rejection as it is ready, until there are `limit` tasks.

        Pairs whose task id is in `known` are left out and count as made, so that a killed run goes on
        where it was. Raises what `synthesize` raises.
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

    async def synthesize(self, pair: Pair) -> Made:
        """The task of one pair, its image left in the sandbox service.

        Raises InfrastructureError when the service fails, IndexFailed when pip does, and TaskError when the
        base image cannot hold an environment.
        """
        try:
            return await self._synthesize(pair)
        except NotATask as refusal:
            return Rejection(pair=pair, reason=refusal.reason, detail=refusal.detail)
        except InfrastructureError as error:
            if error.cause is not AbortCause.SANDBOX_OUT_OF_MEMORY:
                raise
            return Rejection(pair=pair, reason=error.cause.value, detail=error.detail)

    async def _synthesize(self, pair: Pair) -> Task:
        old, new = await self._trees(pair)
        change = await asyncio.to_thread(releases.analyse, pair, old, new)
        environment = await self._environment(pair, old)
        image = f"pypi/{pair.package.lower()}:{pair.old}"
        command = (
            f"{layout.PYTHON} -m pytest -rA --tb=short -p no:cacheprovider --continue-on-collection-errors "
            f"-o addopts= {shlex.join(change.run_files)}"
        )
        async with self._open(environment) as machine:
            commit = await self._install(machine, pair, old, change)
            await _snapshot(machine, image)
            await _apply(machine, change.test_patch, "the newer tests")
            before = await self._run(machine, command, "before the change")
            await _apply(machine, change.gold_patch, "the source change")
            after = await self._run(machine, command, "after the change")
        fail_to_pass, pass_to_pass = outcomes.split(parse("pytest", before), parse("pytest", after))
        if not fail_to_pass and not pass_to_pass:
            raise NotATask("tests_do_not_run", f"no test of {pair.new} passes: {after.strip()[-300:]}")
        if not fail_to_pass:
            raise NotATask("no_fail_to_pass", f"no test of {pair.new} fails on {pair.old} and passes after")
        return Task(
            task_id=pair.task_id,
            source=releases.SOURCE,
            repo=f"pypi/{pair.package.lower()}",
            image=image,
            statement=releases.statement(
                pair,
                change,
                fail_to_pass,
                outcomes.messages(before, fail_to_pass),
                workdir=layout.WORKDIR,
                python=layout.PYTHON,
            ),
            grading=SWETests(
                test_patch=change.test_patch,
                test_command=command,
                fail_to_pass=fail_to_pass,
                pass_to_pass=outcomes.sample(pass_to_pass, PASS_TO_PASS_LIMIT),
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

    async def _trees(self, pair: Pair) -> tuple[Tree, Tree]:
        failed = await self._cache.fetch([(pair.package, pair.old), (pair.package, pair.new)])
        for (_, version), reason in failed.items():
            raise NotATask("sdist_missing", f"{pair.package} {version} cannot be fetched: {reason}")
        paths = [self._cache.sdist(pair.package, version) for version in (pair.old, pair.new)]
        old, new = [await asyncio.to_thread(_read, path) for path in paths if path is not None]
        return old, new

    async def _environment(self, pair: Pair, old: Tree) -> str:
        """The image with the interpreter and what the package and its tests need, built if need be."""
        requirements = sorted(
            {self.settings.pytest, *pair.requires, *layout.declared_requirements(old)}, key=str.lower
        )
        key = [layout.RECIPE, self.settings.base_image, self.settings.interpreter, sys.version, requirements]
        image = f"pypi/environment:{digest(key, 16)}"
        async with self._building.setdefault(image, asyncio.Lock()):
            if not await self._exists(image):
                await self._build_environment(image, requirements)
        return image

    async def _exists(self, image: str) -> bool:
        try:
            async with self._open(image):
                return True
        except InfrastructureError as error:
            if error.cause is AbortCause.IMAGE_MISSING:
                return False
            raise

    async def _build_environment(self, image: str, requirements: Sequence[str]) -> None:
        try:
            directory = await self._cache.environment(requirements)
        except IndexFailed as error:
            raise NotATask("requirements_missing", str(error)) from error
        archive = await asyncio.to_thread(pack_directory, directory)
        async with self._open(self.settings.base_image) as machine:
            await machine.write("/tmp/site-packages.tar", archive)
            script = layout.environment_script(self.settings.interpreter, "/tmp/site-packages.tar")
            await _done(machine, script, f"the environment for {', '.join(requirements)}", 300.0)
            await _snapshot(machine, image)

    async def _install(self, machine: SandboxMachine, pair: Pair, old: Tree, change: Change) -> str:
        await machine.write("/tmp/source.tar", pack(change.base))
        await machine.write("/tmp/metadata.tar", pack(layout.installed_metadata(pair.package, pair.old, old)))
        script = layout.repository_script(pair.package, "/tmp/source.tar", "/tmp/metadata.tar")
        output = await _done(machine, script, f"the repository of {pair.package} {pair.old}", 120.0)
        return output.strip().splitlines()[-1]

    async def _run(self, machine: SandboxMachine, command: str, when: str) -> str:
        outcome = await machine.run(
            command,
            timeout=self.settings.test_seconds,
            cwd=layout.WORKDIR,
            env={"COLUMNS": "400"},  # pytest cuts the messages of its summary to the width
        )
        if outcome.timed_out:
            raise NotATask("tests_time_out", f"{when} the tests run over {self.settings.test_seconds:g} s")
        return outcome.output

    def _open(self, image: str) -> AbstractAsyncContextManager[SandboxMachine]:
        settings = self.settings
        return open_sandbox(
            self._client,
            image,
            purpose="synthesis",
            cpu=settings.cpu,
            memory=settings.memory,
            timeout=settings.creation_seconds,
        )


async def _snapshot(machine: SandboxMachine, image: str) -> None:
    with classified():
        await machine.sandbox.snapshot(image)


async def _done(machine: SandboxMachine, script: str, what: str, seconds: float) -> str:
    outcome = await machine.run(script, timeout=seconds, cwd="/")
    if outcome.returncode != 0:
        raise TaskError(f"{what} could not be built: {outcome.output.strip()[-300:] or 'no output'}")
    return outcome.output


async def _apply(machine: SandboxMachine, patch: str, what: str) -> None:
    await machine.write("/tmp/change.diff", patch.encode())
    outcome = await machine.run("git apply /tmp/change.diff", timeout=60.0, cwd=layout.WORKDIR)
    if outcome.returncode != 0:
        raise NotATask("patch_does_not_apply", f"{what}: {outcome.output.strip()[-300:]}")


def _read(path: Path) -> dict[str, bytes]:
    return read_sdist(path.read_bytes(), path.name)


def pack_directory(directory: Path) -> bytes:
    """All regular files below a directory as a tar."""
    return pack(
        {
            path.relative_to(directory).as_posix(): path.read_bytes()
            for path in sorted(directory.rglob("*"))
            if path.is_file()
        }
    )
