"""The topology is declared as often as one likes, and changed in place where the server can."""

import logging

import msgspec
import pytest
from nats.js import api

from orchard.schemas.queues import Queue
from orchard.streams import names
from orchard.streams.connection import Connection
from orchard.streams.errors import TopologyError
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare


async def test_declaring_again_changes_nothing(
    connection: Connection, settings: NatsSettings, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "orchard.streams.topology")

    await declare(connection, settings, [queue])

    assert caplog.messages == []


async def test_the_streams_are_as_the_design_says(connection: Connection) -> None:
    work = (await connection.jetstream.stream_info(names.WORK)).config
    events = (await connection.jetstream.stream_info(names.EVENTS)).config

    assert (work.retention, work.discard, work.duplicate_window) == ("workqueue", "new", 3600)
    assert (events.retention, events.storage, events.duplicate_window) == ("limits", "file", 120)
    assert (events.allow_direct, events.deny_delete) == (True, True)


async def test_changed_settings_are_applied_in_place(
    connection: Connection, settings: NatsSettings, queue: Queue
) -> None:
    changed = msgspec.structs.replace(
        settings, ack_wait=9.0, max_deliver=5, max_ack_pending=77, work_max_messages=10, event_dedupe=60.0
    )

    await declare(connection, changed, [queue])

    consumer = (await connection.jetstream.consumer_info(names.WORK, queue.consumer)).config
    assert (consumer.ack_wait, consumer.max_deliver, consumer.max_ack_pending) == (9.0, 5, 77)
    assert (await connection.jetstream.stream_info(names.WORK)).config.max_msgs == 10
    assert (await connection.jetstream.stream_info(names.EVENTS)).config.duplicate_window == 60


async def test_max_waiting_stays_and_says_so(
    connection: Connection, settings: NatsSettings, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    await declare(connection, msgspec.structs.replace(settings, max_waiting=7, ack_wait=9.0), [queue])

    consumer = (await connection.jetstream.consumer_info(names.WORK, queue.consumer)).config
    assert (consumer.max_waiting, consumer.ack_wait) == (settings.max_waiting, 9.0)
    assert any("max_waiting of the queue rollout-swe-normal stays 4096" in text for text in caplog.messages)


async def test_a_stream_that_cannot_be_changed_in_place_is_named(
    connection: Connection, settings: NatsSettings, queue: Queue
) -> None:
    await connection.jetstream.delete_stream(names.DEAD)
    await connection.jetstream.add_stream(
        name=names.DEAD, subjects=[names.DEAD_SUBJECTS], retention=api.RetentionPolicy.WORK_QUEUE
    )

    with pytest.raises(TopologyError, match="the stream ORCHARD_DEAD exists with other settings"):
        await declare(connection, settings, [queue])


async def test_queues_may_not_share_a_consumer(connection: Connection, settings: NatsSettings) -> None:
    twins = [Queue(domain="a-b", priority="c"), Queue(domain="a", priority="b-c")]

    with pytest.raises(TopologyError, match="would share the consumer rollout-a-b-c: rename one"):
        await declare(connection, settings, twins)


async def test_an_older_version_takes_no_filter_from_a_queue(
    connection: Connection, settings: NatsSettings, queue: Queue
) -> None:
    held = (await connection.jetstream.consumer_info(names.WORK, queue.consumer)).config
    newer = [*queue.filters, "orchard.work.rollout.next.normal"]
    await connection.jetstream.add_consumer(names.WORK, held.evolve(filter_subjects=newer))

    await declare(connection, settings, [queue])

    now = (await connection.jetstream.consumer_info(names.WORK, queue.consumer)).config
    assert now.filter_subjects == newer
