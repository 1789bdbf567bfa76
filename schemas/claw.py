"""Orchard-Claw: worlds of services for assistants, the log of their calls, and the input of graders.

A task of the domain has `Task.world` of kind `claw`, with a ClawWorld as settings, and is graded by the
plug-in `claw`, with ClawTests as settings. Its submission is a ClawBundle, as JSON text.
"""

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from orchard.schemas.blobs import BlobRef

DOMAIN = "claw"
"""Name of the domain, of its kind of world and of its grader."""

WORKSPACE_TOOLS = ("Bash", "Read", "Write", "Edit", "Glob", "Grep")
"""Tools on the sandbox's files, beside those of the services."""

Injected = Literal["rate_limited", "server_error", "slow", "malformed"]
"""Injected errors: 429 with a time to wait, 500, an answer after 2 to 4 s, and an answer that is cut off."""
Records = dict[str, list[dict[str, Any]]]
"""Content of a service: collection to records, in the order of their creation."""
Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class ClawWorld(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The services of one task with their content, and the agent's workspace.

    In fixtures a field of time may be relative to `now`: `now-2d`, `now+1w@09:00`; in every text `{{now+3d}}`
    stands for that date (docs/claw.md).
    """

    now: datetime
    """Time of the task, with a time zone. Each call moves the clock by a second."""
    services: dict[str, Records]
    """Fixtures by service. A service without fixtures exists and is empty."""
    owner: str = "me@example.com"
    """Address of the user whom the assistant works for."""
    tools: tuple[str, ...] = ()
    """Service tools that are offered, in this order; empty: all of them."""
    workspace: tuple[str, ...] = WORKSPACE_TOOLS
    """Workspace tools that are offered."""
    files: dict[str, str] = {}
    """Files that exist when the agent begins: path, relative to the task's `workdir`, to text."""
    error_rate: Share = 0.0
    """Share of calls that fail by injection."""
    error_seed: int | None = None
    """Seed of the injection. None: the rollout's own, so that each sample meets other errors."""
    snapshot: tuple[str, ...] = ("**",)
    """Patterns of the files, relative to `workdir`, that the bundle includes."""
    snapshot_commands: tuple[str, ...] = ()
    """Shell lines that run in `workdir` when the agent is done; the bundle includes their output."""
    commands_in: Literal["fresh", "agent"] | msgspec.UnsetType = msgspec.UNSET
    """Sandbox in which they run: a fresh one of the task's image over the agent's files, also if unset; or
    the agent's own, whose programs and processes are the agent's."""
    turns: int = 20
    """Limit of the model's answers, unless a campaign sets one."""
    wall_seconds: float = 300.0
    """Limit of the time in seconds, unless a campaign sets one."""


class ClawTests(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the grader `claw`: how a task is judged."""

    script: str
    """Test script in Python (docs/claw-grading.md)."""
    scripts: dict[str, str] = {}
    """Further test scripts by name; all must pass."""
    rubric: str = ""
    """Question for a judging model; empty: none is asked."""
    files: dict[str, str] = {}
    """Files of the script, path to text, which the agent never sees."""
    timeout_seconds: float = 60.0


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a service in its log, which is kept outside of the sandbox."""

    sequence: int
    """Number of the call in the attempt, from 1."""
    time: str
    """Time of the call in the task, ISO 8601."""
    service: str
    """Name of the service; empty for an unknown tool."""
    operation: str
    """Name of the operation in the service; empty for an unknown tool."""
    tool: str
    """Name of the tool as it was called."""
    arguments: Any
    """Arguments as JSON, or the text that was given instead."""
    status: int
    """HTTP status: 200; 400 bad arguments, 403 not permitted, 404 no such record or tool, 409 conflict, 429,
    500."""
    response: Any
    """Answer as JSON; text where a malformed answer was injected."""
    injected: Injected | None = None
    """Error that was injected into the call. All but `slow` leave the service as it was."""

    @property
    def failed(self) -> bool:
        """Whether the caller got no usable answer."""
        return self.status >= 400 or self.injected == "malformed"


class SnapshotFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file of the workspace as the agent left it. Only the agent vouches for it, as for all of the
    workspace."""

    size: int
    text: str | None = None
    """Content, if it is UTF-8."""
    base64: str | None = None
    """Content in Base64, if it is not UTF-8."""
    omitted: str = ""
    """Why the content is left out: `too large`, `link` or `special`."""
    executable: bool = False


class CommandSeen(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a command of `snapshot_commands`."""

    output: str
    returncode: int


class ClawBundle(msgspec.Struct, frozen=True, kw_only=True):
    """All that a rollout is graded by: the submission of the domain.

    `audit`, `state` and `messages` are the worker's record; `snapshot` and `commands` are taken from the
    agent's sandbox before any file of a grader is near it.
    """

    messages: tuple[dict[str, Any], ...]
    """The path to the last message, as OpenAI chat messages."""
    audit: tuple[AuditEntry, ...]
    state: dict[str, Records]
    """Content of each service at the end."""
    initial: dict[str, Records]
    """Content of each service at the beginning, dates resolved."""
    snapshot: dict[str, SnapshotFile]
    """Files of the workspace by path relative to `workdir`."""
    answer: str
    """Text of the model's last message; empty if it ended otherwise."""
    now: str
    """Time of the task, ISO 8601."""
    commands: dict[str, CommandSeen] = {}
    """Results of `snapshot_commands`, by shell line."""
    exit_status: str = ""


class ServiceCalled(msgspec.Struct, frozen=True, kw_only=True):
    """A service of the task's world was called: an audit entry in the log."""

    number: int
    """Number of the call in the attempt, from 1."""
    task_time: str
    """Time of the call in the task's world."""
    service: str
    """Name of the service; empty for an unknown tool."""
    operation: str
    """Name of the operation in the service; empty for an unknown tool."""
    tool: str
    """Name of the tool as it was called."""
    arguments: str
    """Arguments as JSON, or the text that was given instead."""
    status: int
    """HTTP status of the answer."""
    response: str = ""
    """Answer as JSON, or the text of a malformed answer."""
    response_blob: BlobRef | None = None
    """Blob of the response, if it is too large for an event."""
    arguments_blob: BlobRef | None = None
    """Blob of the arguments, if they are too large for an event."""
    injected: str | None = None
    """Error that was injected: `rate_limited`, `server_error`, `slow` or `malformed`."""
    face: str = "harness"
    """Caller: the `harness`, or a program through `mcp` or `http`."""
    seconds: float = 0.0
    """Seconds that the call took."""


BUNDLES = msgspec.json.Decoder(ClawBundle)


def is_bundle(submission: str) -> bool:
    """Whether a submission is a ClawBundle, which is no text to read."""
    try:
        BUNDLES.decode(submission)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return False
    return True
