"""The harness `claw-react`: a ReAct loop over the tools of the task's world, until the model calls none."""

from typing import Any

from orchard.schemas.outcomes import AbortCause, ExitStatus
from orchard.workers.episode.budgets import out_of_time, spent
from orchard.workers.failures import InfrastructureError
from orchard.workers.harnesses.interface import Episode, Harness, HarnessResult
from orchard.workers.llm.endings import UNPARSED
from orchard.workers.llm.errors import ContextLengthExceeded

HARNESSES = {"claw-react": "ClawReact"}

SYSTEM = """\
You are an assistant with tools. Do what you are asked by calling them, and do nothing that was not asked: \
think before what cannot be undone. A call that fails may succeed when it is tried again. When you are done, \
answer in words, without a call.

{about}
"""
UNREADABLE = """\
Your last message could not be read: a call of a tool in it was not well-formed. Call tools with their names \
and arguments, or answer in words when you are done."""
MOST_UNPARSED = 3
"""Number of unreadable answers in a row that ends the run."""
MOST_CALLS = 50
"""Maximum calls of one message that are executed; the model is told about the others."""


class ClawReact(Harness):
    """Queries, executes every call of the answer, repeats. A readable answer without a call ends the loop and
    is the final answer.

    Mistakes in a call (unknown tool, bad arguments) become the call's result and an entry of the audit log,
    because robustness depends on how the model continues from there.
    """

    name = "claw-react"
    tools: tuple[dict[str, Any], ...] = ()
    tools_in_log = True
    replayable = True

    async def run(self, episode: Episode) -> HarnessResult:
        world, trace = episode.world, episode.trace
        if world is None:
            raise InfrastructureError(
                AbortCause.INVALID_REQUEST,
                f"{episode.task.task_id} has no world, as the harness {self.name} needs: use another",
            )
        if episode.history:
            leaf = episode.history[-1].node_id
        else:
            leaf = await trace.user(
                await trace.system(SYSTEM.format(about=world.about)), episode.task.statement
            )
        unparsed = 0
        while (over := spent(trace.totals, episode.budget)) is None:
            try:
                leaf, answer = await episode.ask(leaf, world.tools)
            except ContextLengthExceeded:
                over = ExitStatus.TOKEN_LIMIT
                break
            unparsed = unparsed + 1 if answer.finish_reason == UNPARSED else 0
            if unparsed == MOST_UNPARSED:
                over = ExitStatus.FORMAT_FAILURE
                break
            if unparsed:
                leaf = await trace.user(leaf, UNREADABLE)
                continue
            if not answer.tool_calls:  # an answer that comes too late is none
                late = out_of_time(trace.totals, episode.budget)
                over = ExitStatus.TIME_LIMIT if late else ExitStatus.FINISHED
                break
            for number, call in enumerate(answer.tool_calls[:MOST_CALLS]):
                if number and out_of_time(trace.totals, episode.budget):
                    break
                outcome, shown = await world.call(call)
                leaf = await trace.result(leaf, call, shown, outcome)
            if (left_out := len(answer.tool_calls) - MOST_CALLS) > 0:
                leaf = await trace.user(leaf, f"{left_out} calls too many in one message were not executed.")
        return HarnessResult(exit_status=over, submission="", leaf=leaf)
