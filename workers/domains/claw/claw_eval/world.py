"""The world `claw-eval`: the checkout's mock services in their own sandbox.

The agent cannot reach that sandbox: each call goes through the worker, which records it.
"""

import base64
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any

import msgspec

from orchard.schemas.campaigns import Budget
from orchard.schemas.claw import ServiceCalled
from orchard.schemas.claw_eval import NAME, ROOT, WORKSPACE, ClawEvalWorld, Dispatch, EvalBundle, MockService
from orchard.schemas.messages import ToolCall
from orchard.schemas.outcomes import AbortCause, ExitStatus
from orchard.workers.domains.claw.arguments import read_arguments
from orchard.workers.domains.claw.claw_eval.checkout import ask, members, unpack
from orchard.workers.domains.claw.claw_eval.remote import FAILED
from orchard.workers.domains.claw.claw_eval.workspace import (
    REMOTE,
    REMOTE_PATH,
    TOOLS,
    EvalWorkspaceTools,
    ToolAnswer,
    as_outcome,
    as_text,
)
from orchard.workers.domains.claw.world import inline_or_blob, task_limits
from orchard.workers.episode.machine import CommandOutcome, FileTooLarge, Machine
from orchard.workers.episode.worlds import WorldContext
from orchard.workers.failures import InfrastructureError, NotWritable

WORLDS = {"claw-eval": "ClawEvalServices"}

_SHOWN = 64 * 1024
"""Maximum characters of the stderr of a snapshot command."""
_MOST_FILES = 50
_UNKNOWN_TOOL, _BAD_ARGUMENTS = 404, 400


class ClawEvalServices:
    name = NAME
    settings = ClawEvalWorld

    @asynccontextmanager
    async def open(self, settings: ClawEvalWorld, opening: WorldContext) -> "AsyncIterator[ClawEvalAttempt]":
        async with AsyncExitStack() as stack:
            services: Machine | None = None
            if settings.services:
                services = await stack.enter_async_context(opening.sandbox(opening.task.image, "services"))
                await _start(settings, opening, services)
            attempt = ClawEvalAttempt(settings, opening, services)
            await attempt.bring(settings.sandbox_files)
            yield attempt


class ClawEvalAttempt:
    def __init__(self, world: ClawEvalWorld, opening: WorldContext, services: Machine | None) -> None:
        own = {tool["function"]["name"] for tool in world.tools}
        self.tools = (*world.tools, *(tool for name, tool in TOOLS.items() if name not in own))
        self.about = f"Files are in {WORKSPACE}."
        self._world = world
        self._opening = opening
        self._services = services
        self._workspace = EvalWorkspaceTools(opening.machine, world.checkout, opening.blobs)
        self._dispatches: list[Dispatch] = []
        self._served_calls = 0

    def bounded(self, budget: Budget) -> Budget:
        return task_limits(budget, self._world.turns, self._world.wall_seconds)

    async def bring(self, names: Sequence[str]) -> None:
        """Copies files of the task's directory, or else of the checkout, into the workspace."""
        checkout = self._world.checkout
        found = await members(self._opening.blobs, checkout.task) if names else {}
        for name in names:
            content = found.get(f"{checkout.directory}/{name}", found.get(name))
            if content is None:
                raise InfrastructureError(
                    AbortCause.INVALID_REQUEST, f"{self._opening.task.task_id} has no file {name}"
                )
            await self._opening.machine.write(f"{WORKSPACE}/{name}", content)

    async def _clear(self, names: Sequence[str]) -> None:
        """Deletes what the agent may have put where these files and their directories will be."""
        if not names:
            return
        files = [f"{WORKSPACE}/{name}" for name in names]
        ways = {str(way) for file in files for way in PurePosixPath(file).parents}
        lines = [f"[ -d {way} ] || rm -f {way}" for way in map(shlex.quote, sorted(ways))]
        line = "; ".join([*lines, f"rm -rf -- {shlex.join(files)}"])
        await self._opening.machine.run(line, timeout=self._world.snapshot_seconds, cwd="/")

    async def call(self, call: ToolCall) -> tuple[CommandOutcome, str]:
        """Workspace calls are dispatches as well, because graders count them."""
        given, wrong = read_arguments(call.arguments)
        if not wrong and not isinstance(given, dict):
            wrong = "the arguments are no object"
        if wrong:
            answer = ToolAnswer(status=_BAD_ARGUMENTS, body={"error": wrong})
        elif call.name in TOOLS:
            answer = await self._workspace.call(call.name, given)
        else:
            answer = await self._served(call.name, given)
        dispatch = Dispatch(
            tool_use_id=call.id,
            tool_name=call.name,
            endpoint_url=answer.url,
            request_body=given if isinstance(given, dict) else {"arguments": given},
            response_status=answer.status,
            response_body=answer.body,
            latency_ms=answer.latency_ms,
            timestamp=datetime.now(UTC).isoformat(),
        )
        self._dispatches.append(dispatch)
        if call.name not in TOOLS:
            self._served_calls += 1
            await self._opening.publish(await self._entry(dispatch))
        return as_outcome(answer), as_text(answer.body)

    @asynccontextmanager
    async def door(self) -> AsyncIterator[tuple[int, str]]:
        """Raises InfrastructureError: programs are not supported."""
        raise InfrastructureError(
            AbortCause.INVALID_REQUEST,
            "tasks of Claw-Eval cannot be given to programs: use the harness claw-react",
        )
        yield 0, ""

    async def hand_in(self, ended: ExitStatus, messages: Sequence[Mapping[str, Any]]) -> str:
        said = messages[-1] if messages else {}
        audits: dict[str, Any] = {}
        if self._services is not None:
            urls = {each.name: url for each in self._world.services if (url := audit_url(each))}
            audits = (await self._asked("audit", {"urls": urls}))["audit"]
        with suppress(NotWritable):  # the agent left no workspace: the snapshot shows it
            await self._clear(self._world.sandbox_grader_files)
            await self.bring(self._world.sandbox_grader_files)
        bundle = EvalBundle(
            messages=tuple(dict(message) for message in messages),
            dispatches=tuple(self._dispatches),
            audit_data=audits,
            env_snapshot=await self._snapshot(),
            answer=str(said.get("content") or "") if said.get("role") == "assistant" else "",
            exit_status=ended.value,
        )
        return msgspec.json.encode(bundle).decode()

    async def _asked(self, what: str, given: dict[str, Any]) -> Any:
        assert self._services is not None
        return await ask(self._services, self._world.checkout.python, REMOTE_PATH, what, given)

    async def _served(self, name: str, given: dict[str, Any]) -> ToolAnswer:
        endpoint = self._world.endpoints.get(name)
        if endpoint is None:
            return ToolAnswer(status=_UNKNOWN_TOOL, body={"error": f"unknown tool {name[:60]!r}"})
        if self._services is None:
            return ToolAnswer(url=endpoint.url, status=FAILED, body={"error": "the task has no service"})
        asked = {"url": endpoint.url, "method": endpoint.method, "body": given}
        return msgspec.convert({"url": endpoint.url, **await self._asked("call", asked)}, ToolAnswer)

    async def _snapshot(self) -> dict[str, Any]:
        """Runs the task's snapshot commands, then reads its snapshot files, which the commands may have
        made."""
        machine, seconds = self._opening.machine, self._world.snapshot_seconds
        found: dict[str, Any] = {}
        for line in self._world.snapshot_commands:
            errors = "/tmp/.orchard-snapshot-errors"
            ran = await machine.run(f"{{ {line}\n}} 2>{errors}", timeout=seconds, cwd=WORKSPACE)
            said = (await _read(machine, errors)) or b""
            found[f"cmd:{line}"] = {
                "exit_code": ran.returncode,
                "stdout": ran.output,
                "stderr": said.decode(errors="replace")[:_SHOWN],
            }
        for pattern in self._world.snapshot_files:
            for path in await self._matching(pattern):
                content = await _read(machine, path)
                found[f"file:{path}"] = _as_read(path, content)
        return found

    async def _matching(self, pattern: str) -> list[str]:
        path = pattern if pattern.startswith("/") else f"{WORKSPACE}/{pattern}"
        if not set("*?") & set(path):
            return [path]
        line = f"compgen -G {shlex.quote(path)} | sort | head -n {_MOST_FILES}"
        ran = await self._opening.machine.run(line, timeout=self._world.snapshot_seconds, cwd="/")
        return ran.output.splitlines()

    async def _entry(self, dispatch: Dispatch) -> ServiceCalled:
        arguments, arguments_blob = await inline_or_blob(self._opening.blobs, dispatch.request_body)
        response, response_blob = await inline_or_blob(
            self._opening.blobs, msgspec.json.encode(dispatch.response_body).decode()
        )
        return ServiceCalled(
            number=self._served_calls,
            task_time=dispatch.timestamp,
            service=service_of(dispatch.endpoint_url),
            operation=dispatch.endpoint_url.rpartition("/")[2],
            tool=dispatch.tool_name[:1024],
            arguments=arguments,
            arguments_blob=arguments_blob,
            status=dispatch.response_status,
            response=response,
            response_blob=response_blob,
            seconds=dispatch.latency_ms / 1000,
        )


async def _start(world: ClawEvalWorld, opening: WorldContext, machine: Machine) -> None:
    checkout = world.checkout
    await unpack(opening.blobs, checkout, machine)
    await machine.write(REMOTE_PATH, REMOTE)
    variables = {"CLAW_EVAL_TASK_ID": checkout.task_id, "ERROR_RATE": f"{world.error_rate:g}"}
    given = {
        "root": ROOT,
        "services": [msgspec.to_builtins(each) for each in world.services],
        "variables": variables,
    }
    await ask(machine, checkout.python, REMOTE_PATH, "start", given)


def audit_url(service: MockService) -> str:
    """Returns the URL of a service's audit, next to its reset endpoint; empty without one, because
    Claw-Eval's runner asks no other."""
    before, reset, _ = (service.reset_endpoint or "").rpartition("/reset")
    return f"{before}/audit" if reset else ""


def service_of(url: str) -> str:
    """Returns the first part of an endpoint's path: `gmail` of `http://localhost:9100/gmail/send`."""
    return url.partition("://")[2].partition("/")[2].partition("/")[0]


async def _read(machine: Machine, path: str) -> bytes | None:
    try:
        return await machine.read(path)
    except (FileNotFoundError, FileTooLarge):
        return None


def _as_read(path: str, content: bytes | None) -> dict[str, Any]:
    if content is None:
        return {"path": path, "error": f"{path}: not found, or too large"}
    try:
        return {"path": path, "encoding": "utf-8", "content": content.decode()}
    except UnicodeDecodeError:
        return {"path": path, "encoding": "base64", "content": base64.b64encode(content).decode()}
