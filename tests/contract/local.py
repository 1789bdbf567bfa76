"""The sandbox service on this machine for the contract suite: two orchestrators in front of one agent."""

import os
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from orchard.injector.agent.local.archives import import_image
from orchard.injector.agent.local.building import NAME
from tests.contract import settings_image
from tests.injector.conftest import Archives, Service

KEY = "the-key-of-the-suite"
BARE = "contract/bare:1"


class LocalDeployment:
    """See Deployment."""

    image = "host"
    bare_image = BARE
    settings_image = settings_image.NAME
    missing_image = "contract/missing:1"
    isolates_networks = True
    api_key = KEY

    def __init__(self, replicas: list[Service]) -> None:
        self._replicas = replicas
        self.urls = [replica.url for replica in replicas]

    async def kill_sandbox(self, sandbox_id: str) -> None:
        """SIGKILL its first process."""
        os.kill(_first_process(sandbox_id), signal.SIGKILL)

    async def replace_replica(self, index: int) -> None:
        """On the same port."""
        self._replicas[index].kill()
        self._replicas[index].start()


@contextmanager
def local_deployment(
    place: Path,
    agent: Mapping[str, str] | None = None,
    replicas: Sequence[Mapping[str, str]] = ({}, {}),
) -> Iterator[LocalDeployment]:
    """In a directory. `replicas` are the variables of each orchestrator beside ours; `agent` are those of one
    that starts the agent and is gone then, where that is another version's."""
    key = {"SANDBOX_API_KEY": KEY}
    if agent is not None:
        Service(place / "state", env={**agent, **key}).kill()
    services = [Service(place / "state", env={**variables, **key}) for variables in replicas]
    import_image(place / "state", _bare_image(place))
    (place / "settings.tar").write_bytes(settings_image.archive(_busybox()))
    import_image(place / "state", place / "settings.tar")
    yield LocalDeployment(services)
    services[1].kill()
    services[0].stop()


def _bare_image(place: Path) -> Path:
    """One static program, and links to it by the names of what it can do."""
    program = _busybox()
    names = ("sh", "ls", "echo", "sleep", "cat", "patch", "env", "wc")
    archives = Archives(place)
    layer = archives.layer(("bin", None, 0o755), *((f"bin/{name}", program, 0o755) for name in names))
    return archives.docker(BARE, layer)


def _busybox() -> bytes:
    busybox = shutil.which("busybox")
    assert busybox is not None, "install a static busybox (Debian: `apt-get install busybox-static`)"
    return Path(busybox).read_bytes()


def _first_process(sandbox_id: str) -> int:
    """Found from outside by the name of its host."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_text()
        except OSError:
            continue
        if command == f"{NAME}\0sandbox-{sandbox_id}\0":
            return int(path.name)
    raise AssertionError(f"no process of {sandbox_id}")
