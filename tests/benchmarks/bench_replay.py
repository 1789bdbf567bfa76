"""What replaying dead attempts saves, and what finding their records costs (a script).

Two campaigns of the same rollouts, of 47 turns each, over the real queue, log, sandboxes and HTTP. In both
the same 5 % of first attempts lose their sandbox, at turns spread evenly. One replays, the other starts
afresh. Then the record of one dead attempt is looked for among the events of many rollouts: by its trail, and
by the filter on campaign and shard, which is all that readers had. Prints one JSON line for each figure.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from orchard.injector.client import AsyncSandboxClient
from orchard.schemas.events import Event, make_event
from orchard.schemas.identity import digest, shard
from orchard.schemas.llm_calls import LLMCall, ModelKind, Usage
from orchard.schemas.messages import MessageNode, Role
from orchard.streams import names
from orchard.streams.connection import Connection, connect
from orchard.streams.publisher import Publisher
from orchard.streams.reader import Reader
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from tests.attempts_world import World, seed_of, world
from tests.sandbox_service import LocalService
from tests.tiny_tasks import build_tiny_image, tiny_task

TURNS = 47
"""The mean of the paper's rollouts."""
DYING = 0.05
TASKS = 10
SLOTS = 8
WORK = (
    "cat arithmetic/mod_{0}.py",
    "ls -l arithmetic",
    "python3 -m unittest -v tests 2>&1",
    "git log --stat",
    "grep -rn total arithmetic",
    "sed -i 's/left - right/left + right/' arithmetic/mod_{0}.py",
    "git diff",
)
BODY = "x" * 2000
"""Of a message in the log that is searched: 22 KB for a rollout of 11 events."""
EVENTS_EACH = 11


def figure(name: str, value: float, unit: str, ceiling: float | None = None) -> None:
    """One line; `ceiling` is the figure without replay, or of the filter."""
    ratio = value / ceiling if ceiling else None
    row = {"name": name, "value": value, "unit": unit, "ceiling": ceiling, "ratio": ratio}
    print(json.dumps(row), flush=True)  # noqa: T201


async def campaign(place: World, rollouts: int, *, replaying: bool) -> dict[str, float]:
    """Run one and count."""
    name = "replaying" if replaying else "afresh"
    place.model.asked.clear()
    found = await place.submit(
        *(tiny_task(number) for number in range(TASKS)),
        name=name,
        samples=rollouts // TASKS,
        replay_attempts=replaying,
    )
    dying = round(DYING * rollouts)
    deaths = {
        seed_of(found[index * rollouts // dying]): (found[index * rollouts // dying], turn)
        for index in range(dying)
        for turn in [1 + int((index + 0.5) / dying * TURNS)]
    }

    def at(turn: int) -> None:
        async def die(seed: int) -> None:
            if deaths.get(seed, ("", 0))[1] == turn and place.model.asked[seed, turn] == 1:
                await place.end_sandbox(deaths[seed][0])

        place.model.hooks[turn] = die

    for _, turn in deaths.values():
        at(turn)
    started = time.monotonic()
    async with place.working(slots=SLOTS):
        await place.outcomes(*found, seconds=3600.0)
    seconds = time.monotonic() - started
    place.model.hooks.clear()
    ((paid, tokens, usd),) = await place.rows(
        "select count(*), sum(prompt_tokens + completion_tokens), sum(cost_usd) from tables.llm_calls_all "
        f"where campaign = '{name}'"
    )
    ((kept, resolved, inherited),) = await place.rows(
        "select sum(prompt_tokens + completion_tokens), count(*) filter (resolved), sum(inherited_turns) "
        f"from rollouts where campaign = '{name}'"
    )
    ((again,),) = await place.rows(
        "select avg(date_diff('millisecond', a.started_at, r.time) / 1000.0) from attempts a "
        "join rollouts r on r.rollout_id = a.rollout_id and r.attempt = a.attempt "
        f"where a.campaign = '{name}' and a.attempt > 1"
    )
    ((replays, commands),) = await place.rows(
        "select avg(seconds), avg(turns) from tables.attempts_all "
        f"where kind = 'inherited' and campaign = '{name}'"
    )
    return {
        "paid turns": paid,
        "paid tokens": tokens,
        "paid USD": usd,
        "tokens of accepted rollouts": kept,
        "resolved": resolved,
        "inherited turns": inherited,
        "seconds, all": seconds,
        "seconds of a second attempt": again,
        "seconds of a replay": replays or 0.0,
        "turns of a replay": commands or 0.0,
        "dead": dying,
    }


async def savings(rollouts: int, thinking: float) -> None:
    """Both campaigns, and what the one saves."""
    commands = [WORK[turn % len(WORK)].format(0) for turn in range(TURNS - 1)]
    with tempfile.TemporaryDirectory(prefix="orchard-replay-") as temporary:
        service = LocalService(Path(temporary) / "state")
        try:
            async with AsyncSandboxClient(service.url) as client:
                await build_tiny_image(client, TASKS)
            async with (
                EmbeddedServer(Path(temporary) / "nats") as server,
                world(server.url, service.url, Path(temporary) / "store", commands) as place,
            ):
                place.model.seconds = thinking
                afresh = await campaign(place, rollouts, replaying=False)
                ours = await campaign(place, rollouts, replaying=True)
        finally:
            service.stop()
    least = rollouts * TURNS
    for name, unit in (
        ("paid turns", "turns"),
        ("paid tokens", "tokens"),
        ("paid USD", "USD"),
        ("seconds of a second attempt", "s"),
        ("seconds, all", "s"),
    ):
        figure(name, ours[name], unit, afresh[name])
    figure("turns paid twice", ours["paid turns"] - least, "turns", afresh["paid turns"] - least)
    figure(
        "tokens paid twice",
        ours["paid tokens"] - ours["tokens of accepted rollouts"],
        "tokens",
        afresh["paid tokens"] - afresh["tokens of accepted rollouts"],
    )
    figure("resolved", ours["resolved"], "rollouts", afresh["resolved"])
    for name, unit in (
        ("dead", "attempts"),
        ("inherited turns", "turns"),
        ("turns of a replay", "turns"),
        ("seconds of a replay", "s"),
    ):
        figure(name, ours[name], unit)


def recorded(rollout: str, number: int, index: int) -> Event:
    """One message of one rollout."""
    node = MessageNode(
        node_id=digest([rollout, index]), parent=None, role=Role.TOOL, turn=index, content=BODY
    )
    return make_event(node, id=f"{number}", source="bench", campaign="demo", rollout_id=rollout, attempt=1)


def call(rollout: str, number: int, turn: int) -> Event:
    """One call."""
    data = LLMCall(
        parent="p",
        node="n",
        turn=turn,
        endpoint="e",
        model="m",
        served_model="m",
        model_kind=ModelKind.MODEL,
        finish_reason="stop",
        usage=Usage(),
        cost_usd=0.0,
        seconds=1.0,
    )
    return make_event(data, id=f"{number}", source="bench", campaign="demo", rollout_id=rollout, attempt=1)


@asynccontextmanager
async def big_log(rollouts: int) -> AsyncIterator[tuple[EmbeddedServer, Connection, str, list[int]]]:
    """A stream of so many rollouts' events, among which a dead attempt of 47 turns is spread evenly."""
    with tempfile.TemporaryDirectory(prefix="orchard-trail-") as temporary:
        async with (
            EmbeddedServer(Path(temporary) / "nats") as server,
            connect(NatsSettings(), name="bench", url=server.url) as connection,
        ):
            await declare(connection, NatsSettings(), [])
            publisher = Publisher(connection)
            dead, own, number = digest(["dead"]), list[int](), 0
            every = rollouts * EVENTS_EACH // (3 * TURNS)
            batch: list[Event] = []
            for index in range(rollouts * EVENTS_EACH):
                number += 1
                batch.append(recorded(digest([index % rollouts]), number, index))
                if len(batch) == 1000:
                    await publisher.events(batch)
                    batch.clear()
                if index % every == 0 and len(own) < 3 * TURNS:
                    number += 1
                    turn = len(own) // 3
                    event = call(dead, number, turn) if len(own) % 3 == 1 else recorded(dead, number, index)
                    own.append(await publisher.event(event))
            await publisher.events(batch)
            yield server, connection, dead, own


async def searches(rollouts: int) -> None:
    """The record by its trail, and by the filter; bytes that arrive, and time of the server's processor."""
    async with big_log(rollouts) as (server, connection, dead, own):
        process = psutil.Process(server.pid)

        def processor() -> float:
            times = process.cpu_times()
            return times.user + times.system

        async def by_trail() -> int:
            return sum(len(stored.raw) for stored in await Publisher(connection).replay_pointers.events(own))

        async def by_filter() -> int:
            subjects = [
                f"orchard.events.demo.{shard(dead)}.{kind}" for kind in ("message.appended", "llm.called")
            ]
            reader = Reader(connection, names.EVENTS, own[0], subjects)
            size = 0
            while not reader.caught_up:
                size += sum(len(arrived.data) for arrived in await reader.next(None))
            await reader.close()
            return size

        figures: list[tuple[float, float, float]] = []
        for search in (by_filter, by_trail):
            wall, cpu = time.perf_counter(), processor()
            size = await search()
            figures.append((size / 1e6, time.perf_counter() - wall, processor() - cpu))
        for name, unit, ours, bare in zip(
            ("read of the log", "time of a search", "processor time of the server"),
            ("MB", "s", "s"),
            figures[1],
            figures[0],
            strict=True,
        ):
            figure(f"record among {rollouts:,} rollouts: {name}", ours, unit, bare)


def main() -> None:
    """Both parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=100, help="of each campaign")
    parser.add_argument("--thinking", type=float, default=0.05, help="seconds of each answer")
    parser.add_argument("--log", type=int, default=20_000, help="rollouts in the log that is searched")
    options = parser.parse_args()
    if options.rollouts:
        asyncio.run(savings(options.rollouts, options.thinking))
    if options.log:
        asyncio.run(searches(options.log))


if __name__ == "__main__":
    main()
