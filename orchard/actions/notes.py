"""Publishes notes, labels and human scores of rollouts, and tags of campaigns."""

import re
from collections.abc import Iterable, Mapping, Sequence
from uuid import uuid4

import duckdb

from orchard.actions.session import Session
from orchard.configuration.config import ConfigError
from orchard.schemas.events import Event, make_event
from orchard.schemas.notes import CampaignTagged, RolloutNoted
from orchard.storage.reader import one
from orchard.streams.publisher import Publisher
from orchard.workers.masking import masked

TEXT = 20_000
"""Maximum characters of a note."""
LABELS = 20
"""Maximum number of labels or tags that one event gives or removes."""
ID = 4
"""Minimum characters of a rollout id where something is written."""
_LABEL = re.compile(r"[\w.:/-]{1,60}")


def labels_of(words: Iterable[str]) -> tuple[str, ...]:
    """Splits words into labels or tags, each once. Raises ConfigError."""
    found = tuple(dict.fromkeys(word for each in words for word in re.split(r"[,\s]+", each) if word))
    if wrong := next((label for label in found if not _LABEL.fullmatch(label)), None):
        raise ConfigError(
            f"{wrong[:80]!r} is no label or tag: write at most 60 letters, digits, and any of . : / _ -"
        )
    if len(found) > LABELS:
        raise ConfigError(
            f"at most {LABELS} labels or tags are given at once, not {len(found)}: do it in parts"
        )
    return found


def checked(note: RolloutNoted) -> RolloutNoted:
    """Returns the note with keys masked. Raises ConfigError for one that says nothing or cannot be kept."""
    author = _author(note.author)
    if not (note.text.strip() or note.labels or note.removed_labels or note.score is not None):
        raise ConfigError("the note is empty: give a text, a label or a score")
    if len(note.text) > TEXT:
        raise ConfigError(f"the note has {len(note.text):,} characters: shorten it to {TEXT:,}")
    if note.turn is not None and not 0 <= note.turn < 2**31:
        raise ConfigError(f"there is no turn {note.turn}: give the number of a turn, from 0")
    if note.score is not None and not 0 <= note.score <= 1:
        raise ConfigError(f"the score is {note.score}: give one from 0 to 1")
    return RolloutNoted(
        author=author,
        text=masked(note.text.strip()).text,
        labels=note.labels,
        removed_labels=note.removed_labels,
        score=note.score,
        turn=note.turn,
    )


def check_target(tables: duckdb.DuckDBPyConnection, word: str) -> None:
    """Raises ConfigError for a word that is too short or is a campaign's name: a note would go to a rollout
    that nobody meant."""
    if one(tables, "select 1 from campaigns where campaign = $name", {"name": word}) is not None:
        raise ConfigError(f"{word} is a campaign: notes go on rollouts; a campaign takes --tag")
    if len(word) < ID:
        raise ConfigError(
            f"{word!r} is too short for a note: give at least {ID} characters of the rollout's id"
        )


def check_turn(tables: duckdb.DuckDBPyConnection, rollout_id: str, turn: int | None) -> None:
    """Raises ConfigError for a turn beyond those of every attempt at the rollout."""
    query = "select max(turn) as last from tables.messages_all where rollout_id = $id"
    found = one(tables, query, {"id": rollout_id})
    last = found["last"] if found else None
    if turn is not None and last is not None and turn > last:
        raise ConfigError(f"the rollout has no turn {turn}: its last is {last}")


def check_removed(tables: duckdb.DuckDBPyConnection, campaign: str, removed: tuple[str, ...]) -> None:
    """Raises ConfigError for a tag that the campaign does not have."""
    found = one(tables, "select tags from campaigns where campaign = $name", {"name": campaign})
    tags = found["tags"] if found else []
    if missing := [tag for tag in removed if tag not in tags]:
        there = ", ".join(tags) or "none"
        raise ConfigError(f"{campaign} has no tag {', '.join(missing)}; its tags: {there}")


def campaign_of(tables: duckdb.DuckDBPyConnection, rollout_id: str) -> str:
    """Campaign of a rollout that the tables have."""
    found = one(tables, "select campaign from indexed.asked where rollout_id = $id", {"id": rollout_id})
    assert found is not None, f"the tables have no rollout {rollout_id}"
    return str(found["campaign"])


async def add_notes(session: Session, rollouts: Mapping[str, str], note: RolloutNoted) -> str:
    """Publishes a note on each rollout, whose campaign is its value, and returns why the tables lack them
    yet; empty when they have them.

    Where no pipeline runs, the store's own server takes it, and the next writer brings it into the tables.
    Raises ConfigError.
    """
    said = checked(note)
    events = [
        make_event(
            said,
            id=f"{rollout}.note.{uuid4().hex}",
            source="orchard/note",
            campaign=campaign,
            rollout_id=rollout,
        )
        for rollout, campaign in rollouts.items()
    ]
    return await _published(session, events)


async def tag_campaign(
    session: Session, campaign: str, author: str, tags: tuple[str, ...], removed: tuple[str, ...]
) -> str:
    """Publishes tags of a campaign that the tables have; else as `add_notes`. Raises ConfigError."""
    tagged = CampaignTagged(author=_author(author), tags=tags, removed_tags=removed)
    if not (tags or removed):
        raise ConfigError("no tag is named: give one to add or to remove")
    name = f"{campaign}.tagged.{uuid4().hex}"
    return await _published(session, [make_event(tagged, id=name, source="orchard/note", campaign=campaign)])


def known_campaign(tables: duckdb.DuckDBPyConnection, name: str) -> str:
    """Returns the name of a campaign that the tables have. Raises ConfigError."""
    query = "select 1 from campaigns where campaign = $name and size is not null"
    if one(tables, query, {"name": name}) is None:
        raise ConfigError(f"there is no campaign {name[:80]!r} in the tables: `orchard status` lists them")
    return name


async def _published(session: Session, events: Sequence[Event]) -> str:
    async with session.connection_or_server("note") as connection:
        await Publisher(connection).events(events)
        return await session.waiting(connection)


def _author(name: str) -> str:
    """Returns a name with keys masked. Raises ConfigError."""
    if not name.strip() or len(name) > 100:
        raise ConfigError("the name of the author is missing or over 100 characters: pass one")
    return masked(name.strip()).text
