"""Status of each campaign and of the pipeline as plain data, read once from tables, queues and processes."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import duckdb
from nats.js.api import ConsumerInfo

from orchard.actions.abort_reasons import AbortReason, abort_reasons
from orchard.actions.campaign_rows import (
    RATE_WINDOW_SECONDS,
    STORED,
    CampaignRows,
    ReadRows,
    Sources,
    read_rows,
    read_rows_of,
)
from orchard.actions.endpoint_rests import rest_sentences
from orchard.actions.session import Session
from orchard.actions.team_status import TeamView, queue_of, team_views
from orchard.pipelines.campaigns.scores import Score
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import CampaignRecord, CampaignState
from orchard.schemas.health import HeardReport, ProcessReport, alive, sick
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.positions import stream_of
from orchard.schemas.protection import Protected
from orchard.storage.reader import position
from orchard.storage.spending import Spent
from orchard.streams import names
from orchard.streams.connection import Connection
from orchard.streams.event_streams import log_end, next_event
from orchard.streams.health import reports
from orchard.streams.queued import ahead_of, running_now
from orchard.streams.reading import bounds, consumers, server_time, subject_count, subjects


class State(StrEnum):
    """State of a campaign as users see it."""

    RUNNING = "running"
    FINISHED = "finished"
    """Every rollout has an outcome, and at least one is graded."""
    ABORTED = "aborted"
    """Every rollout has aborted."""
    PAUSED = "paused"
    CANCELLED = "cancelled"
    ARCHIVED = "archived"
    """Closed before every rollout had an outcome, and moved to the archive."""
    STUCK = "stuck"
    """Rollouts are open, but no worker serves the queue."""


@dataclass(frozen=True)
class InQueues:
    """Claimed and delayed rollouts of one campaign."""

    running: frozenset[str] = frozenset()
    delayed: int = 0
    ahead: int = 0
    """Requests of other campaigns that are delivered before its first waiting one."""


@dataclass(frozen=True)
class ModelWork:
    """Work of models: turns, and tokens and cost as far as they are known."""

    turns: int = 0
    tokens: int = 0
    cost_usd: float | None = None
    """None if no cost is known."""
    counted: bool = True
    """Whether the tokens of every call are known."""
    priced: bool = True
    """Whether the cost of every call is known."""


@dataclass(frozen=True)
class CampaignView:
    """State and counts of one campaign. Aborted rollouts are counted apart from graded ones."""

    name: str
    size: int
    """Number of rollouts that it has, or will have when its submitter has added all."""
    state: State
    outcomes: dict[str, int] = field(default_factory=dict)
    """Rollouts by outcome: resolved, unresolved, ungraded, and `aborted: <cause>`."""
    waiting: int = 0
    """Number of open rollouts that no worker has claimed: on the queue, or parked by a pause."""
    running: int = 0
    delayed: int = 0
    unsubmitted: int = 0
    """Rollouts that its submitter has still to add."""
    ahead: int = 0
    """Requests of other campaigns that are before its first waiting one in the queue."""
    retries: int = 0
    """Attempts beyond each rollout's first."""
    reconciled: int = 0
    """Rollouts that were missing from the queues and were offered again; more than 0 is a defect."""
    queue: str = ""
    ended: ModelWork = ModelWork()
    """Work of rollouts with an outcome."""
    live: ModelWork = ModelWork()
    """Work of all attempts at rollouts without an outcome, whether one runs or the next one waits."""
    tried_impossible: int = 0
    """Graded rollouts of impossible tasks."""
    hacks: int = 0
    """Passed rollouts of impossible tasks, in which the model has cheated."""
    seconds: float = 0.0
    """Time from the first start to the last outcome."""
    recent: int = 0
    """Outcomes in the last `recent_seconds`."""
    recent_seconds: float = 0.0
    oracle: bool = False
    saved: ModelWork = ModelWork()
    """Work that attempts replayed from dead ones, without new requests or cost."""
    cap_usd: float | None = None
    """Cost of model calls at which the campaign is paused; None: no cap."""
    spent: Spent | None = None
    """Cost of all attempts in the tables; None if there is no cap, and it is the sum of `ended` and
    `live`."""
    reason: str = ""
    """Reason of a pause that no user asked for."""
    untold: tuple[tuple[str, str], ...] = ()
    """Endpoints and models that were offered tools although their chat template omits them."""
    labels: dict[str, int] = field(default_factory=dict)
    """Graded rollouts by the label of their reward, strongest first; those without one are NO_LABEL."""
    reasons: tuple[AbortReason, ...] = ()
    """Why rollouts were aborted, the commonest cause first."""
    retry_reasons: tuple[AbortReason, ...] = ()
    """Why rollouts were retried, the commonest cause first."""
    retrying: tuple[AbortReason, ...] = ()
    """The same for rollouts without an outcome."""
    empty: int = 0
    """Unresolved rollouts that submitted nothing; 0 where a task was resolved so, as by the state it left."""
    tags: tuple[str, ...] = ()
    """Tags that people gave it."""
    score: Score | None = None
    """pass@1 over its tasks, those of all arms together; None without a graded rollout."""

    @property
    def done(self) -> int:
        """Number of rollouts with an outcome."""
        return sum(self.outcomes.values())

    @property
    def aborted(self) -> int:
        """Number of rollouts that infrastructure aborted."""
        ended = (count for outcome, count in self.outcomes.items() if outcome.startswith("aborted"))
        return sum(ended) - self.blocked

    @property
    def blocked(self) -> int:
        """Number of rollouts that a site blocked; they count as no failure and in no rate."""
        return self.outcomes.get(BLOCKED, 0)

    @property
    def priced(self) -> bool:
        """Whether the cost of every call of all attempts is known."""
        return self.ended.priced and self.live.priced if self.spent is None else not self.spent.unpriced

    @property
    def cost_usd(self) -> float | None:
        """Cost of all attempts as far as it is known; None if no cost is known."""
        if self.spent is not None:
            return self.spent.usd
        known = [each.cost_usd for each in (self.ended, self.live) if each.cost_usd is not None]
        return sum(known) if known and (sum(known) or self.priced) else None

    @property
    def over(self) -> bool:
        """Whether every rollout has an outcome."""
        return self.size > 0 and self.done >= self.size

    @property
    def per_second(self) -> float | None:
        """Recent outcomes per second; None before the first."""
        return self.recent / self.recent_seconds if self.recent and self.recent_seconds > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """Seconds left at the recent rate; None without a rate, and while rollouts are added at another."""
        if self.unsubmitted or not self.per_second:
            return None
        return (self.size - self.done) / self.per_second


@dataclass(frozen=True)
class PipelineView:
    """State that all campaigns share."""

    lag_events: int = 0
    """Number of events that the tables do not have yet."""
    lag_seconds: float = 0.0
    """Age in seconds of the oldest event that the tables do not have."""
    delayed: int = 0
    dead_letters: int = 0
    requests: dict[str, int] = field(default_factory=dict)
    """Requests on the queues that are not rollouts, claimed ones too, by kind; kinds without any are left
    out."""
    processes: dict[str, int] = field(default_factory=dict)
    """Number of live processes by kind."""
    sick: Sequence[str] = ()
    """Sentences about processes that do not work."""
    rests: Sequence[str] = ()
    """Sentences about model endpoints that are not asked for a while."""
    teams: Sequence[TeamView] = ()
    """Configured teams."""


@dataclass(frozen=True)
class Status:
    """Status of campaigns and of the pipeline at one time."""

    campaigns: list[CampaignView]
    pipeline: PipelineView


_CANCELLED = f"aborted: {AbortCause.CANCELLED}"
BLOCKED = f"aborted: {AbortCause.BLOCKED}"
"""Outcome that is shown apart from other aborts."""


NO_LABEL = "without a label"
"""Name of the rewards that no label protects: they count as `inside`."""


def outcome_name(outcome: str) -> str:
    """Name of an outcome for users."""
    return "blocked" if outcome == BLOCKED else outcome


def state_of(record: CampaignRecord, outcomes: Mapping[str, int], moving: InQueues, serving: int) -> State:
    """State of a campaign: its record has what the user asked for, outcomes and queues what happens.

    `serving` is the number of workers alive that serve its queue.
    """
    done = sum(outcomes.values())
    if record.state is CampaignState.CANCELLED and (done < record.whole or _CANCELLED in outcomes):
        return State.CANCELLED
    if done >= record.whole:
        return State.ABORTED if all(name.startswith("aborted") for name in outcomes) else State.FINISHED
    if record.state is not CampaignState.RUNNING:
        return State(record.state.value)
    return State.RUNNING if serving or moving.running else State.STUCK


Ask = Callable[[Callable[[duckdb.DuckDBPyConnection], "CampaignRows"]], Awaitable["CampaignRows"]]
"""Runs a function on an open store with all views, in a thread."""


async def read_status(
    session: Session,
    connection: Connection,
    records: Mapping[str, CampaignRecord],
    queues: Mapping[str, str],
    ask: Ask | None = None,
    sources: Sources = STORED,
    read: ReadRows = read_rows,
) -> Status:
    """The campaigns of `records`, whose consumers are named by `queues`, and the pipeline. `ask` reads tables
    that are open already, from `sources`, by `read`."""
    work_queues = await consumers(connection, names.WORK)
    heard, moving, pipeline = await asyncio.gather(
        reports(connection),
        asyncio.gather(*(_in_queues(connection, name, work_queues) for name in records)),
        _pipeline(session, connection, work_queues),
    )
    if not records:
        return Status([], _with_processes(pipeline, heard, alive(heard)))
    running = {name: each.running for name, each in zip(records, moving, strict=True)}
    capped = [name for name, record in records.items() if record.max_cost_usd is not None]
    up_to = await asyncio.to_thread(position, session.config.store)

    def work(tables: duckdb.DuckDBPyConnection) -> CampaignRows:
        return read(tables, list(records), running, capped, up_to, sources)

    rows = await (ask(work) if ask else asyncio.to_thread(read_rows_of, session.config.store, work))
    working = alive(heard)
    waits = bool(pipeline.rests or any(team.held for team in pipeline.teams))
    views = [
        _view(name, record, rows, in_queues, queues.get(name, ""), working, waits=waits)
        for (name, record), in_queues in zip(records.items(), moving, strict=True)
    ]
    return Status(views, _with_processes(pipeline, heard, working))


_SUBMITTED = """
select campaign, spec_hash, spec_sha256, size, state, reason from campaigns
where size is not null order by submitted_at desc
"""


def recorded(
    tables: duckdb.DuckDBPyConnection, sources: Sources = STORED, read: ReadRows = read_rows
) -> list[CampaignView]:
    """Every campaign from the tables alone, the newest first: without a server, nothing runs."""
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
    rows = read(tables, list(records), {}, [], None, sources)
    return [_view(name, record, rows, InQueues(), "", ()) for name, record in records.items()]


def _view(
    name: str,
    record: CampaignRecord,
    rows: CampaignRows,
    moving: InQueues,
    queue: str,
    working: Sequence[ProcessReport],
    *,
    waits: bool = False,
) -> CampaignView:
    """Builds the view of a campaign. `waits`: an endpoint rests, or a team is held, and its workers may
    have ended until that is over."""
    mine = sorted((row for row in rows.outcomes if row["campaign"] == name), key=lambda row: row["outcome"])
    outcomes = {row["outcome"]: row["rollouts"] for row in mine}
    seconds = max((row["seconds"] or 0.0 for row in mine), default=0.0)
    one, live = rows.one[name], rows.live.get(name, {})
    retried = [row for row in rows.retried if row["campaign"] == name]
    serving = sum(queue in report.serves.split(",") for report in working) or int(
        waits and moving.delayed > 0
    )
    open_ = max(record.size - sum(outcomes.values()), 0)
    return CampaignView(
        name=name,
        size=record.whole,
        state=state_of(record, outcomes, moving, serving),
        outcomes=outcomes,
        waiting=max(open_ - len(moving.running) - moving.delayed, 0),
        running=min(len(moving.running), open_),
        delayed=min(moving.delayed, open_),
        unsubmitted=record.whole - record.size,
        ahead=moving.ahead,
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
        spent=rows.spent.get(name),
        reason=record.reason or "",
        untold=tuple(sorted((endpoint, model) for endpoint, model in one.get("untold", ()))),
        labels=_by_label(row for row in rows.labels if row["campaign"] == name),
        reasons=abort_reasons(row for row in rows.reasons if row["campaign"] == name),
        retry_reasons=abort_reasons(retried),
        retrying=abort_reasons(row for row in retried if row["open"]),
        empty=_empty(mine),
        tags=tuple(one.get("tags", ())),
        score=rows.scores.get(name),
    )


def _empty(rows: Sequence[Mapping[str, Any]]) -> int:
    empty = {row["outcome"]: row["empty"] for row in rows}
    return 0 if empty.get("resolved") else empty.get("unresolved", 0)


def _by_label(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    found = {row["protected"] or NO_LABEL: row["rollouts"] for row in rows}
    return {label: found[label] for label in (*Protected, NO_LABEL) if label in found}


def _work(rows: Sequence[Mapping[str, Any]]) -> ModelWork:
    """Sums rows; an unknown cost stays unknown."""
    usd = sum(row["cost_usd"] or 0.0 for row in rows)
    priced = not any(row["unpriced"] for row in rows)
    return ModelWork(
        turns=sum(row["turns"] or 0 for row in rows),
        tokens=sum(row["tokens"] or 0 for row in rows),
        cost_usd=usd if usd or (rows and priced) else None,
        counted=not any(row["uncounted"] for row in rows),
        priced=priced,
    )


async def _in_queues(connection: Connection, campaign: str, work_queues: Sequence[ConsumerInfo]) -> InQueues:
    """Counts that need no listing of waiting requests, of which there may be a million."""
    running, delayed, ahead = await asyncio.gather(
        running_now(connection, campaign, work_queues),
        subjects(connection, names.LATER, f"orchard.*.rollout.*.*.{campaign}.>"),
        ahead_of(connection, campaign, work_queues),
    )
    return InQueues(frozenset(running), len(delayed), ahead)


async def _pipeline(
    session: Session, connection: Connection, work_queues: Sequence[ConsumerInfo]
) -> PipelineView:
    written, events, dead, delayed, rests, teams = await asyncio.gather(
        asyncio.to_thread(position, session.config.store),
        log_end(connection),
        subject_count(connection, names.DEAD),
        bounds(connection, names.LATER),
        rest_sentences(connection),
        team_views(connection, work_queues, session.config.teams),
    )
    lag = events.joined(written).events - written.events
    seconds = 0.0
    for sequence in events:
        if not written.covers(sequence):
            after = written.last(stream_of(sequence)) + 1
            oldest = await next_event(connection, after, names.EVENT_SUBJECTS)
            if oldest is not None:
                now = await server_time(connection, names.EVENTS)
                seconds = max((now - oldest.time).total_seconds(), seconds)
    return PipelineView(
        lag_events=lag,
        lag_seconds=seconds,
        delayed=delayed.messages,
        dead_letters=dead,
        requests=requests_by_kind(work_queues),
        rests=rests,
        teams=teams,
    )


def requests_by_kind(work_queues: Sequence[ConsumerInfo]) -> dict[str, int]:
    """Requests that are not rollouts, waiting or claimed; `work_queues` are the consumers of WORK."""
    found: Counter[str] = Counter()
    for info in work_queues:
        queue = queue_of(info)
        if queue is not None and queue.kind != "rollout":
            found[queue.kind] += (info.num_pending or 0) + (info.num_ack_pending or 0)
    return {kind: count for kind, count in sorted(found.items()) if count}


def _with_processes(
    pipeline: PipelineView, heard: list[HeardReport], working: list[ProcessReport]
) -> PipelineView:
    kinds = sorted({report.kind for report in working})
    return replace(
        pipeline,
        processes={kind: sum(report.kind == kind for report in working) for kind in kinds},
        sick=tuple(sick(heard)),
    )
