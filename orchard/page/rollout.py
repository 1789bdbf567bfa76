"""One rollout: its tree of messages a window of turns at a time, and all that the log knows beside it.

Nothing here reads more of a rollout than it shows: when all messages were said is one query without their
texts, and texts are read for the turns of the window alone, cut in the database.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import duckdb

from orchard.page.pictures import Shown, pictures_of
from orchard.page.tables import Row, one, rows
from orchard.pipelines.values.curves import RiseSegment, rise_segments
from orchard.schemas.llm_calls import CallKind
from orchard.storage.views import VIEWS

WINDOW = 40
"""Turns on one page."""
TEXT = 12_000
"""Characters of one text; the whole is an address of its own."""
FOUND = 60

_PLACE = """
select (select sequence from page.asked where rollout_id = $id) as first,
       (select sequence from page.ended where rollout_id = $id) as last
"""
_REQUEST = "select * from tables.requests_all where sequence = $sequence"
_OUTCOME = "select * from tables.rollouts_all where sequence = $sequence"
_ATTEMPTS = f"""
with mine as (select * from page.attempts where rollout_id = $id),
     outcomes as (select * from tables.rollouts_all where rollout_id = $id and sequence >= $first),
     ended as (select * from page.ended where rollout_id = $id)
{
    VIEWS["attempts"]
    .replace("tables.attempts_all", "mine")
    .replace("tables.rollouts_all", "outcomes")
    .replace("join rollouts o", "join ended o")
} order by a.attempt
"""
"""The view `attempts` of one rollout."""
_META = """
select node_id, any_value(parent) as parent, any_value(role) as role, any_value(turn) as turn,
       min(sequence) as sequence, min(time) as time, any_value(seconds) as seconds,
       any_value(tool_call_id) as tool_call_id, any_value(inherited_from) as inherited_from,
       any_value(list_transform(tool_calls, lambda c: c.name)) as tools, any_value(images) as images,
       any_value(list_transform(tool_calls, lambda c: {
           'name': c.name, 'arguments': left(c.arguments, 400)
       })) as asked,
       any_value(coalesce(len(token_ids) > 0, false) or rest_sha256 is not null) as may_have_tokens
from tables.messages_all
where rollout_id = $id and attempt = $attempt and sequence between $first and $last
group by node_id order by sequence
"""
_CALLS = """
select node, arg_min(columns(* exclude (node, sequence)), sequence) from (
    select node, sequence, prompt_tokens, completion_tokens, cached_tokens, cost_usd, seconds, call_kind,
           finish_reason, derived_from, served_model
    from tables.llm_calls_all where rollout_id = $id and sequence between $first and $last
) group by node
"""
_TEXTS = """
select node_id, any_value(role) as role, any_value(turn) as turn, any_value(tool_call_id) as tool_call_id,
       any_value(left(content, $most)) as content, any_value(length(content)) as length,
       any_value(right(content, $end)) as ending, any_value(content_sha256) as content_sha256,
       any_value(content_length) as content_length, any_value(left(reasoning, $most)) as reasoning,
       any_value(length(reasoning)) as reasoning_length, any_value(rest_sha256) as rest_sha256,
       any_value(list_transform(tool_calls, lambda c: {
           'id': c.id, 'name': c.name, 'arguments': left(c.arguments, $most), 'length': length(c.arguments)
       })) as tool_calls,
       any_value(returncode) as returncode, any_value(seconds) as seconds, any_value(timed_out) as timed_out,
       any_value(inherited_from) as inherited_from, any_value(versions) as versions,
       any_value(len(token_ids)) as sampled
from tables.messages_all
where rollout_id = $id and attempt = $attempt and sequence between $first and $last
and list_contains($nodes, node_id) group by node_id
"""
_REWARDS = """
select * from tables.rewards_all where rollout_id = $id and attempt = $attempt
and sequence between $first and $last qualify row_number() over (partition by event_id order by sequence) = 1
order by sequence
"""
_VALUES = """
select annotator, model, base, curve, steps from tables.values_all
where rollout_id = $id and attempt = $attempt and kind = 'annotated'
qualify row_number() over (partition by annotator order by sequence desc) = 1 order by annotator
"""
_SERVICES = """
select number, task_time, tool, status, injected, face, left(arguments, 4000) as arguments,
       left(coalesce(response, ''), 4000) as response,
       greatest(length(arguments) - 4000, 0) + greatest(length(response) - 4000, 0) as left
from tables.service_calls_all where rollout_id = $id and attempt = $attempt
and sequence between $first and $last
qualify row_number() over (partition by event_id order by sequence) = 1 order by number limit 500
"""
_VERDICTS = """
select name, protocol, model, score, passed, reason, fault from tables.judgements_all
where rollout_id = $id and attempt = $attempt and sequence between $first and $last
qualify row_number() over (partition by event_id order by sequence) = 1 order by sequence
"""
_OTHERS = """
select rollout_id, outcome, campaign, harness, model, sample, turns from page.ended
where task_id = $task and rollout_id <> $id
order by campaign <> $campaign, harness <> $harness, model <> $model, sequence desc limit 12
"""
_FOUND = """
select node_id, any_value(role) as role, any_value(turn) as turn,
       any_value(case when contains(lower(content), lower($text)) then content
                      when contains(lower(reasoning), lower($text)) then reasoning
                      else tool_calls::varchar end) as said
from tables.messages_all
where rollout_id = $id and attempt = $attempt and sequence between $first and $last
and (contains(lower(content), lower($text)) or contains(lower(reasoning), lower($text))
     or contains(lower(tool_calls::varchar), lower($text)))
group by node_id order by min(sequence) limit $limit
"""
_EVENTS = """
select sequence, time, type, attempt, source, left(payload, 4000) as payload, length(payload) as length
from events where rollout_id = $id and sequence > $after and sequence <= $last
order by sequence limit $limit
"""
EVENTS = 100
_LIKE = {"task": "task_id", "campaign": "campaign", "harness": "harness", "model": "model"}


def find(tables: duckdb.DuckDBPyConnection, prefix: str) -> list[str]:
    """Ids of up to two rollouts that begin so."""
    found = tables.execute(
        "select rollout_id from page.asked where starts_with(rollout_id, ?) limit 2", [prefix]
    )
    return [row[0] for row in found.fetchall()]


@dataclass(frozen=True)
class Turn:
    """One turn of the path that is shown: numbers, without texts."""

    number: int
    nodes: list[str]
    tools: list[str]
    model: float
    command: float
    wait: float
    prompt_tokens: int | None
    completion_tokens: int | None
    cost_usd: float | None
    branches: "list[Branch]" = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.model + self.command + self.wait


@dataclass(frozen=True)
class Branch:
    """A conversation beside the path that is shown."""

    kind: CallKind
    leaf: str
    messages: int
    turns: int
    at: int
    """Turn of the shown path that it leaves, or during which it began."""


@dataclass(frozen=True)
class Sight:
    """What of a rollout is looked at."""

    attempt: int | None = None
    """None: the accepted one, or the newest."""
    leaf: str | None = None
    """Node at the end of the path; None: of the outcome."""
    as_of: int | None = None
    """Last turn that is looked at: as if the rest had not happened."""
    turn: int | None = None
    """First turn of the window."""
    find: str = ""
    window: int = WINDOW
    """Turns of the window."""
    text: int = TEXT
    """Characters of one text."""
    without: frozenset[str] = frozenset()
    """Parts that are not read, because they are not shown or known to be empty: values, services, verdicts,
    others."""


@dataclass(frozen=True)
class Curve:
    """Values that one annotator gave."""

    annotator: str
    model: str
    base: float
    values: list[float]
    rises: list[RiseSegment]


@dataclass(frozen=True)
class Rollout:
    """A rollout, and one window of its turns with their texts."""

    request: Row
    outcome: Row | None
    attempt: int | None
    attempts: list[Row]
    turns: list[Turn]
    """All of the path."""
    window: list[Turn]
    texts: dict[str, Row]
    """By node id, of the window."""
    calls: dict[str, Row]
    rewards: list[Row]
    curves: list[Curve]
    found: list[Row]
    pictures: list[Shown] = field(default_factory=list)
    """Of all turns of the path."""
    services: list[Row] = field(default_factory=list)
    """The audit log: calls of the services of the task's world."""
    verdicts: list[Row] = field(default_factory=list)
    """Of judging models."""
    others: list[Row] = field(default_factory=list)
    """Ended rollouts of the same task, the most alike first."""
    has_tokens: bool = False
    """Whether a message of the policy has, or may have, the ids of its tokens."""

    @property
    def id(self) -> str:
        return str(self.request["rollout_id"])

    @property
    def outcome_word(self) -> str:
        """As the filter of the same name has it."""
        if self.outcome is None:
            return "open"
        if self.outcome["status"] == "aborted":
            return "aborted"
        resolved = self.outcome["resolved"]
        return "ungraded" if resolved is None else "resolved" if resolved else "unresolved"


def read(tables: duckdb.DuckDBPyConnection, rollout: str, sight: Sight) -> Rollout | None:
    """The rollout of this id; None where there is none."""
    whose = {"id": rollout}
    place = one(tables, _PLACE, whose)
    request = one(tables, _REQUEST, {"sequence": place["first"]}) if place and place["first"] else None
    if place is None or request is None:
        return None
    outcome = one(tables, _OUTCOME, {"sequence": place["last"]}) if place["last"] else None
    attempts = rows(tables, _ATTEMPTS, whose | {"first": place["first"]})
    accepted = outcome["attempt"] if outcome else max((row["attempt"] for row in attempts), default=None)
    attempt = sight.attempt if sight.attempt is not None else accepted
    is_accepted = outcome is not None and attempt == outcome["attempt"]
    last = outcome["sequence"] if outcome is not None and is_accepted else 2**62
    asked: dict[str, Any] = {**whose, "attempt": attempt, "first": request["sequence"], "last": last}
    nodes = {row["node_id"]: row for row in rows(tables, _META, asked)}
    calls_of = {name: asked[name] for name in ("id", "first", "last")}
    calls = {row["node"]: row for row in rows(tables, _CALLS, calls_of)}
    leaf = sight.leaf or (outcome["leaf"] if outcome and is_accepted else None)
    path = _path(nodes, leaf)
    turns = _turns(path, nodes, calls)
    if sight.as_of is not None:
        turns = [turn for turn in turns if turn.number <= sight.as_of]
    window = _window(turns, sight.turn, sight.window)
    within = [node for turn in window for node in turn.nodes]
    texts = {}
    if within:
        spoken = [nodes[node]["sequence"] for node in within]
        narrow = asked | {"first": min(spoken), "last": max(spoken)}
        cuts = {"nodes": within, "most": sight.text, "end": sight.text // 3}
        texts = {row["node_id"]: row for row in rows(tables, _TEXTS, narrow | cuts)}
    whole = sight.as_of is None

    def wanted(part: str) -> bool:
        return whole and part not in sight.without

    found = rows(tables, _FOUND, asked | {"text": sight.find, "limit": FOUND}) if sight.find and whole else []
    return Rollout(
        request,
        outcome if whole else None,
        attempt,
        attempts,
        turns,
        window,
        texts,
        calls,
        rows(tables, _REWARDS, asked) if whole else [],
        [_curve(row) for row in rows(tables, _VALUES, {"id": rollout, "attempt": attempt})]
        if wanted("values")
        else [],
        found,
        pictures_of(rollout, [node for turn in turns for node in turn.nodes], nodes),
        rows(tables, _SERVICES, asked) if wanted("services") else [],
        rows(tables, _VERDICTS, asked) if wanted("verdicts") else [],
        rows(tables, _OTHERS, whose | {k: request[c] for k, c in _LIKE.items()}) if wanted("others") else [],
        any(row["may_have_tokens"] and row["role"] == "assistant" for row in nodes.values()),
    )


def events(tables: duckdb.DuckDBPyConnection, rollout: str, after: int) -> tuple[list[Row], int | None]:
    """Events of a rollout after a sequence, EVENTS at most, and the sequence after which the next ones are.

    First those from its request to its outcome, which lie together; what came later, such as values, is
    looked for in all of the log.
    """
    place = one(tables, _PLACE, {"id": rollout}) or {}
    first, outcome = place.get("first") or 0, place.get("last")
    after = max(after, first - 1)
    within = outcome is not None and after < outcome
    asked = {"id": rollout, "after": after, "last": outcome if within else 2**62, "limit": EVENTS + 1}
    found = rows(tables, _EVENTS, asked)
    if len(found) > EVENTS:
        return found[:EVENTS], found[EVENTS - 1]["sequence"]
    return found, outcome if within else None


def _path(nodes: dict[str, Row], leaf: str | None) -> list[str]:
    """Node ids from the root to `leaf`; to the newest message where that is not known."""
    at = leaf if leaf in nodes else next(reversed(nodes), None)
    found: list[str] = []
    while at is not None and at in nodes and len(found) <= len(nodes):
        found.append(at)
        at = nodes[at]["parent"]
    return found[::-1]


def _turns(path: Sequence[str], nodes: dict[str, Row], calls: dict[str, Row]) -> list[Turn]:
    grouped: dict[int, list[str]] = {}
    for node in path:
        grouped.setdefault(nodes[node]["turn"], []).append(node)
    turns, before = [], None
    for number, members in grouped.items():
        messages = [nodes[node] for node in members]
        made = [calls[node] for node in members if node in calls]
        model = sum(call["seconds"] or 0.0 for call in made)
        command = sum(row["seconds"] or 0.0 for row in messages if row["role"] == "tool")
        end = messages[-1]["time"]
        took = (end - before).total_seconds() if before is not None else 0.0
        before = end
        costs = [call["cost_usd"] for call in made if call["cost_usd"] is not None]
        turns.append(
            Turn(
                number=number,
                nodes=members,
                tools=[name for row in messages for name in row["tools"] or ()],
                model=model,
                command=command,
                wait=max(took - model - command, 0.0),
                prompt_tokens=sum(call["prompt_tokens"] or 0 for call in made) if made else None,
                completion_tokens=sum(call["completion_tokens"] or 0 for call in made) if made else None,
                cost_usd=sum(costs) if costs else None,
            )
        )
    by_turn: dict[int, list[Branch]] = {}
    for branch in _branches(path, nodes, calls):
        by_turn.setdefault(branch.at, []).append(branch)
    return [replace(turn, branches=by_turn.get(turn.number, [])) for turn in turns]


def _branches(path: Sequence[str], nodes: dict[str, Row], calls: dict[str, Row]) -> Iterable[Branch]:
    """What is not on the path, by where it leaves it. A branch with branches of its own is one."""
    on, roots = set(path), dict[str, str]()
    members: dict[str, list[str]] = {}
    for node, row in nodes.items():
        if node not in on:
            root = roots.get(row["parent"] or "", node)
            roots[node] = root
            members.setdefault(root, []).append(node)
    for root, found in members.items():
        made = [calls[node] for node in found if node in calls]
        kinds = [call["call_kind"] for call in made if call["call_kind"]]
        origin = next((call["derived_from"] for call in made if call["derived_from"]), None)
        start = nodes[root]
        fork = start["parent"] if start["parent"] in on else origin if origin in on else None
        if fork is None:
            earlier = [node for node in path if nodes[node]["sequence"] < start["sequence"]]
            fork = earlier[-1] if earlier else next(iter(path), None)
        yield Branch(
            kind=CallKind(kinds[0]) if kinds else CallKind.MAIN,
            leaf=found[-1],
            messages=len(found),
            turns=len({nodes[node]["turn"] for node in found if nodes[node]["role"] == "assistant"}),
            at=nodes[fork]["turn"] if fork is not None else 0,
        )


def _window(turns: Sequence[Turn], first: int | None, size: int) -> list[Turn]:
    """The turns from `first` on. Each window begins at a multiple of its size, so that it has one address."""
    at = next((i for i, turn in enumerate(turns) if first is not None and turn.number >= first), 0)
    if first is not None and turns and first > turns[-1].number:
        at = len(turns) - 1
    start = at - at % size
    return list(turns[start : start + size])


def _curve(row: Row) -> Curve:
    rises = rise_segments(row["base"], row["curve"])
    return Curve(row["annotator"], row["model"], row["base"], [row["base"], *row["curve"]], rises)
