"""How the tests of the contract suite reach the deployment that they are run against."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

from orchard.injector.client import AsyncSandbox, AsyncSandboxClient
from tests.contract.balancer import Balancer
from tests.contract.deployment import Deployment

READY = 300.0
"""Seconds a sandbox may take to be ready, images pulled and all."""
LIMIT = 60.0
"""Seconds for what takes none: a test that hangs should say where."""


@pytest.fixture(scope="module")
def balancer(service: Deployment) -> Iterator[Balancer]:
    """In front of all replicas: two requests in a row are never answered by the same one."""
    with Balancer(service.urls).serving() as running:
        yield running


@pytest.fixture
async def client(balancer: Balancer, service: Deployment) -> AsyncIterator[AsyncSandboxClient]:
    async with AsyncSandboxClient(balancer.url, api_key=service.api_key) as made:
        yield made


@pytest.fixture
async def http(balancer: Balancer, service: Deployment) -> AsyncIterator[aiohttp.ClientSession]:
    """For what the client of the SDK would not do."""
    headers = {} if service.api_key is None else {"X-API-Key": service.api_key}
    timeout = aiohttp.ClientTimeout(total=READY)
    async with aiohttp.ClientSession(balancer.url, headers=headers, timeout=timeout) as session:
        yield session


@pytest.fixture
async def sandbox(client: AsyncSandboxClient, service: Deployment) -> AsyncSandbox:
    return await create(client, service.image)


async def create(client: AsyncSandboxClient, image: str, **options: str) -> AsyncSandbox:
    """A small sandbox."""
    return await client.create_sandbox(image, cpu="1", memory="256Mi", timeout=READY, **options)  # type: ignore[arg-type]


async def processes(sandbox: AsyncSandbox) -> str:
    """Command lines of the processes of the sandbox."""
    return (await sandbox.exec("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '")).stdout


async def until_gone(sandbox: AsyncSandbox, command: str) -> None:
    """Return when no process has `command` in its command line any more."""
    async with asyncio.timeout(LIMIT):
        while command in await processes(sandbox):
            await asyncio.sleep(0.02)
