"""Whom commands run as: the image's USER, or the `user` of the request."""

import io
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchard.injector.agent.local.archives import import_image
from orchard.injector.client import AsyncSandboxClient
from orchard.injector.errors import SandboxRequestInvalid

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from tests.injector.conftest import Archives, Service

PASSWD = b"root:x:0:0:root:/root:/bin/sh\napp:x:1000:1001::/home/app:/bin/sh\nodd line\nbad:x:y:z::/:/\n"
GROUP = b"root:x:0:\napp:x:1001:\nextra:x:2000:other,app\nbad:x:nine:app\n"
WHO = "id -u; id -g; id -G; echo $HOME; pwd; touch made && stat -c '%u %g' made"


def layer(busybox: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(busybox, ".")
        for name, content in (("etc/passwd", PASSWD), ("etc/group", GROUP)):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@pytest.mark.needs_root("its layers have owners")
async def test_the_user_of_the_image_runs_its_commands_and_owns_what_is_uploaded(
    service: "Service", client: AsyncSandboxClient, archives: "Archives", busybox: Path
) -> None:
    config = {"User": "app", "WorkingDir": "/srv/app"}
    import_image(service.state, archives.docker("users:1", layer(busybox), config=config))
    async with await client.create_sandbox("users:1") as sandbox:
        job = await sandbox.exec(WHO)
        assert job.stdout.split("\n") == [
            *("1000", "1001", "1001 2000", "/home/app", "/workspace", "1000 1001", "")
        ]
        await sandbox.upload_content("#!/bin/sh\n", "new/place/file")
        said = await sandbox.exec("stat -c '%u %g' /srv/app /srv/app/new/place /srv/app/new/place/file")
        assert said.stdout == "1000 1001\n" * 3, said
        assert (await sandbox.exec("touch /etc/x; cat /proc/1/environ")).exit_code == 1
        assert (await sandbox.exec("grep CapEff /proc/self/status")).stdout.split()[1] == "0" * 16
        process = await sandbox.exec("id -u; tty; echo x > $(tty)", pty=True)
        assert (await process.read_all(60)).split() == [b"1000", b"/dev/pts/0", b"x"]

        for user, ids in (("root", "0 0"), ("0", "0 0"), ("1000:2000", "1000 2000"), ("77", "77 0")):
            other = await sandbox.exec("echo $(id -u) $(id -g)", user=user)
            assert (other.stdout, other.error) == (f"{ids}\n", None)
        process = await sandbox.exec(["id", "-u"], pty=True, user="77:extra")
        assert (await process.read_all(60)).split()[-1] == b"77"
        for user in ("nobody-here", "app:nothing", "bad", "4294967295", "-1", "app:4294967295"):
            with pytest.raises(SandboxRequestInvalid, match="there is no"):
                await sandbox.exec("id", user=user)
