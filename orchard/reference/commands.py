"""The reference of the command line."""

from collections.abc import Iterator
from typing import Any

import typer

from orchard.cli.app import app
from orchard.cli.listed import Listed
from orchard.reference.fields import in_toml
from orchard.reference.page import anchor, code, page, table

_OF_TYPER = {"--help", "--install-completion", "--show-completion"}


def commands() -> str:
    """The page: the options that all commands share, then every command."""
    root = typer.main.get_command(app)
    found = list(walk(root, "orchard"))
    return page(
        "Commands",
        "Every command explains itself with `--help`. Exit codes: 0 success, 1 failure or finding, 2 wrong "
        "usage, 130 Ctrl-C.",
        "## Options of every command",
        _options(root),
        "## All commands",
        table(
            ("command", "what it does"), [(f"[`{path}`]({anchor(path)})", _first(one)) for path, one in found]
        ),
        *(_command(path, one) for path, one in found),
    )


def walk(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every command that can be run, with its words."""
    command = command.real() if isinstance(command, Listed) else command
    below = getattr(command, "commands", None)
    if below is None:
        yield path, command
    for name, one in (below or {}).items():
        yield from walk(one, f"{path} {name}")


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
    """The help, with its examples as code."""
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
