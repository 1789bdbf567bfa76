"""What models and sandboxes wrote is shown, never obeyed."""

import io
import json
import readline
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from orchard.cli import reading
from orchard.cli.app import app
from orchard.cli.reading import line_editing, verdict_panel
from orchard.configuration.config import ConfigError
from orchard.storage.errors import StoreUnreachable
from orchard.terminal.console import shown
from orchard.terminal.tables import rows_table


@pytest.mark.parametrize("evil", ["\x1b]0;owned\x07", "\x1b[2J", "\x9b31m", "a\rb", "\x00"])
def test_characters_that_steer_a_terminal_are_spelled_out(evil: str) -> None:
    assert all(character.isprintable() or character in "\t\n" for character in shown(evil))


def test_text_that_looks_like_markup_is_text() -> None:
    output = io.StringIO()
    console = Console(width=80, file=output)
    console.print(rows_table(["[bold]name"], [("[/x] [red]not red",)]))
    assert "[/x] [red]not red" in output.getvalue()


@pytest.mark.parametrize(
    ("reward", "colour", "says"),
    [
        (
            {"grader": "state", "resolved": False, "parts": {"check": 0.0}, "detail": "exit 1"},
            "red",
            "exit 1",
        ),
        ({"grader": "state", "resolved": True, "parts": {"check": 1.0}}, "green", "state: resolved"),
        ({"grader": "swe", "resolved": True, "tests": {"a": "PASSED"}}, "green", "1 of 1 tests passed"),
        ({"grader": "swe", "resolved": False, "tests": {"a": "FAILED"}}, "red", "0 of 1 tests passed"),
        (
            {"grader": "swe", "resolved": False, "tests": {"a": "PASSED"}, "cause": "hack"},
            "red",
            "cause: hack",
        ),
    ],
)
def test_the_verdict_is_the_graders_and_not_a_count_of_tests(
    reward: dict[str, Any], colour: str, says: str
) -> None:
    panel = verdict_panel({"tests": {}, "parts": {}, "detail": "", "cause": None, **reward})
    output = io.StringIO()
    Console(width=80, file=output).print(panel)
    assert (panel.border_style, says in output.getvalue()) == (colour, True)
    assert "0 of 0" not in output.getvalue()


def test_rows_for_a_shell_end_as_its_lines_do(tmp_path: Path) -> None:
    query = "select 'c95337d9' as rollout_id, 'a, b' as said"
    told = CliRunner().invoke(app, ["--store", str(tmp_path), "sql", query, "--format", "csv"])
    assert told.stdout == 'rollout_id,said\nc95337d9,"a, b"\n'


FAILS = "select cast(x as int) from (values ('a')) t(x)"


def test_a_query_that_fails_while_it_runs_is_one_sentence(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["--store", str(tmp_path), "sql", FAILS])
    assert told.exit_code == 1 and isinstance(told.exception, ConfigError)
    assert "the query does not run: Conversion Error" in str(told.exception)


def test_the_prompt_goes_on_after_a_query_that_fails_and_a_store_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([None, StoreUnreachable("the store is away"), None])

    def refresh(*_: object) -> None:
        if (error := next(looks)) is not None:
            raise error

    monkeypatch.setattr(reading, "refresh", refresh)
    told = CliRunner().invoke(
        app, ["--store", str(tmp_path), "sql"], input=f"{FAILS};\nselect 1;\nselect 4711 as here;\n"
    )
    assert told.exit_code == 0
    assert ["Conversion Error" in told.stdout, "the store is away" in told.stdout] == [True, True]
    assert "4711" in told.stdout.partition("the store is away")[2]


@pytest.mark.long
@pytest.mark.parametrize("rows", [0, 1, 2])
def test_json_is_an_array_and_jsonl_an_object_a_line(tmp_path: Path, rows: int) -> None:
    query = f"select range as number from range({rows})"
    ask = ["--store", str(tmp_path), "sql", query, "--format"]
    wanted = [{"number": number} for number in range(rows)]
    assert json.loads(CliRunner().invoke(app, [*ask, "json"]).stdout) == wanted
    assert [
        json.loads(line) for line in CliRunner().invoke(app, [*ask, "jsonl"]).stdout.splitlines()
    ] == wanted


@pytest.mark.long
@pytest.mark.parametrize(
    "query",
    [
        *("select * from read_text('{file}')", "select * from '{file}'", "select * from glob('{place}/*')"),
        *("copy (select 1) to '{made}'", "copy (select 1) to '{place}/tables/made.csv'", "attach '{made}'"),
        *(
            "explain analyze copy (select 1) to '{made}'",
            "export database '{made}'",
            "create view a as select 1",
        ),
        *(
            "set enable_external_access = true",
            "select 1; drop view rollouts",
            "install httpfs",
            "call pragma_version()",
        ),
    ],
)
def test_a_query_of_somebody_else_reads_the_tables_alone(tmp_path: Path, query: str) -> None:
    file, made = tmp_path / "secret.csv", tmp_path / "made"
    file.write_text("a\n1\n")
    asked = query.format(file=file, made=made, place=tmp_path)
    told = CliRunner().invoke(app, ["--store", str(tmp_path), "sql", "--read-only", asked])
    assert told.exit_code == 1 and not made.exists() and not list(tmp_path.rglob("made*"))


def test_lines_that_were_typed_are_there_again(tmp_path: Path) -> None:
    history = tmp_path / "sql_history"
    with line_editing(history):
        readline.clear_history()
        readline.add_history("select 1;")
    readline.clear_history()
    with line_editing(history):
        assert readline.get_history_item(readline.get_current_history_length()) == "select 1;"
