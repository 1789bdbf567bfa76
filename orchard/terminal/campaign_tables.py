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

from orchard.actions.campaign_hints import LAG_SECONDS, hints, hints_on, queue_hints, retry_hints
from orchard.actions.campaign_status import (
    CampaignView,
    ModelWork,
    PipelineView,
    State,
    outcome_name,
)
from orchard.actions.campaigns import follow_campaign
from orchard.actions.reporter import duration, plural
from orchard.actions.session import Session
from orchard.actions.team_status import TeamView
from orchard.pipelines.campaigns.scores import Score
from orchard.storage.spending import Spent, dollars
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
        facts.append(f"rewards by the label of their tests (docs/own-tasks.md): {_labels(view)}")
    if view.tags:
        facts.append(f"tagged {', '.join(view.tags)}")
    if view.oracle:
        facts.append("played by the oracle from gold patches: not a model's work")
    notes = (Text(hint, style="yellow") for hint in hints(view, pipeline))
    return Group(line, bar, counts, *(Text(fact, style="dim") for fact in facts), *notes)


def campaign_line(view: CampaignView, pipeline: PipelineView = _ALONE) -> str:
    """Summary of a campaign in one line."""
    facts = [*_works(view), *_cap(view), *pipeline.rests, *queue_hints(view), *retry_hints(view, pipeline)]
    return f"{view.name}: {_numbers(view)}" + "".join(f"; {fact}" for fact in facts)


def _all_or(empty: int, outcomes: Mapping[str, int]) -> str:
    return "all" if empty == outcomes.get("unresolved") else f"{empty:,} of them"


def _numbers(view: CampaignView) -> str:
    retries = f", {view.retries:,} {'retry' if view.retries == 1 else 'retries'}" if view.retries else ""
    more = f", {view.unsubmitted:,} not submitted yet" if view.unsubmitted else ""
    return (
        f"{view.done:,} of {view.size:,} done  {view.waiting:,} waiting, {view.running:,} running, "
        f"{view.delayed:,} delayed{retries}{more}"
    )


def _works(view: CampaignView) -> list[str]:
    """Work of rollouts with and without an outcome, and work that was replayed, a text each."""
    kinds = {"ended": view.ended, "not ended": view.live, "replayed from dead attempts": view.saved}
    return [f"{what}: {_work(work, view)}" for what, work in kinds.items() if work.turns]


def _labels(view: CampaignView) -> str:
    return ", ".join(f"{number:,} {label}" for label, number in view.labels.items())


def _cap(view: CampaignView) -> list[str]:
    if view.cap_usd is None:
        return []
    spent = view.spent or Spent()
    if spent.usd is None:
        calls = plural(spent.unpriced, "call")
        return [f"cap: an unknown amount of {dollars(view.cap_usd)} is spent, by {calls} without a price"]
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


def status_table(
    views: Sequence[CampaignView], pipeline: PipelineView | None, width: int = 160
) -> RenderableType:
    """Tables of all campaigns and of the pipeline, None if none runs. Columns without a value are left out;
    tags stand under the table, and below WIDE columns what does not fit it."""
    wide = width >= WIDE
    columns = {title: [text(view) for view in views] for title, text in _COLUMNS.items()}
    shown = {name: cells for name, cells in columns.items() if any(cells) and (wide or name in _NARROW)}
    campaigns = Table(header_style="bold", box=HEAVY_HEAD if wide else None, pad_edge=wide)
    campaigns.add_column("campaign", no_wrap=wide, overflow="fold")
    campaigns.add_column("state", no_wrap=True)
    for title in shown:
        campaigns.add_column(title, justify="right", no_wrap=True)
    for row, view in enumerate(views):
        state = f"[{_STYLES[view.state]}]{view.state}[/]"
        campaigns.add_row(escape(view.name), state, *(escape(cells[row]) for cells in shown.values()))
    below = [Text(line, style="dim") for view in views if (line := _beside(view, wide=wide))]
    notes = (Text(note, style="yellow") for note in hints_on(views, pipeline))
    teams = (Text(_team(team), style="dim") for team in (pipeline.teams if pipeline else ()))
    return Group(campaigns, *below, pipeline_line(pipeline), *teams, *notes)


def _team(team: TeamView) -> str:
    quota = "" if team.slots is None else f" in at most {plural(team.slots, 'slot')} of a queue"
    return f"team {team.name}: {team.running:,} running{quota}, {team.waiting:,} waiting"


WIDE = 120
"""Columns from which `status` shows every figure in its table."""


def _counted(count: Callable[[CampaignView], int]) -> Callable[[CampaignView], str]:
    return lambda view: f"{found:,}" if (found := count(view)) else ""


_COLUMNS: Mapping[str, Callable[[CampaignView], str]] = {
    "done": lambda view: f"{view.done:,} of {view.size:,}",
    "resolved": _counted(lambda view: view.outcomes.get("resolved", 0)),
    "pass rate [95 %]": lambda view: _rate(view.score) if view.score else "",
    "aborted": _counted(lambda view: view.aborted),
    "blocked": _counted(lambda view: view.blocked),
    "running": _counted(lambda view: view.running),
    "waiting": _counted(lambda view: view.waiting),
    "delayed": _counted(lambda view: view.delayed),
    "retries": _counted(lambda view: view.retries),
    "tokens": lambda view: _tokens(view) if view.ended.turns + view.live.turns else "",
    "cost USD": lambda view: _cost(view),
}
_NARROW = ("done", "pass rate [95 %]", "aborted", "cost USD")
"""Columns that a narrow table has room for."""
_BELOW = ("running", "waiting", "delayed", "blocked", "retries", "tokens")
"""Columns that stand under a narrow table instead."""


def _rate(score: Score) -> str:
    return f"{score.value:.1%} [{score.low:.0%}, {score.high:.0%}]"


def _beside(view: CampaignView, *, wide: bool) -> str:
    """What the table leaves out of a campaign: its tags, empty submissions, and the figures that a narrow
    one has no room for."""
    facts = [f"tagged {', '.join(view.tags)}"] * bool(view.tags)
    facts += [f"{_all_or(view.empty, view.outcomes)} submitted nothing"] * bool(view.empty)
    if not wide:
        facts += [f"{cell} {title}" for title in _BELOW if (cell := _COLUMNS[title](view))]
        facts += [f"a cap of {view.cap_usd:.2f} USD"] if view.cap_usd is not None else []
    return f"{view.name}: {', '.join(facts)}" if facts else ""


def _tokens(view: CampaignView) -> str:
    least = "" if view.ended.counted and view.live.counted else "≥ "
    return f"{least}{view.ended.tokens + view.live.tokens:,}"


def _cost(view: CampaignView) -> str:
    """Cost of all attempts as far as it is known, `-` for an unknown one; empty where there was nothing to
    pay."""
    called = view.ended.turns + view.live.turns or not view.priced or view.cost_usd
    if view.cap_usd is None and (view.oracle or not called):
        return ""
    least = "" if view.priced else "≥ "
    return "-" if view.cost_usd is None else f"{least}{view.cost_usd:.2f}"


def pipeline_line(pipeline: PipelineView | None) -> RenderableType:
    """Processes, lag of the writer, requests that are not rollouts, delayed ones and dead letters, in one
    line."""
    if pipeline is None:
        return Text("no pipeline runs here, so this is what the tables have: `orchard up` starts one")
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
        *(f"  {plural(count, f'{kind} request')}" for kind, count in pipeline.requests.items()),
        f"  {pipeline.delayed:,} delayed",
        "  ",
        (f"{pipeline.dead_letters:,} dead letters", "red" if pipeline.dead_letters else ""),
    )


def _style(outcome: str) -> str:
    return "green" if outcome == "resolved" else "red" if outcome.startswith("aborted") else "yellow"


async def watch_campaign(session: Session, name: str, every: float) -> CampaignView:
    """Shows the campaign until it is over, stopped or stuck, and returns the last view."""
    if Verbosity.quiet:
        async for status in follow_campaign(session, name, every):
            last = status
        console.print(campaign_table(last.campaigns[0], last.pipeline))
        return last.campaigns[0]
    shown, said = time.monotonic(), ""
    with Live(console=console, refresh_per_second=4) as live:
        async for status in follow_campaign(session, name, every):
            view = status.campaigns[0]
            live.update(campaign_table(view, status.pipeline))
            if not console.is_terminal and time.monotonic() - shown > PLAIN_SECONDS:
                shown = time.monotonic()
                if (line := campaign_line(view, status.pipeline)) != said:
                    console.print(said := line, highlight=False, soft_wrap=True)
        live.stop()
        console.print()
    return view
