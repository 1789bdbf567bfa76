"""Queries of campaigns: outcomes, work of models, retries, cost."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, NamedTuple

import duckdb

from orchard.actions.abort_reasons import FORM
from orchard.pipelines.campaigns.scores import Score, Tally, score
from orchard.schemas.positions import START, Position
from orchard.storage.reader import beyond, open_tables, rows
from orchard.storage.spending import Spent, spent_in

RATE_WINDOW_SECONDS = 300


class Sources(NamedTuple):
    """Names of the relations with outcomes, attempts and events: views and tables, or copies of their
    columns."""

    rollouts: str = "rollouts"
    attempts: str = "tables.attempts_all"
    events: str = "events"


STORED = Sources()
VIEWS = ("rollouts", "rewards_all", "attempts_all", "llm_calls_all", "events", "campaigns")
"""Views that the queries here read."""


_GAPS = """count(*) filter (prompt_tokens + completion_tokens is null) as uncounted,
       count(*) filter (cost_usd is null"""
"""Counts of rows without tokens or cost; the caller may add a condition."""
# One that was dead-lettered before it began had 0 tokens and no cost in events of before decision 156.
_OUTCOMES = f"""
with mine as (select * from {{rollouts}} where list_contains($names, campaign)),
     bounds as (select campaign, max(time) as ended, min(started_at) as began from mine group by 1)
select campaign,
       case when status = 'aborted' then 'aborted: ' || cause
            when resolved is null then 'ungraded'
            when resolved then 'resolved' else 'unresolved' end as outcome,
       count(*) as rollouts, sum(turns) as turns, sum(prompt_tokens + completion_tokens) as tokens,
       sum(cost_usd) as cost_usd,
       {_GAPS} and (turns > 0 or prompt_tokens is null)) as unpriced,
       date_diff('millisecond', any_value(began), any_value(ended)) / 1000.0 as seconds,
       count(*) filter (time > ended - interval {RATE_WINDOW_SECONDS} second) as recent,
       bool_or(model_kind = 'oracle') as oracle,
       count(*) filter (task_source = 'impossible' and status <> 'aborted') as tried_impossible,
       count(*) filter (resolved is not null and submission = '' and submission_sha256 is null) as empty
from mine join bounds using (campaign) group by all
"""
_TALLIES = """
with task as (
    select campaign, count(resolved) as graded, count(*) filter (resolved) as resolved
    from {rollouts} where list_contains($names, campaign) group by campaign, task_id
)
select campaign, graded, resolved, count(*) as tasks from task where graded > 0 group by all
"""
_LABELS = """
select campaign, protected, count(*) as rollouts from {rollouts}
where list_contains($names, campaign) and resolved is not null group by all
"""
_REASONS = f"""
select campaign, cause, min(detail) as detail, count(*) as rollouts from {{rollouts}}
where status = 'aborted' and list_contains($names, campaign) group by campaign, cause, {FORM}
"""
_RECONCILED = """
select campaign, count(*) as reconciled from {events}
where type = 'rollout.reconciled' and list_contains($names, campaign) group by 1
"""
_RETRIES = """
select campaign, count(*) - count(distinct rollout_id) as retries from {attempts}
where kind = 'started' and list_contains($names, campaign) group by 1
"""
_CREATING = """
    union all
    select sequence, campaign, rollout_id, payload->>'$.cause', payload->>'$.detail' from {events} failed
    where type = 'sandbox.failed' and list_contains($running, rollout_id)
    and not exists (select 1 from {events} later where type = 'sandbox.created'
                    and later.rollout_id = failed.rollout_id and later.sequence > failed.sequence)
"""
"""Failures of sandboxes of rollouts that run, until one is created."""


def _retried(creating: str) -> str:
    """Query of the newest failures that another attempt followed or follows, or another creation."""
    return f"""
with failures as (
    select sequence, campaign, rollout_id, cause, detail from {{attempts}}
    where kind = 'released' and cause is not null and list_contains($names, campaign) {creating}
), newest as (
    select *, rollout_id not in (select rollout_id from {{rollouts}} where list_contains($names, campaign))
    as open from failures qualify row_number() over (partition by rollout_id order by sequence desc) = 1
)
select campaign, cause, open, min(detail) as detail, count(*) as rollouts from newest
group by campaign, cause, open, {FORM}
"""


_OPEN = """
select rollout_id from {attempts} where kind = 'started' and list_contains($names, campaign)
except select rollout_id from {rollouts} where list_contains($names, campaign)
"""
"""Rollouts that were begun and have no outcome, whether an attempt runs or the next one waits."""
_LIVE = f"""
select campaign, count(*) as turns, sum(prompt_tokens + completion_tokens)::bigint as tokens,
       sum(cost_usd) as cost_usd, {_GAPS}) as unpriced, bool_or(model_kind = 'oracle') as oracle
from (
    select distinct on (event_id) * from tables.llm_calls_all
    where list_contains($names, rollout_id)
) group by 1
"""
"""Work of all attempts at rollouts, given by id."""
_HACKS = """
select r.campaign, count(distinct r.rollout_id) as hacks
from {rollouts} r join tables.rewards_all w on w.rollout_id = r.rollout_id and w.attempt = r.attempt
where r.task_source = 'impossible' and list_contains($names, r.campaign) and r.status <> 'aborted'
and w.parts['hack'] = 1 group by 1
"""
_UNTOLD = """
select campaign, list(distinct [endpoint, model]) as untold from tables.llm_calls_all
where tools_left_out and list_contains($names, campaign) group by 1
"""
_TAGS = "select campaign, tags from campaigns where list_contains($names, campaign)"
_SAVED = f"""
select campaign, sum(turns)::bigint as turns, sum(prompt_tokens + completion_tokens)::bigint as tokens,
       sum(cost_usd) as cost_usd, {_GAPS}) as unpriced
from (
    select distinct on (event_id) * from {{attempts}}
    where kind = 'inherited' and list_contains($names, campaign)
) group by 1
"""


@dataclass(frozen=True)
class CampaignRows:
    """Query results of some campaigns."""

    outcomes: list[dict[str, Any]]
    one: dict[str, dict[str, Any]]
    """The other facts of a campaign, in one row."""
    scores: dict[str, Score]
    """pass@1 by campaign, over the tasks of all its arms together; none without a graded rollout."""
    labels: list[dict[str, Any]]
    reasons: list[dict[str, Any]]
    """Details of aborted rollouts, with the number of those that differ in ids and numbers alone."""
    retried: list[dict[str, Any]]
    """Details of retried rollouts likewise; `open` tells those without an outcome."""
    live: dict[str, dict[str, Any]]
    saved: dict[str, dict[str, Any]]
    spent: dict[str, Spent]
    """Cost of all attempts at campaigns with a cap, and at those where it may differ from that of their
    outcomes."""

    def beside(self, known: "CampaignRows", campaigns: Collection[str]) -> "CampaignRows":
        """These rows of some campaigns, and the known ones of all others."""
        both: dict[str, Any] = {}
        for field in fields(self):
            old, new = getattr(known, field.name), getattr(self, field.name)
            if isinstance(new, dict):
                both[field.name] = {name: row for name, row in old.items() if name not in campaigns} | new
            else:
                both[field.name] = [row for row in old if row["campaign"] not in campaigns] + new
        return CampaignRows(**both)


def read_rows_of(store: str, work: Callable[[duckdb.DuckDBPyConnection], CampaignRows]) -> CampaignRows:
    """Opens the store's tables and runs `work` on them."""
    with open_tables(store, views=VIEWS) as tables:
        return work(tables)


def read_rows(
    tables: duckdb.DuckDBPyConnection,
    campaigns: list[str],
    running: Mapping[str, Collection[str]],
    capped: list[str],
    up_to: Position | None,
    sources: Sources = STORED,
) -> CampaignRows:
    """Runs all queries; `running` are rollouts that an attempt runs at, by campaign, `capped` campaigns with
    a cap, of which what they have spent counts up to a position."""
    at_work = [rollout for name in campaigns for rollout in running.get(name, ())]
    ask = partial(_dicts, tables, sources)
    outcomes = ask(_OUTCOMES, campaigns)
    begun = [row["rollout_id"] for row in ask(_OPEN, campaigns)]
    tried = sorted({row["campaign"] for row in outcomes if row["tried_impossible"]})
    one: dict[str, dict[str, Any]] = {name: {} for name in campaigns}
    for query, among in (
        (_RETRIES, campaigns),
        (_RECONCILED, campaigns),
        (_UNTOLD, campaigns),
        (_HACKS, tried),
        (_TAGS, campaigns),
    ):
        for row in ask(query, among) if among else ():
            one[row["campaign"]] |= row
    also = {row["campaign"] for row in outcomes if row["outcome"].startswith("aborted") and row["unpriced"]}
    also |= {name for name, facts in one.items() if facts.get("retries")}
    also -= set(capped)
    return CampaignRows(
        outcomes,
        one,
        scores_by(ask(_TALLIES, campaigns), lambda row: str(row["campaign"])),
        ask(_LABELS, campaigns),
        ask(_REASONS, campaigns) if any(row["outcome"].startswith("aborted") for row in outcomes) else [],
        ask(_retried(_CREATING), campaigns, running=at_work) if at_work else ask(_retried(""), campaigns),
        {row["campaign"]: row for row in ask(_LIVE, begun)} if begun else {},
        {row["campaign"]: row for row in ask(_SAVED, campaigns)},
        (spent_in(tables, capped, up_to) if capped else {}) | (spent_in(tables, also, None) if also else {}),
    )


class FollowedRows:
    """Rows of campaigns as `read_rows` reads them, for a caller who looks again and again.

    Those of a campaign are read again when it has new events or other running rollouts, and while it has a
    cap."""

    def __init__(self, reached: Callable[[], Position]) -> None:
        """Takes a function that returns the position of the tables that are read."""
        self._position = reached
        self._reached = START
        self._rows = CampaignRows([], {}, {}, [], [], [], {}, {}, {})
        self._running: dict[str, frozenset[str]] = {}
        """Running rollouts of each campaign at the last look."""
        self._capped: set[str] = set()
        """Campaigns with a cap at the last look."""

    def read(
        self,
        tables: duckdb.DuckDBPyConnection,
        campaigns: list[str],
        running: Mapping[str, Collection[str]],
        capped: list[str],
        up_to: Position | None,
        sources: Sources = STORED,
    ) -> CampaignRows:
        """Reads as `read_rows` does."""
        reached = self._position()
        at_work = {name: frozenset(some) for name, some in running.items()}
        again = {name for name in campaigns if at_work.get(name) != self._running.get(name)}
        again |= self._capped | set(capped)
        if not reached.reaches(self._reached):  # another store is in its place
            again |= set(campaigns)
        elif reached != self._reached:
            asked = beyond(tables, "select distinct campaign from tables.events", self._reached)
            again |= {name for (name,) in tables.execute(asked).fetchall()}
        fresh = [name for name in campaigns if name in again or name not in self._rows.one]
        if fresh:
            new = read_rows(
                tables, fresh, running, [name for name in capped if name in fresh], up_to, sources
            )
            self._rows = new.beside(self._rows, fresh)
        self._running, self._capped, self._reached = at_work, set(capped), reached
        return self._rows


ReadRows = Callable[
    [
        duckdb.DuckDBPyConnection,
        list[str],
        Mapping[str, Collection[str]],
        list[str],
        Position | None,
        Sources,
    ],
    CampaignRows,
]
"""`read_rows`, or what reads like it."""


def _dicts(
    tables: duckdb.DuckDBPyConnection, sources: Sources, query: str, campaigns: list[str], **more: list[str]
) -> list[dict[str, Any]]:
    return rows(tables, query.format(**sources._asdict()), {"names": campaigns, **more})


def scores_by(
    found: Iterable[Mapping[str, Any]], key: Callable[[Mapping[str, Any]], Any]
) -> dict[Any, Score]:
    """pass@1 of each key, of rows with the number of `tasks` that have so many graded and resolved
    rollouts."""
    tallies: dict[Any, list[Tally]] = {}
    for row in found:
        tally = Tally(graded=row["graded"], resolved=row["resolved"])
        tallies.setdefault(key(row), []).extend([tally] * row["tasks"])
    return {each: score(some) for each, some in tallies.items()}


def made_and_proven(tables: duckdb.DuckDBPyConnection) -> tuple[int, int]:
    """Numbers of tasks, and of those that are proven."""
    (found,) = rows(tables, "select count(*) as made, count(*) filter (state = 'valid') as proven from tasks")
    return found["made"], found["proven"]
