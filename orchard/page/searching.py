"""Answers searches of the rollout list: words by the full-text index, all else by DuckDB, with a snippet of
the first message that matches in each row."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import duckdb
import pyarrow as pa
from markupsafe import Markup

from orchard.page import texts
from orchard.page.outline import command_of
from orchard.page.rollouts import (
    EQUAL,
    Query,
    RowsPage,
    SearchSummary,
    asked_in,
    page_of,
    summary_of,
    turn_range,
)
from orchard.page.search_index import SearchIndex, WordQuery, words_of
from orchard.schemas.positions import Position, stream_of
from orchard.storage.reader import Row, rows, within

_LETTERS = """(contains(lower(content), lower($text)) or contains(lower(reasoning), lower($text))
    or contains(lower(tool_calls::varchar), lower($text)))"""
_TOOL = """(list_contains(list_transform(tool_calls, lambda c: c.name), $tool)
    or (rollout_id, attempt, turn, tool_call_id) in (
        select (rollout_id, attempt, turn, call.id) from (
            select rollout_id, attempt, turn, unnest(tool_calls) as call from tables.messages_all
        ) where call.name = $tool
    ))"""
_AMONG = "rollout_id in (select rollout_id from indexed.asked semi join _among using (sequence))"
_FAILING = """(rollout_id, attempt) in (
    select (a.rollout_id, f.attempt) from indexed.asked a join _failing f using (sequence)
)"""
"""The accepted attempt has failed the test, not another one."""
_MESSAGES = """
select rollout_id, sequence, attempt, node_id, role, turn, content, reasoning, tool_calls
from tables.messages_all where {} order by sequence
"""


@dataclass(frozen=True)
class ShownHit:
    """The first message of a rollout that matches a search."""

    rollout: str
    attempt: int
    node: str
    role: str
    turn: int
    snippet: Markup
    more: int
    """Number of further messages that match; 0 for none or unknown."""
    find: str
    """What to search for in the rollout."""


@dataclass(frozen=True)
class SearchAnswer:
    """Results of a query with its summary."""

    page: RowsPage
    summary: SearchSummary
    read: float
    """Share of the log that the text index covers; less than 1 while it is built."""
    hits: dict[str, ShownHit]
    """By rollout, for the rows of the page of a search for a text."""


def answer(
    tables: duckdb.DuckDBPyConnection, search_index: SearchIndex, query: Query, position: Position
) -> SearchAnswer:
    """Answers a query. Words, tools and failed tests are found by the text index, which first continues
    towards `position`. Raises BadFilter."""
    given = query.filters
    text, letters = given.get("text", ""), ""
    wanted = WordQuery(
        words_of(text),
        given.get("tool", ""),
        given.get("role", ""),
        turn_range(given.get("turn", "")),
        given.get("failing", ""),
    )
    where, read = [], 1.0
    if text and not wanted.words:
        letters = " and ".join([_LETTERS, *_of_message(wanted)])
        where.append(f"rollout_id in (select rollout_id from tables.messages_all where {letters})")
        wanted = WordQuery(failing=wanted.failing)
    if wanted.asks:
        read = 1.0 if search_index.step(tables, position) else search_index.share(position)
        if wanted.match:
            tables.register("_among", pa.table({"sequence": search_index.rollouts(wanted)}))
            where.append(_AMONG)
        if wanted.failing:
            found = search_index.failed(wanted.failing)
            columns = {
                name: pa.array([one[at] for one in found], pa.int64())
                for at, name in enumerate(("sequence", "attempt"))
            }
            tables.register("_failing", pa.table(columns))
            where.append(_FAILING)
    which = " and ".join(where)
    page = page_of(tables, query, which)
    hits = list[ShownHit]()
    if letters:
        hits = _lettered(tables, page.rows, letters, given)
    elif wanted.words:
        hits = _worded(tables, search_index, page.rows, wanted)
    return SearchAnswer(page, summary_of(tables, query, which), read, {hit.rollout: hit for hit in hits})


def _of_message(wanted: WordQuery) -> list[str]:
    """SQL conditions on role, tool and turn of a message."""
    found = ["role = $role"] if wanted.role else []
    found += [_TOOL] if wanted.tool else []
    if wanted.turns is not None:
        first, last = wanted.turns
        found += [f"turn >= {first}", *([f"turn <= {last}"] if last is not None else [])]
    return found


def _worded(
    tables: duckdb.DuckDBPyConnection, search_index: SearchIndex, found: Sequence[Row], wanted: WordQuery
) -> list[ShownHit]:
    """Hits of words, of the rollouts of a page."""
    ids = {"ids": [row["rollout_id"] for row in found]}
    query = "select sequence from indexed.asked where list_contains($ids, rollout_id)"
    hits = search_index.hits(wanted, [row["sequence"] for row in rows(tables, query, ids)])
    numbers = {hit.sequence: hit.number for hit in hits}
    pattern = _pattern(wanted.words)
    shown = list[ShownHit]()
    # By stream, and written out, so that DuckDB skips files, and the parts of files, without them.
    for _, sequences in groupby(sorted(numbers), stream_of):
        chosen = list(sequences)
        where = f"sequence in ({', '.join(map(str, chosen))})"
        query = within(tables, _MESSAGES.format(where), chosen[0], chosen[-1])
        shown += [_shown(row, pattern, numbers[row["sequence"]] - 1) for row in rows(tables, query)]
    return shown


def _lettered(
    tables: duckdb.DuckDBPyConnection, found: Sequence[Row], letters: str, given: dict[str, str]
) -> list[ShownHit]:
    """Hits of a text that is matched letter by letter."""
    asked = {"ids": [row["rollout_id"] for row in found], **asked_in(letters, given)}
    one = "qualify row_number() over (partition by rollout_id order by sequence) = 1"
    query = _MESSAGES.format(f"list_contains($ids, rollout_id) and {letters} {one}")
    pattern = re.compile(re.escape(given["text"].strip('"')), re.IGNORECASE)
    return [_shown(row, pattern, 0) for row in rows(tables, query, asked)]


def _pattern(words: Sequence[str]) -> re.Pattern[str]:
    """What the index takes for these words."""
    each = "|".join(
        re.escape(word.rstrip("*")) + (r"[^\W_]*" if word.endswith("*") else "") for word in words
    )
    return re.compile(rf"(?<![^\W_])(?:{each})(?![^\W_])", re.IGNORECASE)


def _shown(row: Row, pattern: re.Pattern[str], more: int) -> ShownHit:
    calls = [f"{call['name']} {command_of(call['arguments'])}" for call in row["tool_calls"] or ()]
    said = [text for text in (row["content"], *calls, row["reasoning"]) if text]
    text = next((text for text in said if pattern.search(text)), said[0] if said else "")
    match = pattern.search(text)
    return ShownHit(
        row["rollout_id"],
        row["attempt"],
        row["node_id"],
        row["role"],
        row["turn"],
        texts.snippet(text, pattern),
        more,
        match[0] if match else "",
    )


def choices(tables: duckdb.DuckDBPyConnection) -> dict[str, list[str]]:
    """Values of each column of EQUAL, and labels, for selection lists."""
    found = rows(
        tables,
        " union all ".join(
            f"select '{name}' as name, {name} as value from (select distinct {name} from "
            f"indexed.{'asked' if name in ('campaign', 'harness', 'model') else 'ended'} "
            f"where {name} is not null order by 1 limit 200)"
            for name in EQUAL
        )
        + " union all select 'label', label from (select distinct unnest(labels) as label "
        "from indexed.reviews order by 1 limit 200)",
    )
    return {name: [row["value"] for row in found if row["name"] == name] for name in (*EQUAL, "label")}
