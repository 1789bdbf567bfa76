"""Plug-ins whose rewards follow from the policy version that answered: a run's scores are known beforehand.

The model is asked for real, and what it samples trains; only what its answer is worth is given.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from orchard.plugins import (
    Episode,
    ExitStatus,
    Harness,
    HarnessResult,
    Judgement,
    PluginGrading,
    Reward,
    Task,
)
from tests.tiny_tasks import IMAGE, WORKDIR

SOLVED = {0: 0, 1: 2, 2: 1, 3: 2}
"""Held-out tasks that each policy version solves; any other task is solved by all."""
HELD_OUT = 3
PLUGINS = """
[plugins.harnesses]
versioned = "tests.versioned_answers:Versioned"
[plugins.graders]
said-yes = "tests.versioned_answers:SaidYes"
"""
GATES = "TEST_GATES"
"""Variable of the environment with the directory of gates."""
_FILE = "/tmp/answer"


def shut(version: int) -> Callable[[], None]:
    """Shuts a gate: the last held-out task of a version is asked, but not ended before what this returns
    opens the gate."""
    place = Path(os.environ[GATES]) / str(version)
    os.mkfifo(place)
    kept = os.open(place, os.O_RDWR)  # who reads waits until nobody can write

    def opened() -> None:
        place.unlink()
        os.close(kept)

    return opened


async def _pass(version: int) -> None:
    with suppress(FileNotFoundError):
        await asyncio.to_thread((Path(os.environ[GATES]) / str(version)).read_bytes)


class Versioned(Harness):
    name = "versioned"
    tools: tuple[dict[str, Any], ...] = ()

    async def run(self, episode: Episode) -> HarnessResult:
        leaf = await episode.trace.system("Answer in a few words.")
        leaf = await episode.trace.user(leaf, episode.task.statement)
        leaf, answer = await episode.ask(leaf, self.tools)
        assert answer.tokens is not None
        source, _, number = episode.task.task_id.partition("-")
        version = answer.tokens.versions[-1].version
        solved = source != "held" or int(number) < SOLVED[version]
        if source == "held" and int(number) == HELD_OUT - 1:
            await _pass(version)
        command = f"echo {'yes' if solved else 'no'} > {_FILE}"
        await episode.machine.run(command, timeout=episode.timeouts.command, cwd=WORKDIR)
        return HarnessResult(exit_status=ExitStatus.FINISHED, submission="", leaf=leaf)


class _Nothing(msgspec.Struct):
    pass


class SaidYes:
    name = "said-yes"
    in_place = True
    settings = _Nothing

    async def grade(self, settings: _Nothing, judgement: Judgement) -> Reward:  # noqa: ARG002
        yes = (await judgement.machine.read(_FILE)).strip() == b"yes"
        return Reward(value=1.0 if yes else -1.0, resolved=yes, grader=self.name, detail="", log=None)


def versioned_tasks() -> list[Task]:
    """Two tasks to train on, of source `learned`, and HELD_OUT others, of source `held`."""
    names = [*(("learned", number) for number in range(2)), *(("held", number) for number in range(HELD_OUT))]
    return [
        Task(
            task_id=f"{source}-{number}",
            source=source,
            repo=f"tests/{source}-{number}",
            image=IMAGE,
            base_commit="HEAD",
            statement=f"Say {source} {number}.",
            gold_patch="",
            memory="512Mi",
            grading=PluginGrading(grader=SaidYes.name, in_place=True),
        )
        for source, number in names
    ]
