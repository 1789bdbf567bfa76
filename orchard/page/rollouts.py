"""Lists rollouts by filter from the page's index, with key-based pages and distributions of all matching
rows. Every filter is in the address.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from urllib.parse import urlencode

import duckdb

from orchard.page.search_index import TURNS
from orchard.schemas.messages import Role
from orchard.storage.reader import Row, one, rows

PAGE = 50
BINS = 24
OUTCOMES = ("resolved", "unresolved", "ungraded", "aborted", "open")
EQUAL = ("campaign", "harness", "model", "task_source", "exit_status", "cause", "protected")
"""Filters for an exact value of the column with the same name."""
PARTS = ("task_id", "repo")
"""Filters for a substring of the column; `*` matches anything."""
RANGES = ("turns", "tokens", "seconds", "reward", "cost_usd", "human_score")
"""Filters for a number or a range such as `10..`, `..20` and `10..20`, both ends included."""
WORDS = ("outcome", "tool", "text", "role", "turn", "failing", "label", "note")
FILTERS = (*EQUAL, *PARTS, *RANGES, *WORDS)
SORTS = ("newest", "turns", "tokens", "seconds", "reward", "cost_usd", "task_id", "model", "harness")
COLUMNS = {
    "campaign": "Campaign",
    "task": "Task",
    "source": "Source",
    "harness": "Harness",
    "model": "Model",
    "attempt": "Attempt",
    "exit": "Exit",
    "turns": "Turns",
    "read": "Tokens read",
    "written": "Tokens written",
    "tokens": "Tokens",
    "seconds": "Time",
    "reward": "Score",
    "human": "Human score",
    "protected": "Protected",
    "cost": "Cost",
    "ended": "Ended",
}
"""Optional columns of the list, by title."""
USUAL = ("task", "harness", "model", "turns", "tokens", "seconds", "reward", "cost", "ended")
_RANGE = re.compile(r"(-?\d+(?:\.\d+)?)?(\.\.)?(-?\d+(?:\.\d+)?)?")

_OPEN = """
select *, null::bigint as attempt, 'open' as status, null::varchar as exit_status, null::varchar as cause,
       null::boolean as resolved, null::double as reward, null::varchar as protected,
       null::bigint as turns, null::bigint as tokens,
       null::bigint as prompt_tokens, null::bigint as completion_tokens,
       null::double as cost_usd, null::double as seconds, 'open' as outcome
from indexed.asked q anti join indexed.ended r on r.rollout_id = q.rollout_id
"""


class BadFilter(ValueError):
    """A filter is invalid; the text is one sentence."""


@dataclass(frozen=True)
class Query:
    """A parsed query string of the rollout list."""

    filters: dict[str, str] = field(default_factory=dict)
    sort: str = "newest"
    descending: bool = True
    after: tuple[Any, int] | None = None
    """Page cursor: sort value and sequence of the last row of the previous page."""
    columns: tuple[str, ...] = USUAL

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "Query":
        """Parses the parameters of an address. Raises BadFilter."""
        filters = {name: given[name].strip() for name in FILTERS if given.get(name, "").strip()}
        if "outcome" in filters and filters["outcome"] not in OUTCOMES:
            raise BadFilter(
                f"outcome {filters['outcome'][:40]!r} is unknown: choose one of {', '.join(OUTCOMES)}"
            )
        if "role" in filters and filters["role"] not in list(Role):
            raise BadFilter(f"role {filters['role'][:40]!r} is unknown: choose one of {', '.join(Role)}")
        for name in RANGES:
            if name in filters:
                bounds(name, filters[name])
        turn_range(filters.get("turn", ""))
        sort = given.get("sort", "newest")
        if sort not in SORTS:
            raise BadFilter(f"sort {sort[:40]!r} is unknown: choose one of {', '.join(SORTS)}")
        after = None
        if given.get("after"):
            try:
                value, sequence = json.loads(given["after"])
                after = (value, int(sequence))
            except (ValueError, TypeError):
                raise BadFilter("`after` is not a valid page cursor: start from the first page") from None
            if not isinstance(value, str | int | float | None):
                raise BadFilter("`after` is not a valid page cursor: start from the first page")
        columns = tuple(given["columns"].split(",")) if given.get("columns") else USUAL
        if unknown := [name for name in columns if name not in COLUMNS]:
            raise BadFilter(f"column {unknown[0][:40]!r} is unknown: choose from {', '.join(COLUMNS)}")
        return cls(filters, sort, given.get("order", "desc") != "asc", after, columns)

    def address(self, **changes: str | None) -> str:
        """Address of the first page with changed filters; None removes a filter."""
        known: dict[str, str | None] = {**self.filters}
        if self.sort != "newest" or not self.descending:
            known |= {"sort": self.sort, "order": "desc" if self.descending else "asc"}
        if self.columns != USUAL:
            known["columns"] = ",".join(self.columns)
        left = {name: value for name, value in (known | changes).items() if value is not None}
        return "/rollouts" + (f"?{urlencode(left)}" if left else "")

    def with_column(self, name: str) -> str:
        """Address of the same rows with a column added or, if they have it, removed."""
        chosen = [each for each in COLUMNS if (each in self.columns) != (each == name)]
        return self.address(columns=",".join(chosen) or None)

    def sorted_by(self, column: str) -> str:
        """Address of the same rows sorted by a column; the order is reversed if they are sorted by it
        already."""
        again = column == self.sort and self.descending
        return self.address(sort=column, order="asc" if again else "desc")


def bounds(name: str, text: str) -> tuple[float | None, float | None]:
    """Parses both ends of a range. Raises BadFilter."""
    found = _RANGE.fullmatch(text.replace(" ", ""))
    if not found or not (found[1] or found[3]) or (found[3] and not found[2]):
        raise BadFilter(f"{name} is {text[:40]!r}: write a range such as 10..20, 10.., ..20, or one number")
    low = float(found[1]) if found[1] else None
    high = float(found[3]) if found[3] else None
    return (low, high) if found[2] else (low, low)


def turn_range(text: str) -> tuple[int, int | None] | None:
    """Parses the first and the last turn of a range; None for all. Raises BadFilter."""
    if not text:
        return None
    low, high = bounds("turn", text)
    first, last = int(low or 0), None if high is None else int(high)
    if max(first, 0 if last is None else last - first) > TURNS:
        raise BadFilter(
            f"turn is {text[:40]!r}: give a range of at most {TURNS:,} turns, or below {TURNS:,}.."
        )
    return first, last


def _selected(query: Query, words: str) -> tuple[str, dict[str, Any]]:
    """SQL of the selected rows, and its parameters. `words` selects rollouts by their texts."""
    where, values = ["true"], dict[str, Any]()
    filters = query.filters
    for name in EQUAL:
        if name in filters:
            where.append(f"{name} = ${name}")
            values[name] = filters[name]
    for name in PARTS:
        if name in filters:
            where.append(f"contains({name}, ${name})" if "*" not in filters[name] else f"{name} glob ${name}")
            values[name] = filters[name]
    for name in RANGES:
        if name in filters:
            low, high = bounds(name, filters[name])
            for sign, end in ((">=", low), ("<=", high)):
                if end is not None:
                    key = f"{name}_{'low' if sign == '>=' else 'high'}"
                    where.append(f"{name} {sign} ${key}")
                    values[key] = end
    for name, condition in _NOTED.items():
        if name in filters:
            where.append(f"rollout_id in (select rollout_id from {condition})")
            values[name] = filters[name]
    outcome = filters.get("outcome")
    if outcome and outcome != "open":
        where.append("outcome = $outcome")
        values["outcome"] = outcome
    if words:
        where.append(words)
        values |= asked_in(words, filters)
    return f"select * from ({_base(query)}) where {' and '.join(where)}", values


def asked_in(words: str, filters: Mapping[str, str]) -> dict[str, str]:
    """Parameters of a condition on messages."""
    values = {name: filters[name] for name in ("text", "role", "tool") if f"${name}" in words}
    return values | {name: text.strip('"') for name, text in values.items() if name == "text"}


_NOTED = {
    "label": "indexed.reviews where list_contains(labels, $label)",
    "note": "tables.notes_all where contains(lower(text), lower($note))",
}
"""Filters by what people noted."""


def _base(query: Query) -> str:
    base = _OPEN if query.filters.get("outcome") == "open" else "from indexed.ended"
    if "human_score" not in query.filters:
        return base
    return f"from ({base}) left join (select rollout_id, human_score from indexed.reviews) using (rollout_id)"


@dataclass(frozen=True)
class RowsPage:
    """A page of rows."""

    rows: list[Row]
    next: str | None
    """Cursor of the next page for `after`; None on the last page."""


def page_of(tables: duckdb.DuckDBPyConnection, query: Query, words: str = "") -> RowsPage:
    """Reads at most PAGE rows after `query.after`."""
    selected, values = _selected(query, words)
    column = "sequence" if query.sort == "newest" else query.sort
    down = query.descending
    if query.after is not None:
        value, sequence = query.after
        values["sequence"] = sequence
        beyond = "<" if down else ">"
        if query.sort == "newest":
            selected += f" and sequence {beyond} $sequence"
        elif value is None:
            selected += f" and {column} is null and sequence {beyond} $sequence"
        else:
            values["value"] = value
            selected += (
                f" and ({column} {beyond} $value or {column} is null "
                f"or ({column} = $value and sequence {beyond} $sequence))"
            )
    way = "desc" if down else "asc"
    try:
        found = rows(
            tables,
            f"with chosen as materialized (select sequence from ({selected}) "
            f"order by {column} {way} nulls last, sequence {way} limit {PAGE + 1}) "
            f"select * from ({_base(query)}) semi join chosen using (sequence) "
            f"order by {column} {way} nulls last, sequence {way}",
            values,
        )
    except duckdb.ConversionException as error:
        raise BadFilter("`after` is not a valid page cursor: start from the first page") from error
    last = found[PAGE - 1] if len(found) > PAGE else None
    next_page = json.dumps([last[column], last["sequence"]]) if last else None
    return RowsPage(reviewed(tables, found[:PAGE]), next_page)


def reviewed(tables: duckdb.DuckDBPyConnection, found: list[Row]) -> list[Row]:
    """The rows of rollouts with the labels and the human score that people gave them."""
    reviews = "select * from indexed.reviews where list_contains($ids, rollout_id)"
    noted = {r["rollout_id"]: r for r in rows(tables, reviews, {"ids": [r["rollout_id"] for r in found]})}
    none: Row = {"labels": [], "human_score": None}
    return [row | {name: noted.get(row["rollout_id"], none)[name] for name in none} for row in found]


@dataclass(frozen=True)
class HistogramBin:
    """A bin of rows between two values; only the last bin includes the upper one."""

    low: float
    high: float
    rows: int
    address: str


@dataclass(frozen=True)
class Distribution:
    """Distribution of one column over all matching rows."""

    name: str
    low: float | None
    median: float | None
    high: float | None
    bins: list[HistogramBin]


@dataclass(frozen=True)
class SearchSummary:
    """Summary of all matching rows, not only of the page."""

    total: int
    resolved: int
    graded: int
    aborted: int
    blocked: int
    """Kept out by their sites: not among the aborted, and in no rate."""
    distributions: list[Distribution]

    @property
    def pass_rate(self) -> float | None:
        """Pass rate by the rules of the view `pass_rates`."""
        return self.resolved / self.graded if self.graded else None


_MEASURED = ("turns", "tokens", "seconds", "reward")


def summary_of(tables: duckdb.DuckDBPyConnection, query: Query, words: str = "") -> SearchSummary:
    """Computes counts and distributions of all matching rows."""
    selected, values = _selected(query, words)
    facts = ", ".join(
        f"min({name}) as {name}_low, max({name}) as {name}_high, "
        f"approx_quantile({name}, 0.5) as {name}_median"
        for name in _MEASURED
    )
    found = one(
        tables,
        "select count(*) as total, count(*) filter (resolved and status <> 'aborted') as resolved, "
        "count(resolved) as graded, "
        "count(*) filter (status = 'aborted' and cause <> 'blocked') as aborted, "
        f"count(*) filter (cause = 'blocked') as blocked, {facts} from ({selected})",
        values,
    )
    assert found is not None
    edges = {name: _edges(name, found[f"{name}_low"], found[f"{name}_high"]) for name in _MEASURED}
    asked = {name: known for name, known in edges.items() if known}
    counted: dict[str, dict[int, int]] = {name: {} for name in _MEASURED}
    if asked:
        each = ", ".join(
            f"case when {name} is not null then "  # `least` passes over nulls
            f"least(floor(({name} - {known[0]!r}) / {known[1] - known[0]!r}), {len(known) - 2})::int end "
            f"as {name}"
            for name, known in asked.items()
        )
        for row in rows(
            tables,
            f"with mine as (select {each} from ({selected})) "
            + " union all ".join(
                f"select '{name}' as name, {name} as bin, count(*) as rows from mine "
                f"where {name} is not null group by all"
                for name in asked
            ),
            values,
        ):
            counted[row["name"]][row["bin"]] = row["rows"]
    return SearchSummary(
        found["total"],
        found["resolved"],
        found["graded"],
        found["aborted"],
        found["blocked"],
        [
            Distribution(
                name,
                found[f"{name}_low"],
                found[f"{name}_median"],
                found[f"{name}_high"],
                [
                    HistogramBin(
                        low,
                        high,
                        counted[name].get(index, 0),
                        query.address(**{name: _range(name, low, high, last=index == len(known) - 2)}),
                    )
                    for index, (low, high) in enumerate(pairwise(known))
                ],
            )
            for name, known in edges.items()
        ],
    )


def _edges(name: str, low: float | None, high: float | None) -> list[float]:
    """Edges of bins of equal width: 1, 2 or 5 times a power of ten."""
    if low is None or high is None or not math.isfinite(float(low)) or not math.isfinite(float(high)):
        return []
    low, high = float(low), float(high)
    if low == high:
        return [low, low + (1.0 if name in ("turns", "tokens") else 0.1)]
    rough = (high - low) / BINS
    power = 10.0 ** math.floor(math.log10(rough))
    width = next(power * step for step in (1, 2, 5, 10) if power * step >= rough)
    if name in ("turns", "tokens"):
        width = max(width, 1.0)
    first = math.floor(low / width)
    return [round(index * width, 10) for index in range(first, math.floor(high / width) + 2)]


def _range(name: str, low: float, high: float, *, last: bool) -> str:
    if name in ("turns", "tokens") and not last:
        high -= 1
    return f"{low:g}..{high:g}" if max(abs(low), abs(high)) < 1e6 else f"{low:.0f}..{high:.0f}"
