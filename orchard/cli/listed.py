"""Lists commands without their modules, which are imported when the command runs.

All modules together take seconds to import, which nobody should wait for who asks for help or for a status.
"""

import re
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from textwrap import dedent
from typing import Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from orchard.workers.discovery import declared

MARKUP: Literal["markdown"] = "markdown"

ORDER = (
    *(
        "up",
        "worker",
        "writer",
        "steward",
        "oracle",
        "submit",
        "status",
        "watch",
        "pause",
        "cancel",
        "resume",
    ),
    *(
        "show",
        "note",
        "ui",
        "report",
        "sql",
        "logs",
        "doctor",
        "try",
        "config",
        "cost",
        "sft",
        "serve-policy",
        "eval",
        "tasks",
    ),
    *("harness", "images", "sandbox", "store", "dead", "log", "dataset", "trajectories", "values", "rl"),
)
"""Order of the help; commands that are not named here come after these."""


@cache
def core_commands() -> dict[str, tuple[str, str]]:
    """Returns module and sentence of help of each command that a module of this package names in
    COMMANDS."""
    found = declared("orchard.cli", "COMMANDS")
    named = {name: (module, summary) for module, own in found.items() for name, summary in own.items()}
    return {name: named[name] for name in dict.fromkeys((*ORDER, *named))}


def commands() -> dict[str, tuple[str, str]]:
    """All commands, those of domains last."""
    from orchard.actions.domain import domains  # which looks into every installed package

    return core_commands() | {name: one for each in domains() for name, one in each.commands.items()}


SHARED = ("--store", "--state", "--config", "--nats", "--sandbox")
"""Options of `orchard` itself, each with a value, that are allowed after the command too."""
FLAGS = ("--quiet", "--verbose")
"""Options of `orchard` itself without a value, that are allowed there too."""
EPILOG = (
    f"{', '.join((*SHARED, *FLAGS))}, which all commands share, may stand here too: see `orchard --help`."
)


class Listed(TyperCommand):
    """Placeholder of a command that is not imported yet."""

    def __init__(self, name: str, module: str, summary: str) -> None:
        super().__init__(name, help=summary, rich_markup_mode=MARKUP)
        self._module = module

    def real(self) -> Any:
        """Imports the command or group of commands."""
        module = import_module(self._module)
        found = typer.Typer(rich_markup_mode=MARKUP)
        if hasattr(module, "register"):
            module.register(found)
        else:
            found.add_typer(module.app, name=self.name, help=self.help)
        command = get_group(found).commands[self.name or ""]
        for each in (command, *getattr(command, "commands", {}).values()):
            each.help, each.epilog = fenced(each.help or ""), EPILOG
        return command

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Makes the context of the imported command, which is thereby the one that runs. Where a shell
        completes names, a quicker one is enough."""
        if extra.get("resilient_parsing"):
            from orchard.cli.completion import quick

            if stand_in := quick(self.name or "", args, self.real):
                return stand_in.make_context(info_name, args, parent, **extra)
        return self.real().make_context(info_name, args, parent, **extra)


class DefaultRun(TyperGroup):
    """A group that a TOML file alone runs: `run` may be left out, and options may stand before the file."""

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        """Inserts `run` before a file name."""
        if args and args[0] not in self.commands and any(word.endswith(".toml") for word in args):
            args = ["run", *args]
        return super().parse_args(context, args)


class Commands(TyperGroup):
    """Group of all commands; those of domains are looked up last."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return list(commands())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        found = core_commands().get(cmd_name) or commands().get(cmd_name)
        return Listed(cmd_name, *found) if found else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Suggests the nearest command for one that does not exist."""
        if args and self.get_command(ctx, args[0]) is None:
            near = get_close_matches(args[0], commands(), 1)
            ctx.fail(f"No such command '{args[0]}'." + (f" Did you mean '{near[0]}'?" if near else ""))
        return super().resolve_command(ctx, args)

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        """Accepts the shared options anywhere on the command line."""
        return super().parse_args(context, shared_first(args))


def fenced(text: str) -> str:
    """Formats a help text; its indented lines, which are examples, keep their line breaks."""
    return re.sub(
        r"(?:^    .+\n?)+", lambda block: f"```text\n{dedent(block[0]).rstrip()}\n```\n", text, flags=re.M
    )


def shared_first(args: list[str]) -> list[str]:
    """Moves the options of SHARED and FLAGS to the front of a command line; words after `--` stay."""
    words, rest = args, list[str]()
    if "--" in args:
        at = args.index("--")
        words, rest = args[:at], args[at:]
    first, others = list[str](), list[str]()
    remaining = iter(words)
    for word in remaining:
        if word in SHARED:
            value = next(remaining, None)
            if value is None:
                return [word]  # which says that it needs a value
            first += [word, value]
        elif word in FLAGS or word.partition("=")[0] in SHARED:
            first.append(word)
        else:
            others.append(word)
    return first + others + rest
