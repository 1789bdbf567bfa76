"""Completion of names in a shell, and `--quiet` and `--verbose`."""

import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from typer.testing import CliRunner

from orchard.cli.app import app
from orchard.cli.completion import ARGUMENTS, OPTIONS
from orchard.cli.listed import Listed, commands
from orchard.terminal.console import Verbosity

CONFIG = """
[endpoints.fast]
base_url = "http://127.0.0.1:9/v1"
[endpoints.fast.prices.small]
prompt = 1
completion = 1
"""


RUN = "import sys; sys.argv = ['orchard']; from orchard.__main__ import main; main()"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for table, column in (("campaigns_all", "campaign"), ("tasks_all", "task_id")):
        folder = tmp_path / "tables" / table
        folder.mkdir(parents=True)
        for number in (1, 2):
            duckdb.sql(f"select 'first-{number}' as {column}").write_parquet(
                str(folder / f"{number}.parquet")
            )
    (tmp_path / "orchard.toml").write_text(CONFIG, encoding="utf-8")
    return tmp_path


def completed(store: Path, line: str, cwd: Path | None = None) -> list[str]:
    """What bash is told to complete the last word with; it must print nothing else."""
    words = f"orchard --store {store} --config {store / 'orchard.toml'} {line}"
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        env=os.environ
        | {
            "_ORCHARD_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
        },
        cwd=cwd or store,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.long
@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("watch ", ["first-1", "first-2"]),
        ("resume first-1", ["first-1"]),
        ("tasks show f", ["first-1", "first-2"]),
        ("log archive ", ["first-1", "first-2"]),
        ("submit x --model ", ["oracle", "small"]),
        ("submit x --samples 3 --endpoint ", ["fast"]),
        ("submit x --model small --task first-2", ["first-2"]),
        ("try ", ["fast"]),
        ("watch --ev", ["--every"]),
        ("submit x --temp", ["--temperature"]),
    ],
)
def test_names_and_options_are_completed(store: Path, line: str, names: list[str]) -> None:
    assert completed(store, line) == names


@pytest.mark.long
def test_nothing_is_completed_and_nothing_said_where_nothing_is(tmp_path: Path) -> None:
    for line in ("watch ", "submit x --task ", "try "):
        assert completed(tmp_path / "none", line, cwd=tmp_path) == []
    broken = tmp_path / "tables" / "campaigns_all"
    broken.mkdir(parents=True)
    (broken / "1.parquet").write_bytes(b"torn")
    (tmp_path / "orchard.toml").write_text("[endpoints", encoding="utf-8")
    for line in ("watch ", "try "):
        assert completed(tmp_path, line) == []


def test_a_name_is_completed_without_its_commands_imports(store: Path) -> None:
    script = (
        "import os, sys\n"
        "os.environ.update(_ORCHARD_COMPLETE='complete_bash', COMP_CWORD='2', COMP_WORDS='orchard try ')\n"
        "sys.argv = ['orchard']\n"
        "from orchard.cli.app import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = ('asyncio', 'duckdb', 'nats', 'msgspec', 'orchard.cli.trying', 'orchard.actions.session')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=store, capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[:2] == ["fast", "[]"]


@pytest.mark.parametrize("path", sorted({*ARGUMENTS, *OPTIONS}))
def test_what_is_completed_exists(path: str) -> None:
    first, _, second = path.partition(" ")
    command = Listed(first, *commands()[first]).real()
    if second:
        command = command.commands[second]
    given = {option for parameter in command.params for option in parameter.opts}
    assert OPTIONS.get(path, {}).keys() <= given
    assert path not in ARGUMENTS or any(each.param_type_name == "argument" for each in command.params)


def test_quiet_leaves_notes_out_and_verbose_reaches_child_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(
        "orchard.processes.writer.run_writer",
        lambda *_: seen.append((os.environ.get("ORCHARD_LOG"), Verbosity.quiet)) or _nothing(),
    )
    for words in ([], ["--quiet"], ["--verbose"]):
        CliRunner().invoke(app, ["--store", str(tmp_path), "writer", *words])
    assert seen == [(None, False), ("quiet", True), ("verbose", False)]
    assert "ORCHARD_LOG" not in os.environ
    both = CliRunner().invoke(app, ["status", "--quiet", "--verbose"])
    assert both.exit_code == 2 and "contradict" in both.output


async def _nothing() -> None:
    pass
