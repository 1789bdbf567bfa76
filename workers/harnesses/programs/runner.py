"""Runs any program of a record as a harness: writes its files, starts its command, and reads its result."""

import asyncio
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf
from typing import Any

from orchard.schemas.decoding import Unreadable, decode_text
from orchard.schemas.outcomes import AbortCause, ExitStatus
from orchard.schemas.tasks import Task, graded_in_place
from orchard.streams.tasks import end
from orchard.workers.episode.machine import CommandOutcome, FileTooLarge, Machine, ReverseTunnel
from orchard.workers.episode.patches import state_left_behind
from orchard.workers.failures import InfrastructureError
from orchard.workers.gateway.recording import Recording
from orchard.workers.harnesses.interface import Episode, Harness, HarnessResult
from orchard.workers.harnesses.programs.acp import with_client
from orchard.workers.harnesses.programs.record import (
    HOME,
    PATCH_PROMPT,
    TASK_PROMPT,
    WORLD_PROMPT,
    FileSubmission,
    Program,
    directory,
    escaped,
    filled,
    with_server,
)

_TAIL = 1500


class ProgramHarness(Harness):
    """The harness that runs one program.

    Its submission is the state that it left, or what its record says. A program that fails after its model
    answered is graded like any other, because what runs in a sandbox is the agent's doing. If it never got an
    answer it does not work in this setup, and its attempt aborts.
    """

    tools: tuple[dict[str, Any], ...] = ()

    def __init__(self, program: Program) -> None:
        self.program = program
        self.name = program.name

    async def run(self, episode: Episode) -> HarnessResult:
        program, machine, task = with_client(self.program), episode.machine, episode.task
        async with (
            episode.door() as door,
            machine.reverse(door.port, asks_again=True) as tunnel,
            self._world(episode, program) as mcp,
        ):
            words = {
                "url": f"http://127.0.0.1:{tunnel.port}{door.path}",
                "model": episode.spec.name,
                "workdir": task.workdir,
                "home": HOME,
                "layer": directory(program.name),
            }
            about = episode.world.about if episode.world else ""
            prompt = WORLD_PROMPT if episode.world else prompt_of(program, task)
            words["prompt"] = filled(prompt, {**words, "statement": task.statement, "about": about})
            if mcp:
                program, words = with_server(program), {**words, "mcp": mcp}
            for path, text in program.files.items():
                await machine.write(filled(path, words), filled(text, escaped(words)).encode())
            if isinstance(task.user, str):  # whose the files are to be
                own = f"mkdir -p {HOME} && chown -R {shlex.quote(task.user)} {HOME}"
                await machine.run(own, timeout=episode.timeouts.command, cwd="/", user="root")
            door.recording.start_clock()
            outcome = await self._executed(program, episode, words, door.recording)
            door.recording.stop_clock()
            door.recording.check()
            status = self._status(outcome, door.recording, tunnel)
        if episode.world is not None:
            return HarnessResult(
                exit_status=status, submission="", leaf=door.recording.leaf or episode.trace.newest
            )
        submission = None
        if program.submission is not None:
            submission = await _submitted(machine, program.submission, words)
        if submission is None:
            submission = await state_left_behind(machine, task, timeout=episode.timeouts.shutdown)
        return HarnessResult(
            exit_status=status, submission=submission, leaf=door.recording.leaf or episode.trace.newest
        )

    @asynccontextmanager
    async def _world(self, episode: Episode, program: Program) -> AsyncIterator[str]:
        """Yields the URL of the world's MCP server for the sandbox, or an empty string without a world."""
        if episode.world is None:
            yield ""
            return
        if program.mcp is None:
            raise InfrastructureError(
                AbortCause.INVALID_REQUEST,
                f"{self.name} takes no MCP server, as {episode.task.task_id} needs: use another harness",
            )
        async with episode.world.door() as (port, path), episode.machine.reverse(port) as tunnel:
            yield f"http://127.0.0.1:{tunnel.port}{path}"

    async def _executed(
        self, program: Program, episode: Episode, words: dict[str, str], recording: Recording
    ) -> CommandOutcome:
        """Runs the program until it ends, its wall clock has run out, or its model cannot be reached any
        more. What it waits for its model takes nothing of the wall clock, so the command has longer."""
        task, stop = episode.task, asyncio.Event()
        environment = {name: filled(value, words) for name, value in program.environment.items()}
        running = asyncio.create_task(
            episode.machine.run(
                f"mkdir -p {HOME} && exec " + shlex.join(filled(word, words) for word in program.command),
                timeout=max(episode.budget.wall_seconds, min(episode.seconds, episode.timeouts.rollout)),
                cwd=task.workdir,
                env=task.environment | environment,
                stdin=filled(program.stdin, words),
                stop=stop,
            )
        )
        failing = asyncio.create_task(recording.failed.wait())
        ending = asyncio.create_task(recording.out_of_time())
        try:
            await asyncio.wait({running, failing, ending}, return_when=asyncio.FIRST_COMPLETED)
            if failing.done():
                recording.check()
            if ending.done():
                stop.set()
            return await running
        finally:
            for each in (ending, failing, running):
                await end(each)

    def _status(self, outcome: CommandOutcome, recording: Recording, tunnel: ReverseTunnel) -> ExitStatus:
        """Returns how the program ended. Raises InfrastructureError if neither it nor its model was the
        cause."""
        tail = outcome.output.strip()[-_TAIL:]
        if recording.ended is not None:
            return recording.ended
        if tunnel.breaks and recording.unanswered:
            raise InfrastructureError(
                AbortCause.SANDBOX_UNAVAILABLE,
                f"{self.name} lost its line to the model under a call and ended with status "
                f"{outcome.returncode}: {tail}",
            )
        if outcome.timed_out and 0 < recording.seconds_left < inf:
            raise InfrastructureError(
                AbortCause.ROLLOUT_TIMEOUT,
                f"{self.name} waited so long for its model that the rollout's time was over, and "
                f"{recording.seconds_left:.0f} s of its own were left: raise timeouts.rollout",
            )
        if outcome.timed_out and recording.unanswered:
            return ExitStatus.UNANSWERED
        if not recording.leaf:
            took = "in all its time" if outcome.timed_out else f"and ended with status {outcome.returncode}"
            raise InfrastructureError(
                AbortCause.HARNESS_FAILED, f"{self.name} got no answer of its model {took}: {tail}"
            )
        if outcome.timed_out:
            return ExitStatus.TIME_LIMIT
        if outcome.returncode == 0:
            return ExitStatus.FINISHED
        if tunnel.breaks:
            raise InfrastructureError(
                AbortCause.SANDBOX_UNAVAILABLE,
                f"{self.name} lost its line to the model and ended with status {outcome.returncode}: {tail}",
            )
        return ExitStatus.PROGRAM_FAILED


def prompt_of(program: Program, task: Task) -> str:
    if program.prompt == PATCH_PROMPT and graded_in_place(task.grading):
        return TASK_PROMPT
    return program.prompt


async def _submitted(machine: Machine, where: FileSubmission, words: dict[str, str]) -> str | None:
    """Reads the program's submission; None if there is none. Its file is the agent's, and may contain
    anything."""
    try:
        found: Any = decode_text((await machine.read(filled(where.path, words))).decode(errors="replace"))
    except (FileNotFoundError, FileTooLarge, Unreadable):
        return None
    for key in where.keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, str) and found else None
