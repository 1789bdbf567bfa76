"""The image of the repair tasks: Python with pytest, and one git repository that holds all their modules."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.domains.swe import layout
from orchard.pipelines.domains.swe.environments import pack_directory
from orchard.pipelines.domains.swe.packages import PackageCache
from orchard.pipelines.domains.swe.repairs import IMAGE, repair_files
from orchard.pipelines.tasks.sandboxes import open_sandbox
from orchard.pipelines.tasks.trees import pack
from orchard.schemas.tasks import Task
from orchard.workers.episode.sandboxes import SandboxMachine, classified

PYTEST = "pytest==9.2.0"
_REPOSITORY = f"""\
set -e
mkdir -p {layout.WORKDIR}
{layout.PYTHON} -m tarfile -e /tmp/modules.tar {layout.WORKDIR}
rm /tmp/modules.tar
cd {layout.WORKDIR}
printf '__pycache__/\\n' > .git-ignored
git init -q .
mv .git-ignored .git/info/exclude
git config core.autocrlf false
{layout.STAT_CACHE}git add -A
git -c user.name=orchard -c user.email=orchard@localhost -c commit.gpgsign=false commit -q -m 'Modules'
"""


async def build_repair_image(
    client: AsyncSandboxClient, cache: PackageCache, tasks: Sequence[Task], *, base_image: str = "host"
) -> None:
    """Make the image that `tasks` run in; an older one of the same name gives way.

    Raises IndexFailed when pytest cannot be fetched, InfrastructureError when the sandbox service fails, and
    RuntimeError when the base image lacks git or Python.
    """
    environment = await asyncio.to_thread(pack_directory, Path(await cache.environment([PYTEST])))
    modules = pack({path: text.encode() for path, text in repair_files(tasks).items()})
    async with open_sandbox(
        client, base_image, purpose="synthesis", cpu="1", memory="1Gi", timeout=120.0
    ) as machine:
        await machine.write("/tmp/site-packages.tar", environment)
        await machine.write("/tmp/modules.tar", modules)
        await _done(machine, layout.environment_script("python3", "/tmp/site-packages.tar"))
        await _done(machine, _REPOSITORY)
        with classified():
            await machine.sandbox.snapshot(IMAGE)


async def _done(machine: SandboxMachine, script: str) -> None:
    outcome = await machine.run(script, timeout=300.0, cwd="/")
    if outcome.returncode != 0:
        raise RuntimeError(f"the image {IMAGE} could not be built: {outcome.output.strip()[-300:]}")
