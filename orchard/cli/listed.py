"""Lists commands without their modules, which are imported when the command runs.

All modules together take seconds to import, which nobody should wait for who asks for help or for a status.
"""

import re
from importlib import import_module
from textwrap import dedent
from typing import Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

MARKUP: Literal["markdown"] = "markdown"

COMMANDS: dict[str, tuple[str, str]] = {
    "up": (
        "orchard.cli.processes",
        "Run the whole pipeline here: NATS server, sandboxes, oracle, workers, writer.",
    ),
    "worker": (
        "orchard.cli.processes",
        "Run one worker: claims rollouts, or requests of other kinds, until SIGTERM, which drains it.",
    ),
    "writer": ("orchard.cli.processes", "Run the writer: commits the event stream to the store's tables."),
    "steward": (
        "orchard.cli.processes",
        "Run the steward: forwards delayed requests when due, buries "
        "those that nobody could finish, offers open rollouts again that are on no queue, and pauses "
        "campaigns that have cost their cap.",
    ),
    "oracle": (
        "orchard.cli.processes",
        "Run the oracle teacher: an OpenAI-compatible server that plays gold patches.",
    ),
    "submit": ("orchard.cli.campaigns", "Queue a campaign: tasks x harnesses x models x samples."),
    "status": ("orchard.cli.campaigns", "Show all campaigns: state, outcomes, queue depth."),
    "watch": (
        "orchard.cli.campaigns",
        "Show live progress until the campaign is done: queue, running, outcomes, rate, time left, cost.",
    ),
    "pause": ("orchard.cli.campaigns", "Start no more rollouts; running ones finish."),
    "cancel": (
        "orchard.cli.campaigns",
        "Stop at once: running and waiting rollouts abort with the cause `cancelled`.",
    ),
    "resume": (
        "orchard.cli.campaigns",
        "Continue after a pause, a cancel, or a failure that aborted rollouts.",
    ),
    "show": (
        "orchard.cli.reading",
        "Show a rollout: every message, the diff it submitted, what the tests said.",
    ),
    "ui": ("orchard.cli.page", "Show campaigns and rollouts in a browser, live, until Ctrl-C."),
    "report": (
        "orchard.cli.page",
        "Write a campaign, training run or comparison as a folder of pages that opens from disk.",
    ),
    "sql": ("orchard.cli.reading", "Query all tables with DuckDB, while the pipeline runs."),
    "doctor": ("orchard.cli.doctor", "Check what this machine can do, and say what to install."),
    "config": (
        "orchard.cli.doctor",
        "Show every configuration key with its value, as a TOML file with comments.",
    ),
    "cost": ("orchard.cli.cost", "Compute what sandboxes cost."),
    "sft": ("orchard.cli.sft", "Fine-tune a model on a dataset; goes on from its newest checkpoint."),
    "serve-policy": (
        "orchard.cli.policy",
        "Serve a model: /v1/chat/completions, /v1/completions with token ids, /admin/reload, /metrics.",
    ),
    "eval": (
        "orchard.cli.evaluation",
        "Evaluation: models x harnesses x task sets: `orchard eval SUITE.toml`.",
    ),
    "tasks": ("orchard.cli.tasks", "Make, import, prove and list tasks."),
    "harness": ("orchard.cli.harness", "Install, list and show harnesses that are programs."),
    "images": ("orchard.cli.images", "Manage images of local sandboxes."),
    "sandbox": ("orchard.cli.sandbox", "Give sandboxes to other programs."),
    "store": ("orchard.cli.store", "Check, compact and rebuild the tables."),
    "dead": ("orchard.cli.dead", "Show and requeue requests that no worker could finish."),
    "log": ("orchard.cli.log", "Show, archive and verify the event log."),
    "dataset": ("orchard.cli.datasets", "Build, compare, explain and export datasets."),
    "trajectories": (
        "orchard.cli.trajectories",
        "Trajectories as ATIF files, the interchange format of Harbor: out and in.",
    ),
    "values": ("orchard.cli.values", "Values of unresolved trajectories, step by step."),
    "rl": ("orchard.cli.rl", "Reinforcement learning with balanced groups: `orchard rl CONFIG.toml`."),
}
"""Commands of the core by name: module and sentence of help, in the order of the help."""


def commands() -> dict[str, tuple[str, str]]:
    """All commands, those of domains last."""
    from orchard.actions.domain import domains  # which looks into every installed package

    return COMMANDS | {name: one for each in domains() for name, one in each.commands.items()}


SHARED = ("--store", "--state", "--config", "--nats", "--sandbox")
"""Options of `orchard` itself, each with a value, that are allowed after the command too."""
EPILOG = f"{', '.join(SHARED)}, which all commands share, may stand here too: see `orchard --help`."


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
            found.add_typer(module.app, name=self.name)
        command = get_group(found).commands[self.name or ""]
        for each in (command, *getattr(command, "commands", {}).values()):
            each.help, each.epilog = fenced(each.help or ""), EPILOG
        return command

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Makes the context of the imported command, which is thereby the one that runs."""
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
        found = COMMANDS.get(cmd_name) or commands().get(cmd_name)
        return Listed(cmd_name, *found) if found else None

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        """Accepts the shared options anywhere on the command line."""
        return super().parse_args(context, shared_first(args))


def fenced(text: str) -> str:
    """Formats a help text; its indented lines, which are examples, keep their line breaks."""
    return re.sub(
        r"(?:^    .+\n?)+", lambda block: f"```text\n{dedent(block[0]).rstrip()}\n```\n", text, flags=re.M
    )


def shared_first(args: list[str]) -> list[str]:
    """Moves the options of SHARED to the front of a command line; words after `--` stay."""
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
        elif word.partition("=")[0] in SHARED:
            first.append(word)
        else:
            others.append(word)
    return first + others + rest
