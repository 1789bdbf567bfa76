"""What a worker runs of the domain: a world that adds, a loop over it, and the grader of the sum."""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from orchard.plugins import (
    CommandOutcome,
    Episode,
    ExitStatus,
    Harness,
    HarnessResult,
    Judgement,
    Protected,
    Reward,
    ToolCall,
    WorldContext,
)

HARNESSES = {"sums-loop": "Loop"}
GRADERS = {"sums": "Grader"}
WORLDS = {"sums": "Sums"}


class Goal(msgspec.Struct):
    total: int


class OpenSum:
    tools: tuple[dict[str, Any], ...] = ()
    about = ""

    def __init__(self) -> None:
        self.total = 0

    def bounded(self, budget: Any) -> Any:
        return budget

    async def call(self, call: ToolCall) -> tuple[CommandOutcome, str]:
        self.total += int(call.arguments)
        return CommandOutcome(returncode=0, output=str(self.total), seconds=0.0), f"The sum is {self.total}."

    async def hand_in(self, ended: ExitStatus, messages: Sequence[Mapping[str, Any]]) -> str:
        return str(self.total) if messages and ended is ExitStatus.FINISHED else ""


class Sums:
    name = "sums"
    settings = Goal

    @asynccontextmanager
    async def open(self, _: Goal, __: WorldContext) -> AsyncIterator[OpenSum]:
        yield OpenSum()


class Loop(Harness):
    name = "sums-loop"
    tools: tuple[dict[str, Any], ...] = ()

    async def run(self, episode: Episode) -> HarnessResult:
        system = (Path(__file__).parent / "prompts" / "system.md").read_text()
        leaf = await episode.trace.user(await episode.trace.system(system), episode.task.statement)
        while True:
            leaf, answer = await episode.ask(leaf, self.tools)
            said = re.search(r"add (\d+)", answer.text)
            if said is None:
                return HarnessResult(exit_status=ExitStatus.FINISHED, submission="", leaf=leaf)
            assert episode.world is not None
            _, shown = await episode.world.call(ToolCall(id="", name="add", arguments=said[1]))
            leaf = await episode.trace.user(leaf, shown)


class Grader:
    name = "sums"
    in_place = True
    settings = Goal

    async def grade(self, settings: Goal, judgement: Judgement) -> Reward:
        right = judgement.submission == str(settings.total)
        return Reward(
            value=1.0 if right else -1.0, resolved=right, grader=self.name, protected=Protected.VALUE
        )
