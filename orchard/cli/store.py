"""`store check|compact|vacuum|rebuild|restore-stream|digest`: checks and maintains the tables."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import RenderableType
from rich.text import Text

from orchard.actions.session import Session
from orchard.cli.facts import AsJson, print_facts
from orchard.pipelines.campaigns.conservation import Balance, balances, balances_of_tables
from orchard.schemas.campaigns import CampaignState
from orchard.storage.archive.files import ArchiveFiles
from orchard.storage.archive.verify import verify_archive
from orchard.storage.campaigns import restore_campaigns
from orchard.storage.checking import examine
from orchard.storage.digest import store_digests
from orchard.storage.settings import archive_url
from orchard.storage.upkeep import maintenance
from orchard.storage.upkeep.restore import Restored
from orchard.storage.upkeep.restore import restore_stream as restore
from orchard.streams.topology import declare
from orchard.terminal.console import console, reporting
from orchard.terminal.tables import rows_table

COMMANDS = {"store": "Check, compact and rebuild the tables."}

app = typer.Typer(no_args_is_help=True)


class CampaignBalance(msgspec.Struct, frozen=True, kw_only=True):
    """Rollouts of one campaign by where they are, in `orchard store check --json`."""

    campaign: str
    state: str
    requested: int
    accepted: int
    aborted: int
    waiting: int
    delayed: int
    running: int
    parked: int
    not_offered: int
    nowhere: int


class StoreFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `orchard store check --json`."""

    findings: list[str]
    """What is wrong, a sentence each."""
    campaigns: list[CampaignBalance]
    """Account of each campaign; empty if files are damaged."""
    unknown: dict[str, int]
    """Number of files by table that cannot be verified."""
    queues: bool
    """Whether queues were looked at."""


class TableDigests(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `orchard store digest --json`."""

    tables: dict[str, str]
    """SHA-256 by table."""


@app.command()
def check(
    context: typer.Context,
    read: Annotated[
        bool,
        typer.Option("--read", help="Read every byte: files, blobs and archive against their SHA-256."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check that files are whole, no row is there twice, and each rollout is in one place. Exit code 1 if
    not.

    requested = accepted + aborted + waiting + delayed + running + parked + not offered yet, at any moment.
    Without a running server, queues are not checked, and open rollouts count as parked. Without --read, only
    the sizes of files are checked, not their contents.
    """
    session: Session = context.obj
    checked = examine(session.config.store, read=read)
    findings = checked.findings
    if read and not findings:
        shelf = ArchiveFiles(archive_url(session.config.store, session.config.archive))
        findings = verify_archive(shelf, session.config.store).findings
    runs = session.config.nats.url is not None or session.up() is not None
    rows: list[CampaignBalance] = []
    if not findings:
        found = asyncio.run(_balances(session)) if runs else balances_of_tables(session.config.store)
        rows = [_facts(each) for each in found]
        findings = [finding for balance in found for finding in balance.findings()]
        if not as_json:
            console.print(_balance_table(rows))
    if as_json:
        findings = [str(each) for each in findings]
        print_facts(StoreFacts(findings=findings, campaigns=rows, unknown=dict(checked.unknown), queues=runs))
        raise typer.Exit(bool(findings))
    for finding in findings:
        console.print(Text(str(finding), style="red"), soft_wrap=True)
    if findings:
        raise typer.Exit(1)
    if read and checked.unknown:
        console.print(f"no damage was found in {session.config.store}")
        console.print(_not_known(checked.unknown), soft_wrap=True)
    else:
        how = "" if read else ", by sizes and rows"
        console.print(f"[bold green]sound[/] {session.config.store}{how}")
    if not runs:
        console.print("nothing runs on this store, so the queues were not looked at")


def _not_known(unknown: Mapping[str, int]) -> str:
    files = ", ".join(f"{table} {number}" for table, number in unknown.items())
    return (
        f"[yellow]not known[/] whether these files are what was written, because earlier versions kept no "
        f"SHA-256: {files}. They can be read; `orchard store rebuild --from-stream` writes them anew"
    )


async def _balances(session: Session) -> list[Balance]:
    async with session.reading_connection("check") as connection:
        return await balances(connection, session.config.store, session.blobs)


def _state(balance: Balance) -> str:
    """State that the user set, or `finished` if nothing of it is left to do."""
    over = balance.accepted + balance.aborted >= balance.requested > 0
    return "finished" if over and balance.state == CampaignState.RUNNING else balance.state


def _facts(balance: Balance) -> CampaignBalance:
    return CampaignBalance(
        campaign=balance.campaign,
        state=_state(balance),
        requested=balance.requested,
        accepted=balance.accepted,
        aborted=balance.aborted,
        waiting=len(balance.waiting),
        delayed=len(balance.delayed),
        running=len(balance.running),
        parked=len(balance.parked),
        not_offered=len(balance.unoffered),
        nowhere=len(balance.missing),
    )


def _balance_table(rows: list[CampaignBalance]) -> RenderableType:
    columns = [name.replace("_", " ") for name in CampaignBalance.__struct_fields__]
    return rows_table(columns, [msgspec.structs.astuple(row) for row in rows])


@app.command()
def compact(context: typer.Context) -> None:
    """Merge small files; may run beside the writer, which merges from `writer.compact_above` files on."""
    session: Session = context.obj
    _counts("files merged", maintenance.compact(session.config.store))


@app.command()
def vacuum(
    context: typer.Context,
    hours: Annotated[
        int, typer.Option(help="Delete files that were replaced at least this many hours ago.", min=1)
    ] = 24,
) -> None:
    """Delete files that compaction replaced and that no reader can still be using."""
    session: Session = context.obj
    _counts("files deleted", maintenance.vacuum(session.config.store, hours=hours))


@app.command()
def rebuild(
    context: typer.Context,
    from_stream: Annotated[
        bool, typer.Option("--from-stream", help="Rebuild `events` from the stream first.")
    ] = False,
) -> None:
    """Rebuild every derived table from `events`. Stop `orchard up` first; readers may continue."""
    session: Session = context.obj

    async def events() -> None:
        async with session.connection_or_server("rebuild", guard=False) as connection:
            if not from_stream:
                await maintenance.refuse_empty(session.config.store, connection)
                return
            last = await maintenance.rebuild_events(session.config.store, connection, session.config.archive)
            console.print(f"events made again up to sequence {last}")

    if from_stream or not maintenance.has_events(session.config.store):
        asyncio.run(events())
    maintenance.rebuild_derived(session.config.store)
    console.print("[bold green]rebuilt[/] all derived tables")


@app.command()
def restore_stream(
    context: typer.Context,
    work: Annotated[
        Path | None,
        typer.Option(help="Directory for a copy of the stream.", show_default="run/restore in the store"),
    ] = None,
) -> None:
    """Restore events of the NATS stream from the tables, after a power failure or with a damaged disk.

    `orchard up` may run meanwhile: it waits, and continues by itself. Run it again if it was interrupted.
    """
    session: Session = context.obj
    result, campaigns = asyncio.run(_restore(session, work or session.directory / "run" / "restore"))
    if campaigns:
        console.print(f"[bold green]restored[/] the campaigns {', '.join(campaigns)}")
    if not (result.put_back or result.moved or result.lost):
        console.print(
            f"[bold green]whole[/] the stream has every event that the tables have, up to {result.last}"
        )
        return
    console.print(
        f"[bold green]restored[/] {result.put_back} events from the tables; the stream ends at {result.last}"
    )
    if result.moved:
        console.print(f"{result.moved} events published after the loss follow them, with new sequences")
    if result.lost:
        console.print(f"[yellow]{result.lost} events were in neither: event.lost stands for each[/]")


async def _restore(session: Session, work: Path) -> tuple[Restored, list[str]]:
    with reporting() as told:
        async with session.connection_or_server("restore", guard=False) as connection:
            await declare(connection, session.config.nats, [])
            config = session.config
            result = await restore(
                config.store, connection, config.nats, work, archive=config.archive, tell=told.progress
            )
            return result, await restore_campaigns(session.config.store, connection)


@app.command()
def digest(context: typer.Context, as_json: AsJson = False) -> None:
    """SHA-256 of every table's rows: equal digests mean equal tables, on any machine."""
    session: Session = context.obj
    digests = store_digests(session.config.store)
    if as_json:
        print_facts(TableDigests(tables=digests))
    else:
        console.print(rows_table(["table", "sha256"], list(digests.items())))


def _counts(what: str, counts: dict[str, int]) -> None:
    console.print(rows_table(["table", what], list(counts.items())))
