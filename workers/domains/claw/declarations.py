"""Declares services as data: collections of records, operations with JSON schemas, and rules.

The usual operations (list, get, create, update, delete) are made here from a few arguments; an unusual one
brings a function over the service's records. Nothing here waits or reads a clock.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from orchard.workers.domains.claw.times import read_time

Record = dict[str, Any]
Schema = dict[str, Any]
"""JSON Schema of one value, limited to the keywords that `arguments.complaint` knows."""

BAD_ARGUMENTS, FORBIDDEN, NOT_FOUND, CONFLICT = 400, 403, 404, 409
_MOST = 50
"""Maximum records in one listing."""


class ServiceError(Exception):
    """The call fails with this HTTP status and message, and changes nothing."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True)
class Collection:
    name: str
    """The plural, as in `messages`."""
    one: str
    """The singular, as in `message`: its id is `message_id`."""
    fields: Mapping[str, Schema]
    """Fields that a record may have besides its id."""
    required: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return f"{self.one}_id"

    @property
    def times(self) -> tuple[str, ...]:
        return tuple(name for name, schema in self.fields.items() if schema.get("format") == "date-time")


@dataclass
class ServiceState:
    """The records of one service in one world, read and changed by operations."""

    records: dict[str, dict[str, Record]]
    """Maps collection to id to record, in order of creation."""
    owner: str
    """Address of the person for whom the assistant works."""
    now: datetime
    """The task's time at this call."""
    made: int = 0
    """Number of records made by calls; the next id is counted from it."""

    def get(self, collection: Collection, key: Any) -> Record:
        """Raises ServiceError (404) for an unknown id."""
        found = self.records[collection.name].get(key)
        if found is None:
            raise ServiceError(NOT_FOUND, f"there is no {collection.one} {key!r}")
        return found

    def add(self, collection: Collection, values: Mapping[str, Any]) -> Record:
        taken = self.records[collection.name]
        self.made += 1
        while (key := f"{collection.one}_{self.made:03d}") in taken:
            self.made += 1
        taken[key] = {collection.id: key, **collection.defaults, **values}
        return taken[key]

    def all(self, collection: Collection) -> Iterator[Record]:
        """Iterates over the collection's records, oldest first."""
        return iter(self.records[collection.name].values())

    @property
    def stamp(self) -> str:
        """The time `now` in ISO 8601, as records store it."""
        return self.now.isoformat()


Do = Callable[[ServiceState, Record], Any]
"""Carries out an operation on checked arguments and returns the answer as JSON. Raises ServiceError before
any change."""
Rule = Callable[[ServiceState, Record, Record], None]
"""Raises ServiceError if the arguments (third) may not be applied to the record (second)."""


@dataclass(frozen=True)
class ServiceOperation:
    """One operation of a service; its tool is named `SERVICE_NAME`."""

    name: str
    about: str
    """The description that the model reads."""
    arguments: Mapping[str, Schema]
    do: Do
    required: tuple[str, ...] = ()
    changes: bool = False
    """Whether the operation changes any records."""
    irreversible: bool = False
    """Whether no other operation can undo it; its description says so."""

    @property
    def schema(self) -> Schema:
        return {
            "type": "object",
            "properties": dict(self.arguments),
            "required": list(self.required),
            "additionalProperties": False,
        }


def function_tool(name: str, about: str, schema: Schema) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}


@dataclass(frozen=True)
class Service:
    name: str
    about: str
    collections: tuple[Collection, ...]
    operations: tuple[ServiceOperation, ...]


# --- values ---------------------------------------------------------------------------------------


def text(about: str = "", *choices: str) -> Schema:
    """A string, one of `choices` if there are any."""
    return _described({"type": "string", **({"enum": list(choices)} if choices else {})}, about)


def when(about: str = "") -> Schema:
    return _described({"type": "string", "format": "date-time"}, about)


def whole(about: str = "", least: int = 0) -> Schema:
    return _described({"type": "integer", "minimum": least}, about)


def number(about: str = "", least: float = 0) -> Schema:
    return _described({"type": "number", "minimum": least}, about)


def flag(about: str = "") -> Schema:
    return _described({"type": "boolean"}, about)


def texts(about: str = "") -> Schema:
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
    visible: Callable[[ServiceState, Record], bool] = lambda *_: True,
) -> ServiceOperation:
    """Lists records, newest first if they have the time field `since`. `filters` are fields that can be
    matched by value, `search` those that `query` searches, `hide` those that only `get` returns."""
    arguments: dict[str, Schema] = {each: collection.fields[each] for each in filters}
    if search:
        arguments["query"] = text(f"Words to look for in {', '.join(search)}")
    if since:
        arguments["days_back"] = whole(f"Only those whose {since} is in the last so many days", 1)
    arguments["max_results"] = whole(f"At most so many; {_MOST} unless given", 1)

    def do(state: ServiceState, given: Record) -> Any:
        words = given.get("query", "").lower().split()
        found = [
            record
            for record in state.all(collection)
            if visible(state, record)
            and all(_has(record.get(each), given[each]) for each in filters if each in given)
            and (not words or _mentions(record, search, words))
            and (not since or "days_back" not in given or _recent(record.get(since), state, given))
        ]
        if since:
            found.sort(key=lambda record: str(record.get(since, "")), reverse=True)
        most = min(given.get("max_results", _MOST), _MOST)
        shown = [{k: v for k, v in record.items() if k not in hide} for record in found[:most]]
        return {collection.name: shown, "total": len(found)}

    return ServiceOperation(name or f"list_{collection.name}", about, arguments, do)


def getting(
    collection: Collection,
    about: str,
    *,
    name: str = "",
    marks: Mapping[str, Any] | None = None,
    visible: Callable[[ServiceState, Record], bool] = lambda *_: True,
) -> ServiceOperation:
    """Returns one whole record by its id; reading it sets the fields in `marks`."""

    def do(state: ServiceState, given: Record) -> Any:
        record = state.get(collection, given[collection.id])
        if not visible(state, record):
            raise ServiceError(NOT_FOUND, f"there is no {collection.one} {given[collection.id]!r}")
        record.update(marks or {})
        return record

    key = {collection.id: text(f"Id of the {collection.one}")}
    return ServiceOperation(name or f"get_{collection.one}", about, key, do, (collection.id,), bool(marks))


def creating(
    collection: Collection,
    about: str,
    *,
    name: str = "",
    takes: tuple[str, ...],
    required: tuple[str, ...] = (),
    stamps: Callable[[ServiceState, Record], Record] = lambda *_: {},
    rules: tuple[Rule, ...] = (),
    irreversible: bool = False,
) -> ServiceOperation:
    """Adds a record from the arguments in `takes` and the fields that `stamps` returns."""

    def do(state: ServiceState, given: Record) -> Any:
        for rule in rules:
            rule(state, {}, given)
        return state.add(collection, {**given, **stamps(state, given)})

    arguments = {each: collection.fields[each] for each in takes}
    return ServiceOperation(
        name or f"create_{collection.one}", about, arguments, do, required, True, irreversible
    )


def updating(
    collection: Collection,
    about: str,
    *,
    name: str = "",
    takes: tuple[str, ...] = (),
    required: tuple[str, ...] = (),
    sets: Callable[[ServiceState, Record, Record], Record] = lambda *_: {},
    rules: tuple[Rule, ...] = (),
    irreversible: bool = False,
) -> ServiceOperation:
    """Overwrites a record's fields with the arguments in `takes` and the fields that `sets` returns."""

    def do(state: ServiceState, given: Record) -> Any:
        record = state.get(collection, given[collection.id])
        if takes and not any(each in given for each in takes):
            raise ServiceError(BAD_ARGUMENTS, f"nothing to change: give at least one of {', '.join(takes)}")
        for rule in rules:
            rule(state, record, given)
        change = {each: given[each] for each in takes if each in given}
        record.update({**change, **sets(state, record, given)})
        return record

    arguments = {collection.id: text(f"Id of the {collection.one}")}
    arguments |= {each: collection.fields[each] for each in takes}
    return ServiceOperation(
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
) -> ServiceOperation:

    def do(state: ServiceState, given: Record) -> Any:
        record = state.get(collection, given[collection.id])
        for rule in rules:
            rule(state, record, given)
        del state.records[collection.name][given[collection.id]]
        return {"deleted": given[collection.id]}

    key = {collection.id: text(f"Id of the {collection.one}")}
    return ServiceOperation(name or f"delete_{collection.one}", about, key, do, (collection.id,), True, True)


# --- rules ----------------------------------------------------------------------------------------


def only_owner(field_name: str, what: str) -> Rule:
    """Permits the change only if the owner is named in the record's field."""

    def rule(state: ServiceState, record: Record, _given: Record) -> None:
        if record.get(field_name) != state.owner:
            raise ServiceError(
                FORBIDDEN,
                f"{record.get(field_name)} is the {field_name} of this {what}, and {state.owner} is not",
            )

    return rule


def unless(field_name: str, *values: Any) -> Rule:
    """Forbids the change while the record's field has one of the values."""

    def rule(_state: ServiceState, record: Record, _given: Record) -> None:
        if record.get(field_name) in values:
            raise ServiceError(CONFLICT, f"its {field_name} is {record.get(field_name)!r} already")

    return rule


def ordered(first: str, second: str) -> Rule:
    """Requires that the first time is before the second, after the change."""

    def rule(_state: ServiceState, record: Record, given: Record) -> None:
        begin, end = ({**record, **given}.get(each) for each in (first, second))
        if begin and end and read_time(begin) >= read_time(end):
            raise ServiceError(BAD_ARGUMENTS, f"{second} must be later than {first}")

    return rule


def in_future(field_name: str) -> Rule:
    """Requires that a given time is in the future."""

    def rule(state: ServiceState, _record: Record, given: Record) -> None:
        if field_name in given and read_time(given[field_name]) <= state.now:
            raise ServiceError(BAD_ARGUMENTS, f"{field_name} must be later than now, {state.stamp}")

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


def _recent(held: Any, state: ServiceState, given: Record) -> bool:
    return bool(held) and (state.now - read_time(held)).total_seconds() <= given["days_back"] * 86_400
