"""A run's facts in the log, on a real server."""

import asyncio
from pathlib import Path

import pytest

from orchard.pipelines.sft.metrics import read_steps
from orchard.pipelines.sft.published import EventSink
from orchard.pipelines.sft.trainer import CHECKPOINTS, FINISHED, METRICS, train
from orchard.schemas.events import payload
from orchard.schemas.training import TrainingFinished, TrainingStarted, TrainingStep
from orchard.streams.connection import connect
from orchard.streams.errors import StreamsError
from orchard.streams.replay import replay
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from tests.pipelines.sft.small_runs import token_rows, write_dataset


async def run_with_events(settings, url: str) -> None:
    """A run whose events go to the server at `url`."""

    def work() -> None:
        with EventSink(lambda: connect(NatsSettings(patience=2.0), name="trainer", url=url)) as sink:
            train(settings, sinks=lambda: [sink])

    await asyncio.to_thread(work)


async def logged(url: str):
    """The training facts in the log."""
    async with connect(NatsSettings(), name="test", url=url) as connection:
        return [payload(stored.event) async for stored in replay(connection)]


@pytest.mark.long
async def test_a_run_is_in_the_log_and_resumed_steps_are_not_there_twice(run_settings, nats_server):
    async with connect(NatsSettings(), name="test", url=nats_server.url) as connection:
        await declare(connection, NatsSettings(), [])
    settings = run_settings(checkpoint_every=4)
    await run_with_events(settings, nats_server.url)
    started, *steps, finished = await logged(nats_server.url)
    assert isinstance(started, TrainingStarted)
    assert steps == read_steps(Path(settings.out) / METRICS)
    assert isinstance(finished, TrainingFinished)
    assert (finished.steps, finished.final_loss) == (6, steps[-1].loss)
    assert (Path(settings.out) / CHECKPOINTS).exists()

    await run_with_events(settings, nats_server.url)
    assert await logged(nats_server.url) == [started, *steps, finished], "a finished run is not made again"

    (Path(settings.out) / FINISHED).unlink()  # as where it was killed at its end
    await run_with_events(settings, nats_server.url)
    again = await logged(nats_server.url)
    assert [fact.step for fact in again if isinstance(fact, TrainingStep)] == [1, 2, 3, 4, 5, 6]
    assert [fact.resumed_step for fact in again if isinstance(fact, TrainingStarted)] == [0, 4]


@pytest.mark.long
async def test_a_run_over_a_dataset_that_was_built_again_is_another_one(run_settings, nats_server):
    """Under the same name, with the same configuration: the dataset's directory has other rows by then."""
    async with connect(NatsSettings(), name="test", url=nats_server.url) as connection:
        await declare(connection, NatsSettings(), [])
    settings = run_settings(run="run", checkpoint_every=0)
    await run_with_events(settings, nats_server.url)
    write_dataset(Path(settings.dataset), token_rows(25)[1:])
    await run_with_events(run_settings("again", run="run", checkpoint_every=0), nats_server.url)
    facts = await logged(nats_server.url)
    assert len({fact.dataset_sha256 for fact in facts if isinstance(fact, TrainingStarted)}) == 2
    assert [fact.step for fact in facts if isinstance(fact, TrainingStep)] == [1, 2, 3, 4, 5, 6] * 2
    assert sum(isinstance(fact, TrainingFinished) for fact in facts) == 2


@pytest.mark.long
async def test_a_log_that_cannot_be_reached_ends_the_run_with_its_error(run_settings):
    with pytest.raises(StreamsError):
        await run_with_events(run_settings(), "nats://127.0.0.1:1")
