"""Runs a worker."""

import asyncio
import gc
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial

import msgspec

from orchard.actions.session import Session
from orchard.configuration.config import ConfigError
from orchard.pipelines.domain import request_kinds
from orchard.processes.signals import call_on_signals
from orchard.schemas.health import ProcessReport
from orchard.schemas.plugins import Kind
from orchard.schemas.queues import Queue
from orchard.streams.campaigns import CampaignBook
from orchard.streams.claims import Claims
from orchard.streams.health import reporting
from orchard.streams.publisher import Publisher
from orchard.streams.topology import declare
from orchard.workers import harnesses, plugins
from orchard.workers.attempts.dependencies import AttemptDependencies
from orchard.workers.attempts.worker import Worker
from orchard.workers.discovery import load
from orchard.workers.episode.settings import WorkerSettings
from orchard.workers.episode.worlds import SharedResources, Standby, standbys
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.endpoint_rests import RestTracker
from orchard.workers.llm.settings import EndpointSettings

ALL = ["all"]
"""Name that stands for every kind of request."""


async def run_worker(session: Session, name: str | None, kinds: Sequence[str]) -> None:
    """Runs a worker for requests of these kinds, or ALL, until it is drained."""
    gc.freeze()  # imported modules live as long as the process: a seventh of making a question sheet
    config = session.config
    name = name or f"{socket.gethostname()}-{os.getpid()}"
    queues = _queues(config.worker, kinds, config.teams)
    usable = plugins.check({Kind.HARNESS: harnesses.built_in_names()})
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(session.reading_connection(f"worker {name}"))
        await declare(connection, config.nats, queues, config.teams)
        await stack.enter_async_context(session.guard(connection, hold=True))
        endpoints = session.endpoints()
        rests = await stack.enter_async_context(RestTracker(connection, f"worker {name}"))
        models = ModelClient(endpoints, rests)
        stack.push_async_callback(models.close)
        shared = SharedResources()
        sandboxes = await stack.enter_async_context(session.sandboxes())
        stack.push_async_callback(shared.close)
        ready: tuple[Standby, ...] = ()
        if any(queue.kind == "rollout" for queue in queues):
            ready = await standbys(shared, sandboxes, config.sandbox, config.worker)
        dependencies = AttemptDependencies(
            worker=name,
            publisher=Publisher(connection),
            blobs=session.blobs,
            sandboxes=sandboxes,
            sandbox_settings=config.sandbox,
            models=models,
            judge=config.judge,
            shared=shared,
            standbys=ready,
        )
        claims = await stack.enter_async_context(Claims(connection, queues[0], queues[1:], config.teams))
        served = {queue.kind for queue in queues}
        worker = Worker(
            dependencies,
            claims,
            CampaignBook(connection),
            config.worker,
            shutdown_seconds=config.up.shutdown_seconds,
            others={
                kind: load(one.handler)(dependencies)
                for kind, one in request_kinds().items()
                if kind in served
            },
        )
        call_on_signals(asyncio.get_running_loop(), worker.consumer.drain)
        serves = ",".join(one.consumer for one in queues)
        look = partial(_worker_report, worker, usable, endpoints)
        await stack.enter_async_context(reporting(connection, "worker", name, look, serves=serves))
        await worker.run()


def _queues(settings: WorkerSettings, kinds: Sequence[str], teams: Iterable[str]) -> list[Queue]:
    """Queues that the worker claims from, its own first, then those that it helps out; of rollouts those of
    every team."""
    rollouts = [
        Queue(domain=settings.domain, priority=priority, team=team)
        for priority in (settings.priority, *settings.lent_to)
        for team in ("", *teams)
    ]
    known = {"rollout": rollouts} | {kind: [one.queue] for kind, one in request_kinds().items()}
    if kinds == ALL:
        kinds = list(known)
    for kind in kinds:
        if kind not in known:
            raise ConfigError(f"no worker serves requests of the kind {kind!r}: there is {', '.join(known)}")
    return [queue for kind in kinds for queue in known[kind]]


def _worker_report(
    worker: Worker,
    usable: Mapping[Kind, list[str]],
    endpoints: Mapping[str, EndpointSettings],
    report: ProcessReport,
) -> ProcessReport:
    return msgspec.structs.replace(
        report,
        numbers={"running": float(len(worker.consumer.open)), "slots": float(worker.consumer.slots)},
        plugins={kind.value: names for kind, names in usable.items()},
        endpoints=sorted(endpoints),
        priced={name: sorted(settings.prices) for name, settings in endpoints.items()},
    )
