"""Cost of campaigns' model calls: from the tables up to their position, then from the stream.

So a process that has just started knows it after one query, whatever a campaign's size.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

import duckdb

from orchard.schemas.events import payload
from orchard.schemas.llm_calls import LLMCall, ModelKind
from orchard.schemas.positions import START, PlainPosition, Position
from orchard.schemas.subjects import EVENTS_PREFIX
from orchard.storage.reader import open_tables, position
from orchard.streams.connection import Connection
from orchard.streams.event_streams import events_after

_MEMORY = "200MB"
"""Memory limit of the query; what needs more continues in a temporary directory."""


@dataclass(frozen=True)
class Spent:
    """Cost of a campaign's calls in all its attempts."""

    usd: float | None = 0.0
    """None if there are calls and no cost is known."""
    unpriced: int = 0
    """Calls without a known price, which the sum lacks."""
    position: PlainPosition = 0
    """Sequence in the log up to which calls are counted, or those of all event streams."""


def dollars(usd: float) -> str:
    """Format an amount: cents, and below a dollar four digits."""
    return f"{usd:,.2f} USD" if usd >= 1 or not usd else f"{usd:.4g} USD"


_SPENT = """
select campaign, coalesce(sum(cost_usd), 0), count(*) filter (cost_usd is null and model_kind <> 'oracle')
from (
    select distinct on (event_id) campaign, cost_usd, model_kind from tables.llm_calls_all
    where {covered} and list_contains($names, campaign)
) group by 1
"""


def spent_in(
    tables: duckdb.DuckDBPyConnection, campaigns: Iterable[str], up_to: Position | None
) -> dict[str, Spent]:
    """Return the cost by campaign, from an open store with the table `llm_calls_all`. Without `up_to` all
    calls count, and the position of the result is 0."""
    wanted = list(campaigns)
    covered = "true" if up_to is None else up_to.sql()
    up_to = up_to or START
    rows = tables.execute(_SPENT.format(covered=covered), {"names": wanted}).fetchall()
    return {name: Spent(position=up_to.plain) for name in wanted} | {
        name: _known(usd, unpriced, up_to) for name, usd, unpriced in rows
    }


def spent_in_tables(store_url: str, campaigns: Iterable[str]) -> dict[str, Spent]:
    """Return the cost by campaign, up to the position of the tables. Raises StorageError."""
    up_to = position(store_url)
    if not up_to:
        return {name: Spent() for name in campaigns}
    with open_tables(store_url, views=("llm_calls_all",), memory=_MEMORY) as tables:
        return spent_in(tables, campaigns, up_to)


_TEAMS = """
select team, sum(cost_usd) from (
    select distinct on (t.event_id) s.team, t.cost_usd
    from (
        select event_id, sequence, time, campaign, cost_usd from tables.llm_calls_all
        union all by name select event_id, sequence, time, campaign, cost_usd from tables.judge_calls_all
    ) t join submitters s using (campaign)
    where {covered} and t.time >= $since and s.team <> '' and t.cost_usd is not null
) group by 1
"""


def team_costs(store_url: str, since: datetime) -> tuple[dict[str, float], Position]:
    """Return the known cost of each team's calls of models and judges since then, and the position of the
    tables up to which they count. Raises StorageError."""
    up_to = position(store_url)
    if not up_to:
        return {}, START
    with open_tables(
        store_url, views=("llm_calls_all", "judge_calls_all", "submitters"), memory=_MEMORY
    ) as tables:
        found = tables.execute(_TEAMS.format(covered=up_to.sql("t.sequence")), {"since": since}).fetchall()
    return dict(found), up_to


async def with_later(connection: Connection, campaign: str, spent: Spent) -> Spent:
    """Add the calls that the stream has after its position."""
    usd, unpriced, at = spent.usd or 0.0, spent.unpriced, Position.of(spent.position)
    pattern = f"{EVENTS_PREFIX}.{campaign}.*.llm.called"
    async for batch in events_after(connection, at, pattern):
        for message in batch:
            at, event = at.with_last(message.sequence), message.as_event.event
            call = payload(event) if event else None
            if isinstance(call, LLMCall):
                usd += call.cost_usd or 0.0
                unpriced += call.cost_usd is None and call.model_kind is not ModelKind.ORACLE
    return _known(usd, unpriced, at)


def _known(usd: float, unpriced: int, at: Position) -> Spent:
    """What was spent, which is unknown where no call has a cost."""
    return Spent(usd or None if unpriced else usd, unpriced, at.plain)


async def spent_now(connection: Connection, store_url: str, campaign: str) -> Spent:
    """Return the cost by the tables and the stream. Raises StorageError."""
    known = await asyncio.to_thread(spent_in_tables, store_url, [campaign])
    return await with_later(connection, campaign, known[campaign])
