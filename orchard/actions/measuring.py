"""Measures the values of a rollout's steps: replays to a step, continues with a policy, grades."""

import asyncio
import os
import signal
import socket
from contextlib import AsyncExitStack
from dataclasses import dataclass

import msgspec

from orchard.actions.reporter import SILENT, Reporter
from orchard.actions.session import Session
from orchard.pipelines.values.continuations import MeasuredPoint
from orchard.pipelines.values.measure import Measurement, PointRefused
from orchard.pipelines.values.measure import measure as measure_point
from orchard.pipelines.values.recorded import read_recorded
from orchard.schemas.campaigns import ModelSpec
from orchard.schemas.llm_calls import ModelKind
from orchard.storage.reader import open_tables
from orchard.streams.publisher import Publisher
from orchard.streams.topology import declare
from orchard.workers.attempts.dependencies import AttemptDependencies
from orchard.workers.failures import InfrastructureError
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.endpoint_rests import RestTracker


@dataclass(frozen=True)
class MeasureRequest:
    """Arguments of `values measure`."""

    rollout: str
    steps: list[int]
    samples: int
    model: str | None = None
    endpoint: str | None = None
    slots: int = 4
    allow_divergence: bool = False

    def policy(self, own: ModelSpec) -> ModelSpec:
        """Named model, else the rollout's own."""
        if self.model is None:
            return msgspec.structs.replace(own, endpoint=self.endpoint or own.endpoint)
        oracle = self.model.partition("/")[0] == "oracle"
        return msgspec.structs.replace(
            own,
            name=self.model,
            endpoint=self.endpoint or ("oracle" if oracle else "default"),
            kind=ModelKind.ORACLE if oracle else ModelKind.MODEL,
        )


async def measure_rollout(
    session: Session, wanted: MeasureRequest, told: Reporter = SILENT
) -> list[Measurement]:
    """Measures the steps in sequence, except those that cannot be measured."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    measured: list[Measurement] = []
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(session.connection("measure"))
        await declare(connection, session.config.nats, [])
        await session.committed(connection)
        with open_tables(session.config.store) as tables:
            recorded = read_recorded(tables, session.blobs, wanted.rollout)
        rests = await stack.enter_async_context(RestTracker(connection, "measure"))
        models = ModelClient(session.endpoints(), rests)
        stack.push_async_callback(models.close)
        dependencies = AttemptDependencies(
            worker=f"{socket.gethostname()}-{os.getpid()}",
            publisher=Publisher(connection),
            blobs=session.blobs,
            sandboxes=await stack.enter_async_context(session.sandboxes()),
            sandbox_settings=session.config.sandbox,
            models=models,
        )
        done, most = 0, wanted.samples * len(wanted.steps)

        def count(*_: object) -> None:
            nonlocal done
            done += 1
            told.progress(recorded.request.rollout_id, done, most)

        for number, step in enumerate(wanted.steps, start=1):
            point = MeasuredPoint(
                recorded=recorded,
                at=step,
                model=wanted.policy(recorded.request.model),
                samples=wanted.samples,
                allow_divergence=wanted.allow_divergence,
            )
            try:
                measured.append(await measure_point(point, dependencies, slots=wanted.slots, told=count))
            except (PointRefused, InfrastructureError) as error:
                told.note(str(error), "not measured:")
            except asyncio.CancelledError:
                told.note("run the same command again to measure the rest", "stopped:")
                raise
            done = wanted.samples * number
        await session.committed(connection)
    return measured
