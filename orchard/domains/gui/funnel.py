"""`tasks funnel`: filters a large pool of web tasks into a clean seed set (docs/gui.md)."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.markup import escape

from orchard.actions.session import Session
from orchard.configuration.config import ConfigError
from orchard.pipelines.domains.gui.funnel.encoders import Encoder, EndpointEncoder, HashingEncoder
from orchard.pipelines.domains.gui.funnel.run import THRESHOLDS, Funnel, Passed, write_passed
from orchard.pipelines.domains.gui.funnel.stages import Intent, Rules, Stage, normal, read_sites, site_of
from orchard.pipelines.domains.gui.web_rows import COLUMNS, intent_of
from orchard.pipelines.tasks.errors import MalformedRow
from orchard.pipelines.tasks.left_out import LeftOut, insist
from orchard.pipelines.tasks.registry import read_tasks
from orchard.pipelines.tasks.row_files import read_rows
from orchard.schemas.gui import WORLD, GuiWorld
from orchard.terminal.console import console, progress
from orchard.terminal.left_out import SkipMalformed, Strict, counted, end, tell_left_out
from orchard.terminal.tables import rows_table


def register(app: typer.Typer) -> None:
    app.command("funnel")(funnel)


def funnel(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder for the kept and the dropped rows.", file_okay=False)],
    rows: Annotated[
        list[Path] | None, typer.Argument(help="The pool: .jsonl or .parquet rows.", show_default=False)
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="In place of rows: tasks of the store that have this source.")
    ] = None,
    sites: Annotated[
        list[Path] | None, typer.Option(help="List of popular sites, one host on each line. Repeatable.")
    ] = None,
    split: Annotated[
        list[str] | None, typer.Option(help="Split to keep. Repeatable.", show_default="all")
    ] = None,
    evaluation: Annotated[
        list[Path] | None, typer.Option(help="Rows of an evaluation benchmark. Repeatable.")
    ] = None,
    webvoyager: Annotated[list[Path] | None, typer.Option(help="Rows of WebVoyager.")] = None,
    column: Annotated[
        list[str] | None, typer.Option(help=f"PART=COLUMN where names differ; parts: {', '.join(COLUMNS)}.")
    ] = None,
    purpose: Annotated[
        list[str] | None, typer.Option(help="sft (cosine 0.99) or rl (0.95).", show_default="both")
    ] = None,
    embeddings: Annotated[
        str | None, typer.Option(help="Embedding model.", show_default="hashing, without a model")
    ] = None,
    endpoint: Annotated[str, typer.Option(help="Endpoint of the embedding model.")] = "default",
    strict: Strict = False,
    skip_malformed: SkipMalformed = False,
) -> None:
    """Filter web tasks by the five stages of the paper's appendix E. Run it again to resume.

    Evaluation overlap; parents only; WebVoyager intents; popular sites with two tasks or more; near
    duplicates by embedding. Each dropped task has its reason in `dropped-PURPOSE.jsonl`; what is kept is in
    `kept-PURPOSE.jsonl`, rows as they came. A malformed row, also of a benchmark, is left out and named; the
    exit status is then 3. For example:

        orchard tasks funnel webgym.parquet --sites moz500.csv --out seeds
        orchard tasks import webgym seeds/kept-sft.jsonl
        orchard tasks funnel --source webgym --out seeds
    """
    session: Session = context.obj
    columns = columns_of(column or [])
    unknown = [name for name in purpose or [] if name not in THRESHOLDS]
    if unknown:
        raise ConfigError(f"--purpose {unknown[0]} is unknown: choose from {', '.join(THRESHOLDS)}")
    if bool(rows) == (source is not None):
        raise ConfigError("give the pool either as files of rows or with --source")
    del skip_malformed
    left_out: list[LeftOut] = []
    pool, places = _stored(session, source) if source else _pool(rows or [], columns, left_out, strict)
    rules = Rules(
        splits=frozenset(split or ()),
        evaluation=_intents(evaluation or [], left_out, strict),
        webvoyager=_intents(webvoyager or [], left_out, strict),
        sites=read_sites(sites) if sites else None,
    )
    with progress("intents or blocks") as bar:
        lines = {}

        def told(what: str, done: int, total: int) -> None:
            if what not in lines:
                lines[what] = bar.add_task(what, total=total)
            bar.update(lines[what], completed=done)

        chosen = {name: THRESHOLDS[name] for name in purpose or THRESHOLDS}
        passed = asyncio.run(
            Funnel(rules, _encoder(session, embeddings, endpoint), out, chosen, told).run(pool)
        )
    for one in passed:
        write_passed(out, one)
        _write_kept(out / f"kept-{one.purpose}.jsonl", one, rows or [], places)
    console.print(_table(passed))
    for one in passed:
        console.print(f"{one.purpose}: {escape(str(out))}/kept-{one.purpose}.jsonl", highlight=False)
    tell_left_out(left_out, out)
    if left_out:
        console.print(f"{len(pool)} tasks filtered{counted(left_out)}", highlight=False)
    end(left_out)


def columns_of(given: Sequence[str]) -> dict[str, str]:
    """Maps parts of a row to the columns that contain them. Raises ConfigError."""
    pairs = [text.partition("=") for text in given]
    for part, equals, name in pairs:
        if part not in COLUMNS or not (equals and name):
            raise ConfigError(
                f"--column {part}{equals}{name} must be PART=COLUMN with one of {', '.join(COLUMNS)}"
            )
    return {part: name for part, _, name in pairs}


def _encoder(session: Session, model: str | None, endpoint: str) -> Encoder:
    if model is None:
        return HashingEncoder()
    settings = session.endpoints().get(endpoint)
    if settings is None:
        raise ConfigError(f"no endpoint is named {endpoint!r}: add a section [endpoints.{endpoint}]")
    return EndpointEncoder(model, settings)


def _pool(
    files: Sequence[Path], columns: Mapping[str, str], left_out: list[LeftOut], strict: bool
) -> tuple[list[Intent], dict[tuple[int, int], str]]:
    """Intents of all rows, and their unique ids by file and row."""
    pool: list[Intent] = []
    places: dict[tuple[int, int], str] = {}
    used: Counter[str] = Counter()
    for place, file in enumerate(files):
        for number, intent in _read(file, columns, left_out, strict):
            used[intent.id] += 1
            if (times := used[intent.id]) > 1:
                intent = _renamed(intent, f"{intent.id}-{times}")
            pool.append(intent)
            places[place, number] = intent.id
    return pool, places


def _read(
    file: Path, columns: Mapping[str, str], left_out: list[LeftOut], strict: bool
) -> Iterator[tuple[int, Intent]]:
    """Intents of a file by row; invalid rows are added to `left_out`. Raises NotImported at the end if
    none is valid or, with `strict`, if not all are."""
    good, bad = 0, []
    for number, row in read_rows(file):
        try:
            if isinstance(row, MalformedRow):
                raise row
            intent = intent_of(row, number, columns)
        except MalformedRow as problem:
            bad.append(LeftOut(f"{file.name}, {problem.left_out.name}", problem.left_out.why))
            continue
        except UnicodeEncodeError as error:
            bad.append(LeftOut(f"{file.name}, line {number}", f"it has text that is no Unicode: {error}"))
            continue
        good += 1
        yield number, intent
    insist(str(file), good, bad, strict=strict)
    left_out += bad


def _stored(session: Session, source: str) -> tuple[list[Intent], dict[tuple[int, int], str]]:
    """Web tasks of a source in the store, by id. Raises ConfigError if there are none."""
    pool = []
    for task in read_tasks(session.config.store, source=source):
        if not isinstance(task.world, msgspec.UnsetType) and task.world.kind == WORLD:
            site = site_of(msgspec.convert(task.world.settings, GuiWorld).start_url)
            split, parent = task.labels.get("split", ""), task.labels.get("parent", "")
            pool.append(Intent(id=task.task_id, text=task.statement, site=site, split=split, parent=parent))
    if not pool:
        raise ConfigError(f"the store has no web task of source {source!r}: `orchard tasks list` shows all")
    return pool, {}


def _renamed(intent: Intent, name: str) -> Intent:
    return Intent(id=name, text=intent.text, site=intent.site, split=intent.split, parent=intent.parent)


def _intents(files: Iterable[Path], left_out: list[LeftOut], strict: bool) -> frozenset[str]:
    """Intents of benchmark files, normalized for comparison."""
    return frozenset(normal(intent.text) for file in files for _, intent in _read(file, {}, left_out, strict))


def _write_kept(
    file: Path, passed: Passed, rows: Sequence[Path], places: Mapping[tuple[int, int], str]
) -> None:
    kept = frozenset(passed.kept)

    def lines() -> Iterator[str]:
        if not rows:
            yield from (json.dumps({"task_id": name}) + "\n" for name in passed.kept)
        for place, source in enumerate(rows):
            for number, row in read_rows(source):
                if places.get((place, number)) in kept:
                    yield json.dumps(row, ensure_ascii=False, default=str) + "\n"

    with file.open("w", encoding="utf-8", errors="backslashreplace") as out:  # as JSON writes half characters
        out.writelines(lines())


def _table(passed: Sequence[Passed]) -> Any:
    rows = []
    for stage in Stage:
        steps = [next(step for step in one.steps if step.stage is stage) for one in passed]
        rows.append((stage.value, *(f"{step.after:,} (-{step.dropped:,})" for step in steps)))
    return rows_table(["after", *(f"{one.purpose}, {one.threshold:g}" for one in passed)], rows)
