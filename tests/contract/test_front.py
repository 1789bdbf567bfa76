"""The contract at one address for two hosts: two fronts, each in front of both services."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.contract import settings_image
from tests.contract.local import BARE, KEY, LocalDeployment, local_deployment
from tests.contract.points import *  # noqa: F403
from tests.injector.front import FrontProcess

pytestmark = pytest.mark.long


class FrontedDeployment:
    """See Deployment."""

    image = "host"
    bare_image = BARE
    settings_image = settings_image.NAME
    missing_image = "contract/missing:1"
    isolates_networks = True
    api_key = KEY

    def __init__(self, fronts: list[FrontProcess], host: LocalDeployment) -> None:
        self._fronts, self._host = fronts, host
        self.urls = [front.url for front in fronts]

    async def kill_sandbox(self, sandbox_id: str) -> None:
        """Found by its name, whichever host has it."""
        await self._host.kill_sandbox(sandbox_id)

    async def replace_replica(self, index: int) -> None:
        """On the same port."""
        self._fronts[index].kill()
        await asyncio.to_thread(self._fronts[index].start)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrontedDeployment]:
    place = tmp_path_factory.mktemp("fronts")
    with local_deployment(place / "a") as one, local_deployment(place / "b") as two:
        services = {"a": one.urls[0], "b": two.urls[0]}
        fronts = [FrontProcess(place / name, services, KEY) for name in ("front-1", "front-2")]
        yield FrontedDeployment(fronts, one)
        for front in fronts:
            front.stop()
