"""What a service is declared with: collections of records, operations with JSON schemas, rules, changes.

A service is data. The usual operations (list, get, create, update, delete) are made here from a few words;
one that is like no other brings a function over the service's records. Nothing here waits or asks a clock.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from orchard.workers.domains.claw.moments import read_time

Record = dict[str, Any]
Schema = dict[str, Any]
"""JSON Schema of one value, of the words that `arguments.check` knows."""

BAD_ARGUMENTS, FORBIDDEN, NOT_FOUND, CONFLICT = 400, 403, 404, 409
_MOST = 50
"""Records of one listing, unless it asks for fewer."""


class Refusal(Exception):
    """A call that is answered with an error, and changes nothing."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True)
class Collection:
    """A kind of record of a service."""

    name: str
    """Plural: `messages`."""
    one: str
    """`message`: its id is `message_id`."""
    fields: Mapping[str, Schema]
    """What a record may have, beside its id."""
    required: tuple[str, ...] = ()
    """What every record has."""
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Name of the field that names a record."""
        return f"{self.one}_id"

    @property
    def times(self) -> tuple[str, ...]:
        """Fields that hold a time."""
        return tuple(name for name, schema in self.fields.items() if schema.get("format") == "date-time")


@dataclass
class Room:
    """The records of one service in one world, as an operation finds and changes them."""

    records: dict[str, dict[str, Record]]
    """Collection to id to record, in the order of their creation."""
    owner: str
    """Whom the assistant works for."""
    now: datetime
    """Task time of the call."""
    made: int = 0
    """Records that calls have made: what the next one's id is counted by."""

    def get(self, collection: Collection, key: Any) -> Record:
        """The record of that id; raises Refusal."""
        found = self.records[collection.name].get(key)
        if found is None:
            raise Refusal(NOT_FOUND, f"there is no {collection.one} {key!r}")
        return found

    def add(self, collection: Collection, values: Mapping[str, Any]) -> Record:
        """A new record, with an id of its own."""
        taken = self.records[collection.name]
        self.made += 1
        while (key := f"{collection.one}_{self.made:03d}") in taken:
            self.made += 1
        taken[key] = {collection.id: key, **collection.defaults, **values}
        return taken[key]

    def all(self, collection: Collection) -> Iterator[Record]:
        """Its records, oldest first."""
        return iter(self.records[collection.name].values())

    @property
    def stamp(self) -> str:
        """Now, as records have it."""
        return self.now.isoformat()


Do = Callable[[Room, Record], Any]
"""Carries an operation out on checked arguments: the answer, as JSON. Raises Refusal before any change."""
Rule = Callable[[Room, Record, Record], None]
"""Raises Refusal where the arguments (third) may not be applied to the record (second)."""


@dataclass(frozen=True)
class Operation:
    """One thing that a service can do; its tool is `SERVICE_NAME`."""

    name: str
    about: str
    """What the model reads."""
    arguments: Mapping[str, Schema]
    do: Do
    required: tuple[str, ...] = ()
    changes: bool = False
    """Whether it changes records."""
    irreversible: bool = False
    """Whether no other operation can take it back; its description says so."""

    @property
    def schema(self) -> Schema:
        """JSON Schema of its arguments."""
        return {
            "type": "object",
            "properties": dict(self.arguments),
            "required": list(self.required),
            "additionalProperties": False,
        }


@dataclass(frozen=True)
class Service:
    """A service, whole."""

    name: str
    about: str
    collections: tuple[Collection, ...]
    operations: tuple[Operation, ...]


# --- values ---------------------------------------------------------------------------------------


def text(about: str = "", *choices: str) -> Schema:
    """A text, of `choices` where there are any."""
    return _described({"type": "string", **({"enum": list(choices)} if choices else {})}, about)


def when(about: str = "") -> Schema:
    """A time."""
    return _described({"type": "string", "format": "date-time"}, about)


def whole(about: str = "", least: int = 0) -> Schema:
    """A whole number."""
    return _described({"type": "integer", "minimum": least}, about)


def number(about: str = "", least: float = 0) -> Schema:
    """A number."""
    return _described({"type": "number", "minimum": least}, about)


def flag(about: str = "") -> Schema:
    """True or false."""
    return _described({"type": "boolean"}, about)


def texts(about: str = "") -> Schema:
    """A list of texts."""
    return _described({"type": "array", "items": {"type": "string"}}, about)


def _described(schema: Schema, about: str) -> Schema:
    return {**schema, "description": about} if about else schema


# --- the usual operations -------------------------------------------------------------------------


def listing(
    collection: Collection,
    about: str,
    *,
    name: str = "",
    filters: tuple[str, ...] = (),
    search: tuple[str, ...] = (),
    since: str = "",
    hide: tuple[str, ...] = (),
    visible: Callable[[Room, Record], bool] = lambda *_: True,
) -> Operation:
    """Records, newest first where they have the time `since`. `filters` are fields that may be asked for by
    value, `search` those that `query` looks into, `hide` those that only `get` shows."""
    arguments: dict[str, Schema] = {each: collection.fields[each] for each in filters}
    if search:
        arguments["query"] = text(f"Words to look for in {', '.join(search)}")
    if since:
        arguments["days_back"] = whole(f"Only those whose {since} is in the last so many days", 1)
    arguments["max_results"] = whole(f"At most so many; {_MOST} unless given", 1)

    def do(room: Room, given: Record) -> Any:
        words = given.get("query", "").lower().split()
        found = [
            record
            for record in room.all(collection)
            if visible(room, record)
            and all(_has(record.get(each), given[each]) for each in filters if each in given)
            and (not words or _mentions(record, search, words))
            and (not since or "days_back" not in given or _recent(record.get(since), room, given))
        ]
        if since:
            found.sort(key=lambda record: str(record.get(since, "")), reverse=True)
        most = min(given.get("max_results", _MOST), _MOST)
        shown = [{k: v for k, v in record.items() if k not in hide} for record in found[:most]]
        return {collection.name: shown, "total": len(found)}

    return Operation(name or f"list_{collection.name}", about, arguments, do)


def getting(
    collection: Collection,
    about: str,
    *,
    name: str = "",
    marks: Mapping[str, Any] | None = None,
    visible: Callable[[Room, Record], bool] = lambda *_: True,
) -> Operation:
    """One record by its id, whole; `marks` are set in it by the look."""

    def do(room: Room, given: Record) -> Any:
        record = room.get(collection, given[collection.id])
        if not visible(room, record):
            raise Refusal(NOT_FOUND, f"there is no {collection.one} {given[collection.id]!r}")
        record.update(marks or {})
        return record

    key = {collection.id: text(f"Id of the {collection.one}")}
    return Operation(name or f"get_{collection.one}", about, key, do, (collection.id,), bool(marks))


def creating(
    collection: Collection,
    about: str,
    *,
    name: str = "",
    takes: tuple[str, ...],
    required: tuple[str, ...] = (),
    stamps: Callable[[Room, Record], Record] = lambda *_: {},
    rules: tuple[Rule, ...] = (),
    irreversible: bool = False,
) -> Operation:
    """A new record of the arguments in `takes`, and of what `stamps` says."""

    def do(room: Room, given: Record) -> Any:
        for rule in rules:
            rule(room, {}, given)
        return room.add(collection, {**given, **stamps(room, given)})

    arguments = {each: collection.fields[each] for each in takes}
    return Operation(name or f"create_{collection.one}", about, arguments, do, required, True, irreversible)


def updating(
    collection: Collection,
    about: str,
    *,
    name: str = "",
    takes: tuple[str, ...] = (),
    required: tuple[str, ...] = (),
    sets: Callable[[Room, Record, Record], Record] = lambda *_: {},
    rules: tuple[Rule, ...] = (),
    irreversible: bool = False,
) -> Operation:
    """A record with the arguments in `takes` in place of its own, and what `sets` says."""

    def do(room: Room, given: Record) -> Any:
        record = room.get(collection, given[collection.id])
        if takes and not any(each in given for each in takes):
            raise Refusal(BAD_ARGUMENTS, f"nothing to change: give at least one of {', '.join(takes)}")
        for rule in rules:
            rule(room, record, given)
        change = {each: given[each] for each in takes if each in given}
        record.update({**change, **sets(room, record, given)})
        return record

    arguments = {collection.id: text(f"Id of the {collection.one}")}
    arguments |= {each: collection.fields[each] for each in takes}
    return Operation(
        name or f"update_{collection.one}",
        about,
        arguments,
        do,
        (collection.id, *required),
        True,
        irreversible,
    )


def deleting(
    collection: Collection, about: str, *, name: str = "", rules: tuple[Rule, ...] = ()
) -> Operation:
    """A record away, for good."""

    def do(room: Room, given: Record) -> Any:
        record = room.get(collection, given[collection.id])
        for rule in rules:
            rule(room, record, given)
        del room.records[collection.name][given[collection.id]]
        return {"deleted": given[collection.id]}

    key = {collection.id: text(f"Id of the {collection.one}")}
    return Operation(name or f"delete_{collection.one}", about, key, do, (collection.id,), True, True)


# --- rules ----------------------------------------------------------------------------------------


def only_owner(field_name: str, what: str) -> Rule:
    """Who is named in the record's field may change it, and nobody else."""

    def rule(room: Room, record: Record, _given: Record) -> None:
        if record.get(field_name) != room.owner:
            raise Refusal(
                FORBIDDEN,
                f"{record.get(field_name)} is the {field_name} of this {what}, and {room.owner} is not",
            )

    return rule


def unless(field_name: str, *values: Any) -> Rule:
    """Not while the record's field has one of the values."""

    def rule(_room: Room, record: Record, _given: Record) -> None:
        if record.get(field_name) in values:
            raise Refusal(CONFLICT, f"its {field_name} is {record.get(field_name)!r} already")

    return rule


def ordered(first: str, second: str) -> Rule:
    """Of two times, the first is before the second, as the record would have them."""

    def rule(_room: Room, record: Record, given: Record) -> None:
        begin, end = ({**record, **given}.get(each) for each in (first, second))
        if begin and end and read_time(begin) >= read_time(end):
            raise Refusal(BAD_ARGUMENTS, f"{second} must be later than {first}")

    return rule


def in_future(field_name: str) -> Rule:
    """A time that is given lies ahead."""

    def rule(room: Room, _record: Record, given: Record) -> None:
        if field_name in given and read_time(given[field_name]) <= room.now:
            raise Refusal(BAD_ARGUMENTS, f"{field_name} must be later than now, {room.stamp}")

    return rule


def _has(held: Any, wanted: Any) -> bool:
    if isinstance(held, list):
        return all(each in held for each in (wanted if isinstance(wanted, list) else [wanted]))
    if isinstance(held, str) and isinstance(wanted, str):
        return held.lower() == wanted.lower()
    return bool(held == wanted)


def _mentions(record: Record, search: tuple[str, ...], words: list[str]) -> bool:
    told = " ".join(str(record.get(each, "")) for each in search).lower()
    return all(word in told for word in words)


def _recent(held: Any, room: Room, given: Record) -> bool:
    return bool(held) and (room.now - read_time(held)).total_seconds() <= given["days_back"] * 86_400
