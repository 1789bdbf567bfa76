"""A worker in this process, while a test's run goes on."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from orchard.injector.client import AsyncSandboxClient
from orchard.schemas.queues import Queue
from orchard.storage.blobs import BlobStore
from orchard.streams.campaigns import CampaignBook
from orchard.streams.claims import Claims
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher
from orchard.streams.tasks import end
from orchard.workers.attempts.dependencies import AttemptDependencies
from orchard.workers.attempts.worker import Worker, WorkerSettings
from orchard.workers.episode.sandboxes import SandboxSettings
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.settings import EndpointSettings

_USUAL = Queue()


@asynccontextmanager
async def one_worker(
    connection: Connection,
    sandboxes: AsyncSandboxClient,
    blobs: BlobStore,
    endpoints: Mapping[str, EndpointSettings],
    slots: int,
    queue: Queue = _USUAL,
) -> AsyncIterator[None]:
    """Rollouts that are requested are done; at the end it finishes those that it has, after an error none."""
    async with ModelClient(endpoints) as models, Claims(connection, queue) as claims:
        dependencies = AttemptDependencies(
            worker="w",
            publisher=Publisher(connection),
            blobs=blobs,
            sandboxes=sandboxes,
            sandbox_settings=SandboxSettings(),
            models=models,
        )
        worker = Worker(
            dependencies,
            claims,
            CampaignBook(connection),
            WorkerSettings(slots=slots),
            shutdown_seconds=30.0,
        )
        working = asyncio.create_task(worker.run())
        try:
            yield
            worker.consumer.drain()
            await working
        finally:
            await end(working)
