"""`dataset ...`: training data from the log, with its proof, and exports for other programs."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.markup import escape

from orchard.actions import domain as front
from orchard.actions.datasets import announce, build_through_queue, import_rollouts
from orchard.actions.session import Session
from orchard.cli.facts import AsJson, print_facts
from orchard.pipelines.datasets.comparison import compare, find_row, origin
from orchard.pipelines.datasets.errors import DatasetError
from orchard.pipelines.datasets.foreign import read_layout
from orchard.pipelines.datasets.importing import Found
from orchard.pipelines.datasets.manifest import Manifest, read_manifest
from orchard.pipelines.datasets.rows import Origin, Segment
from orchard.pipelines.datasets.settings import read_settings
from orchard.pipelines.domain import domains, offered
from orchard.pipelines.tasks.left_out import LeftOut, insist
from orchard.processes.signals import call_on_signals
from orchard.schemas.positions import PlainPosition, Position
from orchard.storage.reader import open_tables
from orchard.streams.claims import Claims
from orchard.streams.consumer import WorkerLifetime, share_of
from orchard.streams.topology import declare
from orchard.terminal.console import console, reporting, warn
from orchard.terminal.left_out import Strict, counted, end, tell_left_out
from orchard.terminal.tables import rows_table

COMMANDS = {"dataset": "Build, compare, explain and export datasets."}

app = typer.Typer(no_args_is_help=True)

_USUAL = front.domains()[0].name
_LAYOUTS = sorted(
    offered(lambda each: each.released_layouts),
    key=lambda name: (name not in domains()[_USUAL].released_layouts, name),
)
"""Layouts of published trajectories, those of the default domain first."""

HELD_OUT_REASONS = {
    "held_out": "are evaluation tasks",
    "near_held_out": "nearly equal one",
    "held_out_repo": "are of a repository of one",
}

_LARGE_BYTES = 64 * 2**20
"""Files of more are read by a process of their own, which takes a second to start."""

Dataset = Annotated[Path, typer.Argument(help="Directory of a finished dataset.")]


class OriginEvent(msgspec.Struct, frozen=True):
    """An event of the rollout that a row was made of."""

    sequence: int
    type: str
    time: datetime
    id: str


class RowFacts(Origin, frozen=True, kw_only=True):
    """Output of `orchard dataset why --json`."""

    example_id: str
    annotator: str
    """Layer whose values chose the segments; empty for resolved trajectories."""
    turns: int
    trained_turns: tuple[int, ...]
    """Steps that train, counted from 0 over the example's assistant messages."""
    segments: tuple[Segment, ...]
    stored_turns: int
    """Trained turns whose tokens are those that were sampled, not tokenized again."""
    value_sequence: int
    """Sequence of the annotation's event; 0 for resolved trajectories."""
    images: tuple[str, ...]
    """SHA-256 of its pictures."""
    tokens: int
    trained_tokens: int
    events: list[OriginEvent]


@app.command()
def build(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(help="TOML file that describes the dataset.")],
    out: Annotated[Path, typer.Option(help="Directory that the dataset is written to.")],
    as_of: Annotated[
        str | None,
        typer.Option(
            help="Last sequence of the log that is read; of several event streams those of all, separated by "
            "commas.",
            show_default="the newest",
        ),
    ] = None,
    processes: Annotated[int, typer.Option(help="Processes that make shards.", min=1)] = os.cpu_count() or 1,
    through_queue: Annotated[
        bool, typer.Option("--through-queue", help="Let `orchard dataset worker` processes make the shards.")
    ] = False,
) -> None:
    """Build a dataset. Equal log, code and configuration give equal bytes. Run it again to resume."""
    session: Session = context.obj
    settings = read_settings(config)  # told before the import of what may not be installed
    from orchard.pipelines.datasets.build import (
        build as build_dataset,  # it brings `transformers`, slow to import
    )

    started = time.monotonic()
    with reporting("trajectories") as told:
        build_it = partial(
            build_dataset,
            session.config.store,
            settings,
            out,
            as_of=None if as_of is None else _position(as_of),
            processes=processes,
            progress=partial(told.progress, settings.name),
            warn=warn,
        )
        manifest = asyncio.run(build_through_queue(session, build_it)) if through_queue else build_it()
    if not asyncio.run(announce(session, manifest, time.monotonic() - started)):
        console.print("[yellow]the build is not in the log: this store has no stream here[/]")
    _show(manifest)
    if said := held_out_sentence(manifest):
        console.print(f"[yellow]held out:[/] {escape(said)}", highlight=False, soft_wrap=True)


def held_out_sentence(manifest: Manifest) -> str:
    """What evaluation tasks cost the dataset; empty for nothing."""
    tasks = Counter(reason.name for reason in manifest.contaminated.values())
    rollouts = sum(manifest.counts.get(f"dropped_{reason}", 0) for reason in tasks)
    if not rollouts:
        return ""
    why = ", ".join(f"{number:,} {HELD_OUT_REASONS[reason]}" for reason, number in sorted(tasks.items()))
    return (
        f"{rollouts:,} rollouts of {tasks.total():,} tasks train nothing: {why}. `contaminated` in "
        "manifest.json names them, [held_out] decides"
    )


@app.command()
def worker(
    context: typer.Context,
    idle_exit: Annotated[
        float,
        typer.Option("--idle-exit", help="End after this many seconds without work; 0: never.", min=0.0),
    ] = 0.0,
    max_age: Annotated[
        float,
        typer.Option(
            "--max-age",
            help="Stop claiming work after this many seconds, or after half of them at the earliest; end "
            "when done. 0: never.",
            min=0.0,
        ),
    ] = 0.0,
) -> None:
    """Make shards of builds with --through-queue until SIGTERM, one at a time: start one for each core.

    The tokenizer that the configuration names must be here under the same name.
    """
    from orchard.terminal.logs import start_logging

    start_logging()
    asyncio.run(_worker(context.obj, WorkerLifetime(idle=idle_exit, age=share_of(max_age))))


async def _worker(session: Session, lifetime: WorkerLifetime) -> None:
    from orchard.pipelines.datasets.queueing import QUEUE, shard_consumer

    async with session.connection("dataset worker") as connection:
        await declare(connection, session.config.nats, [QUEUE])
        async with Claims(connection, QUEUE) as claims:
            with shard_consumer(session.config.store, claims, lifetime) as consumer:
                call_on_signals(asyncio.get_running_loop(), consumer.drain)
                await consumer.run()


@app.command()
def show(dataset: Dataset, as_json: AsJson = False) -> None:
    """Show a dataset's manifest."""
    manifest = read_manifest(dataset)
    if as_json:
        print_facts(manifest)
    else:
        _show(manifest)


@app.command()
def diff(a: Dataset, b: Dataset, as_json: AsJson = False) -> None:
    """Compare two datasets. Exit code 1 when their rows differ."""
    found = compare(a, b)
    if as_json:
        print_facts(found)
        raise typer.Exit(not found.equal)
    if found.facts:
        console.print(rows_table(["fact", str(a), str(b)], [(k, *v) for k, v in found.facts.items()]))
    if found.equal:
        console.print("[bold green]equal rows[/]")
        return
    counts = [("only in the first", found.only_a), ("only in the second", found.only_b)]
    for what, names in (*counts, ("with other content", found.changed)):
        examples = ", ".join(names[:3])
        console.print(f"{len(names)} {what}" + (f": {examples}" if names else ""), highlight=False)
    raise typer.Exit(1)


@app.command()
def why(
    context: typer.Context,
    dataset: Dataset,
    row: Annotated[str, typer.Argument(help="Row number from 0, or example id.")],
    as_json: AsJson = False,
) -> None:
    """Show where a row came from: its rollout, attempt, annotation, and the events it was made of."""
    session: Session = context.obj
    found, manifest = find_row(dataset, row), read_manifest(dataset)
    with open_tables(session.config.store) as tables:
        events = origin(tables, found, Position.of(manifest.range.last))
    facts = {name: getattr(found, name) for name in RowFacts.__struct_fields__ if name != "events"}
    if as_json and events:
        print_facts(RowFacts(**facts, events=[OriginEvent(*event) for event in events]))
        return
    if not as_json:
        console.print(rows_table(["field", "value"], list(facts.items())))
    if not events:
        raise DatasetError(
            f"the store {session.config.store} has no event of rollout {found.rollout_id}: name with --store "
            "the one that the dataset was built from"
        )
    console.print(rows_table(["sequence", "type", "time", "id"], events, "events"))
    console.print(f"The whole rollout: orchard show {found.rollout_id}", highlight=False)


@app.command()
def tokenizer(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Directory that the tokenizer is written to.")],
    campaign: Annotated[list[str] | None, typer.Option(help="Learn from these campaigns only.")] = None,
    vocab_size: Annotated[int, typer.Option(help="Tokens, bytes included.", min=300)] = 2048,
    limit: Annotated[int, typer.Option(help="Messages to learn from, at most.", min=1)] = 100_000,
    pictures: Annotated[
        bool, typer.Option("--pictures", help="Include placeholder tokens for pictures.")
    ] = False,
) -> None:
    """Train a byte-level BPE tokenizer with a chat template on the log's own messages."""
    from orchard.pipelines.datasets.tokenizer import log_texts, train_tokenizer

    session: Session = context.obj
    with open_tables(session.config.store) as tables:
        made = train_tokenizer(log_texts(tables, campaign or [], limit), vocab_size, out, pictures=pictures)
    console.print(f"[bold green]trained[/] {out}: {len(made)} tokens", highlight=False)


def _position(text: str) -> PlainPosition:
    """Raises typer.BadParameter."""
    try:
        return Position.parse(text).plain
    except ValueError:
        raise typer.BadParameter(
            f"--as-of is {text!r}: give a sequence, or those of all event streams as in 120,98"
        ) from None


def _show(manifest: Manifest) -> None:
    facts = [
        ("sha256", manifest.sha256),
        ("range", f"{manifest.range.first} to {Position.of(manifest.range.last)}"),
        ("rows", f"{manifest.rows:,} ({manifest.resolved:,} resolved) in {len(manifest.shards)} shards"),
        ("tokens", f"{manifest.tokens:,}, of which {manifest.trained_tokens:,} train"),
        ("tokenizer", manifest.tokenizer),
        ("code", manifest.code_version),
        *manifest.counts.items(),
    ]
    console.print(rows_table(["dataset", manifest.name], facts))


@app.command()
def export(
    layout: Annotated[str, typer.Option("--format", help="Layout; --format list names them all.")],
    dataset: Annotated[
        Path | None, typer.Argument(help="Directory of a finished dataset; not needed for --format list.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Directory that the export is written to.")] = Path("export"),
) -> None:
    """Write a dataset for another program, and say what its layout cannot express."""
    from orchard.pipelines.datasets.exporters.write import export as write_export
    from orchard.pipelines.datasets.exporters.write import layouts

    if layout == "list":
        console.print(rows_table(["format", "for"], [(one.name, one.consumer) for one in layouts()]))
        return
    if dataset is None:
        raise DatasetError(f"no dataset is named: write `orchard dataset export DIRECTORY --format {layout}`")
    done = write_export(dataset, layout, out)
    console.print(f"[bold green]exported[/] {done.records} records to {done.file}", highlight=False)
    if done.left_out:
        console.print(f"[yellow]{done.left_out} rows have no place in this layout[/]", highlight=False)
    for what, number in done.lost.items():
        console.print(f"[yellow]not expressed[/] ({number} rows): {what}", highlight=False)


@app.command("import")
def import_(
    context: typer.Context,
    files: Annotated[list[Path], typer.Argument(help="Parquet files in a released Orchard layout.")],
    campaign: Annotated[str, typer.Option(help="Campaign that the rollouts belong to.")],
    name: Annotated[str, typer.Option(help="Name of the published dataset.")] = _LAYOUTS[0],
    harness: Annotated[str, typer.Option(help="Harness that made the trajectories.")] = "mini-swe-agent",
    layout: Annotated[str, typer.Option("--format", help=f"{' or '.join(_LAYOUTS)}.")] = _LAYOUTS[0],
    strict: Strict = False,
) -> None:
    """Import published trajectories into the log, to annotate them and build datasets of them. Rows that do
    not follow the layout are skipped and named; the exit status is then 3.

    The rows of some layouts are steps: those of one trajectory stand together, and become one rollout.
    """
    session: Session = context.obj
    read = partial(read_layout, layout, files, session.blobs, harness)
    import_into(session, read, files, campaign, name, strict=strict)


def import_into(
    session: Session,
    read: Callable[[], Found],
    files: Iterable[Path],
    campaign: str,
    dataset: str,
    *,
    strict: bool,
) -> None:
    """Imports trajectories that `read` finds in files into a campaign, and prints the counts, what is left
    out, and where the events wait. Raises NotImported for none or, with `strict`, for fewer than all."""
    if strict:
        looked = [one if isinstance(one, LeftOut) else None for one in read()]
        bad = [one for one in looked if one is not None]
        insist(dataset, len(looked) - len(bad), bad, strict=True)
    large = sum(file.stat().st_size for file in files if file.is_file()) >= _LARGE_BYTES
    found = read if large else read()
    with reporting() as told:
        done, waiting = asyncio.run(import_rollouts(session, found, campaign, dataset, told))
    insist(dataset, done.rollouts + done.there_already, done.left_out, strict=False)
    for flag, number in sorted(done.flags.items()):
        console.print(f"[yellow]{flag}[/]: {number}", highlight=False)
    tell_left_out(done.left_out, session.directory)
    if waiting:
        console.print(f"[yellow]not in the tables yet:[/] {escape(waiting)}", highlight=False, soft_wrap=True)
    again = f", {done.there_already} were there already" if done.there_already else ""
    console.print(
        f"[bold green]imported[/] {done.rollouts} rollouts into {campaign}{again}{counted(done.left_out)}",
        highlight=False,
    )
    end(done.left_out)


@app.command()
def card(dataset: Dataset) -> None:
    """Write the dataset's card, Markdown with plots, beside its rows."""
    from orchard.pipelines.datasets.card import write_card  # it brings `matplotlib`

    console.print(f"[bold green]written[/] {write_card(dataset)}", highlight=False)
