"""State of processes, the writer's lag, dead letters, endpoints, and unreadable events."""

from dataclasses import dataclass, field

import duckdb

from orchard.actions.abort_reasons import FORM, remedy, shortened
from orchard.schemas.health import HeardReport, alive
from orchard.schemas.positions import Position, own_sequence
from orchard.storage.reader import Row, rows
from orchard.streams.connection import Connection
from orchard.streams.health import reports
from orchard.workers.attempts.deadletters import DeadLetters

RECENT = 50_000
"""Number of newest sequences, of each event stream, from which latencies are computed."""
LETTERS = 100

_ENDPOINTS = """
select endpoint, model, count(*) as calls, approx_quantile(seconds, 0.5) as p50,
       approx_quantile(seconds, 0.95) as p95, sum(tries - 1)::bigint as retries,
       sum(completion_tokens) / nullif(sum(seconds), 0) as tokens_per_second
from tables.llm_calls_all where {new} group by all order by calls desc limit 50
"""
_UNREADABLE = "select sequence, type, reason from tables.unreadable_all order by sequence desc limit 50"
_CAUSES = f"""
with alike as (
    select cause, campaign, min(detail) as detail, count(*) as rollouts, max(time) as time
    from indexed.ended where status = 'aborted' group by cause, campaign, {FORM}
)
select cause, campaign, sum(rollouts)::bigint as rollouts, max(time) as time,
       arg_max(detail, rollouts) as detail
from alike group by all order by time desc limit 50
"""


@dataclass(frozen=True)
class ShownDeadLetter:
    """A dead letter with its body as text."""

    sequence: int
    reason: str
    deliveries: int
    body: str


@dataclass(frozen=True)
class PipelineHealth:
    endpoints: list[Row]
    unreadable: list[Row]
    causes: list[Row]
    heard: list[HeardReport] = field(default_factory=list)
    alive: frozenset[str] = frozenset()
    letters: list[ShownDeadLetter] = field(default_factory=list)


def recorded(tables: duckdb.DuckDBPyConnection, position: Position) -> PipelineHealth:
    """Reads the tables' part."""
    causes = [
        {**row, "detail": shortened(row["detail"]), "remedy": remedy(row["cause"])}
        for row in rows(tables, _CAUSES)
    ]
    before = Position(last - min(own_sequence(last), RECENT) for last in position)
    endpoints = rows(tables, _ENDPOINTS.format(new=f"not {before.sql()}"))
    return PipelineHealth(endpoints, rows(tables, _UNREADABLE), causes)


async def heard(known: PipelineHealth, connection: Connection) -> PipelineHealth:
    """Adds the state of processes and of the dead-letter queue. Raises StreamsError."""
    said = await reports(connection)
    letters = await DeadLetters(connection).list()
    return PipelineHealth(
        known.endpoints,
        known.unreadable,
        known.causes,
        sorted(said, key=lambda each: (each.report.kind, each.report.name)),
        frozenset(report.name for report in alive(said)),
        [
            ShownDeadLetter(
                letter.sequence, letter.reason, letter.deliveries, letter.body.decode("utf-8", "replace")
            )
            for letter in letters[:LETTERS]
        ],
    )
