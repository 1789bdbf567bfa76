"""Sandboxes that belong to no rollout, for making and proving tasks, and concurrent work over a list."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import msgspec

from orchard.injector.client import AsyncSandboxClient
from orchard.workers.episode.networks import SHUT, Network
from orchard.workers.episode.sandboxes import SandboxFactory, SandboxMachine, SandboxSettings

Item = TypeVar("Item")
Result = TypeVar("Result")


async def as_ready(
    items: Iterable[Item],
    work: Callable[[Item], Awaitable[Result]],
    *,
    concurrency: int,
    started: Callable[[Item], None] = lambda _: None,
) -> AsyncGenerator[Result, None]:
    """Yield the result of each item as it is ready, `concurrency` at a time; raises what `work` raises.
    Leaving the iteration cancels running work."""
    free = asyncio.Semaphore(concurrency)

    async def one(item: Item) -> Result:
        async with free:
            started(item)
            return await work(item)

    jobs = [asyncio.create_task(one(item)) for item in items]
    try:
        for done in asyncio.as_completed(jobs):
            yield await done
    finally:
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)


def open_sandbox(
    client: AsyncSandboxClient,
    image: str,
    *,
    purpose: str,
    cpu: str,
    memory: str,
    timeout: float,
    network: Network = SHUT,
) -> AbstractAsyncContextManager[SandboxMachine]:
    """A sandbox for a task in the making, `timeout` seconds for its creation; raises InfrastructureError."""
    return _factory(client, purpose).open(
        image, purpose=purpose, cpu=cpu, memory=memory, timeout=timeout, network=network
    )


def copy_sandbox(
    client: AsyncSandboxClient, machine: SandboxMachine, *, purpose: str, memory: str, timeout: float
) -> AbstractAsyncContextManager[SandboxMachine]:
    """A copy of such a sandbox, without its processes; raises InfrastructureError."""
    return _factory(client, purpose).copy(machine, purpose=purpose, memory=memory, timeout=timeout)


def _factory(client: AsyncSandboxClient, purpose: str) -> SandboxFactory:
    return SandboxFactory(
        client,
        SandboxSettings(),
        _unrecorded,
        key=f"{purpose}-{secrets.token_hex(8)}",
        labels={"campaign": "tasks"},
    )


async def _unrecorded(_: msgspec.Struct) -> None:
    """Ignores events of these sandboxes, which belong to no rollout."""
