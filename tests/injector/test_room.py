"""One machine with a limit of sandboxes: what is beyond it waits, in order, and is told why."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchard.injector.client import AsyncSandbox, AsyncSandboxClient
from orchard.injector.errors import SandboxFailed
from orchard.schemas.sandboxes import SandboxStatus

if TYPE_CHECKING:
    from tests.injector.conftest import Service

FULL = "this machine has the 2 sandboxes that it may have (ORCHARD_SANDBOX_COUNT)"


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory, start_service: "type[Service]") -> Iterator["Service"]:
    """A service whose agent may have two sandboxes."""
    place: Path = tmp_path_factory.mktemp("room")
    running = start_service(place / "state", env={"ORCHARD_SANDBOX_COUNT": "2"})
    yield running
    running.stop()


async def made(client: AsyncSandboxClient, timeout: float = 60) -> AsyncSandbox:
    return await client.create_sandbox("host", wait_ready=False, timeout=timeout)


async def ready(sandbox: AsyncSandbox) -> None:
    async with asyncio.timeout(60):
        while not (await sandbox.status()).ready:
            await asyncio.sleep(0.02)


async def test_more_than_fit_wait_for_their_turn(narrow: "Service") -> None:
    async with narrow.client() as client:
        first, second, third, fourth = [await made(client) for _ in range(4)]
        await ready(first)
        await ready(second)
        told = await third.status()
        assert (told.status, told.status_message) == (SandboxStatus.PENDING, FULL)
        await first.delete()
        await ready(third)
        assert (await third.status()).status_message != FULL
        assert (await fourth.status()).status is SandboxStatus.PENDING
        await fourth.delete()  # while it waits
        await second.delete()
        fifth = await made(client)
        await ready(fifth)


async def test_one_that_failed_leaves_its_room(narrow: "Service") -> None:
    async with narrow.client() as client:
        for _ in range(3):
            with pytest.raises(SandboxFailed):
                await client.create_sandbox("no/such:image")
        await ready(await made(client))


async def test_one_whose_turn_does_not_come_says_what_it_waited_for(narrow: "Service") -> None:
    async with narrow.client() as client:
        for sandbox in [await made(client) for _ in range(2)]:
            await ready(sandbox)
        with pytest.raises(SandboxFailed) as caught:
            await client.create_sandbox("host", timeout=0.2)
        assert caught.value.reason == "start_timeout"
        assert caught.value.detail.endswith(FULL)
