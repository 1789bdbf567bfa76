"""Campaigns at a glance: what the tables and the queue say, as plain data, and as tables for a terminal."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchard.schemas.campaigns import CampaignRecord
from orchard.streams import names
from orchard.streams.connection import Connection
from orchard.streams.settings import Queue

RATE_WINDOW_SECONDS = 300


@dataclass(frozen=True)
class QueueDepth:
    """Requests that wait on a queue, and those that are claimed."""

    waiting: int = 0
    running: int = 0


async def queue_depth(connection: Connection, queue: Queue) -> QueueDepth:
    """The depth of one queue now."""
    info = await connection.jetstream.consumer_info(names.WORK, queue.consumer)
    return QueueDepth(waiting=info.num_pending or 0, running=info.num_ack_pending or 0)


@dataclass(frozen=True)
class CampaignView:
    """One campaign now. Aborted rollouts stand beside the graded ones, never among them."""

    name: str
    size: int
    state: str
    outcomes: dict[str, int] = field(default_factory=dict)
    """Rollouts by outcome: resolved, unresolved, ungraded, and `aborted: <cause>`."""
    waiting: int = 0
    running: int = 0
    """On the whole queue, not of this campaign alone: the queue does not tell them apart."""
    turns: int = 0
    tokens: int = 0
    cost_usd: float | None = None
    seconds: float = 0.0
    """From the first start to the last outcome."""
    recent: int = 0
    """Outcomes in the last `recent_seconds`."""
    recent_seconds: float = 0.0
    oracle: bool = False

    @property
    def done(self) -> int:
        """Rollouts with an outcome."""
        return sum(self.outcomes.values())

    @property
    def over(self) -> bool:
        """Whether each rollout has one."""
        return self.size > 0 and self.done >= self.size

    @property
    def per_second(self) -> float | None:
        """Outcomes a second lately; None before there are any."""
        return self.recent / self.recent_seconds if self.recent and self.recent_seconds > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """At the recent rate; None when there is none."""
        return (self.size - self.done) / self.per_second if self.per_second else None


_VIEW = f"""
with mine as (select * from rollouts where campaign = $name),
     bounds as (select max(time) as ended, min(started_at) as began from mine)
select case when status = 'aborted' then 'aborted: ' || cause
            when resolved is null then 'ungraded'
            when resolved then 'resolved' else 'unresolved' end as outcome,
       count(*), sum(turns), sum(prompt_tokens + completion_tokens), sum(cost_usd),
       date_diff('millisecond', any_value(began), any_value(ended)) / 1000.0,
       count(*) filter (time > ended - interval {RATE_WINDOW_SECONDS} second),
       bool_or(model_kind = 'oracle')
from mine, bounds group by 1
"""


def campaign_view(
    tables: duckdb.DuckDBPyConnection, name: str, record: CampaignRecord, depth: QueueDepth
) -> CampaignView:
    """The campaign as the committed tables tell it, with the queue as it is now."""
    rows: Sequence[Any] = tables.execute(_VIEW, {"name": name}).fetchall()
    seconds = max((row[5] or 0.0 for row in rows), default=0.0)
    costs = [row[4] for row in rows if row[4] is not None]
    return CampaignView(
        name=name,
        size=record.size,
        state=record.state,
        outcomes={row[0]: row[1] for row in sorted(rows)},
        waiting=depth.waiting,
        running=depth.running,
        turns=sum(row[2] or 0 for row in rows),
        tokens=sum(row[3] or 0 for row in rows),
        cost_usd=sum(costs) if costs else None,
        seconds=seconds,
        recent=sum(row[6] for row in rows),
        recent_seconds=min(seconds, RATE_WINDOW_SECONDS),
        oracle=any(row[7] for row in rows),
    )


def campaign_table(view: CampaignView) -> RenderableType:
    """The live display of `orchard watch`."""
    bar = ProgressBar(total=max(view.size, 1), completed=view.done, width=50)
    counts = Table(box=None, show_header=False)
    for outcome, number in view.outcomes.items():
        counts.add_row(outcome, str(number), style=_style(outcome))
    line = Text.assemble(
        (view.name, "bold"),
        f"  {view.state}  {view.done} of {view.size} done",
        f"  queue: {view.waiting} waiting, {view.running} running",
    )
    rate = f"{view.per_second * 60:.1f} a minute" if view.per_second else "no outcome yet"
    left = f", about {duration(view.seconds_left)} left" if view.seconds_left and not view.over else ""
    cost = f"{view.cost_usd:.2f} USD" if view.cost_usd is not None else "no price known"
    if view.oracle:
        cost = "played by the oracle from gold patches: not a model's work"
    facts = Text(f"{rate}{left}  {view.turns:,} turns  {view.tokens:,} tokens  {cost}", style="dim")
    return Group(line, bar, counts, facts)


def status_table(views: Sequence[CampaignView], depths: dict[str, QueueDepth]) -> RenderableType:
    """All campaigns, and all queues."""
    columns = ("campaign", "state", "size", "resolved", "unresolved", "aborted", "open", "tokens", "cost USD")
    campaigns = Table(*columns, header_style="bold")
    for view in views:
        aborted = sum(count for outcome, count in view.outcomes.items() if outcome.startswith("aborted"))
        graded = [view.outcomes.get(outcome, 0) for outcome in ("resolved", "unresolved")]
        cost = f"{view.cost_usd:.2f}" if view.cost_usd is not None else ""
        numbers = [view.size, *graded, aborted, view.size - view.done, view.tokens]
        campaigns.add_row(view.name, view.state, *(f"{number:,}" for number in numbers), cost)
    queues = Table("queue", "waiting", "running", header_style="bold")
    for name, depth in depths.items():
        queues.add_row(name, f"{depth.waiting:,}", f"{depth.running:,}")
    return Group(campaigns, queues)


def _style(outcome: str) -> str:
    return "green" if outcome == "resolved" else "red" if outcome.startswith("aborted") else "yellow"


def duration(seconds: float) -> str:
    """`1 h 04 min`, `12 min 30 s` or `8 s`."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"
