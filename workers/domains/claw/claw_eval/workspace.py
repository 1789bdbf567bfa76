"""Claw-Eval's workspace tools, carried out by the checkout's own server in the agent's sandbox.

The first call starts the server, before the agent can change anything. Later interference by the agent makes
its own calls fail, as under Claw-Eval's runner, but never the attempt.
"""

import base64
import json
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from orchard.schemas.claw_eval import WORKSPACE, WORKSPACE_SERVER, ClawEvalCheckout
from orchard.schemas.outcomes import AbortCause
from orchard.storage.blobs import BlobStore
from orchard.workers.domains.claw.claw_eval import remote
from orchard.workers.domains.claw.claw_eval.checkout import ask, members
from orchard.workers.domains.claw.declarations import Schema, flag, function_tool, text, whole
from orchard.workers.episode.machine import CommandOutcome, Machine
from orchard.workers.episode.pictures import Picture, read_picture
from orchard.workers.failures import InfrastructureError

REMOTE = Path(remote.__file__).read_bytes()
REMOTE_PATH = "/opt/orchard/remote.py"
CALL_SECONDS = 120.0
_SERVER = "/opt/orchard/workspace.py"
_URL = "http://localhost:8080"
_SHOWN = 2 * 1024 * 1024
"""Maximum characters of an answer. Claw-Eval's runner truncates none, but no model takes more."""
_AGENTS_DOING = (AbortCause.SANDBOX_UNAVAILABLE, AbortCause.TASK_BROKEN)
"""Causes that make only the call fail: after the server's start only the agent can have ended it or removed
its interpreter."""
_MOST_PICTURES = 64
"""Maximum pictures of one result, as in Claw-Eval's runner."""
_PATHS = MappingProxyType(
    {
        "Bash": "exec",
        "Read": "read",
        "Write": "write",
        "Edit": "edit",
        "Glob": "glob",
        "Grep": "grep",
        "BrowserScreenshot": "screenshot",
        "ReadMedia": "read_media",
        "Download": "download",
    }
)


def _tool(name: str, about: str, arguments: dict[str, Schema], *required: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": arguments, "required": list(required)}
    return function_tool(name, about, schema)


def _decimal(about: str) -> Schema:
    return {"type": "number", "description": about}


_FILE = text("Absolute path of the file")
_WHERE = text("Where to search; /workspace unless given")
TOOLS: dict[str, dict[str, Any]] = {
    tool["function"]["name"]: tool
    for tool in (
        _tool(
            "Bash",
            "Run a shell command in the workspace, each in a shell of its own.",
            {"command": text("Shell command"), "timeout": whole("Milliseconds; 30,000 unless given", 1)},
            "command",
        ),
        _tool(
            "Read",
            "Read a file: text, a picture, or pages of a PDF as pictures.",
            {
                "file_path": _FILE,
                "offset": whole("First line, from 1", 1),
                "limit": whole("Number of lines", 1),
                "pages": text("Pages of a PDF: 3, 1-5 or 1,3,5"),
            },
            "file_path",
        ),
        _tool(
            "Write",
            "Make or replace a text file, and its directories.",
            {"file_path": _FILE, "content": text("The whole text")},
            "file_path",
            "content",
        ),
        _tool(
            "Edit",
            "Replace a text in a file. It must occur once, unless all occurrences are to be replaced.",
            {
                "file_path": _FILE,
                "old_string": text("The text that is there"),
                "new_string": text("The text in its place"),
                "replace_all": flag("Replace all occurrences"),
            },
            *("file_path", "old_string", "new_string"),
        ),
        _tool(
            "Glob",
            "List files whose paths match a pattern.",
            {"pattern": text("Pattern, `**/*.py` for example"), "path": _WHERE},
            "pattern",
        ),
        _tool(
            "Grep",
            "Search files for a Perl regular expression.",
            {
                "pattern": text("Regular expression"),
                "path": _WHERE,
                "glob": text("Only files of such names"),
                "output_mode": text(
                    "What is shown; the files unless given", "content", "files_with_matches", "count"
                ),
                "case_insensitive": flag("Ignore case"),
                "context_lines": whole("Lines around each match"),
                "after_context": whole("Lines after each match"),
                "before_context": whole("Lines before each match"),
                "head_limit": whole("Lines that are shown"),
                "multiline": flag("Let a match span lines"),
            },
            "pattern",
        ),
        _tool(
            "BrowserScreenshot",
            "Open a page in a browser and take pictures of it, one after the other.",
            {
                "url": text("Address of the page"),
                "wait_seconds": _decimal("Seconds over which they are taken; 2 unless given"),
                "frame_count": whole("Pictures; 4 unless given", 1),
            },
            "url",
        ),
        _tool(
            "ReadMedia",
            "See frames of a film, a picture, or pages of a PDF.",
            {
                "path": _FILE,
                "media_type": text("auto, image, video or pdf"),
                "max_frames": whole("Frames at most; 8 unless given", 1),
                "fps": _decimal("Frames of each second; 1 unless given"),
                "start_time": _decimal("First second"),
                "end_time": _decimal("Last second"),
                "screen_size": text("Size of the frames, as 1280x720"),
            },
            "path",
        ),
        _tool(
            "Download",
            "Get a file as base64.",
            {"path": _FILE, "max_bytes": whole("Bytes at most", 1)},
            "path",
        ),
    )
}


class ToolAnswer(msgspec.Struct, frozen=True, kw_only=True):
    url: str = ""
    status: int
    body: Any
    latency_ms: float = 0.0
    pictures: tuple[Picture, ...] = ()


class EvalWorkspaceTools:
    def __init__(self, machine: Machine, checkout: ClawEvalCheckout, blobs: BlobStore) -> None:
        self._machine = machine
        self._checkout = checkout
        self._blobs = blobs
        self._started = False

    async def call(self, name: str, given: dict[str, Any]) -> ToolAnswer:
        """Executes one call; its failures become the answer's status. Raises InfrastructureError if the
        server cannot start."""
        if not self._started:
            await self._start()
            self._started = True
        url = f"{_URL}/{_PATHS[name]}"
        asked = {"url": url, "method": "POST", "body": payload(name, given), "seconds": CALL_SECONDS}
        try:
            found = await ask(self._machine, self._checkout.python, REMOTE_PATH, "call", asked)
        except InfrastructureError as error:
            if error.cause not in _AGENTS_DOING:
                raise
            return ToolAnswer(url=url, status=remote.FAILED, body={"error": error.detail})
        body, pictures = split_pictures(found["body"])
        return ToolAnswer(
            url=url,
            status=found["status"],
            body=body,
            latency_ms=found["latency_ms"],
            pictures=pictures,
        )

    async def _start(self) -> None:
        server = (await members(self._blobs, self._checkout.shared, f"src/{WORKSPACE_SERVER}")).get("")
        if server is None:
            raise InfrastructureError(
                AbortCause.INVALID_REQUEST, f"the checkout has no src/{WORKSPACE_SERVER}: import it again"
            )
        await self._machine.write(_SERVER, server)
        await self._machine.write(REMOTE_PATH, REMOTE)
        service = {
            "name": "workspace",
            "command": f"python {_SERVER} --host 127.0.0.1 --port {_URL.rpartition(':')[2]}",
            "port": 8080,
            "health_check": f"{_URL}/health",
            "health_check_method": "GET",
            "ready_timeout": 60.0,
            "reset_endpoint": None,
            "env": {},
        }
        given = {"root": WORKSPACE, "services": [service], "variables": {}}
        await ask(self._machine, self._checkout.python, REMOTE_PATH, "start", given)


def payload(name: str, given: dict[str, Any]) -> dict[str, Any]:
    found = dict(given)
    if name == "Bash":
        if isinstance(milliseconds := found.pop("timeout", None), int):
            found["timeout_seconds"] = max(1, milliseconds // 1000)
        found.pop("description", None)
        found.pop("run_in_background", None)
    elif name in ("Read", "Write", "Edit") and "file_path" in found:
        found["path"] = found.pop("file_path")
    return found


def split_pictures(body: Any) -> tuple[Any, tuple[Picture, ...]]:
    """Splits an answer into a body with counts instead of the pictures, and the pictures to show."""
    if not isinstance(body, dict) or not isinstance(body.get("frames"), list):
        return body, ()
    found = [picture for each in body["frames"] if (picture := _picture(each)) is not None]
    step = max(len(found) / _MOST_PICTURES, 1.0)
    chosen = tuple(found[int(number * step)] for number in range(min(len(found), _MOST_PICTURES)))
    rest = {name: value for name, value in body.items() if name != "frames"}
    return {**rest, "frame_count": len(body["frames"]), "frames_shown": len(chosen)}, chosen


def _picture(frame: Any) -> Picture | None:
    try:
        return read_picture(base64.b64decode(frame["image_b64"]))
    except (KeyError, TypeError, ValueError):
        return None


def as_outcome(answer: ToolAnswer) -> CommandOutcome:
    code = 0 if answer.status < 400 else answer.status
    if isinstance(answer.body, dict) and isinstance(said := answer.body.get("exit_code"), int):
        code = said
    return CommandOutcome(
        output=as_text(answer.body),
        returncode=code,
        seconds=answer.latency_ms / 1000,
        pictures=answer.pictures,
    )


def as_text(body: Any) -> str:
    """Formats an answer for the model, cut at _SHOWN characters."""
    said = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
    return said if len(said) <= _SHOWN else f"{said[:_SHOWN]}... ({len(said)} characters)"
