"""The loop of mini-swe-agent, version 2: a fresh shell for every command, a diff at the end.

Structure, limits and submission protocol are the original's. A PromptSet decides what the model reads and how
its answers are read: that of the package `mini-swe-agent`, or Orchard's own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from orchard.schemas.campaigns import Budget, Timeouts
from orchard.schemas.messages import MessageNode, Role, ToolCall
from orchard.schemas.outcomes import ExitStatus
from orchard.schemas.tasks import Task
from orchard.workers.episode.budgets import out_of_time, spent
from orchard.workers.episode.machine import CommandOutcome, Machine
from orchard.workers.episode.patches import state_left_behind
from orchard.workers.episode.totals import Totals
from orchard.workers.harnesses.interface import Episode, Harness, HarnessResult, text_action
from orchard.workers.llm.answers import Completion
from orchard.workers.llm.errors import ContextLengthExceeded

SUBMIT_LINE = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
MAX_FORMAT_ERRORS = 3
"""The run ends after this many in a row."""
LONGEST_COMMAND = 100_000
"""Most bytes of a command. Linux takes 128 KiB as one argument of a program."""
_FIRST_MODEL_MESSAGE = 2
"""Number of messages before the model's first."""


class FormatError(Exception):
    """The answer has no action that can be executed; the text is the message that answers it."""


@dataclass(frozen=True)
class Action:
    call: ToolCall
    command: str
    obstacle: str = ""
    """The reason that no shell can be given the command, shown as its result."""


class PromptSet(Protocol):
    """Decides what the model reads beside the statement and commands' output, and how its answers are
    read."""

    name: str
    tools: tuple[dict[str, Any], ...]
    """OpenAI tools. Empty: the text of an answer is its action, and the user speaks the result."""
    version: str | None
    digest: str | None
    environment: Mapping[str, str]
    """Environment of every command; a task's own values win."""
    keeps_bad_messages: bool
    """Whether the model sees its answer again if it could not be executed, or the complaint alone."""
    calls_per_message: int
    """Calls of one message that are executed; the model is told of the rest."""

    def first_messages(self, task: Task) -> tuple[str, str]:
        """Returns the system's message and the user's, in this order."""

    def actions(self, calls: Sequence[ToolCall], finish_reason: str) -> list[Action]:
        """Returns the actions of one message. Raises FormatError."""

    def observation(self, action: Action, outcome: CommandOutcome, limit: float) -> str:
        """Returns the result of an action as the model reads it; `limit` is the seconds that it had."""

    def left_out(self, calls: int) -> str:
        """Returns a message about that number of calls, which were not executed."""


class BashLoop(Harness):
    """Queries and executes until the agent submits, three messages in a row are bad, or a budget is used
    up."""

    def __init__(self, prompts: PromptSet) -> None:
        self.name = prompts.name
        self.tools = prompts.tools
        self.version = prompts.version
        self.digest = prompts.digest
        self.replayable = True
        self._prompts = prompts

    async def run(self, episode: Episode) -> HarnessResult:
        task, trace, machine, prompts = episode.task, episode.trace, episode.machine, self._prompts
        if episode.history:
            leaf = episode.history[-1].node_id
        else:
            system, user = prompts.first_messages(task)
            leaf = await trace.user(await trace.system(system), user)
        left = Role.ASSISTANT if prompts.keeps_bad_messages else Role.USER
        format_errors = format_errors_at_end(episode.history, left)
        while (over := ended(trace.totals, episode.budget, format_errors)) is None:
            try:
                answer, completion = await episode.ask(leaf, self.tools)
            except ContextLengthExceeded:
                over = ExitStatus.TOKEN_LIMIT
                break
            try:
                actions = prompts.actions(self._calls(completion), completion.finish_reason)
            except FormatError as error:
                leaf = await trace.user(answer if prompts.keeps_bad_messages else leaf, str(error))
                format_errors += 1
                continue
            format_errors = 0
            leaf, submission = await self._act(episode, answer, actions)
            if submission is not None:
                return HarnessResult(exit_status=ExitStatus.SUBMITTED, submission=submission, leaf=leaf)
        submission = await state_left_behind(machine, task, timeout=episode.timeouts.shutdown)
        return HarnessResult(exit_status=over, submission=submission, leaf=leaf)

    def _calls(self, completion: Completion) -> tuple[ToolCall, ...]:
        return completion.tool_calls if self.tools else (text_action(completion.text),)

    async def _act(self, episode: Episode, leaf: str, actions: Sequence[Action]) -> tuple[str, str | None]:
        """Executes the actions of one message; returns the last node, and the submission if there is one."""
        most, role = self._prompts.calls_per_message, Role.TOOL if self.tools else Role.USER
        for number, action in enumerate(actions[:most]):
            if number and out_of_time(episode.trace.totals, episode.budget):
                return leaf, None
            outcome, shown = await self._do(action, episode.task, episode.machine, episode.timeouts)
            leaf = await episode.trace.result(leaf, action.call, shown, outcome, role=role)
            if (submission := submitted(outcome)) is not None:
                return leaf, submission
        if (left_out := len(actions) - most) > 0:
            leaf = await episode.trace.user(leaf, self._prompts.left_out(left_out))
        return leaf, None

    async def execute(
        self, call: ToolCall, task: Task, machine: Machine, timeouts: Timeouts
    ) -> tuple[CommandOutcome, str]:
        """Raises FormatError for a call that cannot be executed."""
        (action,) = self._prompts.actions((call,), "")
        return await self._do(action, task, machine, timeouts)

    async def _do(
        self, action: Action, task: Task, machine: Machine, timeouts: Timeouts
    ) -> tuple[CommandOutcome, str]:
        if action.obstacle:
            outcome = CommandOutcome(output="", returncode=-1, seconds=0.0)
        else:
            outcome = await machine.run(
                action.command,
                timeout=timeouts.command,
                cwd=task.workdir,
                env={**self._prompts.environment, **task.environment},
            )
        return outcome, self._prompts.observation(action, outcome, timeouts.command)


def ended(totals: Totals, budget: Budget, format_errors: int) -> ExitStatus | None:
    """Returns the exit status of the limit that is reached: of `format_errors` in a row, or of the budget."""
    return ExitStatus.FORMAT_FAILURE if format_errors >= MAX_FORMAT_ERRORS else spent(totals, budget)


def format_errors_at_end(history: Sequence[MessageNode], left: Role) -> int:
    """Number of format errors in a row at the end of `history`; `left` is the role of the node that each
    leaves."""
    count = 0
    for node in reversed(history[_FIRST_MODEL_MESSAGE:]):
        if node.result is not None:
            break
        count += node.role is left
    return count


def submitted(outcome: CommandOutcome) -> str | None:
    """Returns the submission of a command: all after the first line, if that is SUBMIT_LINE and it exited
    with 0."""
    first, *rest = outcome.output.lstrip().splitlines(keepends=True) or [""]
    return "".join(rest) if outcome.returncode == 0 and first.strip() == SUBMIT_LINE else None
