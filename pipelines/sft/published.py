"""Publishes the facts of a run as events.

An event's id follows from run, configuration, dataset and step: a resumed run that repeats steps stores
nothing twice.
"""

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType

from orchard.pipelines.sft.metrics import Fact
from orchard.schemas.events import Event, make_event
from orchard.schemas.identity import digest
from orchard.schemas.training import TrainingStarted, TrainingStep
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher

CAMPAIGN = "training"
"""Reserved campaign name: training events belong to no campaign of rollouts."""
_BATCH = 64


def training_event(fact: Fact, config_hash: str, dataset_sha256: str) -> Event:
    """The event of a fact; deterministic but for its time."""
    match fact:
        case TrainingStarted():
            what = f"started-{fact.resumed_step}"
        case TrainingStep():
            what = f"step-{fact.step}"
        case _:
            what = "finished"
    return make_event(
        fact,
        id=digest([CAMPAIGN, fact.run, config_hash, dataset_sha256, what]),
        source=f"orchard/trainer/{fact.run}",
        campaign=CAMPAIGN,
        subject=f"training/{fact.run}",
    )


class EventSink:
    """A sink that publishes; leave its context to wait until everything is stored.

    `connect` opens a connection. A failure to connect or publish ends the run at the next fact or on leaving,
    as the error it was.
    """

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[Connection]]) -> None:
        self._connect = connect
        self._facts: queue.Queue[Fact | None] = queue.Queue()
        self._error: Exception | None = None
        self._config_hash, self._dataset_sha256 = "", ""
        self._thread = threading.Thread(target=self._run, name="training-events", daemon=True)

    def put(self, fact: Fact) -> None:
        if self._error is not None:
            raise self._error
        self._facts.put(fact)

    def __enter__(self) -> "EventSink":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._facts.put(None)
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def _run(self) -> None:
        try:
            asyncio.run(self._publish())
        except Exception as error:  # carried to the thread that trains
            self._error = error

    async def _publish(self) -> None:
        async with self._connect() as connection:
            publisher = Publisher(connection)
            async for facts in self._batches():
                await publisher.events([self._event(fact) for fact in facts])

    def _event(self, fact: Fact) -> Event:
        if isinstance(fact, TrainingStarted):
            self._config_hash, self._dataset_sha256 = fact.config_hash, fact.dataset_sha256
        return training_event(fact, self._config_hash, self._dataset_sha256)

    async def _batches(self) -> AsyncIterator[list[Fact]]:
        """Yield the facts that have come, as soon as there are any; ends with the sink."""
        while True:
            facts = [await asyncio.to_thread(self._facts.get)]
            while len(facts) < _BATCH and not self._facts.empty():
                facts.append(self._facts.get_nowait())
            known = [fact for fact in facts if fact is not None]
            if known:
                yield known
            if len(known) < len(facts):
                return
