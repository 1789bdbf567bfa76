"""Texts for a tokenizer to learn from: the messages of the log, in its order."""

from collections.abc import Iterator, Sequence

import duckdb

_QUERY = """
select content, reasoning, list_transform(tool_calls, lambda call: call.arguments) as arguments
from tables.messages_all where len($campaigns) = 0 or list_contains($campaigns, campaign)
order by sequence limit $limit
"""
_BATCH = 1000


def log_texts(tables: duckdb.DuckDBPyConnection, campaigns: Sequence[str], limit: int) -> Iterator[str]:
    """What the first `limit` messages of the campaigns say, of all campaigns where none is named."""
    cursor = tables.execute(_QUERY, {"campaigns": list(campaigns), "limit": limit})
    while rows := cursor.fetchmany(_BATCH):
        for content, reasoning, arguments in rows:
            yield from filter(None, [content, reasoning, *(arguments or [])])
