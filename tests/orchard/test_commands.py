"""The command line lists its commands without importing them, and finds each where the list says."""

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchard.cli import app as application
from orchard.cli.listed import Listed, commands, shared_first
from orchard.terminal import errors

COMMANDS = commands()
HEAVY = ("aiohttp", "deltalake", "duckdb", "nats", "pyarrow", "torch")
"""Packages that take a tenth of a second or more."""


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_is_where_the_list_says_and_is_summed_up_by_its_own_words(name: str) -> None:
    module, summary = COMMANDS[name]
    assert Listed(name, module, summary).real().get_short_help_str(1000) == summary


def test_no_command_is_missing_from_the_list() -> None:
    for module in {module for module, _ in COMMANDS.values()}:
        found = import_module(module)
        if hasattr(found, "register"):
            group = application.typer.Typer()
            found.register(group)
            names = {
                command.name or command.callback.__name__.replace("_", "-")
                for command in group.registered_commands
                if command.callback
            }
            assert names == {name for name, (other, _) in COMMANDS.items() if other == module}


def test_each_mistake_that_is_told_in_one_sentence_exists() -> None:
    for module, name in errors.MISTAKES:
        assert issubclass(getattr(import_module(module), name), Exception)


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "spared"),
    [
        (["--help"], HEAVY),
        (["logs"], tuple(name for name in HEAVY if name != "nats")),
        (["config"], tuple(name for name in HEAVY if name != "nats")),
        (
            ["status"],
            (
                "aiohttp",
                "pandas",
                "torch",
                "orchard.injector",
                "orchard.pipelines.campaigns.commands",
                "orchard.pipelines.domain",
                "orchard.workers.harnesses",
            ),
        ),
    ],
)
def test_a_command_imports_only_what_it_needs(
    arguments: list[str], spared: tuple[str, ...], tmp_path: Path
) -> None:
    script = (
        "import sys\n"
        f"sys.argv = ['orchard', '--store', {str(tmp_path)!r}, *{arguments!r}]\n"
        "from orchard.cli.app import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print('imported', *[name for name in {spared!r} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].split() == ["imported"]


def leaves(name: str) -> Iterator[tuple[str, Any]]:
    """The command and those below it, by their words."""
    module, summary = COMMANDS[name]
    real = Listed(name, module, summary).real()
    below = getattr(real, "commands", {})
    yield name, real
    yield from ((f"{name} {each}", command) for each, command in below.items())


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_in_the_help_keep_their_lines(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for words, command in leaves(name):
        assert "    orchard" not in (command.help or "").replace("```", ""), words
        examples = re.findall(r"```text\n(.*?)\n```", command.help or "", re.S)
        shown = CliRunner().invoke(application.app, [*words.split(), "--help"]).stdout
        for line in "\n".join(examples).splitlines():
            assert line.strip() in [each.strip() for each in shown.splitlines()], (words, line)


@pytest.mark.parametrize(
    ("words", "arranged"),
    [
        ("status --store x", "--store x status"),
        ("rl run c.toml --nats=n -f --config c", "--nats=n --config c rl run c.toml -f"),
        ("--store x status", "--store x status"),
        ("sql -- --store x", "sql -- --store x"),
        ("status --store", "--store"),
    ],
)
def test_options_of_all_commands_may_stand_anywhere(words: str, arranged: str) -> None:
    assert shared_first(words.split()) == arranged.split()
