"""Claw-Eval: tasks of a checkout that the user has, with its own mock services and graders, unmodified.

A task has `Task.world` of kind `claw-eval` and is graded by the plug-in `claw-eval`. The checkout's parts
that a task needs are two archives in the user's store.
"""

from typing import Any

import msgspec

from orchard.schemas.blobs import BlobRef

NAME = "claw-eval"
ROOT = "/opt/claw-eval"
"""Directory of the checkout in sandboxes of services and of grading."""
WORKSPACE = "/workspace"
WORKSPACE_SERVER = "claw_eval/sandbox/server.py"
"""Path in `src` of the checkout of the server that executes the workspace tools inside the agent's
sandbox."""


class ClawEvalCheckout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parts of the checkout that a task needs, as archives (tar, gzip) whose paths are those in the
    checkout."""

    shared: BlobRef
    """Archive of package, mock services, and the graders of all tasks, which may build on each other."""
    task: BlobRef
    """Archive of the task's directory, and fixtures of others that its services read."""
    task_id: str
    directory: str
    """Directory of the task, relative to the checkout."""
    python: str = "python3"
    """Interpreter in the image, with all imports of services and graders."""


class MockService(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    command: str
    port: int
    health_check: str
    health_check_method: str = "POST"
    ready_timeout: float = 10.0
    reset_endpoint: str | None = None
    env: dict[str, str] = {}


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: str
    method: str = "POST"


class ClawEvalWorld(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the world `claw-eval`: the services and files of one task."""

    checkout: ClawEvalCheckout
    services: tuple[MockService, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    """Tools of the services in OpenAI's form."""
    endpoints: dict[str, Endpoint] = {}
    sandbox_files: tuple[str, ...] = ()
    """Files that are put into the workspace before the agent begins; paths relative to the task's directory,
    as below."""
    sandbox_grader_files: tuple[str, ...] = ()
    """Files that are put into the workspace when the agent is done, before the snapshot is taken."""
    snapshot_commands: tuple[str, ...] = ()
    """Shell lines that run in the workspace for the snapshot."""
    snapshot_files: tuple[str, ...] = ()
    """Shell patterns of the files that are read after the commands."""
    snapshot_seconds: float = 10.0
    """Time limit of each command."""
    error_rate: float = 0.0
    """Value of the services' variable `ERROR_RATE`."""
    turns: int = 20
    wall_seconds: float = 300.0


class ClawEvalTests(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the grader `claw-eval`: how a task is judged."""

    checkout: ClawEvalCheckout
    local_grader_files: tuple[str, ...] = ()
    """Files of the task's directory that the grader gets beside the snapshot."""
    timeout_seconds: float = 120.0


class Dispatch(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a service tool, in the form of Claw-Eval's traces."""

    tool_use_id: str
    tool_name: str
    endpoint_url: str
    request_body: dict[str, Any]
    response_status: int
    response_body: Any
    latency_ms: float
    timestamp: str


class EvalBundle(msgspec.Struct, frozen=True, kw_only=True):
    """All that a rollout is graded by: the submission of such a task."""

    messages: tuple[dict[str, Any], ...]
    dispatches: tuple[Dispatch, ...]
    audit_data: dict[str, Any]
    """Answer of each service's `/audit` at the end."""
    env_snapshot: dict[str, Any]
    """Content of files and output of commands, by `file:PATH` and `cmd:LINE`."""
    answer: str
    exit_status: str = ""


EVAL_BUNDLES = msgspec.json.Decoder(EvalBundle)
