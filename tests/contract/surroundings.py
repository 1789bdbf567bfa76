"""What surrounds a sandbox's commands, on every backend: its own variables, and who watches their files."""

import asyncio

from orchard import Change
from orchard.injector.client import AsyncSandbox, AsyncSandboxClient
from tests.contract.deployment import Deployment
from tests.contract.fixtures import LIMIT, READY


async def test_a_sandbox_has_variables_of_its_own(client: AsyncSandboxClient, service: Deployment) -> None:
    env = {"WHO": "sandbox", "ODD": "$(WHO) $WHO \n'é", "LD_AUDIT": ""}
    sandbox = await client.create_sandbox(service.bare_image, cpu="1", memory="256Mi", timeout=READY, env=env)
    assert (
        await sandbox.exec('echo "$WHO|$ODD|"', env={"WHO": "command"})
    ).stdout == f"command|{env['ODD']}|\n"
    assert "WHO" not in repr(await sandbox.status())


async def test_changes_of_files_are_told_while_they_happen(sandbox: AsyncSandbox) -> None:
    async with asyncio.timeout(LIMIT), sandbox.watch() as changes:
        await sandbox.exec("mkdir made; echo x > made/file")
        await sandbox.upload_content("done", "/workspace/done")
        told: list[Change] = []
        while "/workspace/done" not in (change.path for change in told):
            told.append(await anext(changes))
    assert told[0] == Change(kind="created", path="/workspace/made", directory=True)
    assert "/workspace/made/file" in {change.path for change in told}
