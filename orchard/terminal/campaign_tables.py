"""Tables of campaigns and the pipeline for a terminal, shown once or followed."""

import time
from collections.abc import Callable, Mapping, Sequence

from rich.box import HEAVY_HEAD
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchard.actions.campaign_hints import LAG_SECONDS, hints, retry_hints
from orchard.actions.campaign_status import (
    NO_LABEL,
    CampaignView,
    ModelWork,
    PipelineView,
    State,
    outcome_name,
)
from orchard.actions.campaigns import follow_campaign
from orchard.actions.reporter import duration, plural
from orchard.actions.session import Session
from orchard.storage.spending import dollars
from orchard.terminal.console import PLAIN_SECONDS, Verbosity, console

_ALONE = PipelineView()
_STYLES = {
    State.RUNNING: "bold",
    State.FINISHED: "green",
    State.ABORTED: "red",
    State.PAUSED: "yellow",
    State.CANCELLED: "yellow",
    State.ARCHIVED: "dim",
    State.STUCK: "bold red",
}


def campaign_table(view: CampaignView, pipeline: PipelineView) -> RenderableType:
    bar = Table.grid()  # a bar alone does not end its line
    bar.add_row(ProgressBar(total=max(view.size, 1), completed=view.done, width=50))
    counts = Table(box=None, show_header=False)
    why = {f"aborted: {reason.cause}": reason.detail for reason in view.reasons}
    why |= {"unresolved": f"{_all_or(view.empty, view.outcomes)} submitted nothing"} if view.empty else {}
    for outcome, number in view.outcomes.items():
        name = outcome_name(outcome)
        counts.add_row(name, f"{number:,}", Text(why.get(outcome, ""), style="dim"), style=_style(name))
    line = Text.assemble(
        (view.name, "bold"),
        "  ",
        (str(view.state), _STYLES[view.state]),
        f"  {_numbers(view)}",
    )
    rate = f"{view.per_second * 60:.1f} a minute" if view.per_second else "no outcome yet"
    left = f", about {duration(view.seconds_left)} left" if view.seconds_left and not view.over else ""
    facts = [f"{rate}{left}", *_works(view), *_cap(view)]
    facts += [
        f"{plural(one.rollouts, 'rollout')} retried after {one.cause}: {one.detail}"
        for one in view.retry_reasons
    ]
    if view.labels:
        facts.append(f"protected: {_labels(view)}")
    if view.tags:
        facts.append(f"tagged {', '.join(view.tags)}")
    if view.oracle:
        facts.append("played by the oracle from gold patches: not a model's work")
    notes = (Text(hint, style="yellow") for hint in hints(view, pipeline))
    return Group(line, bar, counts, *(Text(fact, style="dim") for fact in facts), *notes)


def campaign_line(view: CampaignView, pipeline: PipelineView = _ALONE) -> str:
    """Summary of a campaign in one line."""
    facts = [*_works(view), *_cap(view), *pipeline.rests, *retry_hints(view, pipeline)]
    return f"{view.name}: {_numbers(view)}" + "".join(f"; {fact}" for fact in facts)


def _all_or(empty: int, outcomes: Mapping[str, int]) -> str:
    return "all" if empty == outcomes.get("unresolved") else f"{empty:,} of them"


def _numbers(view: CampaignView) -> str:
    retries = f", {view.retries:,} {'retry' if view.retries == 1 else 'retries'}" if view.retries else ""
    return (
        f"{view.done:,} of {view.size:,} done  {view.waiting:,} waiting, {view.running:,} running, "
        f"{view.delayed:,} delayed{retries}"
    )


def _works(view: CampaignView) -> list[str]:
    """Work of ended and running rollouts, and work that was replayed, a text each."""
    kinds = {"ended": view.ended, "running": view.live, "replayed from dead attempts": view.saved}
    return [f"{what}: {_work(work, view)}" for what, work in kinds.items() if work.turns]


def _labels(view: CampaignView) -> str:
    return ", ".join(f"{number:,} {label}" for label, number in view.labels.items())


def _cap(view: CampaignView) -> list[str]:
    if view.cap_usd is None:
        return []
    spent = view.spent
    also = f", and what {spent.unpriced:,} calls cost that nobody knows" if spent.unpriced else ""
    return [f"cap: {dollars(spent.usd)} of {dollars(view.cap_usd)} are spent{also}, all attempts counted"]


def _work(work: ModelWork, view: CampaignView) -> str:
    tokens = f"{'' if work.counted else 'at least '}{work.tokens:,} tokens"
    if not (work.counted or work.tokens):
        tokens = "tokens not known"
    cost = "no price known" if work.cost_usd is None else _least(work, f"{work.cost_usd:.2f} USD")
    return f"{work.turns:,} turns, {tokens}" + ("" if view.oracle else f", {cost}")


def _least(work: ModelWork, cost: str) -> str:
    return cost if work.priced else f"at least {cost}"


def status_table(views: Sequence[CampaignView], pipeline: PipelineView, width: int = 160) -> RenderableType:
    """Tables of all campaigns and of the pipeline. Tags stand under the table, and below WIDE columns
    what does not fit it."""
    wide = width >= WIDE
    counts = {name: count for name, count in _COUNTS.items() if wide or name not in _SELDOM}
    counts = {name: count for name, count in counts.items() if name in _ALWAYS or any(map(count, views))}
    labelled = wide and any(view.labels.keys() - {NO_LABEL} for view in views)
    titles = [*counts, *["tokens"] * wide, "cost USD", *["protected"] * labelled]
    campaigns = Table(header_style="bold", box=HEAVY_HEAD if wide else None, pad_edge=wide)
    campaigns.add_column("campaign", no_wrap=wide, overflow="fold")
    campaigns.add_column("state", no_wrap=True)
    for title in titles:
        campaigns.add_column(title, justify="right")
    for view in views:
        state = f"[{_STYLES[view.state]}]{view.state}[/]"
        cells = [f"{count(view):,}" for count in counts.values()]
        cells += [*[_tokens(view)] * wide, _cost(view), *[_labels(view)] * labelled]
        campaigns.add_row(escape(view.name), state, *cells)
    below = [Text(line, style="dim") for view in views if (line := _beside(view, wide=wide))]
    notes = [hint for view in views for hint in hints(view, pipeline)]
    return Group(
        campaigns, *below, pipeline_line(pipeline), *(Text(note, style="yellow") for note in _once(notes))
    )


WIDE = 120
"""Columns from which `status` shows every figure in its table."""
_COUNTS: Mapping[str, Callable[[CampaignView], int]] = {
    "size": lambda view: view.size,
    "resolved": lambda view: view.outcomes.get("resolved", 0),
    "unresolved": lambda view: view.outcomes.get("unresolved", 0),
    "empty": lambda view: view.empty,
    "aborted": lambda view: view.aborted,
    "blocked": lambda view: view.blocked,
    "waiting": lambda view: view.waiting,
    "running": lambda view: view.running,
    "delayed": lambda view: view.delayed,
    "retries": lambda view: view.retries,
    "reconciled": lambda view: view.reconciled,
}
_SELDOM = frozenset({"empty", "blocked", "waiting", "delayed", "retries", "reconciled"})
"""Counts that a narrow table has no room for."""
_ALWAYS = frozenset(_COUNTS) - {"empty", "blocked"}
"""Counts that are shown also where they are 0."""


def _beside(view: CampaignView, *, wide: bool) -> str:
    """What the table leaves out of a campaign: its tags, and the figures that a narrow one has no room
    for."""
    facts = [f"tagged {', '.join(view.tags)}"] * bool(view.tags)
    if not wide:
        seldom = {name: count(view) for name, count in _COUNTS.items() if name in _SELDOM}
        facts += [f"{number:,} {name}" for name, number in seldom.items() if number]
        facts += [f"{_tokens(view)} tokens"] * bool(view.ended.tokens + view.live.tokens)
        facts += [f"protected: {_labels(view)}"] * bool(view.labels.keys() - {NO_LABEL})
    return f"{view.name}: {', '.join(facts)}" if facts else ""


def _tokens(view: CampaignView) -> str:
    least = "" if view.ended.counted and view.live.counted else "≥ "
    return f"{least}{view.ended.tokens + view.live.tokens:,}"


def _cost(view: CampaignView) -> str:
    if view.cap_usd is not None:
        return f"{'≥ ' if view.spent.unpriced else ''}{view.spent.usd:.2f} of {view.cap_usd:.2f}"
    costs = [work.cost_usd for work in (view.ended, view.live) if work.cost_usd is not None]
    least = "" if view.ended.priced and view.live.priced else "≥ "
    return f"{least}{sum(costs):.2f}" if costs and not view.oracle else ""


def pipeline_line(pipeline: PipelineView) -> RenderableType:
    """Processes, lag of the writer, delayed requests and dead letters, in one line."""
    alive = ", ".join(
        f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in pipeline.processes.items()
    )
    late = pipeline.lag_seconds > LAG_SECONDS
    lag = f"{pipeline.lag_events:,} events not in the tables yet"
    lag += f" (oldest {duration(pipeline.lag_seconds)})" if pipeline.lag_events else ""
    return Text.assemble(
        alive or ("no process reports: start `orchard up`", "red"),
        "  ",
        (lag, "red" if late else ""),
        f"  {pipeline.delayed:,} delayed",
        "  ",
        (f"{pipeline.dead_letters:,} dead letters", "red" if pipeline.dead_letters else ""),
    )


def _once(sentences: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(sentences))


def _style(outcome: str) -> str:
    return "green" if outcome == "resolved" else "red" if outcome.startswith("aborted") else "yellow"


async def watch_campaign(session: Session, name: str, every: float) -> CampaignView:
    """Shows the campaign until it is over, stopped or stuck, and returns the last view."""
    if Verbosity.quiet:
        async for status in follow_campaign(session, name, every):
            last = status
        console.print(campaign_table(last.campaigns[0], last.pipeline))
        return last.campaigns[0]
    shown = time.monotonic()
    with Live(console=console, refresh_per_second=4) as live:
        async for status in follow_campaign(session, name, every):
            view = status.campaigns[0]
            live.update(campaign_table(view, status.pipeline))
            if not console.is_terminal and time.monotonic() - shown > PLAIN_SECONDS:
                shown = time.monotonic()
                console.print(campaign_line(view, status.pipeline), highlight=False, soft_wrap=True)
        live.stop()
        console.print()
    return view
