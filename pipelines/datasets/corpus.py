"""Texts for a tokenizer to learn from: the messages of the log, in its order."""

from collections.abc import Iterator, Sequence

import duckdb

from schemas.values import MEASURED_CAMPAIGN

_QUERY = f"""
select content, reasoning, list_transform(tool_calls, lambda call: call.arguments) as arguments
from tables.messages_all
where case when len($campaigns) = 0 then campaign <> '{MEASURED_CAMPAIGN}'
           else list_contains($campaigns, campaign) end
order by sequence limit $limit
"""
_BATCH = 1000


def log_texts(tables: duckdb.DuckDBPyConnection, campaigns: Sequence[str], limit: int) -> Iterator[str]:
    """What the first `limit` messages of the campaigns say, of all but `measured` where none is named."""
    cursor = tables.execute(_QUERY, {"campaigns": list(campaigns), "limit": limit})
    while rows := cursor.fetchmany(_BATCH):
        for content, reasoning, arguments in rows:
            yield from filter(None, [content, reasoning, *(arguments or [])])
