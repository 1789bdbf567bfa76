"""`cost`: compares what campaigns, models, users, teams or days have cost."""

from typing import Annotated

import msgspec
import typer
from rich.markup import escape
from rich.table import Table

from orchard.actions.notes import known_campaign
from orchard.actions.session import Session
from orchard.actions.spending import SpendingBy, SpendingLine, spending
from orchard.cli.facts import AsJson, print_facts
from orchard.storage.reader import open_tables
from orchard.terminal.console import console

COMMANDS = {"cost": "Compare what campaigns have cost, and what each resolved rollout."}


class SpendingFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `orchard cost --json`."""

    by: SpendingBy
    lines: list[SpendingLine]


def register(app: typer.Typer) -> None:
    @app.command()
    def cost(
        context: typer.Context,
        campaigns: Annotated[
            list[str] | None, typer.Argument(help="Campaigns that count.", show_default="all")
        ] = None,
        by: Annotated[SpendingBy, typer.Option(help="What the cost is summed by.")] = SpendingBy.CAMPAIGN,
        as_json: AsJson = False,
    ) -> None:
        """Compare what campaigns have cost, and what each resolved rollout.

        Every call of a model or a judge counts, in every attempt. Annotations and rubrics (`orchard values`)
        do not, as they are of no rollout's attempt. A cost of `-` is not known: add prices to the endpoint's
        section of orchard.toml. User and team are those of who submitted the campaign, `-` where none is
        known. `orchard sandbox cost` computes what sandboxes cost.

        For example:

            orchard cost
            orchard cost first second --by model
            orchard cost --by team
        """
        session: Session = context.obj
        with open_tables(
            session.config.store,
            views=("rollouts", "llm_calls_all", "judge_calls_all", "campaigns", "submitters"),
        ) as tables:
            named = [known_campaign(tables, name) for name in campaigns or ()]
            lines = spending(tables, by, named)
        if as_json:
            print_facts(SpendingFacts(by=by, lines=lines))
        elif lines:
            console.print(spending_table(by, lines))
        else:
            console.print("no model was called yet: `orchard submit --help` says how to queue a campaign")


def spending_table(by: SpendingBy, lines: list[SpendingLine]) -> Table:
    """Formats a line each, `-` for what is not known and `≥` for what is known in part."""
    table = Table(header_style="bold", box=None)
    table.add_column(by.value, overflow="fold")
    for title in ("resolved", "calls", "tokens", "USD", "tokens each", "USD each"):
        table.add_column(title, justify="right", no_wrap=True)
    for line in lines:
        counted, priced = ("≥ " if gap else "" for gap in (line.uncounted, line.unpriced))
        table.add_row(
            escape(line.name) or "-",
            f"{line.resolved:,} of {line.rollouts:,}",
            f"{line.calls:,}",
            f"{counted}{line.tokens:,}" if line.tokens or not line.uncounted else "-",
            _usd(line.cost_usd, priced),
            "-" if line.tokens_per_resolved is None else f"{counted}{line.tokens_per_resolved:,.0f}",
            _usd(line.usd_per_resolved, priced),
        )
    table.caption = "each: per resolved rollout; every call of a model or judge counts, in every attempt"
    table.caption_justify = "left"
    return table


def _usd(value: float | None, least: str) -> str:
    if value is None:
        return "-"
    return f"{least}{value:,.2f}" if value >= 1 or not value else f"{least}{value:.3g}"
