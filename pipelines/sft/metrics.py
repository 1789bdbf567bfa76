"""Reports of a running run: JSON lines, events in the log, and a plot at the end.

An event's id follows from run, configuration and step: a resumed run that repeats steps stores nothing twice.
"""

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import Protocol

import msgspec

from orchard.schemas.events import Event, make_event
from orchard.schemas.identity import digest
from orchard.schemas.training import TrainingFinished, TrainingStarted, TrainingStep
from orchard.storage.durable import write_whole
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher

Fact = TrainingStarted | TrainingStep | TrainingFinished


class Sink(Protocol):
    """Takes the facts of a run, in order."""

    def put(self, fact: Fact) -> None: ...


class JsonLines:
    """Writes one line for each step into a file. A resumed run cuts off what came after its checkpoint."""

    def __init__(self, path: Path, after_step: int) -> None:
        kept = [step for step in read_steps(path) if step.step <= after_step] if path.exists() else []
        write_whole(path.parent, path.name, b"".join(_line(step) for step in kept))
        self._path = path

    def put(self, fact: Fact) -> None:
        if isinstance(fact, TrainingStep):
            with self._path.open("ab") as file:
                file.write(_line(fact))


def read_steps(path: Path) -> list[TrainingStep]:
    """The steps in a metrics file; a last line that a kill cut short is left out."""
    lines = path.read_bytes().split(b"\n")[:-1]
    return [msgspec.json.decode(line, type=TrainingStep) for line in lines]


def plot_steps(steps: list[TrainingStep], path: Path, title: str) -> None:
    """Draw loss, learning rate and gradient norm over the steps as PNG."""
    import matplotlib  # only here, as it takes a second to import

    matplotlib.use("Agg")
    from matplotlib import pyplot

    numbers = [step.step for step in steps]
    figure, (upper, lower) = pyplot.subplots(2, 1, figsize=(8, 6), sharex=True, height_ratios=(2, 1))
    upper.plot(numbers, [step.loss for step in steps], color="tab:blue", linewidth=1)
    upper.set_ylabel("loss (nats per trained token)")
    upper.set_title(title)
    upper.grid(alpha=0.3)
    lower.plot(numbers, [step.grad_norm for step in steps], color="tab:gray", linewidth=1)
    lower.set_ylabel("gradient norm")
    lower.set_xlabel("optimizer step")
    rate = lower.twinx()
    rate.plot(numbers, [step.lr for step in steps], color="tab:orange", linewidth=1)
    rate.set_ylabel("learning rate", color="tab:orange")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _line(step: TrainingStep) -> bytes:
    return msgspec.json.encode(step) + b"\n"


CAMPAIGN = "training"
"""Reserved campaign name: training events belong to no campaign of rollouts."""
_BATCH = 64


def training_event(fact: Fact, config_hash: str) -> Event:
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
        id=digest([CAMPAIGN, fact.run, config_hash, what]),
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
        self._config_hash = ""
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
            self._config_hash = fact.config_hash
        return training_event(fact, self._config_hash)

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
