"""Images that tasks are built on: an interpreter and installed requirements."""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
from packaging.requirements import InvalidRequirement, Requirement

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.domains.swe import layout
from orchard.pipelines.domains.swe.packages import PackageCache
from orchard.pipelines.tasks.errors import IndexFailed, NotATask, TaskError
from orchard.pipelines.tasks.sandboxes import open_sandbox
from orchard.pipelines.tasks.trees import pack
from orchard.schemas.identity import digest
from orchard.schemas.outcomes import AbortCause
from orchard.workers.episode.sandboxes import SandboxMachine, classified
from orchard.workers.failures import InfrastructureError


class SynthesisSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of task synthesis (configuration section `[synthesis]`)."""

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
    """Release pairs that are worked on at once."""


class Environments:
    """Builds these images, each once."""

    def __init__(
        self, client: AsyncSandboxClient, cache: PackageCache, settings: SynthesisSettings | None = None
    ) -> None:
        self.settings = settings or SynthesisSettings()
        self._client = client
        self._cache = cache
        self._building: dict[str, asyncio.Lock] = {}

    def open(self, image: str) -> AbstractAsyncContextManager[SandboxMachine]:
        """A sandbox to make a task in."""
        settings = self.settings
        return open_sandbox(
            self._client,
            image,
            purpose="synthesis",
            cpu=settings.cpu,
            memory=settings.memory,
            timeout=settings.creation_seconds,
        )

    async def image(self, requirements: Sequence[str]) -> str:
        """The name of the image with these requirements, built where it is missing.

        Raises NotATask for requirements that cannot be installed, TaskError for a base image without
        git or Python, and InfrastructureError.
        """
        wanted = sorted(set(filter(applies, requirements)), key=str.lower)
        settings = self.settings
        key = [layout.RECIPE, settings.base_image, settings.interpreter, sys.version, wanted]
        image = f"pypi/environment:{digest(key, 16)}"
        async with self._building.setdefault(image, asyncio.Lock()):
            if not await self.exists(image):
                await self._build(image, wanted)
        return image

    async def exists(self, image: str) -> bool:
        """Whether the service has the image."""
        try:
            async with self.open(image):
                return True
        except InfrastructureError as error:
            if error.cause is AbortCause.IMAGE_MISSING:
                return False
            raise

    async def _build(self, image: str, requirements: Sequence[str]) -> None:
        try:
            directory = await self._cache.environment(requirements)
        except IndexFailed as error:
            raise NotATask("requirements_missing", str(error)) from error
        archive = await asyncio.to_thread(pack_directory, directory)
        async with self.open(self.settings.base_image) as machine:
            await machine.write("/tmp/site-packages.tar", archive)
            script = layout.environment_script(self.settings.interpreter, "/tmp/site-packages.tar")
            await done(machine, script, f"the environment for {', '.join(requirements)}", 300.0)
            await snapshot(machine, image)


def applies(requirement: str) -> bool:
    """Whether this Python needs a requirement: pip skips it where its marker is false, so that more releases
    share an image. pip itself is to refuse what is no requirement."""
    try:
        marker = Requirement(requirement).marker
    except InvalidRequirement:
        return True
    return marker is None or marker.evaluate()


async def snapshot(machine: SandboxMachine, image: str) -> None:
    """Store the machine's files as an image. Raises InfrastructureError."""
    with classified():
        await machine.sandbox.snapshot(image)


async def done(machine: SandboxMachine, script: str, what: str, seconds: float, cwd: str = "/") -> str:
    """Run a script that must succeed; returns its output. Raises TaskError with the end of the output."""
    outcome = await machine.run(script, timeout=seconds, cwd=cwd)
    if outcome.returncode != 0:
        why = f"not done within {seconds:g} s" if outcome.timed_out else outcome.output.strip()[-300:]
        raise TaskError(f"{what} could not be built: {why or 'no output'}")
    return outcome.output


def pack_directory(directory: Path) -> bytes:
    """All regular files below a directory as a tar."""
    return pack(
        {
            path.relative_to(directory).as_posix(): path.read_bytes()
            for path in sorted(directory.rglob("*"))
            if path.is_file()
        }
    )
