"""Taking what a sandbox has to another one: as a directory anywhere, as a fork where the backend can."""

from pathlib import Path

from orchard.injector.client import AsyncSandbox, AsyncSandboxClient
from orchard.injector.errors import SandboxUnsupported
from tests.contract.deployment import Deployment
from tests.contract.fixtures import create


async def test_copies_of_a_directory_go_from_one_sandbox_to_another(
    client: AsyncSandboxClient, sandbox: AsyncSandbox, service: Deployment, tmp_path: Path
) -> None:
    await sandbox.exec(
        "mkdir -p work/sub; head -c 3000000 /dev/urandom > work/sub/data; cd work; ln -s sub/data link;"
        " echo 'echo it runs' > program; chmod 750 program; ln -s /etc/passwd out"
    )
    assert await sandbox.download_directory("/workspace/work", tmp_path / "work") == ["out"]
    other = await create(client, service.bare_image)
    await other.upload_directory(tmp_path / "work", "/tmp/deep/copy")
    ran = await other.exec("cd /tmp/deep/copy && sh program && ls -l program && wc -c < link")
    assert (ran.stdout.split("\n")[0], ran.stdout.split()[-1]) == ("it runs", "3000000")
    assert "-rwxr-x---" in ran.stdout
    assert (
        await other.download_content("/tmp/deep/copy/sub/data")
        == (tmp_path / "work" / "sub" / "data").read_bytes()
    )


async def test_copies_of_a_sandbox_are_independent_or_refused_with_another_way(sandbox: AsyncSandbox) -> None:
    await sandbox.exec("echo shared > file")
    try:
        (fork,) = await sandbox.fork()
    except SandboxUnsupported as error:
        assert error.status == 501 and "directory" in error.detail
        return
    await fork.exec("echo changed > file")
    assert (await sandbox.exec("cat file")).stdout == "shared\n"
