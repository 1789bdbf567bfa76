"""`rl groups|what-if`: shows how a run formed its groups, and predicts how other settings would."""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import RenderableType
from rich.live import Live

from orchard.actions.session import Session
from orchard.cli.facts import AsJson, print_facts
from orchard.configuration.config import ConfigError
from orchard.pipelines.rl.coordinator import RunError
from orchard.pipelines.rl.what_if import Yield, grid, what_if
from orchard.storage.reader import open_tables
from orchard.terminal.console import console
from orchard.terminal.tables import rows_table


def register(app: typer.Typer) -> None:
    app.command()(groups)
    app.command("what-if")(what_if_command)


GROUPS = """
select group_id, task_id, outcome, positive, len(members) as members, generated, aborted,
       case when dropped is not null then 'dropped: ' || dropped
            when outcome = 'impossible' then 'only measured'
            when outcome = 'one_class' then 'given up'
            when trained_version is not null then 'version ' || trained_version else 'waits' end as state
from groups where run = ? order by sequence desc limit ?
"""


class GroupFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A group in `orchard rl groups --json`."""

    group_id: str
    task_id: str
    outcome: str
    """How its prompt was decided, as in the view `groups`."""
    positive: int | None
    """Number of its rollouts with a positive reward."""
    members: int | None
    """Number of its rollouts."""
    generated: int | None
    """Rollouts that were asked for."""
    aborted: int | None
    state: str
    """What became of it: `waits`, `version N` that was trained on it, `only measured`, `given up`, or
    `dropped: REASON`."""


class GroupListing(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `orchard rl groups --json`; with `--follow` a line for each change."""

    groups: list[GroupFacts]
    """The newest groups, the newest first."""


class WhatIfFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `orchard rl what-if --json`."""

    campaign: str
    groups_per_update: int
    settings: list[Yield]


def groups(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    limit: Annotated[int, typer.Option(help="Newest groups to show.", min=1)] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Update as groups arrive.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object, with --follow one a line for each change.")
    ] = False,
) -> None:
    """Show the newest groups of a run: how they were formed and used."""
    session: Session = context.obj
    found = _newest_groups(session, run, limit)
    if not found and not follow:
        raise RunError(f"the run {run!r} has no group yet: --follow waits for the first")
    if as_json:
        print_facts(GroupListing(groups=found))
    elif not follow:
        console.print(_groups_table(found))
    if not follow:
        return
    with (
        nullcontext() if as_json else Live(_groups_table(found), console=console, auto_refresh=False) as live
    ):
        while True:
            time.sleep(1.0)
            before, found = found, _newest_groups(session, run, limit)
            if live is not None:
                live.update(_groups_table(found), refresh=True)
            elif found != before:
                print_facts(GroupListing(groups=found))


def _newest_groups(session: Session, run: str, limit: int) -> list[GroupFacts]:
    with open_tables(session.config.store) as tables:
        found = tables.execute(GROUPS, [run, limit]).fetchall()
    return [GroupFacts(**dict(zip(GroupFacts.__struct_fields__, row, strict=True))) for row in found]


def _groups_table(found: Sequence[GroupFacts]) -> RenderableType:
    rows = [
        (
            *(one.group_id, one.task_id, one.outcome, f"{one.positive}/{one.members}"),
            *(one.generated, one.aborted, one.state),
        )
        for one in found
    ]
    names = ["group_id", "task_id", "outcome", "positive", "generated", "aborted", "state"]
    return rows_table(names, rows)


def what_if_command(
    context: typer.Context,
    campaign: Annotated[str, typer.Argument(help="Finished campaign or run whose rollouts are used.")],
    sizes: Annotated[str, typer.Option("--size", help="Group sizes N, separated by commas.")] = "8",
    budgets: Annotated[str, typer.Option("--budget", help="Maximum rollouts of a prompt, N_max.")] = "16",
    strides: Annotated[str, typer.Option("--stride", help="Rollouts requested at once, s.")] = "4,8,16",
    intervals: Annotated[
        str, typer.Option("--interval", help="LOW:HIGH of a balanced group's positive share.")
    ] = "0.375:0.625",
    methods: Annotated[
        str,
        typer.Option(
            "--method", help="Methods, separated by commas: bar, fixed (GRPO), dynamic (DAPO), frugal."
        ),
    ] = "bar,fixed,dynamic,frugal",
    prompts: Annotated[int, typer.Option(help="Groups in an update.", min=1)] = 16,
    plot: Annotated[Path | None, typer.Option(help="PNG file for a plot.")] = None,
    as_json: AsJson = False,
) -> None:
    """Predict without a model how other methods and settings would use a log's tasks.

    Pass rates are drawn from their posteriors, so tasks with few rollouts count too. The information of a
    group with k successes of n is k (n - k) / n. For example:

        orchard rl what-if first --size 8,16 --budget 16,32 --stride 4,8,16
    """
    from orchard.pipelines.rl.what_if import graded_pools

    session: Session = context.obj
    with open_tables(session.config.store) as tables:
        pools = graded_pools(tables, campaign)
    if not pools:
        raise RunError(f"{campaign!r} has no graded rollout: `orchard status` lists the campaigns")
    cells = list(
        grid(_numbers(sizes), _numbers(budgets), _numbers(strides), _bounds(intervals), methods.split(","))
    )
    if not cells:
        raise ConfigError(
            "no stride divides its budget, so no group is possible: change --stride or --budget"
        )
    found = what_if(pools, cells)
    if as_json:
        print_facts(WhatIfFacts(campaign=campaign, groups_per_update=prompts, settings=found))
    else:
        console.print(_what_if_table(found, prompts))
        console.print(
            f"one pass over the {len(pools)} tasks; an update has {prompts} groups; brackets: 90 % of worlds",
            highlight=False,
        )
    if plot is not None:
        from orchard.pipelines.rl.curves import plot_what_if

        plot_what_if(found, plot)
        if not as_json:
            console.print(f"{plot}", highlight=False)


def _what_if_table(found: Sequence[Yield], prompts: int) -> RenderableType:
    rows = [
        (
            one.cell.method,
            one.cell.label.removeprefix(f"{one.cell.method} "),
            ""
            if one.cell.bar.interval is None or one.cell.frugal
            else ":".join(map(str, one.cell.bar.interval)),
            f"{one.opened:.0%}",
            f"{one.informative:.1f}",
            f"{one.groups_per_thousand:.0f}",
            f"{one.information_per_thousand:.0f} [{one.low:.0f}, {one.high:.0f}]",
            f"{one.information_per_update(prompts):.1f}",
            "" if one.positive_share is None else f"{one.positive_share:.1%}",
            f"{one.rollouts:,.0f}",
            f"{one.tokens:,.0f}",
        )
        for one in found
    ]
    names = [
        "method",
        "sizes",
        "interval",
        "opened",
        "informative",
        "per 1,000 rollouts",
        "information per 1,000",
        "per update",
        "positive",
        "rollouts",
        "tokens",
    ]
    return rows_table(names, rows)


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{text!r} is not a list of whole numbers: write it like 8,16") from None


def _bounds(text: str) -> list[tuple[float, float]]:
    try:
        pairs = [part.split(":") for part in text.split(",")]
        return [(float(low), float(high)) for low, high in pairs]
    except ValueError:
        raise ConfigError(f"{text!r} is not a list of intervals: write it like 0.375:0.625") from None
