"""The process of a worker."""

import asyncio
import os
import signal
import socket
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial

import msgspec

from orchard.actions.session import Session
from orchard.schemas.health import ProcessReport
from orchard.schemas.plugins import Kind
from orchard.streams.campaigns import CampaignBook
from orchard.streams.claims import Claims
from orchard.streams.health import reporting
from orchard.streams.publisher import Publisher
from orchard.streams.settings import Queue
from orchard.streams.topology import declare
from orchard.workers import harnesses, plugins
from orchard.workers.attempts.rollout import AttemptDependencies
from orchard.workers.attempts.worker import Worker
from orchard.workers.episode.standby import standbys
from orchard.workers.episode.worlds import Shared
from orchard.workers.llm.client import EndpointSettings, ModelClient
from orchard.workers.llm.rests import Rests


async def run_worker(session: Session, name: str | None) -> None:
    """One worker process until drained."""
    config = session.config
    queue = Queue(kind="rollout", domain=config.worker.domain, priority=config.worker.priority)
    lends = [Queue(domain=queue.domain, priority=priority) for priority in config.worker.lent_to]
    name = name or f"{socket.gethostname()}-{os.getpid()}"
    usable = plugins.check({Kind.HARNESS: harnesses.built_in_names()})
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(session.reading_connection(f"worker {name}"))
        await declare(connection, config.nats, [queue, *lends])
        await stack.enter_async_context(session.guard(connection, hold=True))
        endpoints = session.endpoints()
        rests = await stack.enter_async_context(Rests(connection, f"worker {name}"))
        models = ModelClient(endpoints, rests)
        stack.push_async_callback(models.close)
        shared = Shared()
        sandboxes = await stack.enter_async_context(session.sandboxes())
        stack.push_async_callback(shared.close)
        dependencies = AttemptDependencies(
            worker=name,
            publisher=Publisher(connection),
            blobs=session.blobs,
            sandboxes=sandboxes,
            sandbox_settings=config.sandbox,
            models=models,
            judge=config.judge,
            shared=shared,
            standbys=await standbys(shared, sandboxes, config.sandbox, config.worker),
        )
        claims = await stack.enter_async_context(Claims(connection, queue, lends))
        worker = Worker(
            dependencies,
            claims,
            CampaignBook(connection),
            config.worker,
            shutdown_seconds=config.up.shutdown_seconds,
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, worker.drain)
        serves = ",".join(one.consumer for one in (queue, *lends))
        look = partial(_worker_report, worker, usable, endpoints)
        await stack.enter_async_context(reporting(connection, "worker", name, look, serves=serves))
        await worker.run()


def _worker_report(
    worker: Worker,
    usable: Mapping[Kind, list[str]],
    endpoints: Mapping[str, EndpointSettings],
    report: ProcessReport,
) -> ProcessReport:
    return msgspec.structs.replace(
        report,
        numbers={"running": float(worker.running), "slots": float(worker.slots)},
        plugins={kind.value: names for kind, names in usable.items()},
        endpoints=sorted(endpoints),
        priced={name: sorted(settings.prices) for name, settings in endpoints.items()},
    )
