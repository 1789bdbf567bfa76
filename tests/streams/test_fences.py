"""Limits of the event stream refuse events; none of them ever drops an old one, so every fence stays."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats.js import api

from orchard.schemas.events import Event
from orchard.streams import names
from orchard.streams.connection import Connection, connect
from orchard.streams.errors import LogFull, OutcomeRefused
from orchard.streams.publisher import Publisher
from orchard.streams.replay import replay
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.stream_check import StreamGuard, guarded
from orchard.streams.stream_state import ExpectedStream
from orchard.streams.topology import declare, declare_events

ROLLOUTS = [f"ab{number}" for number in range(8)]
MADE_EARLIER = {"discard": api.DiscardPolicy.OLD, "max_bytes": 20_000, "max_age": 3600.0}


async def nothing_known() -> ExpectedStream:
    return ExpectedStream()


async def edit(connection: Connection, **changes: object) -> None:
    """What `nats stream edit` does."""
    config = (await connection.jetstream.stream_info(names.EVENTS)).config
    await connection.jetstream.update_stream(config.evolve(**changes))


async def limits(connection: Connection) -> tuple[str, int, float, int]:
    config = (await connection.jetstream.stream_info(names.EVENTS)).config
    return str(config.discard), config.max_bytes, config.max_age, config.max_msgs_per_subject


async def test_a_full_log_refuses_and_no_rollout_gets_a_second_outcome(
    connection: Connection,
    settings: NatsSettings,
    make_fact: Callable[[int], Event],
    make_terminal: Callable[..., Event],
) -> None:
    await declare_events(connection, msgspec.structs.replace(settings, event_max_bytes=20_000))
    publisher = Publisher(connection)
    for rollout in ROLLOUTS:
        await publisher.terminal(make_terminal(1, rollout))

    with pytest.raises(
        LogFull, match=r"raise nats\.event_max_bytes, or make room with `orchard log archive`"
    ):
        await publisher.events([make_fact(number) for number in range(200)])
    for rollout in ROLLOUTS:
        with pytest.raises((LogFull, OutcomeRefused)):
            await publisher.terminal(make_terminal(2, rollout))

    await declare_events(connection, msgspec.structs.replace(settings, event_max_bytes=10_000_000))
    await publisher.events([make_fact(number) for number in range(200)])
    for rollout in ROLLOUTS:
        with pytest.raises(OutcomeRefused):
            await publisher.terminal(make_terminal(2, rollout))
    outcomes = [stored.event.attempt async for stored in replay(connection, subjects="orchard.events.done.>")]
    assert outcomes == [1] * len(ROLLOUTS)


async def test_a_worker_waits_until_a_full_log_has_room(
    server: EmbeddedServer, connection: Connection, settings: NatsSettings, make_fact: Callable[[int], Event]
) -> None:
    small = msgspec.structs.replace(settings, event_max_bytes=20_000)
    await declare_events(connection, small)
    async with (
        connect(settings, name="worker", url=server.url) as worker,
        guarded(StreamGuard(worker, small, nothing_known), worker, hold=True),
    ):
        storing = asyncio.create_task(Publisher(worker).events([make_fact(number) for number in range(200)]))
        with pytest.raises(LogFull):
            while True:
                await Publisher(connection).event(make_fact(1000))
                await Publisher(connection).event(make_fact(1001 + len(await facts(connection))))
        assert not storing.done()

        await declare_events(connection, msgspec.structs.replace(settings, event_max_bytes=10_000_000))
        await storing
    assert {f"fact-{number}" for number in range(200)} <= set(await facts(connection))


async def facts(connection: Connection) -> list[str]:
    return [stored.event.id async for stored in replay(connection)]


async def test_nothing_is_claimed_when_the_log_is_nearly_full(
    connection: Connection, settings: NatsSettings, make_fact: Callable[[int], Event]
) -> None:
    small = msgspec.structs.replace(settings, event_max_bytes=20_000, full_share=0.5)
    await declare_events(connection, small)
    guard = StreamGuard(connection, small, nothing_known)
    await guard.check()
    assert await connection.room(0)

    with pytest.raises(LogFull):
        await Publisher(connection).events([make_fact(number) for number in range(200)])
    await guard.check()
    assert not await connection.room(0)
    assert "so nothing new is claimed: raise nats.event_max_bytes" in connection.full

    await declare_events(connection, settings)
    await guard.check()
    assert await connection.room(0)


async def test_a_stream_made_with_limits_that_drop_is_changed_in_place(
    server: EmbeddedServer, settings: NatsSettings, make_fact: Callable[[int], Event]
) -> None:
    async with connect(settings, name="earlier", url=server.url) as connection:
        await connection.jetstream.add_stream(
            name=names.EVENTS, subjects=[names.EVENT_SUBJECTS], deny_delete=True, **MADE_EARLIER
        )
        await Publisher(connection).event(make_fact(1))

        await declare(connection, settings, [])

        assert await limits(connection) == ("new", -1, 0, -1)
        assert await facts(connection) == ["fact-1"]


async def test_limits_that_somebody_edits_are_put_back(
    connection: Connection, settings: NatsSettings
) -> None:
    await edit(connection, **MADE_EARLIER, max_msgs_per_subject=1)

    await StreamGuard(connection, settings, nothing_known).check()

    assert await limits(connection) == ("new", -1, 0, -1)


@pytest.mark.parametrize(
    "changes",
    [
        {"subject_transform": api.SubjectTransform(src="orchard.events.>", dest="elsewhere.>")},
        {"subjects": ["orchard.events.done.>"]},
        {"no_ack": True},
        {"max_msgs": 1},
        {"max_msg_size": 1},
    ],
)
async def test_rules_that_displace_or_refuse_events_are_put_back(
    connection: Connection,
    settings: NatsSettings,
    make_terminal: Callable[..., Event],
    changes: dict[str, Any],
) -> None:
    """With a transform the fence of a rollout is not found where it is looked for."""
    publisher = Publisher(connection)
    await publisher.terminal(make_terminal(1))
    await edit(connection, **changes)

    await StreamGuard(connection, settings, nothing_known, settle=0.0).check()

    assert connection.held == ""
    await publisher.terminal(make_terminal(1, "cd34"))
    with pytest.raises(OutcomeRefused):
        await publisher.terminal(make_terminal(2))


async def test_where_limits_cannot_be_put_back_nothing_is_published(
    tmp_path: Path,
    settings: NatsSettings,
    make_fact: Callable[[int], Event],
    external_server: Callable[[str], AbstractAsyncContextManager[str]],
) -> None:
    accounts = f"""
        jetstream {{ store_dir: "{tmp_path / "store"}" }}
        authorization {{ users: [
            {{ user: operator, password: o }}
            {{ user: worker, password: w, permissions: {{ publish: {{ deny: "$JS.API.STREAM.UPDATE.>" }} }} }}
        ] }}
    """
    impatient = msgspec.structs.replace(settings, patience=0.5)
    async with (
        external_server(accounts) as address,
        connect(settings, name="o", url=f"nats://operator:o@{address}") as operator,
        connect(impatient, name="w", url=f"nats://worker:w@{address}") as worker,
    ):
        await declare(operator, settings, [])
        async with guarded(StreamGuard(worker, impatient, nothing_known), worker, hold=True):
            await Publisher(worker).event(make_fact(1))
            await edit(operator, **MADE_EARLIER)
            await StreamGuard(worker, impatient, nothing_known).check()

            assert "would drop or displace events" in worker.held
            with pytest.raises(Exception, match="set its discard policy to new"):
                await Publisher(worker).event(make_fact(2))
