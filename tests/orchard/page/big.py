"""A synthetic store of many rollouts, a few of them long, made in minutes: tables written in bulk."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from orchard.schemas import events as e
from orchard.schemas.positions import Position
from orchard.schemas.subjects import event_subject
from orchard.storage.delta import StoreTable
from orchard.storage.derive import derive_tables
from orchard.storage.location import Location
from orchard.storage.log import log_batch
from orchard.storage.reader import position
from orchard.storage.tables import EVENTS, PROGRESS
from orchard.streams.records import StoredEvent, stored_event
from tests.benchmarks.million import Plan, fill_store
from tests.trajectory_log import Author

CAMPAIGN = "long"
LONG = {250: 1_000_000, 2_000: 50_000_000}
"""Turns of each long rollout to the bytes of its texts."""
WORD = "quince"
"""In one rollout alone."""


def fill(store: Path, rollouts: int = 100_000) -> list[str]:
    """Fills a new directory; the ids of the long rollouts."""
    fill_store(Plan(rollouts=rollouts, turns=4, text=400), str(store))
    return [add_long(store, turns) for turns in LONG]


def add_long(store: Path, turns: int) -> str:
    """A rollout of so many turns; its id."""
    chance = random.Random(turns)
    words = ["".join(chance.choices("etaoinshrdlu", k=chance.randint(2, 9))) for _ in range(5000)]
    text = " ".join(chance.choices(words, k=400_000))
    each = LONG[turns] // turns - 200

    def observation(command: str) -> str:
        at = chance.randrange(len(text) - each)
        return f"{command} {text[at : at + each]}"

    author = Author(CAMPAIGN)
    commands = [f"{WORD if turn == 7 and turns == min(LONG) else 'sed'} -n {turn}p" for turn in range(turns)]
    made = author.rollout(turns, commands, resolved=False, observation=observation, task=f"long-{turns}")
    append(store, [_renamed(event, turns) for event in made])
    return made[0].rollout_id or ""


def append(store: Path, events: Sequence[e.Event]) -> int:
    """Commits events as the writer does, after all that the tables have; the sequence of the last."""
    location, first = Location.parse(str(store)), position(str(store)).last(0) + 1
    batch = log_batch(list(_stored(events, first)))
    last = first + len(events) - 1
    for name, rows in {EVENTS: batch.rows, **derive_tables(batch.facts)}.items():
        if rows.num_rows or name == EVENTS:
            StoreTable(location, name).append(rows, Position.of(last))
    progress = StoreTable(location, PROGRESS)
    progress.append(progress.schema.empty_table(), Position.of(last))
    return last


def _stored(events: Sequence[e.Event], first: int) -> Iterator[StoredEvent]:
    for sequence, event in enumerate(events, first):
        yield stored_event(sequence, event_subject(event), event.time, e.encode_event(event))


def _renamed(event: e.Event, turns: int) -> e.Event:
    return msgspec.structs.replace(event, id=f"{event.id}-{turns}")
