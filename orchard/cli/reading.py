"""`show` and `sql`: read the log."""

import csv
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import duckdb
import msgspec
import typer
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from orchard.actions.abort_reasons import remedy
from orchard.actions.domain import answers, submission_text
from orchard.actions.rollout import WHOLE, ShownRollout, every_message, find, read
from orchard.actions.rollout_index import index_views
from orchard.actions.session import Session
from orchard.cli.facts import print_facts
from orchard.cli.folding import parts
from orchard.cli.pictures import with_pictures, write_pictures
from orchard.cli.shown_message import shown_message
from orchard.configuration.config import ConfigError
from orchard.pipelines.trajectories.reading import stored_node
from orchard.schemas.llm_calls import CallKind
from orchard.schemas.messages import Role
from orchard.storage.errors import StorageError
from orchard.storage.location import Location
from orchard.storage.reader import Row, open_tables, refresh
from orchard.terminal.console import console, shown
from orchard.terminal.tables import cell, rows_table

COMMANDS = {
    "show": "Show a rollout: every message, the diff it submitted, what the tests said.",
    "sql": "Query all tables with DuckDB, while the pipeline runs.",
}

SHOWN_CHARACTERS = 4000


class SqlFormat(StrEnum):
    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    JSONL = "jsonl"


ATTEMPT = (
    *("attempt", "ending", "worker", "started_at", "inherited_turns", "inherited_from"),
    *("reason", "cause", "detail"),
)
NOTE = ("author", "turn", "labels", "removed_labels", "score", "text")
SUMMARY = (
    *("rollout_id", "campaign", "task_id", "harness", "model", "model_kind", "sample", "attempt"),
    *("status", "exit_status", "cause", "detail", "reward", "resolved"),
    *("turns", "prompt_tokens", "completion_tokens", "cost_usd", "seconds"),
)
INHERITED = ("inherited_turns", "inherited_tokens", "inherited_cost_usd")


def register(app: typer.Typer) -> None:
    @app.command()
    def show(
        context: typer.Context,
        rollout: Annotated[str, typer.Argument(help="Rollout id, or its first digits.")],
        full: Annotated[
            bool, typer.Option("--full", help="Do not cut long texts, do not fold subagents.")
        ] = False,
        turns: Annotated[
            str | None, typer.Option(help="Only these turns: 7, 3..9, 3.. or ..9.", show_default="all")
        ] = None,
        as_json: Annotated[
            bool, typer.Option("--json", help="One JSON object a message, whole, for programs.")
        ] = False,
        images: Annotated[
            Path | None, typer.Option(help="Directory that the pictures of the messages are written to.")
        ] = None,
        pager: Annotated[bool, typer.Option(help="Use a pager if the output is a terminal.")] = True,
    ) -> None:
        """Show a rollout: every message, the diff it submitted, what the tests said.

        Texts are as the model saw them; each turn has its reasoning, and its tokens, cost and time. A picture
        is named by its type, its size and its SHA-256.
        """
        chosen = turn_range(turns)
        if images is not None:
            typer.echo(
                f"{_write_pictures(context.obj, rollout, images, chosen)} pictures in {images}", err=True
            )
        if as_json:
            print_messages(context.obj, rollout, chosen)
        elif pager and console.is_terminal:
            with console.pager(styles=True):
                show_rollout(context.obj, rollout, full=full, turns=chosen)
        else:
            show_rollout(context.obj, rollout, full=full, turns=chosen)

    @app.command()
    def sql(
        context: typer.Context,
        query: Annotated[
            str | None, typer.Argument(help="Query; without one, an interactive prompt.")
        ] = None,
        output: Annotated[
            SqlFormat, typer.Option("--format", help="`json` is an array, `jsonl` an object a line.")
        ] = SqlFormat.TABLE,
        read_only: Annotated[
            bool, typer.Option("--read-only", help="Allow only queries, and only of the store's tables.")
        ] = False,
    ) -> None:
        """Query all tables with DuckDB, while the pipeline runs.

        A query can do what you can: read and write any of your files, as with `copy ... to` and
        `read_text`. Give --read-only if somebody else wrote the query.

        For example:

            orchard sql "select * from pass_rates"
            orchard sql "select repo, avg(turns) from rollouts group by repo"
            orchard sql "show tables"
        """
        session: Session = context.obj
        with open_tables(session.config.store) as tables:
            if read_only:
                confine(tables, session.config.store)
            if query is not None:
                _print_query(tables, query, output, read_only=read_only)
            else:
                history = session.directory / "run" / "sql_history"
                _interact(tables, session.config.store, history, read_only=read_only)


def confine(tables: duckdb.DuckDBPyConnection, store: str) -> None:
    """Restricts a connection to the files of the store's tables, for good."""
    location = Location.parse(store)
    if not location.is_s3:
        tables.execute("set allowed_directories = [?]", [f"{location.path / 'tables'}/"])
    tables.execute("set enable_external_access = false")
    tables.execute("set lock_configuration = true")


def _print_query(
    tables: duckdb.DuckDBPyConnection, query: str, output: SqlFormat, *, read_only: bool
) -> None:
    try:
        kinds = {statement.type for statement in duckdb.extract_statements(query)} if read_only else set()
        if kinds - {duckdb.StatementType.SELECT}:
            raise ConfigError("with --read-only nothing but queries runs, such as `select` and `show tables`")
        relation = tables.sql(query)
        if relation is None:
            return
        names, rows = relation.columns, relation.fetchall()
    except duckdb.Error as error:
        raise ConfigError(f"the query does not run: {error}") from error
    if output is SqlFormat.CSV:
        writer = csv.writer(sys.stdout, lineterminator="\n")  # for shells
        writer.writerow(names)
        writer.writerows(rows)
    elif output in (SqlFormat.JSON, SqlFormat.JSONL):
        lines = [json.dumps(dict(zip(names, row, strict=True)), default=str) for row in rows]
        array = output is SqlFormat.JSON
        text = (",\n " if array else "\n").join(lines)
        sys.stdout.write(f"[{text}]\n" if array else f"{text}\n" if lines else "")
    else:
        console.print(rows_table(names, rows))


def _interact(tables: duckdb.DuckDBPyConnection, store: str, history: Path, *, read_only: bool) -> None:
    with line_editing(history):
        _ask(tables, store, read_only=read_only)


@contextmanager
def line_editing(history: Path) -> Iterator[None]:
    """Enables line editing and a persistent history for `input`."""
    try:
        import readline
    except ImportError:  # a Python that was built without it
        yield
        return
    with suppress(OSError):
        readline.read_history_file(history)
    readline.set_history_length(1000)
    try:
        yield
    finally:
        with suppress(OSError):
            readline.write_history_file(history)


def _ask(tables: duckdb.DuckDBPyConnection, store: str, *, read_only: bool) -> None:
    console.print("DuckDB over the store. End a query with ';', leave with Ctrl-D. Try: show tables;")
    lines: list[str] = []
    while True:
        try:
            lines.append(input("   ...> " if lines else "orchard> "))
        except (EOFError, KeyboardInterrupt):
            console.print()
            return
        if not lines[-1].rstrip().endswith(";"):
            continue
        try:
            refresh(tables, store)
            _print_query(tables, "\n".join(lines), SqlFormat.TABLE, read_only=read_only)
        except (ConfigError, StorageError, duckdb.Error) as error:
            console.print(Text(str(error), style="red"))
        lines = []


_RANGE = re.compile(r"(\d+)?(\.\.)?(\d+)?")


def turn_range(text: str | None) -> tuple[int, int]:
    """Parses `7`, `3..9`, `3..` or `..9` into both ends, inclusive. Raises ConfigError."""
    found = _RANGE.fullmatch(text) if text else None
    if text is not None and (not found or not (found[1] or found[3])):
        raise ConfigError(f"--turns {text!r} is not a range: write 7, 3..9, 3.. or ..9")
    if found is None:
        return 0, sys.maxsize
    first = int(found[1] or 0)
    return first, int(found[3]) if found[3] else sys.maxsize if found[2] else first


def _read(
    session: Session, prefix: str, turns: tuple[int, int]
) -> tuple[ShownRollout, list[Row], list[RenderableType]]:
    """Reads a rollout, its messages of some turns, and its domain's tables. Raises UnknownName."""
    with open_tables(session.config.store) as tables:
        index_views(tables)
        found = read(tables, find(tables, prefix), WHOLE)
        messages = [row for row in every_message(tables, found) if turns[0] <= row["turn"] <= turns[1]]
        beside = [table for some in answers("rollout_tables", tables, found) for table in some]
    return found, messages, beside


def print_messages(session: Session, prefix: str, turns: tuple[int, int]) -> None:
    """Prints messages of a rollout as lines of JSON, with the cost of the call that made each.

    Raises UnknownName, BlobMissing, BlobCorrupt.
    """
    found, messages, _ = _read(session, prefix, turns)
    for message in messages:
        made = found.calls.get(message["node_id"])
        print_facts(shown_message(session.blobs, found.id, message, made))


def _write_pictures(session: Session, prefix: str, out: Path, turns: tuple[int, int]) -> int:
    _, messages, _ = _read(session, prefix, turns)
    return write_pictures(session.blobs, (stored_node(session.blobs, row) for row in messages), out)


def show_rollout(
    session: Session, prefix: str, *, full: bool, turns: tuple[int, int] = (0, sys.maxsize)
) -> None:
    """Prints one rollout. Raises UnknownName if `prefix` names none or several."""
    found, messages, beside = _read(session, prefix, turns)
    limit = None if full else SHOWN_CHARACTERS
    for part in parts(messages, {node: call["call_kind"] for node, call in found.calls.items()}):
        if part.kind is not None and not full:
            console.print(f"[dim]{part.kind}: {len(part.messages)} messages, see --full[/]")
            continue
        for message in part.messages:
            made = found.calls.get(message["node_id"])
            console.print(_message(session, message, limit, part.kind, made))
    for table in beside:
        console.print(table)
    if found.outcome is not None and (submitted := found.outcome["submission"]):
        said = submission_text(submitted)
        if said is None:
            console.print(Panel(Syntax(shown(submitted), "diff", word_wrap=True), title="submission"))
        elif said:
            console.print(Panel(Text(shown(said)), title="answer", title_align="left"))
    if found.rewards:
        console.print(verdict_panel(found.rewards[-1]))
    if found.notes:
        console.print(rows_table(NOTE, [tuple(row[name] for name in NOTE) for row in found.notes], "notes"))
    if len(found.attempts) > 1:
        rows = [tuple(row[name] for name in ATTEMPT) for row in found.attempts]
        console.print(rows_table(ATTEMPT, rows, "attempts"))
    if found.outcome is None:
        console.print(f"[yellow]{found.id} has no outcome yet[/]")
    else:
        console.print(_summary(found.outcome))
        if said := remedy(found.outcome["cause"] or ""):
            again = f"{said}, then `orchard resume {found.outcome['campaign']}`"
            console.print(Text(f"to do: {again}", style="yellow"), soft_wrap=True)


def _shortened(text: str, limit: int | None) -> str:
    text = shown(text)
    if limit is None or len(text) <= limit:
        return text
    return f"{text[: limit // 2]}\n... {len(text) - limit} characters, see --full ...\n{text[-limit // 2 :]}"


def _message(
    session: Session,
    message: Row,
    limit: int | None,
    beside: CallKind | None,
    made: Row | None,
) -> RenderableType:
    node = stored_node(session.blobs, message)
    parts: list[RenderableType] = []
    if node.reasoning:
        parts.append(Text(_shortened(node.reasoning, limit), style="dim italic"))
    if text := _shortened(with_pictures(node), limit):
        parts.append(Text(text))
    for call in node.tool_calls:
        try:
            command = str(msgspec.json.decode(call.arguments)["command"])
        except (msgspec.DecodeError, KeyError, TypeError):
            command = f"{call.name} {call.arguments}"
        parts.append(Syntax(shown(command), "bash", word_wrap=True))
    colour = {Role.SYSTEM: "dim", Role.USER: "blue", Role.ASSISTANT: "green", Role.TOOL: "yellow"}[node.role]
    title = f"{beside}  {node.role}" if beside else f"turn {node.turn}  {node.role}"
    title += "".join(f"  {fact}" for fact in _facts(message, made))
    if message["inherited_from"] is not None:
        title += f"  (replayed from attempt {message['inherited_from']})"
    return Panel(Group(*parts), title=title, title_align="left", border_style=colour)


def _facts(message: Row, made: Row | None) -> list[str]:
    """Formats tokens, cost and time of the call that made a message, or status and time of a command's
    result."""
    found = []
    if made is not None:
        read, written = (
            "?" if made[name] is None else f"{made[name]:,}"
            for name in ("prompt_tokens", "completion_tokens")
        )
        found.append(f"{read} tokens read, {written} written")
        found += [f"{made['cost_usd']:.4f} USD"] if made["cost_usd"] is not None else []
        found += [f"{made['seconds']:.1f} s"] if made["seconds"] is not None else []
    elif message["role"] == Role.TOOL:
        found += [f"exit {message['returncode']}"] if message["returncode"] is not None else []
        found += ["timed out"] if message["timed_out"] else []
        found += [f"{message['seconds']:.1f} s"] if message["seconds"] is not None else []
    return found


def verdict_panel(reward: Row) -> Panel:
    """Panel of the grader's verdict, green only for a resolved task."""
    tests: dict[str, str] = reward["tests"] or {}
    bad = [(name, status) for name, status in tests.items() if status not in ("PASSED", "XFAIL")]
    title = f"{reward['grader']}: {'resolved' if reward['resolved'] else 'not resolved'}"
    if tests:
        title += f", {len(tests) - len(bad)} of {len(tests)} tests passed"
    lines = [f"{status:8} {name}" for name, status in bad[:40]]
    if len(bad) > 40:
        lines.append(f"... and {len(bad) - 40} more")
    scores: dict[str, float] = reward["parts"] or {}
    if not tests or "task_score" in scores:
        lines += [f"{part}: {value:g}" for part, value in scores.items()]
    lines += [f"{name}: {reward[name]}" for name in ("cause", "protected") if reward.get(name)]
    lines += [reward["detail"]] if reward.get("detail") else []
    body = Text(shown("\n".join(lines) or "all of them"))
    return Panel(
        body,
        title=Text(shown(title)),
        title_align="left",
        border_style="green" if reward["resolved"] else "red",
    )


def _summary(outcome: Row) -> RenderableType:
    table = Table(show_header=False, box=None)
    for key in SUMMARY + (INHERITED if outcome.get("inherited_turns") else ()):
        if outcome.get(key) not in (None, ""):
            table.add_row(key, cell(outcome[key]))
    return table
