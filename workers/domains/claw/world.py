"""The world `claw`: services in the worker's process, a workspace in the sandbox, and one record of both."""

import asyncio
import shlex
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from orchard.schemas.blobs import INLINE_LIMIT, BlobRef
from orchard.schemas.campaigns import Budget
from orchard.schemas.claw import AuditEntry, ClawBundle, ClawWorld, CommandSeen, ServiceCalled, SnapshotFile
from orchard.schemas.messages import ToolCall
from orchard.schemas.outcomes import AbortCause, ExitStatus
from orchard.storage.blobs import BlobStore
from orchard.workers.domains.claw.declarations import function_tool
from orchard.workers.domains.claw.engine import BadWorld, CallResult, Services
from orchard.workers.domains.claw.servers import Face, served
from orchard.workers.domains.claw.workspace import LARGEST_TREE, TOOLS, WorkspaceTools, take_snapshot
from orchard.workers.episode.machine import CommandOutcome, FileTooLarge, Machine
from orchard.workers.episode.preparation import prepare
from orchard.workers.episode.worlds import WorldContext
from orchard.workers.failures import InfrastructureError, NotWritable, storing
from orchard.workers.graders.carrying import carry
from orchard.workers.masking import masked

WORLDS = {"claw": "ClawServices"}

_INLINE = INLINE_LIMIT // 4
_COMMAND_SHOWN = 64 * 1024


class ClawServices:
    name = "claw"
    settings = ClawWorld

    @asynccontextmanager
    async def open(self, settings: ClawWorld, opening: WorldContext) -> "AsyncIterator[ClawAttempt]":
        try:
            services = Services(settings, opening.seed)
        except BadWorld as error:
            raise InfrastructureError(
                AbortCause.INVALID_REQUEST, f"world of {opening.task.task_id}: {error}"
            ) from error
        workspace = WorkspaceTools(opening.machine, opening.task)
        home = workspace.resolve(".")
        if not any(workspace.resolve(path).startswith(f"{home}/") for path in settings.files):
            line = f"mkdir -p {shlex.quote(home)}"
            await opening.machine.run(line, timeout=opening.command_seconds, cwd="/")
        for path, text in settings.files.items():
            await opening.machine.write(workspace.resolve(path), text.encode())
        yield ClawAttempt(settings, services, workspace, opening)


class ClawAttempt:
    def __init__(
        self, world: ClawWorld, services: Services, workspace: WorkspaceTools, opening: WorldContext
    ) -> None:
        self.services = services
        self._world = world
        self._workspace = workspace
        self._opening = opening
        self.tools = (
            *(
                function_tool(name, offer.about, offer.operation.schema)
                for name, offer in services.offers.items()
            ),
            *(TOOLS[name] for name in world.workspace),
        )
        self.about = (
            f"It is {world.now.isoformat(timespec='minutes')}. You work for {world.owner}. "
            f"Files are in {opening.task.workdir}."
        )

    def bounded(self, budget: Budget) -> Budget:
        return task_limits(budget, self._world.turns, self._world.wall_seconds)

    async def call(self, call: ToolCall) -> tuple[CommandOutcome, str]:
        if call.name in self._world.workspace:
            outcome = await self._workspace.call(call, self._command_seconds)
            return outcome, outcome.output
        answered, seconds = await self.served(call.name, call.arguments, "harness")
        entry = answered.entry
        code = 0 if entry.status == 200 else entry.status
        return CommandOutcome(output=answered.text, returncode=code, seconds=seconds), answered.text

    async def served(
        self, tool: str, arguments: str | dict[str, Any], face: Face
    ) -> tuple[CallResult, float]:
        """Carries out a service call and publishes its audit entry; returns the answer and the seconds it
        took."""
        started = time.monotonic()
        answered = self.services.call(tool, arguments)
        if answered.wait:
            await asyncio.sleep(answered.wait)
        seconds = time.monotonic() - started
        await self._opening.publish(await self._entry(answered.entry, face, seconds))
        return answered, seconds

    @asynccontextmanager
    async def door(self) -> AsyncIterator[tuple[int, str]]:
        async with served(self) as (port, path):
            yield port, path

    async def hand_in(self, ended: ExitStatus, messages: Sequence[Mapping[str, Any]]) -> str:
        said = messages[-1] if messages else {}
        bundle = ClawBundle(
            messages=tuple(dict(message) for message in messages),
            audit=tuple(self.services.audit),
            state=self.services.state(),
            initial=self.services.initial,
            snapshot=await self._snapshot(),
            answer=str(said.get("content") or "") if said.get("role") == "assistant" else "",
            now=self._world.now.isoformat(),
            commands=await self._commands(),
            exit_status=ended.value,
        )
        return msgspec.json.encode(bundle).decode()

    @property
    def _command_seconds(self) -> float:
        return self._opening.command_seconds

    async def _snapshot(self) -> dict[str, SnapshotFile]:
        with tempfile.TemporaryDirectory(prefix="orchard-snapshot-") as directory:
            try:
                await self._opening.machine.copy_out(
                    self._opening.task.workdir, Path(directory), limit=LARGEST_TREE
                )
            except FileNotFoundError:
                return {}
            except FileTooLarge:
                return {".": SnapshotFile(size=LARGEST_TREE, omitted="too large")}
            return await asyncio.to_thread(take_snapshot, Path(directory), self._world.snapshot)

    async def _commands(self) -> dict[str, CommandSeen]:
        """Runs the task's commands over the workspace; without a workspace, none of them can start."""
        lines, opening = self._world.snapshot_commands, self._opening
        if not lines or self._world.commands_in == "agent":
            return {line: await self._seen(line, opening.machine) for line in lines}
        task, seconds = opening.task, self._command_seconds
        async with opening.sandbox(task.image, "snapshot") as fresh:
            await prepare(task, fresh, seconds)
            try:
                await carry((task.workdir,), opening.machine, fresh, timeout=seconds)
            except (FileNotFoundError, FileTooLarge, NotWritable) as error:
                none = CommandSeen(output=f"the workspace cannot be read: {error}", returncode=126)
                return dict.fromkeys(lines, none)
            return {line: await self._seen(line, fresh) for line in lines}

    async def _seen(self, line: str, machine: Machine) -> CommandSeen:
        task = self._opening.task
        outcome = await machine.run(
            line, timeout=self._command_seconds, cwd=task.workdir, env=task.environment
        )
        return CommandSeen(output=outcome.output[:_COMMAND_SHOWN], returncode=outcome.returncode)

    async def _entry(self, entry: AuditEntry, face: Face, seconds: float) -> ServiceCalled:
        """Converts an entry to its event: keys are masked, large values go to blobs."""
        arguments, arguments_blob = await inline_or_blob(self._opening.blobs, entry.arguments)
        response, response_blob = await inline_or_blob(self._opening.blobs, entry.response)
        return ServiceCalled(
            number=entry.sequence,
            task_time=entry.time,
            service=entry.service,
            operation=entry.operation,
            tool=entry.tool[:1024],
            arguments=arguments,
            arguments_blob=arguments_blob,
            status=entry.status,
            response=response,
            response_blob=response_blob,
            injected=entry.injected,
            face=face,
            seconds=round(seconds, 6),
        )


def task_limits(budget: Budget, turns: int, wall_seconds: float) -> Budget:
    """Returns the budget with a task's limits where they are tighter; 0 is no limit. A campaign without a
    step limit lifts both."""
    if not budget.steps:
        return budget
    wall = budget.wall_seconds or wall_seconds
    return msgspec.structs.replace(
        budget,
        steps=min(budget.steps, turns or budget.steps),
        wall_seconds=min(wall, wall_seconds) if wall_seconds else budget.wall_seconds,
    )


async def inline_or_blob(blobs: BlobStore, value: Any) -> tuple[str, BlobRef | None]:
    """Returns a text, or a value as JSON, with keys masked: inline, or as a blob if it is large."""
    text = masked(value if isinstance(value, str) else msgspec.json.encode(value).decode()).text
    raw = text.encode(errors="replace")
    if len(raw) <= _INLINE:
        return text, None
    with storing():
        return "", await asyncio.to_thread(blobs.put, raw, "application/json")
