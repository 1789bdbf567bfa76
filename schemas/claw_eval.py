"""Claw-Eval: tasks of a checkout that the user has, with its own mock services and graders, unmodified.

A task has `Task.world` of kind `claw-eval` and is graded by the plug-in `claw-eval`. The checkout's parts
that a task needs are two archives in the user's store.
"""

from typing import Any

import msgspec

from orchard.schemas.blobs import BlobRef

NAME = "claw-eval"
ROOT = "/opt/claw-eval"
"""Where the checkout stands in a sandbox of services and in one that grades."""
WORKSPACE = "/workspace"
"""Where an agent works."""
WORKSPACE_SERVER = "claw_eval/sandbox/server.py"
"""In `src` of the checkout: executes the tools on the workspace, inside the agent's sandbox."""


class ClawEvalCheckout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What of the checkout a task needs, as archives (tar, gzip) whose paths are those in the checkout."""

    shared: BlobRef
    """Package, mock services, and the graders of all tasks, which may build on each other."""
    task: BlobRef
    """The task's directory, and fixtures of others that its services read."""
    task_id: str
    directory: str
    """Of the task, relative to the checkout."""
    python: str = "python3"
    """Interpreter in the image, with what the services and graders import."""


class MockService(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mock service, as the task declares it."""

    name: str
    command: str
    port: int
    health_check: str
    health_check_method: str = "POST"
    ready_timeout: float = 10.0
    reset_endpoint: str | None = None
    env: dict[str, str] = {}


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a tool leads."""

    url: str
    method: str = "POST"


class ClawEvalWorld(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The services and files of one task: settings of the world `claw-eval`."""

    checkout: ClawEvalCheckout
    services: tuple[MockService, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    """OpenAI tools of the services."""
    endpoints: dict[str, Endpoint] = {}
    """Tool to where it leads."""
    sandbox_files: tuple[str, ...] = ()
    """Put into the workspace before the agent begins; paths relative to the task's directory, as below."""
    sandbox_grader_files: tuple[str, ...] = ()
    """Put into the workspace when the agent is done, before the snapshot is taken."""
    snapshot_commands: tuple[str, ...] = ()
    """Run in the workspace then."""
    snapshot_files: tuple[str, ...] = ()
    """Read after them; patterns of the shell."""
    snapshot_seconds: float = 10.0
    """Of each command."""
    error_rate: float = 0.0
    """`ERROR_RATE` of the services."""
    turns: int = 20
    wall_seconds: float = 300.0


class ClawEvalTests(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How such a task is judged: settings of the grader `claw-eval`."""

    checkout: ClawEvalCheckout
    local_grader_files: tuple[str, ...] = ()
    """Files of the task's directory that the grader is given beside the snapshot."""
    timeout_seconds: float = 120.0


class Dispatch(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a tool of the services, as Claw-Eval's traces have it."""

    tool_use_id: str
    tool_name: str
    endpoint_url: str
    request_body: dict[str, Any]
    response_status: int
    response_body: Any
    latency_ms: float
    timestamp: str


class EvalBundle(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a rollout is graded by: the submission of such a task."""

    messages: tuple[dict[str, Any], ...]
    """OpenAI chat messages."""
    dispatches: tuple[Dispatch, ...]
    audit_data: dict[str, Any]
    """Service to what its `/audit` said at the end."""
    env_snapshot: dict[str, Any]
    """`file:PATH` and `cmd:LINE` to what was found."""
    answer: str
    exit_status: str = ""
    """An ExitStatus."""


EVAL_BUNDLES = msgspec.json.Decoder(EvalBundle)
