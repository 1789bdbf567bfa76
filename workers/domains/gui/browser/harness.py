"""The harnesses `browser` and `browser-compact`: think, act with the 13 tools, look, until `done` or the end
of a budget."""

import time
from typing import Any

import msgspec

from orchard.schemas.messages import RESULT_TAGS, Role, ToolCall
from orchard.schemas.outcomes import AbortCause, ExitStatus
from orchard.workers.domains.gui.browser import prompts
from orchard.workers.domains.gui.browser.calls import calls_of
from orchard.workers.domains.gui.browser.tools import DONE, TOOLS
from orchard.workers.domains.gui.browser.world import BrowserAttempt
from orchard.workers.episode.budgets import out_of_time, spent
from orchard.workers.episode.machine import CommandOutcome
from orchard.workers.episode.pictures import Picture
from orchard.workers.failures import InfrastructureError
from orchard.workers.harnesses.interface import Episode, Harness, HarnessResult, text_action
from orchard.workers.llm.answers import Completion
from orchard.workers.llm.errors import ContextLengthExceeded

HARNESSES = {"browser": "BrowserHarness", "browser-compact": "CompactBrowser"}

MOST_CALLS = 20
"""Maximum calls of one answer that are executed; the model is told about the others."""
MOST_UNPARSED = 3
"""Answers in a row without a readable call that end the run."""
_OFFERED = ("click", "goto_url", DONE)


class BrowserHarness(Harness):
    """A ReAct loop over a browser. Results are tool messages, or user messages if the model wrote its calls
    as text; an answer's last result ends with the screen."""

    name = "browser"
    system = prompts.SYSTEM
    tools: tuple[dict[str, Any], ...] = TOOLS
    tools_in_log = True
    replayable = False

    async def run(self, episode: Episode) -> HarnessResult:
        world, trace = episode.world, episode.trace
        if not isinstance(world, BrowserAttempt):
            raise InfrastructureError(
                AbortCause.INVALID_REQUEST,
                f"{episode.task.task_id} has no browser, as the harness {self.name} needs: use another",
            )
        seen = await world.look()
        text, pictures = seen.placed(prompts.request(episode.task.statement, ""))
        leaf = await trace.user(await trace.system(self.system), text, pictures)
        unparsed = 0
        while (over := spent(trace.totals, episode.budget)) is None:
            try:
                leaf, answer = await episode.ask(leaf, self.tools, pictures=world.last_k)
            except ContextLengthExceeded:
                over = ExitStatus.TOKEN_LIMIT
                break
            if not (calls := calls_of(answer)):
                unparsed += 1
                if unparsed == MOST_UNPARSED:
                    over = ExitStatus.FORMAT_FAILURE
                    break
                leaf = await trace.user(leaf, prompts.NO_CALL)
                continue
            unparsed = 0
            leaf = await self._act(episode, world, leaf, answer, calls)
            if world.answer is not None:
                over = ExitStatus.FINISHED
                break
        return HarnessResult(exit_status=over, submission="", leaf=leaf)

    async def _act(
        self,
        episode: Episode,
        world: BrowserAttempt,
        leaf: str,
        answer: Completion,
        calls: tuple[ToolCall, ...],
    ) -> str:
        """Executes the calls of one answer, looks at the screen, and returns the last node."""
        written = not answer.tool_calls
        lines: list[str] = []
        seconds = 0.0
        calls = calls[: MOST_CALLS + 1]
        for number, call in enumerate(calls):
            if number and out_of_time(episode.trace.totals, episode.budget):
                return leaf
            if number < MOST_CALLS:
                outcome, line = await world.call(call)
            else:
                line = prompts.TOO_MANY.format(name=call.name[:100], most=MOST_CALLS)
                outcome = CommandOutcome(output=line, returncode=1, seconds=0.0)
            lines.append(line)
            seconds += outcome.seconds
            if written and call is not calls[-1]:
                continue
            text, end = (RESULT_TAGS[0] + "\n".join(lines), RESULT_TAGS[1]) if written else (line, "")
            if call is calls[-1] and world.answer is None:
                text, pictures, looked = await _looked(world, f"{text}\n")
                outcome = msgspec.structs.replace(
                    outcome, pictures=pictures, seconds=outcome.seconds + looked
                )
            if not written:
                leaf = await episode.trace.result(leaf, call, text, outcome)
            else:
                leaf = await episode.trace.result(
                    leaf, text_action(answer.text), text + end, outcome, role=Role.USER
                )
        return leaf


async def _looked(world: BrowserAttempt, before: str) -> tuple[str, tuple[Picture, ...], float]:
    """Appends the screen to `before`; returns the text, its pictures, and the seconds that this took."""
    started = time.monotonic()
    text, pictures = (await world.look()).placed(before)
    return text, pictures, time.monotonic() - started


def _short(tool: dict[str, Any]) -> dict[str, Any]:
    """Keeps a tool's name and the names of its required arguments; the tool itself is unchanged."""
    about = tool["function"]
    needed: dict[str, Any] = {name: {} for name in about["parameters"].get("required", ())}
    return {"type": "function", "function": {"name": about["name"], "parameters": {"properties": needed}}}


class CompactBrowser(BrowserHarness):
    """Names three tools in its prompt, but all can be called."""

    name = "browser-compact"
    system = "You see a screen. Say what is on it, then act."
    tools = tuple(_short(tool) for tool in TOOLS if tool["function"]["name"] in _OFFERED)
