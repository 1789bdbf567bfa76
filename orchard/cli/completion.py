"""Completes names of campaigns, tasks, models and endpoints in a shell.

A command's own module takes most of a second to import, so its arguments are completed by a command that has
the named ones alone. Names come from the configuration file and the store's files: nothing needs to run, and
whatever fails completes nothing.
"""

import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

_TEXT: Any = str
Names = Callable[[Mapping[str, Any]], Iterable[str]]
"""Gives all names of a kind, by the options of `orchard` itself."""


def settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Reads the configuration file without checking it; empty without one."""
    file = Path(options.get("config") or os.environ.get("ORCHARD_CONFIG") or "orchard.toml")
    with suppress(OSError, ValueError):
        return tomllib.loads(file.read_text(encoding="utf-8"))
    return {}


def endpoints(options: Mapping[str, Any]) -> Iterable[str]:
    return list(settings(options).get("endpoints", {}))


def models(options: Mapping[str, Any]) -> Iterable[str]:
    """Models with a price, and the oracle."""
    named = settings(options).get("endpoints", {}).values()
    return ["oracle", *(model for endpoint in named for model in endpoint.get("prices", {}))]


def campaigns(options: Mapping[str, Any]) -> Iterable[str]:
    return _column(options, "campaigns_all", "campaign")


def tasks(options: Mapping[str, Any]) -> Iterable[str]:
    return _column(options, "tasks_all", "task_id")


def _column(options: Mapping[str, Any], table: str, column: str) -> Iterable[str]:
    """Distinct values in all files of a table, replaced ones included."""
    store = options.get("store_") or os.environ.get("ORCHARD_STORE") or settings(options).get("store")
    folder = Path(store or ".orchard").expanduser() / "tables" / table
    if not any(folder.glob("*.parquet")):
        return []
    import duckdb  # a tenth of a second, which other names need not wait for

    files = str(folder / "*.parquet")
    query = f"select distinct {column} from read_parquet(?, union_by_name = true) where {column} is not null"
    return [str(row[0]) for row in duckdb.execute(query, [files]).fetchall()]


ARGUMENTS: dict[str, Names] = {
    **dict.fromkeys(("watch", "pause", "cancel", "resume", "report", "cost"), campaigns),
    **dict.fromkeys(
        ("log archive", "log restore", "log verify", "values annotate", "eval report"), campaigns
    ),
    **dict.fromkeys(("tasks show", "tasks validate", "tasks impossible"), tasks),
    "try": endpoints,
}
"""Names that are completed as arguments, by command."""
OPTIONS: dict[str, dict[str, Names]] = {
    "submit": {"--model": models, "--endpoint": endpoints, "--task": tasks},
    "try": {"--model": models},
    "values annotate": {"--model": models, "--endpoint": endpoints},
}
"""Names that are completed as values of options, by command."""


class _Quick(TyperCommand):
    """A command with its completed parameters alone. Its options are those of the command itself."""

    def __init__(self, path: str, real: Callable[[], Any]) -> None:
        params: list[Any] = [
            TyperOption(
                param_decls=[name], type_descriptor=_TEXT, multiple=True, shell_complete=_completed(names)
            )
            for name, names in OPTIONS.get(path, {}).items()
        ]
        if path in ARGUMENTS:
            complete = _completed(ARGUMENTS[path])
            params.append(
                TyperArgument(param_decls=["names"], type_descriptor=_TEXT, nargs=-1, shell_complete=complete)
            )
        super().__init__(path.rpartition(" ")[2], params=params)
        self._real = real

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        real = self._real()
        with real.make_context(self.name, [], parent=ctx.parent, resilient_parsing=True) as context:
            return real.shell_complete(context, incomplete)


def quick(name: str, args: list[str], real: Callable[[], Any]) -> Any:
    """Returns a quick stand-in for a command or group whose words are completed; None if the words need the
    command itself, which `real` imports."""
    path, words = name, args
    group = name not in ARGUMENTS and name not in OPTIONS
    if group:
        path, words = f"{name} {args[0] if args else ''}", args[1:]
    if path not in ARGUMENTS and path not in OPTIONS:
        return None
    known = OPTIONS.get(path, {})
    others = any(word.startswith("-") and word not in known for word in words)
    if others and words[-1] not in known:
        return None
    if not group:
        return _Quick(path, real)
    below = _Quick(path, lambda: real().commands[args[0]])
    return TyperGroup(name=name, commands={args[0]: below})


def _completed(names: Names) -> Callable[[Any, Any, str], list[str]]:
    def complete(context: Any, _parameter: Any, incomplete: str) -> list[str]:
        with suppress(Exception):
            found = names(context.find_root().params)
            return sorted({name for name in found if name.startswith(incomplete)})
        return []

    return complete
