"""Orchard-Claw: worlds of services for assistants, what is logged of them, and what a grader is given.

A task of the domain has `Task.world` of kind `claw`, with a ClawWorld as settings, and is graded by the
plug-in `claw`, with ClawTests as settings. What a rollout hands in is a Bundle, as JSON text.
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
"""429 with a time to wait, 500, an answer after 2 to 4 s, and an answer that is cut off."""
Records = dict[str, list[dict[str, Any]]]
"""What a service holds: collection to records, in the order of their creation."""
Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class ClawWorld(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The services of one task with what they hold, and the agent's workspace.

    In fixtures a field of time may be relative to `now`: `now-2d`, `now+1w@09:00`; in every text `{{now+3d}}`
    stands for that date (docs/claw.md).
    """

    now: datetime
    """When the task happens; with a time zone. The clock goes on by a second with each call."""
    services: dict[str, Records]
    """Service to its fixtures. A service with none is there, and empty."""
    owner: str = "me@example.com"
    """Address of the person whom the assistant works for."""
    tools: tuple[str, ...] = ()
    """Tools of the services that are offered, in this order; empty: all of them."""
    workspace: tuple[str, ...] = WORKSPACE_TOOLS
    """Tools on the workspace that are offered."""
    files: dict[str, str] = {}
    """Path, relative to the task's `workdir`, to text: there when the agent begins."""
    error_rate: Share = 0.0
    """Share of calls that fail by injection."""
    error_seed: int | None = None
    """Of the injection. None: the rollout's own, so that each sample meets other errors."""
    snapshot: tuple[str, ...] = ("**",)
    """Patterns of the files that the bundle has, relative to `workdir`."""
    snapshot_commands: tuple[str, ...] = ()
    """Shell lines whose output the bundle has, run in `workdir` when the agent is done."""
    turns: int = 20
    """Answers of the model, where a campaign does not say otherwise."""
    wall_seconds: float = 300.0
    """As `turns`."""


class ClawTests(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a task of the domain is judged: settings of the grader `claw`."""

    script: str
    """Python: the test script (docs/claw-grading.md)."""
    scripts: dict[str, str] = {}
    """Further test scripts by name; all must pass."""
    rubric: str = ""
    """What a judging model is asked; empty: none is."""
    files: dict[str, str] = {}
    """Path to text: what the script needs, never seen by the agent."""
    timeout_seconds: float = 60.0


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a service, as its log has it. The log is kept outside of the sandbox."""

    sequence: int
    """1 is the attempt's first."""
    time: str
    """Task time, ISO 8601."""
    service: str
    """Empty for a tool that there is not."""
    operation: str
    """Its name in the service; empty as above."""
    tool: str
    """Name as it was called."""
    arguments: Any
    """JSON; the text as it was given, where that is none."""
    status: int
    """As HTTP has it: 200; 400 bad arguments, 403 not permitted, 404 no such record or tool, 409 conflict,
    429, 500."""
    response: Any
    """JSON as it was answered; text where a malformed answer was injected."""
    injected: Injected | None = None
    """What was injected into the call. All but `slow` leave the service as it was."""

    @property
    def failed(self) -> bool:
        """Whether the caller got no usable answer."""
        return self.status >= 400 or self.injected == "malformed"


class SnapshotFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file of the workspace as the agent left it. It is the agent's word, as all of the workspace."""

    size: int
    """Bytes."""
    text: str | None = None
    """The content, where it is UTF-8."""
    base64: str | None = None
    """The content, where it is not."""
    omitted: str = ""
    """Why the content is not here: `too large`, `link` or `special`."""
    executable: bool = False


class CommandSeen(msgspec.Struct, frozen=True, kw_only=True):
    """What a command of `snapshot_commands` printed."""

    output: str
    returncode: int


class ClawBundle(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a rollout is graded by, and nothing else: the submission of the domain.

    `audit`, `state` and `messages` are the worker's record; `snapshot` and `commands` are taken from the
    agent's sandbox before any file of a grader is near it.
    """

    messages: tuple[dict[str, Any], ...]
    """The path to the last message, as OpenAI chat messages."""
    audit: tuple[AuditEntry, ...]
    """In their order."""
    state: dict[str, Records]
    """What each service holds at the end."""
    initial: dict[str, Records]
    """What each held at the beginning, dates resolved."""
    snapshot: dict[str, SnapshotFile]
    """Path, relative to `workdir`, to file."""
    answer: str
    """The text of the model's last message; empty where it ended otherwise."""
    now: str
    """The task's, ISO 8601."""
    commands: dict[str, CommandSeen] = {}
    """By the shell line."""
    exit_status: str = ""
    """An ExitStatus."""


class ServiceCalled(msgspec.Struct, frozen=True, kw_only=True):
    """An audit entry in the log: a call of a service of the task's world."""

    number: int
    """1 is the attempt's first."""
    task_time: str
    """When it happened in the world."""
    service: str
    """Name of the service; empty for a tool that there is not."""
    operation: str
    """Its name in the service; empty as `service`."""
    tool: str
    """Name as it was called."""
    arguments: str
    """JSON, or the text that was given in its place."""
    status: int
    """As HTTP has it."""
    response: str = ""
    """JSON, or the text of a malformed answer."""
    response_blob: BlobRef | None = None
    """The response, where it is too large for an event."""
    arguments_blob: BlobRef | None = None
    """As `response_blob`."""
    injected: str | None = None
    """`rate_limited`, `server_error`, `slow` or `malformed`."""
    face: str = "harness"
    """Who called: the `harness`, or a program by `mcp` or `http`."""
    seconds: float = 0.0
    """It took."""


BUNDLES = msgspec.json.Decoder(ClawBundle)


def is_bundle(submission: str) -> bool:
    """Whether what was submitted is the record of a world of services, which is no text to read."""
    try:
        BUNDLES.decode(submission)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return False
    return True
