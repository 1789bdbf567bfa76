"""`log status|archive|restore|verify`: the event log in stream and archive."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Annotated

import msgspec
import typer
from rich.text import Text

from orchard.actions.audit import begin
from orchard.actions.campaign_status import InQueues, state_of
from orchard.actions.session import Session
from orchard.cli.facts import AsJson, print_facts
from orchard.configuration.config import ConfigError
from orchard.pipelines.campaigns.archiving import FAULTS, Archiving
from orchard.schemas.access import UserRole
from orchard.schemas.subjects import FENCES
from orchard.storage.archive.archiving import ArchiveProgress
from orchard.storage.archive.files import ArchiveFiles
from orchard.storage.archive.sizes import Size, sizes
from orchard.storage.archive.verify import verify_archive
from orchard.storage.errors import ArchiveRefused
from orchard.storage.reader import open_tables
from orchard.storage.settings import archive_url
from orchard.streams.campaigns import CampaignBook
from orchard.streams.connection import Connection
from orchard.streams.disk_space import event_capacity
from orchard.streams.errors import NatsUnreachable
from orchard.terminal.console import console, reporting
from orchard.terminal.tables import rows_table

COMMANDS = {"log": "Show, archive and verify the event log."}

app = typer.Typer(no_args_is_help=True)


class CampaignEvents(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign in `orchard log status --json`."""

    campaign: str
    state: str
    stream_events: int
    stream_bytes: float
    """Estimated bytes of the campaign's events in the stream."""
    archive_events: int
    archive_bytes: float


class LogFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `orchard log status --json`."""

    campaigns: list[CampaignEvents]
    events: int
    """Events in the stream."""
    bytes: int
    """Bytes in the stream."""
    bytes_left: int | None
    """Bytes until the stream's limit; None without one."""
    archive: str
    """URL of the archive."""
    archive_parts: int


Names = Annotated[list[str] | None, typer.Argument(help="Names of campaigns, as `log status` shows them.")]


@app.command()
def status(context: typer.Context, as_json: AsJson = False) -> None:
    """Show events and bytes by campaign, in stream and archive, and the free space."""
    facts = asyncio.run(_status(context.obj))
    if as_json:
        print_facts(facts)
        return
    columns = ["campaign", "state", "events in the stream", "about", "events in the archive", "bytes"]
    rows = [
        (
            *(each.campaign, each.state, each.stream_events, _size(each.stream_bytes)),
            *(each.archive_events, _size(each.archive_bytes)),
        )
        for each in facts.campaigns
    ]
    console.print(rows_table(columns, rows))
    left = (
        "no limit but the disk's" if facts.bytes_left is None else f"room for {_size(facts.bytes_left)} more"
    )
    console.print(f"The stream holds {facts.events} events, {_size(facts.bytes)}: {left}.")
    console.print(f"The archive is {facts.archive}: {facts.archive_parts} parts.", soft_wrap=True)


@app.command()
def archive(
    context: typer.Context,
    name: Names = None,
    closed: Annotated[bool, typer.Option("--closed", help="Every campaign that is closed.")] = False,
    older_than: Annotated[
        float, typer.Option(help="With --closed: only those without an event for this many days.", min=0)
    ] = 0.0,
) -> None:
    """Move closed campaigns from the stream into the archive, verified. Run it again to resume.

    What cannot be archived is named, the other campaigns are archived all the same, and the exit code is 1.

    For example:

        orchard log archive first
        orchard log archive --closed --older-than 30
    """
    session: Session = context.obj
    if bool(name) == closed:
        raise ConfigError("name the campaigns to archive, or give --closed")
    failed: dict[str, Exception] = {}

    async def run() -> list[str]:
        async with session.connection_or_server("archive") as connection:
            archiving = _archiving(session, connection)
            names = name or await archiving.closed(timedelta(days=older_than))
            for each in names:
                await begin(session, connection, "log archive", UserRole.OPERATE, options={"campaign": each})
                try:
                    await _follow(archiving.archive(each), each)
                except NatsUnreachable:
                    raise
                except FAULTS as error:
                    failed[each] = error
            return [each for each in names if each not in failed]

    archived = asyncio.run(run())
    if archived:
        console.print(f"[bold green]archived[/] {', '.join(archived)}")
    if failed:
        why = "; ".join(f"{each}: {error}" for each, error in failed.items())
        raise ArchiveRefused(f"not archived: {why}")
    if not archived:
        console.print("no campaign to archive")


@app.command()
def restore(
    context: typer.Context, name: Annotated[str, typer.Argument(help="Name of the campaign.")]
) -> None:
    """Verify a campaign's archive and let the campaign be resumed. Its events stay in the archive."""
    session: Session = context.obj

    async def run() -> None:
        async with session.connection_or_server("restore") as connection:
            await begin(session, connection, "log restore", UserRole.OPERATE, options={"campaign": name})
            await _follow(_archiving(session, connection).restore(name), name)

    asyncio.run(run())
    console.print(f"[bold green]restored[/] {name}: it is paused, `orchard resume {name}` continues it")


@app.command()
def verify(context: typer.Context, name: Names = None, as_json: AsJson = False) -> None:
    """Read every byte of the archive and compare it with its manifests and the tables. Exit code 1 if they
    differ."""
    session: Session = context.obj
    shelf = ArchiveFiles(archive_url(session.config.store, session.config.archive))
    found = verify_archive(shelf, session.config.store, name or [])
    if as_json:
        print_facts(found)
        raise typer.Exit(bool(found.findings))
    for finding in found.findings:
        console.print(Text(str(finding), style="red"), soft_wrap=True)
    if found.findings:
        raise typer.Exit(1)
    console.print(f"[bold green]sound[/] {found.parts} parts, {found.events} events in {shelf.location.url}")


def _archiving(session: Session, connection: Connection) -> Archiving:
    config = session.config
    return Archiving(connection, config.store, session.blobs, config.archive)


async def _status(session: Session) -> LogFacts:
    shelf = ArchiveFiles(archive_url(session.config.store, session.config.archive))
    async with session.connection_or_server("log status", guard=False) as connection:
        capacity = await event_capacity(connection)
        book = await CampaignBook(connection).list()
    parts = await asyncio.to_thread(shelf.parts)
    sealed: dict[str, Size] = {}
    for part in parts:
        manifest = await asyncio.to_thread(shelf.manifest, part)
        before = sealed.get(part.campaign, Size())
        sealed[part.campaign] = Size(before.events + manifest.events, before.bytes + manifest.bytes)
    reached = await asyncio.to_thread(shelf.reached)
    live = await asyncio.to_thread(sizes, session.config.store, reached)
    ended = await asyncio.to_thread(_outcomes, session.config.store)
    rows = []
    # Payloads are not all that a message is: what the tables say is scaled to what the stream holds.
    scale = capacity.bytes / max(sum(size.bytes for size in live.values()), 1.0)
    for campaign in sorted(live.keys() | sealed.keys(), key=lambda name: (name in FENCES, name)):
        here, there = live.get(campaign, Size()), sealed.get(campaign, Size())
        state = "fences" if campaign in FENCES else ""
        if campaign in book:
            state = state_of(book[campaign][0], ended.get(campaign, {}), InQueues(), serving=1)
        rows.append(
            CampaignEvents(
                campaign=campaign,
                state=state,
                stream_events=here.events,
                stream_bytes=here.bytes * scale,
                archive_events=there.events,
                archive_bytes=there.bytes,
            )
        )
    return LogFacts(
        campaigns=rows,
        events=capacity.messages,
        bytes=capacity.bytes,
        bytes_left=capacity.left,
        archive=shelf.location.url,
        archive_parts=len(parts),
    )


def _outcomes(store: str) -> dict[str, dict[str, int]]:
    """Counts rollouts by campaign and outcome."""
    query = """
    select campaign, if(status = 'aborted', 'aborted: ' || cause, 'graded'), count(*)
    from rollouts group by all
    """
    found: dict[str, dict[str, int]] = {}
    with open_tables(store, views=("rollouts",)) as tables:
        for campaign, outcome, number in tables.execute(query).fetchall():
            found.setdefault(campaign, {})[outcome] = number
    return found


def _size(size: float) -> str:
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


async def _follow(steps: AsyncIterator[ArchiveProgress], title: str) -> None:
    with reporting() as told:
        async for step in steps:
            told.progress(title, step.events, step.total, f": {step.doing}")
