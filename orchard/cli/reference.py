"""Writes the reference into a directory: `python -m orchard.cli.reference docs/reference`."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer

from orchard.cli.app import app
from orchard.cli.facts_schema import facts_schema
from orchard.cli.listed import Listed
from orchard.configuration.fields import in_toml
from orchard.reference.configuration import configuration
from orchard.reference.events import events
from orchard.reference.page import anchor, code, page, table
from orchard.reference.tables import tables

EXIT_CODES = {
    0: "success",
    1: "failure, or a finding: an error in one sentence, rollouts without a grade, something missing, a "
    "difference",
    2: "wrong usage: an unknown command or option, or a value that is none of its type or choices",
    3: "an import that left something out; `rl run`: a run whose groups teach nothing",
    4: "`rl run`: a run that would fail the same way again",
    130: "Ctrl-C; processes that finish what they have begun, such as `up` and `worker`, end with 0",
    143: "SIGTERM, likewise",
}
_OF_TYPER = {"--help", "--install-completion", "--show-completion"}


def commands() -> str:
    """Text of the page: the options that all commands share, then every command."""
    root = typer.main.get_command(app)
    found = list(walk(root, "orchard"))
    return page(
        "Commands",
        "Every command explains itself with `--help`. What a command prints with `--json` has a JSON Schema "
        "in [facts.json](facts.json).",
        "## Exit codes",
        table(("code", "meaning"), [(code(str(status)), meaning) for status, meaning in EXIT_CODES.items()]),
        "## Options of every command",
        _options(root),
        "## All commands",
        table(
            ("command", "what it does"), [(f"[`{path}`]({anchor(path)})", _first(one)) for path, one in found]
        ),
        *(_command(path, one) for path, one in found),
    )


def walk(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yields every command with its words."""
    command = command.real() if isinstance(command, Listed) else command
    if not hasattr(command, "list_commands"):
        yield path, command
        return
    context = typer.Context(command)
    for name in command.list_commands(context):
        yield from walk(command.get_command(context, name), f"{path} {name}")


def _first(command: Any) -> str:
    return " ".join((command.help or "").split("\n\n")[0].split())


def _command(path: str, command: Any) -> str:
    words = [
        one.name.upper() if one.required else f"[{one.name.upper()}]"
        for one in command.params
        if not _flags(one)
    ]
    usage = " ".join([path, *words, "[OPTIONS]"])
    return "\n\n".join(
        filter(None, [f"## {path}", f"```text\n{usage}\n```", _help(command), _options(command)])
    )


def _help(command: Any) -> str:
    """Formats the help, with its examples as code."""
    parts = []
    for part in (command.help or "").strip().split("\n\n"):
        lines = part.splitlines()
        example = all(line.startswith((" ", "orchard ")) for line in lines)
        parts.append(f"```text\n{part}\n```" if example else part)
    return "\n\n".join(parts)


def _options(command: Any) -> str:
    rows = [
        (code(", ".join(_flags(one)) or one.name.upper()), _default(one), one.help or "")
        for one in command.params
        if not _OF_TYPER & set(one.opts) and not getattr(one, "hidden", False)
    ]
    return table(("option", "default", "meaning"), rows) if rows else ""


def _flags(parameter: Any) -> list[str]:
    return [name for name in (*parameter.opts, *parameter.secondary_opts) if name.startswith("-")]


def _default(parameter: Any) -> str:
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    if parameter.required:
        return "required"
    return "" if parameter.default in (None, False, []) else code(in_toml(parameter.default))


PAGES: dict[str, Callable[[], str]] = {
    "cli.md": commands,
    "configuration.md": configuration,
    "events.md": events,
    "facts.json": facts_schema,
    "tables.md": tables,
}


def main() -> None:
    """Writes every page into the directory that is the only argument."""
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for name, write in PAGES.items():
        (target / name).write_text(write(), encoding="utf-8")


if __name__ == "__main__":
    main()
