"""How the pipeline and each campaign stand now: tables, queues and processes asked once, as plain data."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

import duckdb

from orchard.actions.rests import rest_sentences
from orchard.actions.session import Session
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import CampaignRecord, CampaignState
from orchard.schemas.health import HeardReport, ProcessReport, alive, sick
from orchard.schemas.outcomes import AbortCause
from orchard.storage.reader import open_tables, position
from orchard.storage.spending import Spent, spent_in
from orchard.streams import names
from orchard.streams.connection import Connection
from orchard.streams.health import reports
from orchard.streams.queued import running_now
from orchard.streams.reading import bounds, next_message, server_time, subject_count, subjects

RATE_WINDOW_SECONDS = 300


class Sources(NamedTuple):
    """What is asked for outcomes, attempts and events: views and tables, or copies of their columns."""

    rollouts: str = "rollouts"
    attempts: str = "tables.attempts_all"
    events: str = "events"


STORED = Sources()


class State(StrEnum):
    """A campaign as people see it."""

    RUNNING = "running"
    FINISHED = "finished"
    """Each rollout has an outcome, and some have a graded one."""
    ABORTED = "aborted"
    """Each rollout has an outcome, and all of them aborted."""
    PAUSED = "paused"
    CANCELLED = "cancelled"
    ARCHIVED = "archived"
    """Closed before each rollout had an outcome, and moved to the archive."""
    STUCK = "stuck"
    """Rollouts are open and nothing moves: no worker serves the queue."""


@dataclass(frozen=True)
class InQueues:
    """Rollouts of one campaign that are claimed, and how many wait for their time."""

    running: frozenset[str] = frozenset()
    delayed: int = 0


@dataclass(frozen=True)
class Work:
    """What models did: turns, and tokens and cost as far as they are known."""

    turns: int = 0
    tokens: int = 0
    cost_usd: float | None = None
    """None where nothing is known."""
    counted: bool = True
    """Whether the tokens are known of all."""
    priced: bool = True
    """Whether the cost is."""


@dataclass(frozen=True)
class CampaignView:
    """One campaign now. Aborted rollouts stand beside the graded ones, never among them."""

    name: str
    size: int
    state: State
    outcomes: dict[str, int] = field(default_factory=dict)
    """Rollouts by outcome: resolved, unresolved, ungraded, and `aborted: <cause>`."""
    waiting: int = 0
    """Open and not claimed: on the queue, or parked by a pause."""
    running: int = 0
    delayed: int = 0
    retries: int = 0
    """Attempts beyond each rollout's first."""
    reconciled: int = 0
    """Rollouts that were in no queue and were offered again: more than 0 is a fault of ours."""
    queue: str = ""
    ended: Work = Work()
    """Of rollouts with an outcome."""
    live: Work = Work()
    """Of those that run now, all their attempts."""
    tried_impossible: int = 0
    """Graded rollouts of impossible tasks."""
    hacks: int = 0
    """Those of them that passed: the model has cheated."""
    seconds: float = 0.0
    """From the first start to the last outcome."""
    recent: int = 0
    """Outcomes in the last `recent_seconds`."""
    recent_seconds: float = 0.0
    oracle: bool = False
    saved: Work = Work()
    """What attempts have replayed from dead ones, and so neither asked for nor paid again."""
    cap_usd: float | None = None
    """What its model calls may cost before it is paused; None: no cap."""
    spent: Spent = field(default_factory=Spent)
    """Of a campaign with a cap: what all its attempts have cost so far, as the tables have it."""
    reason: str = ""
    """Why it was paused, where nobody asked for that."""
    untold: tuple[tuple[str, str], ...] = ()
    """Endpoints and models whose chat template leaves tools out, where a call offered some."""

    @property
    def done(self) -> int:
        """Rollouts with an outcome."""
        return sum(self.outcomes.values())

    @property
    def aborted(self) -> int:
        """Rollouts that ended without a grade because infrastructure failed."""
        ended = (count for outcome, count in self.outcomes.items() if outcome.startswith("aborted"))
        return sum(ended) - self.blocked

    @property
    def blocked(self) -> int:
        """Rollouts that a site kept out: no failure of the agent nor of infrastructure, and in no rate."""
        return self.outcomes.get(BLOCKED, 0)

    @property
    def over(self) -> bool:
        """Whether each rollout has an outcome."""
        return self.size > 0 and self.done >= self.size

    @property
    def per_second(self) -> float | None:
        """Outcomes a second lately; None before there are any."""
        return self.recent / self.recent_seconds if self.recent and self.recent_seconds > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """At the recent rate; None when there is none."""
        return (self.size - self.done) / self.per_second if self.per_second else None


@dataclass(frozen=True)
class PipelineView:
    """What all campaigns share."""

    lag_events: int = 0
    """Events of the stream that the tables do not have yet."""
    lag_seconds: float = 0.0
    """Age of the oldest of them."""
    delayed: int = 0
    dead_letters: int = 0
    processes: dict[str, int] = field(default_factory=dict)
    """Processes alive, by kind."""
    sick: Sequence[str] = ()
    """A sentence for each process that does not work."""
    rests: Sequence[str] = ()
    """A sentence for each model endpoint that nobody asks for a while."""


@dataclass(frozen=True)
class Standing:
    """Everything at one moment."""

    campaigns: list[CampaignView]
    pipeline: PipelineView


_CANCELLED = f"aborted: {AbortCause.CANCELLED}"
BLOCKED = f"aborted: {AbortCause.BLOCKED}"
"""An outcome that is shown apart from other aborts."""


def outcome_name(outcome: str) -> str:
    """How an outcome is shown."""
    return "blocked" if outcome == BLOCKED else outcome


def state_of(record: CampaignRecord, outcomes: Mapping[str, int], moving: InQueues, serving: int) -> State:
    """What a campaign is doing: its record says what was asked for, outcomes and queues what is so.

    `serving` is the number of workers alive that serve its queue.
    """
    done = sum(outcomes.values())
    if record.state is CampaignState.CANCELLED and (done < record.size or _CANCELLED in outcomes):
        return State.CANCELLED
    if done >= record.size:
        return State.ABORTED if all(name.startswith("aborted") for name in outcomes) else State.FINISHED
    if record.state is not CampaignState.RUNNING:
        return State(record.state.value)
    return State.RUNNING if serving or moving.running else State.STUCK


Ask = Callable[[Callable[[duckdb.DuckDBPyConnection], "_Rows"]], Awaitable["_Rows"]]
"""Runs a function on an open store with all views, in a thread."""


async def standing(
    session: Session,
    connection: Connection,
    records: Mapping[str, CampaignRecord],
    queues: Mapping[str, str],
    ask: Ask | None = None,
    sources: Sources = STORED,
) -> Standing:
    """The campaigns of `records`, whose consumers are named by `queues`, and the pipeline. `ask` reads tables
    that are open already, from `sources`."""
    heard, moving, pipeline = await asyncio.gather(
        reports(connection),
        asyncio.gather(*(_in_queues(connection, name) for name in records)),
        _pipeline(session, connection),
    )
    running = [rollout for each in moving for rollout in each.running]
    capped = [name for name, record in records.items() if record.max_cost_usd is not None]
    up_to = await asyncio.to_thread(position, session.config.store)
    work = partial(_rows, names_=list(records), running=running, capped=capped, up_to=up_to, sources=sources)
    rows = await (ask(work) if ask else asyncio.to_thread(_opened, session.config.store, work))
    working = alive(heard)
    views = [
        _view(name, record, rows, in_queues, queues.get(name, ""), working, waits=bool(pipeline.rests))
        for (name, record), in_queues in zip(records.items(), moving, strict=True)
    ]
    return Standing(views, _with_processes(pipeline, heard, working))


_GAPS = """count(*) filter (prompt_tokens + completion_tokens is null) as uncounted,
       count(*) filter (cost_usd is null"""
"""What the sums of a query do not have; a condition more may follow."""
_OUTCOMES = f"""
with mine as (select * from {{rollouts}} where list_contains($names, campaign)),
     bounds as (select campaign, max(time) as ended, min(started_at) as began from mine group by 1)
select campaign,
       case when status = 'aborted' then 'aborted: ' || cause
            when resolved is null then 'ungraded'
            when resolved then 'resolved' else 'unresolved' end as outcome,
       count(*) as rollouts, sum(turns) as turns, sum(prompt_tokens + completion_tokens) as tokens,
       sum(cost_usd) as cost_usd, {_GAPS} and turns > 0) as unpriced,
       date_diff('millisecond', any_value(began), any_value(ended)) / 1000.0 as seconds,
       count(*) filter (time > ended - interval {RATE_WINDOW_SECONDS} second) as recent,
       bool_or(model_kind = 'oracle') as oracle,
       count(*) filter (task_source = 'impossible' and status <> 'aborted') as tried_impossible
from mine join bounds using (campaign) group by all
"""
_RECONCILED = """
select campaign, count(*) as reconciled from {events}
where type = 'rollout.reconciled' and list_contains($names, campaign) group by 1
"""
_RETRIES = """
select campaign, count(*) - count(distinct rollout_id) as retries from {attempts}
where kind = 'started' and list_contains($names, campaign) group by 1
"""

_LIVE = f"""
select campaign, count(*) as turns, sum(prompt_tokens + completion_tokens)::bigint as tokens,
       sum(cost_usd) as cost_usd, {_GAPS}) as unpriced, bool_or(model_kind = 'oracle') as oracle
from (
    select distinct on (event_id) * from tables.llm_calls_all
    where list_contains($names, rollout_id)
    and rollout_id not in (select rollout_id from {{rollouts}} where list_contains($names, rollout_id))
) group by 1
"""
"""By the ids of rollouts: those that have an outcome meanwhile count there."""
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
_SAVED = f"""
select campaign, sum(turns)::bigint as turns, sum(prompt_tokens + completion_tokens)::bigint as tokens,
       sum(cost_usd) as cost_usd, {_GAPS}) as unpriced
from (
    select distinct on (event_id) * from {{attempts}}
    where kind = 'inherited' and list_contains($names, campaign)
) group by 1
"""


@dataclass(frozen=True)
class _Rows:
    outcomes: list[dict[str, Any]]
    one: dict[str, dict[str, Any]]
    """All else that is known of a campaign, in one row."""
    live: dict[str, dict[str, Any]]
    saved: dict[str, dict[str, Any]]
    spent: dict[str, Spent]


def _opened(store: str, work: Callable[[duckdb.DuckDBPyConnection], _Rows]) -> _Rows:
    views = ("rollouts", "rewards_all", "attempts_all", "llm_calls_all", "events")
    with open_tables(store, views=views) as tables:
        return work(tables)


def _rows(
    tables: duckdb.DuckDBPyConnection,
    names_: list[str],
    running: list[str],
    capped: list[str],
    up_to: int,
    sources: Sources = STORED,
) -> _Rows:
    ask = partial(_dicts, tables, sources)
    outcomes = ask(_OUTCOMES, names_)
    tried = sorted({row["campaign"] for row in outcomes if row["tried_impossible"]})
    one: dict[str, dict[str, Any]] = {name: {} for name in names_}
    for query, among in ((_RETRIES, names_), (_RECONCILED, names_), (_UNTOLD, names_), (_HACKS, tried)):
        for row in ask(query, among) if among else ():
            one[row["campaign"]] |= row
    return _Rows(
        outcomes,
        one,
        {row["campaign"]: row for row in ask(_LIVE, running)} if running else {},
        {row["campaign"]: row for row in ask(_SAVED, names_)},
        spent_in(tables, capped, up_to) if capped else {},
    )


_SUBMITTED = """
select campaign, spec_hash, spec_sha256, size, state, reason from campaigns
where size is not null order by submitted_at desc
"""


def recorded(tables: duckdb.DuckDBPyConnection, sources: Sources = STORED) -> list[CampaignView]:
    """Every campaign as the tables alone have it, the newest first: where no server runs, nothing moves."""
    result = tables.execute(_SUBMITTED).fetchall()
    records = {
        name: CampaignRecord(
            spec=BlobRef(sha256=sha256 or "", size=0),
            spec_hash=digest or "",
            size=size,
            state=CampaignState(state),
            reason=reason,
        )
        for name, digest, sha256, size, state, reason in result
    }
    rows = _rows(tables, list(records), [], [], 0, sources)
    return [_view(name, record, rows, InQueues(), "", ()) for name, record in records.items()]


def _dicts(
    tables: duckdb.DuckDBPyConnection, sources: Sources, query: str, names_: list[str]
) -> list[dict[str, Any]]:
    result = tables.execute(query.format(**sources._asdict()), {"names": names_})
    columns = [column[0] for column in result.description or []]
    return [dict(zip(columns, row, strict=True)) for row in result.fetchall()]


def _view(
    name: str,
    record: CampaignRecord,
    rows: _Rows,
    moving: InQueues,
    queue: str,
    working: Sequence[ProcessReport],
    *,
    waits: bool = False,
) -> CampaignView:
    """`waits`: an endpoint rests, for which workers may have ended that come back after it."""
    mine = sorted((row for row in rows.outcomes if row["campaign"] == name), key=lambda row: row["outcome"])
    outcomes = {row["outcome"]: row["rollouts"] for row in mine}
    seconds = max((row["seconds"] or 0.0 for row in mine), default=0.0)
    one, live = rows.one[name], rows.live.get(name, {})
    serving = sum(queue in report.serves.split(",") for report in working) or int(
        waits and moving.delayed > 0
    )
    open_ = max(record.size - sum(outcomes.values()), 0)
    return CampaignView(
        name=name,
        size=record.size,
        state=state_of(record, outcomes, moving, serving),
        outcomes=outcomes,
        waiting=max(open_ - len(moving.running) - moving.delayed, 0),
        running=min(len(moving.running), open_),
        delayed=min(moving.delayed, open_),
        retries=one.get("retries", 0),
        reconciled=one.get("reconciled", 0),
        queue=queue,
        ended=_work(mine),
        live=_work([live] if live else []),
        tried_impossible=sum(row["tried_impossible"] for row in mine),
        hacks=one.get("hacks", 0),
        seconds=seconds,
        recent=sum(row["recent"] for row in mine),
        recent_seconds=min(seconds, RATE_WINDOW_SECONDS),
        oracle=any(row.get("oracle") for row in (*mine, live)),
        saved=_work([rows.saved[name]] if name in rows.saved else []),
        cap_usd=record.max_cost_usd,
        spent=rows.spent.get(name, Spent()),
        reason=record.reason or "",
        untold=tuple(sorted((endpoint, model) for endpoint, model in one.get("untold", ()))),
    )


def _work(rows: Sequence[Mapping[str, Any]]) -> Work:
    """The sum of rows; nothing that is known of a cost is no cost of 0."""
    usd = sum(row["cost_usd"] or 0.0 for row in rows)
    priced = not any(row["unpriced"] for row in rows)
    return Work(
        turns=sum(row["turns"] or 0 for row in rows),
        tokens=sum(row["tokens"] or 0 for row in rows),
        cost_usd=usd if usd or (rows and priced) else None,
        counted=not any(row["uncounted"] for row in rows),
        priced=priced,
    )


async def _in_queues(connection: Connection, campaign: str) -> InQueues:
    """Counts that need no listing of what waits, which may be a million entries."""
    running, delayed = await asyncio.gather(
        running_now(connection, campaign),
        subjects(connection, names.LATER, f"orchard.*.rollout.*.*.{campaign}.>"),
    )
    return InQueues(frozenset(running), len(delayed))


async def _pipeline(session: Session, connection: Connection) -> PipelineView:
    written, events, dead, delayed, rests = await asyncio.gather(
        asyncio.to_thread(position, session.config.store),
        bounds(connection, names.EVENTS),
        subject_count(connection, names.DEAD),
        bounds(connection, names.LATER),
        rest_sentences(connection),
    )
    lag = max(events.last - written, 0)
    seconds = 0.0
    if lag:
        oldest = await next_message(connection, names.EVENTS, written + 1, names.EVENT_SUBJECTS)
        if oldest is not None:
            now = await server_time(connection, names.EVENTS)
            seconds = max((now - oldest.time).total_seconds(), 0.0)
    return PipelineView(
        lag_events=lag,
        lag_seconds=seconds,
        delayed=delayed.messages,
        dead_letters=dead,
        rests=rests,
    )


def _with_processes(
    pipeline: PipelineView, heard: list[HeardReport], working: list[ProcessReport]
) -> PipelineView:
    kinds = sorted({report.kind for report in working})
    return replace(
        pipeline,
        processes={kind: sum(report.kind == kind for report in working) for kind in kinds},
        sick=tuple(sick(heard)),
    )
