"""Orchard's own prompt sets for the loop over a shell, each from a module of prompts."""

from collections.abc import Sequence
from types import MappingProxyType, ModuleType
from typing import Any

from orchard.schemas.decoding import Unreadable, decode_text
from orchard.schemas.messages import ToolCall
from orchard.schemas.tasks import Task
from orchard.workers.episode.machine import CommandOutcome
from orchard.workers.episode.networks import Network, network_of
from orchard.workers.harnesses.bash_loop import LONGEST_COMMAND, Action, FormatError, PromptSet
from orchard.workers.harnesses.bash_prompts import BASH_TOOL


class ModulePrompts(PromptSet):
    """Takes its texts from a module with SYSTEM, TASK, `observation` and `format_error`."""

    tools: tuple[dict[str, Any], ...] = (BASH_TOOL,)
    version = None
    digest = None
    environment = MappingProxyType(
        {
            "PAGER": "cat",
            "MANPAGER": "cat",
            "LESS": "-R",
            "PIP_PROGRESS_BAR": "off",
            "TQDM_DISABLE": "1",
        }
    )
    keeps_bad_messages = True

    def __init__(self, name: str, prompts: ModuleType, calls_per_message: int = 50) -> None:
        self.name = name
        self._prompts = prompts
        self.calls_per_message = calls_per_message

    def first_messages(self, task: Task) -> tuple[str, str]:
        user = self._prompts.TASK.format(
            statement=task.statement, workdir=task.workdir, network=_told(network_of(task, agent=True))
        )
        return self._prompts.SYSTEM, user

    def actions(self, calls: Sequence[ToolCall], finish_reason: str) -> list[Action]:
        try:
            return [Action(call, command) for call, command in parse(calls)]
        except ValueError as error:
            raise FormatError(self._prompts.format_error(str(error), finish_reason)) from error

    def observation(self, _action: Action, outcome: CommandOutcome, limit: float) -> str:
        shown: str = self._prompts.observation(outcome, limit)
        return shown

    def left_out(self, calls: int) -> str:
        text = f"the message has {calls} calls too many, which were not executed."
        shown: str = self._prompts.format_error(text, "")
        return shown


def _told(network: Network) -> str:
    if not network.blocked:
        return "You have a network: public addresses can be reached."
    if network.hosts:
        return f"Of the network you can reach {', '.join(network.hosts)} over TCP, and nothing else."
    return "There is no network: nothing can be downloaded or installed from one."


def parse(calls: Sequence[ToolCall]) -> list[tuple[ToolCall, str]]:
    """Returns each call with its command, in order. Raises ValueError that says what is wrong with the first
    bad one."""
    if not calls:
        raise ValueError("the message calls no tool, and every message must call at least one.")
    commands = []
    for call in calls:
        if call.name != "bash":
            raise ValueError(f"there is no tool {call.name[:60]!r}.")
        try:
            arguments = decode_text(call.arguments)
        except Unreadable as error:
            raise ValueError(f"the arguments of the call are not JSON: {error}.") from error
        command = arguments.get("command") if isinstance(arguments, dict) else None
        if not isinstance(command, str):
            raise ValueError("the call has no argument 'command' that is a string.")
        if "\0" in command:
            raise ValueError("the command holds a NUL character, which no command can.")
        if (size := len(command.encode())) > LONGEST_COMMAND:
            raise ValueError(
                f"the command has {size} bytes, and at most {LONGEST_COMMAND} can be run: "
                "write long files in parts."
            )
        commands.append((call, command))
    return commands
