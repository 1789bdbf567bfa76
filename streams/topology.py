"""Declares streams, consumers and buckets; safe to repeat."""

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from nats.errors import Error as NatsError
from nats.js import api
from nats.js.errors import APIError, NotFoundError

from orchard.schemas.queues import Queue
from orchard.streams import names
from orchard.streams.connection import Connection
from orchard.streams.errors import TopologyError
from orchard.streams.publish import UNSETTLED, PublishRetry, Unavailable
from orchard.streams.settings import NatsSettings, TeamSettings

log = logging.getLogger(__name__)

ADVISORY_AGE = 30 * 24 * 3600.0
"""Seconds that an unhandled advisory is kept; the sweep finds what is older."""
TRAIL_AGE = 7 * 24 * 3600.0
"""Seconds that the replay pointer of a rollout without an outcome is kept."""
DUE_ACK_WAIT = 30.0
NO_TEAMS: Mapping[str, TeamSettings] = MappingProxyType({})
_NEVER = ("no_ack", "subject_transform")
"""Settings that no stream of Orchard has: with them nothing is confirmed, or it is stored elsewhere."""


def _stream(
    settings: NatsSettings, name: str, description: str, *subjects: str, **more: Any
) -> api.StreamConfig:
    """Configures a stream on disk that drops nothing. Limits not named here are the server's."""
    rules: dict[str, Any] = {
        "retention": api.RetentionPolicy.LIMITS,
        "storage": api.StorageType.FILE,
        "num_replicas": settings.replicas,
        "duplicate_window": settings.event_dedupe,
    }
    return api.StreamConfig(name=name, description=description, subjects=list(subjects), **(rules | more))


def stream_configs(settings: NatsSettings) -> list[api.StreamConfig]:
    direct: dict[str, Any] = {"duplicate_window": settings.work_dedupe, "allow_direct": True}
    work_queue = api.RetentionPolicy.WORK_QUEUE
    return [
        _stream(
            settings,
            names.WORK,
            "Requests to be claimed; full means refused, never dropped",
            names.WORK_SUBJECTS,
            retention=work_queue,
            discard=api.DiscardPolicy.NEW,
            max_msgs=settings.work_max_messages,
            **direct,
        ),
        _stream(
            settings,
            names.LATER,
            "Requests waiting for their time, and those whose time has come",
            *(names.LATER_SUBJECTS, names.DUE_SUBJECTS),
            retention=work_queue,
            allow_msg_schedules=True,
            allow_rollup_hdrs=True,
            **direct,
        ),
        *(events_config(settings, stream) for stream in reversed(range(settings.event_streams))),
        _stream(
            settings,
            names.DEAD,
            "Requests that left the queue without an outcome, with the evidence",
            names.DEAD_SUBJECTS,
            **direct,
        ),
        _stream(
            settings,
            names.ADVISORIES,
            "The server's notices about requests past max_deliver or terminated",
            *(names.MAX_DELIVERIES, names.TERMINATED),
            retention=work_queue,
            max_age=ADVISORY_AGE,
        ),
        _stream(
            settings,
            names.TRAILS,
            "Where in the event stream the messages of each running attempt are",
            names.TRAIL_SUBJECTS,
            max_msgs_per_subject=1,
            max_age=TRAIL_AGE,
            allow_direct=True,
            allow_msg_ttl=True,
        ),
        _stream(
            settings,
            names.GUARD,
            "The last damage of the events that a process has found",
            names.DAMAGED,
            max_msgs_per_subject=1,
        ),
        _stream(
            settings,
            names.CAMPAIGNS_STREAM,
            "Campaigns: a key-value bucket",
            f"{names.CAMPAIGNS_PREFIX}>",
            discard=api.DiscardPolicy.NEW,
            max_msgs_per_subject=8,
            allow_direct=True,
            allow_rollup_hdrs=True,
            deny_delete=True,
        ),
        _stream(
            settings,
            names.ENDPOINTS_STREAM,
            "Model endpoints that rest or refuse: a key-value bucket",
            f"{names.ENDPOINTS_PREFIX}>",
            max_msgs_per_subject=1,
            allow_direct=True,
            allow_msg_ttl=True,
        ),
        *memory_configs(settings),
    ]


def memory_configs(settings: NatsSettings) -> list[api.StreamConfig]:
    """Configures the streams that a start of the server takes away, unless there are replicas."""
    newest: dict[str, Any] = {"storage": api.StorageType.MEMORY, "max_msgs_per_subject": 1}
    return [
        _stream(
            settings,
            names.HEALTH,
            "What processes say of themselves",
            names.HEALTH_SUBJECTS,
            max_age=names.HEALTH_AGE,
            allow_direct=True,
            **newest,
        ),
        _stream(
            settings,
            names.CHECKED,
            "Whether the events were checked since the server was started",
            names.CHECKED_SUBJECT,
            **newest,
        ),
    ]


def events_config(settings: NatsSettings, stream: int = 0) -> api.StreamConfig:
    """Configures a stream of events. No limit of it drops an event: the newest ones on `done` and `started`
    subjects are the fences that let a rollout have one outcome and each attempt a number of its own."""
    return _stream(
        settings,
        names.stream_name(stream),
        "Whatever happened; full means refused, never dropped",
        names.stored_subject(names.EVENT_SUBJECTS, stream),
        discard=api.DiscardPolicy.NEW,
        max_bytes=settings.event_max_bytes,
        max_msgs=-1,
        max_age=0.0,
        max_msgs_per_subject=-1,
        max_msg_size=-1,
        allow_direct=True,
        deny_delete=True,
    )


def consumer_configs(
    settings: NatsSettings, queues: Sequence[Queue], teams: Mapping[str, TeamSettings] = NO_TEAMS
) -> list[tuple[str, api.ConsumerConfig]]:
    """Configures consumers, as (stream, consumer) pairs. No `backoff`: it would override ack_wait and delay
    what a crash left. The server itself keeps a team's quota of slots: it delivers no more than are open."""

    def consumer(name: str, **more: Any) -> api.ConsumerConfig:
        return api.ConsumerConfig(name=name, durable_name=name, ack_policy=api.AckPolicy.EXPLICIT, **more)

    claims = [
        (
            names.WORK,
            consumer(
                queue.consumer,
                filter_subjects=queue.filters,
                ack_wait=settings.ack_wait,
                max_deliver=settings.max_deliver,
                max_ack_pending=max_open(settings, queue, teams),
                max_waiting=settings.max_waiting,
            ),
        )
        for queue in queues
    ]
    own: dict[str, Any] = {
        "ack_wait": DUE_ACK_WAIT,
        "max_deliver": -1,
        "max_ack_pending": 1000,
        "max_waiting": 512,
    }
    return [
        *claims,
        (names.LATER, consumer(names.DUE_CONSUMER, filter_subject=names.DUE_SUBJECTS, **own)),
        (names.ADVISORIES, consumer(names.ADVISORY_CONSUMER, **own)),
    ]


def max_open(settings: NatsSettings, queue: Queue, teams: Mapping[str, TeamSettings]) -> int:
    """Maximum number of claims of a queue that are open at once."""
    quota = teams[queue.team].slots if queue.kind == "rollout" and queue.team in teams else None
    return settings.max_ack_pending if quota is None else min(quota, settings.max_ack_pending)


async def declare(
    connection: Connection,
    settings: NatsSettings,
    queues: Sequence[Queue],
    teams: Mapping[str, TeamSettings] = NO_TEAMS,
) -> None:
    """Creates what is missing and updates what differs; safe to call from any number of processes. `teams`
    has the quotas of those whose queues are named.

    Raises TopologyError for a change that the server cannot make in place, or two queues with one consumer
    name. Queues declared earlier and not named now stay as they are.
    """
    by_consumer: dict[str, Queue] = {}
    for queue in queues:
        other = by_consumer.setdefault(queue.consumer, queue)
        if other != queue:
            raise TopologyError(
                f"queues {other.subject} and {queue.subject} would share the consumer "
                f"{queue.consumer}: rename one"
            )
    with _refusals(connection):
        for stream in stream_configs(settings):
            await _declare_stream(connection, stream)
        await _count_streams(connection, settings.event_streams)
        for stream_name, consumer in consumer_configs(settings, queues, teams):
            await _declare_consumer(connection, stream_name, consumer)


async def declare_events(connection: Connection, settings: NatsSettings, stream: int = 0) -> None:
    """Declares one stream of events alone; raises as `declare` does."""
    with _refusals(connection):
        await _declare_stream(connection, events_config(settings, stream))


async def declare_streams(connection: Connection, settings: NatsSettings, known: int) -> None:
    """Declares all streams of events, of which there were `known` or more; raises as `declare` does."""
    count = max(settings.event_streams, known)
    with _refusals(connection):
        for stream in reversed(range(count)):
            await _declare_stream(connection, events_config(settings, stream))
        await _count_streams(connection, count)


async def _count_streams(connection: Connection, wanted: int) -> None:
    """Writes on stream 0 that there are so many streams of events, once all of them exist. Readers go by it;
    it never falls, because campaigns and fences stay where they are."""
    if wanted == 1:
        return
    jetstream = connection.jetstream
    config = (await jetstream.stream_info(names.EVENTS)).config
    metadata = config.metadata or {}
    if int(metadata.get(names.EVENT_STREAMS, 1)) < wanted:
        log.info("new campaigns have %d streams of events", wanted)
        config.metadata = metadata | {names.EVENT_STREAMS: str(wanted)}
        await jetstream.update_stream(config)


async def declare_memory(connection: Connection, settings: NatsSettings) -> None:
    """Declares the streams that a start of the server took away; raises as `declare` does."""
    with _refusals(connection):
        for stream in memory_configs(settings):
            await _declare_stream(connection, stream)


async def widen(connection: Connection, config: api.ConsumerConfig) -> None:
    """Gives a queue's consumer the filters back that a process of an older version took from it; raises as
    `declare` does."""
    held = filters_of(config)
    try:
        queue = Queue.of_subject(held[0] if held else "")
    except ValueError:
        return  # somebody else's
    if config.name == queue.consumer and not set(queue.filters) <= set(held):
        log.error("the queue %s claimed only from %s: a process of an older version?", config.name, held)
        with _refusals(connection):
            await _declare_consumer(connection, names.WORK, config.evolve(filter_subjects=queue.filters))


def filters_of(config: api.ConsumerConfig) -> list[str]:
    """Subjects that a consumer delivers; empty for all."""
    return list(config.filter_subjects or filter(None, [config.filter_subject]))


@contextmanager
def _refusals(connection: Connection) -> Iterator[None]:
    try:
        yield
    except APIError as error:
        raise TopologyError(
            f"NATS at {connection.host} refused the topology ({error.description}): it needs JetStream of "
            "nats-server 2.12 or newer, and permission to create streams"
        ) from error
    except (NatsError, TimeoutError) as error:
        raise TopologyError(
            f"NATS at {connection.host} did not answer a JetStream request ({error}): enable JetStream on it"
        ) from error


async def _declare_stream(connection: Connection, wanted: api.StreamConfig) -> None:
    await _settled(connection, f"{wanted.name}", lambda: _declare_stream_once(connection, wanted))


async def _declare_consumer(connection: Connection, stream: str, wanted: api.ConsumerConfig) -> None:
    await _settled(connection, f"{wanted.name}", lambda: _declare_consumer_once(connection, stream, wanted))


async def _settled(connection: Connection, name: str, once: Callable[[], Awaitable[None]]) -> None:
    """Repeats `once` until the servers of a cluster have elected a leader, within `patience`. A request that
    a user may not send is not answered either: that is not waited for."""
    retry = PublishRetry(connection, to_read=True)
    while True:
        try:
            return await once()
        except APIError as error:
            if error.err_code != UNSETTLED:
                raise
            retry.problem = Unavailable(str(error.description))
        except TimeoutError as error:
            if "permissions violation" in str(connection.last_error):
                raise
            retry.problem = Unavailable(str(error))
        await retry.pause(name)


async def _declare_stream_once(connection: Connection, wanted: api.StreamConfig) -> None:
    jetstream = connection.jetstream
    assert wanted.name is not None
    try:
        current = (await jetstream.stream_info(wanted.name)).config
    except NotFoundError:
        await jetstream.add_stream(wanted)
        return
    held = current.as_dict()
    changes = {key for key, value in wanted.as_dict().items() if held.get(key) != value}
    changes |= {key for key in _NEVER if held.get(key)}
    if not changes:
        return
    log.info("updating the stream %s: %s", wanted.name, sorted(changes))
    try:
        await jetstream.update_stream(current.evolve(**{key: getattr(wanted, key) for key in changes}))
    except APIError as error:
        if error.err_code == UNSETTLED:
            raise
        raise TopologyError(
            f"the stream {wanted.name} exists with other settings that cannot be changed in place "
            f"({error.description}): use another NATS account or store, or delete the stream"
        ) from error


async def _declare_consumer_once(connection: Connection, stream: str, wanted: api.ConsumerConfig) -> None:
    jetstream = connection.jetstream
    assert wanted.name is not None
    try:
        current = (await jetstream.consumer_info(stream, wanted.name)).config
    except NotFoundError:
        await jetstream.add_consumer(stream, wanted)
        return
    if current.max_waiting != wanted.max_waiting:
        # Replacing the consumer would forget the deliveries of each request, and so repeat attempt numbers.
        log.warning(
            "max_waiting of the queue %s stays %s: the server fixes it when the queue is created",
            wanted.name,
            current.max_waiting,
        )
    # A newer version may claim from more subjects. What a consumer may not claim it passes over for ever.
    known = filters_of(current)
    filters = known + [one for one in filters_of(wanted) if one not in known]
    several = {"filter_subjects": filters, "filter_subject": None} if wanted.filter_subjects else {}
    keep = wanted.evolve(max_waiting=current.max_waiting, **several)
    changes = {key for key, value in keep.as_dict().items() if current.as_dict().get(key) != value}
    if not changes:
        return
    log.info("updating the consumer %s of %s: %s", wanted.name, stream, sorted(changes))
    try:
        await jetstream.add_consumer(stream, keep)
    except APIError as error:
        if error.err_code == UNSETTLED:
            raise
        raise TopologyError(
            f"the consumer {wanted.name} of {stream} exists with other settings that cannot be changed in "
            f"place ({error.description}): delete it when its queue is empty"
        ) from error
