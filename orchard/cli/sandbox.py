"""`sandbox ...`: a sandbox for a program that speaks the Model Context Protocol, and what sandboxes cost."""

import asyncio
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from orchard.actions.prepull import campaign_images, prepulled
from orchard.actions.session import Session
from orchard.cli.facts import AsJson, print_facts
from orchard.configuration.config import ConfigError
from orchard.pipelines.campaigns.costs import PAPER_RATES, CostLine, RateCard, RatesError, price, read_rates
from orchard.schemas.sandboxes import PreparedImage, PreparedImages
from orchard.terminal.console import console

COMMANDS = {"sandbox": "Give sandboxes to other programs, pull their images, and compute what they cost."}
FINAL = ("image_missing", "image_denied")
"""Reasons of images that no waiting brings."""

app = typer.Typer(no_args_is_help=True)


@app.callback()
def sandbox() -> None:
    """Give sandboxes to other programs, pull their images, and compute what they cost."""


@app.command()
def mcp(
    context: typer.Context,
    image: Annotated[str, typer.Option(help="Image of the sandbox.")] = "host",
    network: Annotated[bool, typer.Option("--network", help="Let it connect to public addresses.")] = False,
    programs: Annotated[
        list[str] | None,
        typer.Option(
            "--with-program", help="Installed program to have on its PATH, such as codex; may be repeated."
        ),
    ] = None,
) -> None:
    """Serve one sandbox as MCP tools over stdio: run, read_file, write_file, list_files.

    The service is that of `--sandbox` or SANDBOX_BASE_URL. For example:

        orchard sandbox mcp --image python:3.12
        orchard sandbox mcp --with-program codex --with-program pi
    """
    from orchard.adapters.mcp_server import server  # its package is an extra

    session: Session = context.obj
    server(image, not network, session.config.sandbox.url or None, programs or ()).run()


@app.command()
def prepull(
    context: typer.Context,
    campaign: Annotated[str, typer.Option(help="Name of the campaign.")],
) -> None:
    """Pull the images of a campaign's open rollouts to where its sandboxes will be, before they are needed.

    On a cluster every node for sandboxes pulls them, a few nodes and ten images at a time; without one, the
    sandbox service's machine. An image that is not on every node with room is named, as soon as that is
    known, and ends the command with status 1. For example:

        orchard sandbox prepull --campaign nightly
    """
    session: Session = context.obj
    if not asyncio.run(_prepulled(session, campaign)):
        raise typer.Exit(1)


async def _prepulled(session: Session, campaign: str) -> bool:
    """Prints how far it is; returns whether every image is where it was wanted."""
    images = await asyncio.to_thread(campaign_images, session, campaign)
    lacking: set[str] = set()
    over = skipped = 0
    async for told in prepulled(session, images):
        for image in told.images:
            lacks = image.reason in FINAL or (told.done and not told.has(image))
            if lacks and image.image not in lacking:
                lacking.add(image.image)
                what = _lack(image, told)
                console.print(what, style="red", markup=False, highlight=False, soft_wrap=True)
        if told.done:
            over += len(told.images)
            skipped = max(skipped, told.skipped)
            full = f"; {told.skipped} of {told.nodes} nodes have no room" if told.skipped else ""
            console.print(f"{over} of {len(images)} images{full}", highlight=False)
    there = f"{len(images) - len(lacking)} of {len(images)} images are there"
    if skipped:
        there += f"; nodes without room: {skipped}"
    console.print(there, style="bold green" if not lacking else "bold red", highlight=False)
    return not lacking


def _lack(image: PreparedImage, told: PreparedImages) -> str:
    """Says that an image is not where it was wanted, and why."""
    if told.nodes == 0:
        return f"no_nodes: {image.image}: no node takes sandboxes (node_selector, tolerations, readiness)"
    if image.reason:
        return f"{image.reason}: {image.image}: {image.message} (on {image.failed} of {told.nodes} nodes)"
    return f"not_there: {image.image}: on {image.pulled} of {told.nodes} nodes; {told.skipped} have no room"


class SandboxCostFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `orchard sandbox cost --json`."""

    baseline: str
    lines: list[CostLine]


@app.command()
def cost(
    rates: Annotated[Path | None, typer.Option(help="Rate card, TOML.", show_default="the paper's")] = None,
    sandboxes: Annotated[int | None, typer.Option(help="Number of concurrent sandboxes.", min=1)] = None,
    hours: Annotated[float | None, typer.Option(help="Duration in hours.", min=0)] = None,
    vcpu: Annotated[float | None, typer.Option(help="vCPU of each sandbox.", min=0)] = None,
    memory: Annotated[float | None, typer.Option(help="GiB of each sandbox.", min=0)] = None,
    card: Annotated[bool, typer.Option("--card", help="Print the paper's rate card as TOML.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compute what sandboxes cost. Without options: Table 2 of the paper, from the paper's own inputs.

    For example:

        orchard sandbox cost --card > rates.toml       # a rate card to start from
        orchard sandbox cost --rates rates.toml --sandboxes 500 --hours 72
    """
    if card:
        console.print(PAPER_RATES, markup=False, highlight=False, soft_wrap=True, end="")
        return
    try:
        known = read_rates(_text(rates))
        changes = {"sandboxes": sandboxes, "hours": hours, "vcpu": vcpu, "memory_gib": memory}
        given = {name: value for name, value in changes.items() if value is not None}
        known = msgspec.structs.replace(known, workload=msgspec.structs.replace(known.workload, **given))
        lines = price(known)
    except (RatesError, ValueError) as error:
        raise ConfigError(f"{rates}: {error}" if rates else str(error)) from error
    if as_json:
        print_facts(SandboxCostFacts(baseline=known.baseline, lines=lines))
        return
    console.print(cost_table(known, lines))
    for line in lines:
        if line.note:
            console.print(f"{line.name}: {line.note}", markup=False, highlight=False)


def cost_table(card: RateCard, lines: list[CostLine]) -> Table:
    """Formats the table as in the paper: USD per sandbox-hour, total USD, difference to the baseline."""
    work = card.workload
    table = Table(
        title=f"{work.sandboxes} sandboxes of {work.vcpu:g} vCPU and {work.memory_gib:g} GiB for "
        f"{work.hours:g} h ({work.sandbox_hours:,.0f} sandbox-hours)"
    )
    table.add_column("system")
    for title in ("$/sandbox-hr", "cost ($)", f"vs. {card.baseline}"):
        table.add_column(title, justify="right")
    for line in lines:
        relative = "" if line.name == card.baseline else f"{line.relative:+.0%}"
        table.add_row(line.name, f"{line.sandbox_hourly:.3f}", f"{line.total:,.0f}", relative)
    return table


def _text(path: Path | None) -> str:
    if path is None:
        return PAPER_RATES
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the rate card {path} cannot be read ({error}): `orchard sandbox cost --card` prints one to "
            "start from"
        ) from error
