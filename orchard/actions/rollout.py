"""Reads rollouts for page, commands and notebooks: a window of turns of the message tree, or all messages,
and all other facts in the log.

Nothing here reads more of a rollout than it shows: when all messages were said is one query without their
texts, and texts are read for the turns of the window alone, cut in the database. What of a rollout is looked
for is looked for between its first attempt and its outcome, in the files that have these (`within`). The
connection has the tables of `RolloutIndex`, or `index_views`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, NamedTuple

import duckdb

from orchard.actions import rollout_queries as queries
from orchard.actions.attempt_ranges import FOREVER, AttemptRange, QueryRange, attempt_ranges, by_rollout, once
from orchard.actions.rollout_turns import ShownPicture, ShownTurn, path_to, pictures_of, turns_of
from orchard.pipelines.values.curves import RiseSegment, rise_segments
from orchard.schemas.positions import stream_of
from orchard.storage.errors import StorageError
from orchard.storage.reader import Row, one, rows, within

WINDOW = 40
TEXT = 12_000
"""Characters shown of one text; the whole text has its own address."""
FOUND = 60
SERVICES = 500
"""Maximum number of service calls shown."""
CALL = 4_000
"""Characters shown of a service call's request, and of its answer."""
EVENTS = 100
ARGUMENTS = 400
"""Characters of a call that stand for it in lists."""
_LIKE = {"task": "task_id", "campaign": "campaign", "harness": "harness", "model": "model"}


class UnknownName(StorageError):
    """The log has no such rollout or arm."""


def find(tables: duckdb.DuckDBPyConnection, prefix: str) -> str:
    """Completes a rollout id from its first digits. Raises UnknownName."""
    found = tables.execute(
        "select rollout_id from indexed.asked where starts_with(rollout_id, ?) limit 2", [prefix]
    ).fetchall()
    if len(found) != 1:
        what = "more than one rollout" if found else "no rollout"
        raise UnknownName(f"{what} starts with {prefix!r}: `orchard sql 'select * from requests'` lists them")
    return str(found[0][0])


@dataclass(frozen=True)
class RolloutView:
    """Selects the part of a rollout to show."""

    attempt: int | None = None
    """Number of the attempt; None: the accepted or newest one."""
    leaf: str | None = None
    """Last node of the path; None: that of the outcome."""
    as_of: int | None = None
    """Last turn to show, as if later ones had not happened."""
    turn: int | None = None
    """First turn of the window."""
    find: str = ""
    window: int = WINDOW
    """Number of turns in the window."""
    text: int = TEXT
    """Characters of one text that are shown."""
    beyond: int = 0
    """Further characters to read before and after the part left out."""
    others: bool = True
    """Whether to find other rollouts of the same task."""
    whole: bool = False
    """Whether to read all messages of the attempt uncut, not those of the window alone."""


WHOLE = RolloutView(others=False, whole=True)


@dataclass(frozen=True)
class AnnotatedCurve:
    """Values by one annotator."""

    annotator: str
    model: str
    base: float
    values: list[float]
    rises: list[RiseSegment]


@dataclass(frozen=True)
class ShownRollout:
    """A rollout, and one window of its turns with their texts."""

    request: Row
    outcome: Row | None
    attempt: int | None
    attempts: list[Row]
    turns: list[ShownTurn]
    """All turns of the path."""
    window: list[ShownTurn]
    texts: dict[str, Row]
    """Rows with the texts of the window or of all messages, by node id."""
    calls: dict[str, Row]
    rewards: list[Row]
    curves: list[AnnotatedCurve]
    found: list[Row]
    pictures: list[ShownPicture] = field(default_factory=list)
    """Pictures of the path's turns."""
    services: list[Row] = field(default_factory=list)
    """Calls of services in the task's world, at most SERVICES."""
    verdicts: list[Row] = field(default_factory=list)
    """Verdicts of model judges."""
    notes: list[Row] = field(default_factory=list)
    """Notes of people, the oldest first."""
    review: Row | None = None
    """Labels and human score that follow from the notes."""
    others: list[Row] = field(default_factory=list)
    """Ended rollouts of the same task, the most alike first."""
    has_tokens: bool = False
    """Whether a message of the policy has, or may have, the ids of its tokens."""

    @property
    def id(self) -> str:
        return str(self.request["rollout_id"])

    @property
    def outcome_word(self) -> str:
        """Name of the outcome in the filter of rollouts."""
        if self.outcome is None:
            return "open"
        if self.outcome["status"] == "aborted":
            return "aborted"
        resolved = self.outcome["resolved"]
        return "ungraded" if resolved is None else "resolved" if resolved else "unresolved"


def read(
    tables: duckdb.DuckDBPyConnection, rollout: str, view: RolloutView, narrow: QueryRange = within
) -> ShownRollout:
    """Reads a rollout. Raises UnknownName."""
    found = read_all(tables, [rollout], view, narrow)
    if not found:
        raise UnknownName(f"the tables have no rollout {rollout!r}: wait for the writer, or check the store")
    return found[0]


def read_all(
    tables: duckdb.DuckDBPyConnection, rollouts: Sequence[str], view: RolloutView, narrow: QueryRange = within
) -> list[ShownRollout]:
    """Reads the rollouts that exist, with one query of each kind for all of them."""
    known = attempt_ranges(tables, rollouts, view.attempt, narrow)
    if not known:
        return []
    first, last = min(each.first for each in known.values()), max(each.last for each in known.values())
    whole = view.as_of is None

    def ask(query: str, first: int = first, last: int = last, **more: Any) -> dict[str, list[Row]]:
        found = rows(tables, narrow(tables, query, first, last), {"ids": list(known), **more})
        return by_rollout(found)

    meta, calls = ask(queries.META, cut=ARGUMENTS + view.beyond), ask(queries.CALLS)
    paths = {name: _walk(span, meta.get(name, []), calls.get(name, []), view) for name, span in known.items()}
    windows = [path.nodes[node] for path in paths.values() for turn in path.window for node in turn.nodes]
    texts: dict[str, list[Row]] = {}
    if view.whole:
        texts = ask(queries.MESSAGES)
    elif windows:
        spoken = [row["sequence"] for row in windows]
        names = list({row["node_id"] for row in windows})
        cuts = {"most": view.text + view.beyond, "end": view.text // 3 + view.beyond}
        texts = ask(queries.TEXTS, min(spoken), max(spoken), nodes=names, **cuts)
    beside: dict[str, dict[str, list[Row]]] = {}
    if whole:
        beside = {"rewards": ask(queries.REWARDS), "verdicts": ask(queries.VERDICTS)}
        beside["values"] = ask(queries.VALUES, last=FOREVER)
        beside["notes"] = ask(queries.NOTES, last=FOREVER)
        beside["reviews"] = by_rollout(rows(tables, queries.REVIEWS, {"ids": list(known)}))
        beside["services"] = ask(queries.SERVICES, most=CALL + view.beyond)
        if view.find:
            attempts = [span.attempt for span in known.values()]
            beside["found"] = ask(queries.FOUND, text=view.find, attempts=attempts, limit=2 * FOUND)
    found = []
    for name, span in known.items():
        path = paths[name]
        of = {part: each.get(name, []) for part, each in beside.items()}
        found.append(
            ShownRollout(
                request=span.request,
                outcome=span.outcome if whole else None,
                attempt=span.attempt,
                attempts=span.attempts,
                turns=path.turns,
                window=path.window,
                texts={row["node_id"]: row for row in span.mine(texts.get(name, []), "node_id")},
                calls=path.calls,
                rewards=span.mine(of.get("rewards", []), "event_id"),
                curves=_curves(span, of.get("values", [])),
                found=span.mine(of.get("found", []), "node_id")[:FOUND],
                pictures=pictures_of(name, [node for turn in path.turns for node in turn.nodes], path.nodes),
                services=span.mine(of.get("services", []), "event_id")[:SERVICES],
                verdicts=span.mine(of.get("verdicts", []), "event_id"),
                notes=once(of.get("notes", []), "event_id"),
                review=next(iter(of.get("reviews", [])), None),
                others=_others(tables, name, span.request) if whole and view.others else [],
                has_tokens=any(
                    row["may_have_tokens"] and row["role"] == "assistant" for row in path.nodes.values()
                ),
            )
        )
    return found


class _Walk(NamedTuple):
    """The shown path of a rollout."""

    nodes: dict[str, Row]
    calls: dict[str, Row]
    turns: list[ShownTurn]
    window: list[ShownTurn]


def _walk(span: AttemptRange, meta: list[Row], calls: list[Row], view: RolloutView) -> _Walk:
    nodes = {row["node_id"]: row for row in span.mine(meta, "node_id")}
    made = {row["node"]: row for row in once(calls, "node")}
    leaf = view.leaf or (span.outcome["leaf"] if span.outcome and span.accepted else None)
    turns = turns_of(path_to(nodes, leaf), nodes, made)
    if view.as_of is not None:
        turns = [turn for turn in turns if turn.number <= view.as_of]
    return _Walk(nodes, made, turns, _window(turns, view.turn, view.window))


def every_message(tables: duckdb.DuckDBPyConnection, found: ShownRollout) -> list[Row]:
    """Messages of a rollout that was read whole; without an accepted attempt that has any, those of all
    attempts, each once."""
    if found.outcome is not None and found.texts:
        return list(found.texts.values())
    tried = [read(tables, found.id, replace(WHOLE, attempt=row["attempt"])) for row in found.attempts]
    texts = [row for attempt in tried for row in attempt.texts.values()]
    return sorted((row for row in texts if row["inherited_from"] is None), key=itemgetter("sequence"))


def _others(tables: duckdb.DuckDBPyConnection, rollout: str, request: Row) -> list[Row]:
    like = {name: request[column] for name, column in _LIKE.items()}
    return rows(tables, queries.OTHERS, {"id": rollout, **like})


def events(tables: duckdb.DuckDBPyConnection, rollout: str, after: int) -> tuple[list[Row], int | None]:
    """Reads at most EVENTS events of a rollout after a sequence, and the sequence to continue after.

    First those from its request to its outcome, which lie together; what came later, such as values, is
    looked for in all of the log. Verdicts on a rollout of another stream are in stream 0, before all that.
    """
    asked = one(tables, queries.ASKED, {"ids": [rollout]}) or {"sequence": 0, "ended": None}
    first, outcome = asked["sequence"], asked["ended"]
    found: list[Row] = []
    if stream_of(first) and after < first - 1:
        query = within(tables, queries.EVENTS, after, first - 1)
        found = rows(tables, query, {"id": rollout, "after": after, "limit": EVENTS + 1})
    after = max(after, first - 1)
    until = outcome if outcome is not None and after < outcome else FOREVER
    query = within(tables, queries.EVENTS, after, until)
    found += rows(tables, query, {"id": rollout, "after": after, "limit": EVENTS + 1})
    if len(found) > EVENTS:
        return found[:EVENTS], found[EVENTS - 1]["sequence"]
    return found, outcome if until == outcome else None


def _window(turns: Sequence[ShownTurn], first: int | None, size: int) -> list[ShownTurn]:
    """Window of turns around `first`. Windows begin at multiples of their size, so that each has one
    address."""
    at = next((i for i, turn in enumerate(turns) if first is not None and turn.number >= first), 0)
    if first is not None and turns and first > turns[-1].number:
        at = len(turns) - 1
    start = at - at % size
    return list(turns[start : start + size])


def _curves(span: AttemptRange, found: Iterable[Row]) -> list[AnnotatedCurve]:
    """Curve of each annotator's newest values."""
    newest = {row["annotator"]: row for row in found if row["attempt"] == span.attempt}
    return [
        AnnotatedCurve(
            name,
            row["model"],
            row["base"],
            [row["base"], *row["curve"]],
            rise_segments(row["base"], row["curve"]),
        )
        for name, row in sorted(newest.items())
    ]
