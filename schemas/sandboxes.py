"""The sandbox service's HTTP contract as records; docs/schemas/openapi.json has its routes.

Field names, defaults and states are those of the published Orchard Env, so that its clients work unchanged.
"""

from enum import StrEnum
from typing import Annotated

import msgspec

SANDBOX_ID = r"^[a-z0-9]([a-z0-9-]{0,53}[a-z0-9])?$(?!\n)"
"""A DNS label, short enough that `sandbox-<id>` is one too; in Python `$` alone would let a line end pass."""

MODE = r"^[0-7]{3,4}$(?!\n)"
"""Of a file, in octal digits."""

VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$(?!\n)"
"""Name of a variable of a sandbox's environment."""
NO_ZERO = r"^[^\x00]*$(?!\n)"
"""Any text that can be a variable's value."""
VARIABLES, ENVIRONMENT_SIZE = 128, 32 * 1024
"""Most variables of a sandbox's environment, and bytes of all their names and values."""

EGRESS, VOLUMES = 64, 16
"""Most rules of a sandbox's list of what it may reach, and volumes."""

TIMEOUT_EXIT_CODE = 124
OUTPUT_LIMIT = 10 * 1024 * 1024
"""Bytes kept of each of stdout and stderr unless the request says otherwise."""

Seconds = Annotated[float, msgspec.Meta(gt=0, le=7 * 24 * 3600)]


class SandboxStatus(StrEnum):
    PENDING = "pending"
    READY = "ready"
    UNSCHEDULABLE = "unschedulable"
    FAILED = "failed"
    NOT_FOUND = "not_found"


class JobStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class JobEnding(StrEnum):
    """How a job ended, for programs; `error` is for people. A word that this version does not know is read as
    `unknown`."""

    EXITED = "exited"
    """Its process ended by itself, with whatever status, or by a signal that was not the service's."""
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    OUT_OF_MEMORY = "out_of_memory"
    """The kernel killed it for memory."""
    NOT_STARTED = "not_started"
    """Nothing ran: a working directory or user that there is not, a sandbox full of processes, ..."""
    NOT_FOUND = "not_found"
    """Nothing ran: the program, or its interpreter, is not there."""
    NOT_PERMITTED = "not_permitted"
    """Nothing ran: the program may not be executed, or its working directory not be entered."""
    SANDBOX_DIED = "sandbox_died"
    SANDBOX_DELETED = "sandbox_deleted"
    SANDBOX_RESTORED = "sandbox_restored"
    """The sandbox ended under it, or was set back: this says nothing of the command."""
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, _value: object) -> "JobEnding":
        return cls.UNKNOWN


ENDED_WITH_SANDBOX = frozenset(
    {JobEnding.SANDBOX_DIED, JobEnding.SANDBOX_DELETED, JobEnding.SANDBOX_RESTORED}
)


class CreateSandbox(msgspec.Struct, frozen=True, kw_only=True):
    image: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
    block_network: bool = True
    """False: outbound connections to public addresses, from a network of its own; never anything inbound."""
    sandbox_id: Annotated[str, msgspec.Meta(pattern=SANDBOX_ID)] | None = None
    cpu: str = "4"
    memory: str = "16Gi"
    timeout: Seconds = 3600.0
    """Seconds until the sandbox must be ready."""
    labels: dict[str, str] = {}
    """Ours: campaign, rollout, purpose; `GET /sandboxes?label=k=v` filters by them."""
    ttl_seconds: Seconds | None = None
    """Ours: the sandbox is removed this long after its last heartbeat or request."""
    pids: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Ours: processes at once; None is the backend's default."""
    env: Annotated[
        dict[
            Annotated[str, msgspec.Meta(pattern=VARIABLE)],
            Annotated[str, msgspec.Meta(pattern=NO_ZERO)],
        ],
        msgspec.Meta(max_length=VARIABLES),
    ] = {}
    """Ours: of every command, below its own; 32 KiB at most. They are in no answer and no log."""
    layers: Annotated[
        list[Annotated[str, msgspec.Meta(min_length=1, max_length=512)]], msgspec.Meta(max_length=8)
    ] = []
    """Ours: images whose files are laid over those of `image`, later ones on top."""
    egress: Annotated[list[str], msgspec.Meta(max_length=EGRESS)] = []
    """Ours: with `block_network`, all that can be reached all the same, over TCP: `HOST:PORT` each."""
    gpus: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Ours: on Kubernetes, of the kind and up to the number that its administrator allows."""
    volumes: Annotated[dict[str, str], msgspec.Meta(max_length=VOLUMES)] = {}
    """Ours: on Kubernetes, by the name that the administrator gave it: the directory where it is mounted."""


class SandboxCreatedReply(msgspec.Struct, frozen=True, kw_only=True):
    sandbox_id: str
    namespace: str
    image: str
    block_network: bool
    cpu: str
    memory: str
    timeout: float
    status: SandboxStatus = SandboxStatus.PENDING


class SandboxInfo(msgspec.Struct, frozen=True, kw_only=True):
    sandbox_id: str
    namespace: str
    image: str
    pod_name: str
    block_network: bool
    cpu: str
    memory: str
    created_at: float
    """Epoch seconds."""
    ready: bool
    status: SandboxStatus
    status_message: str = ""
    reason: str = ""
    """Ours: machine-readable: `image_missing`, `out_of_memory`, `agent_replaced`, `expired`, ..."""
    labels: dict[str, str] = {}
    paused: bool = False
    """Ours: its processes are frozen, until it is resumed."""


class ExecRequest(msgspec.Struct, frozen=True, kw_only=True):
    command: str | list[str]
    """A string is run by the image's shell; an argument list is executed as it is."""
    timeout_seconds: Seconds = 300.0
    cwd: str = "/workspace"
    env: dict[str, str] = {}
    """Names are not empty and have no `=`, and neither names nor values have a NUL: a kernel takes none."""
    login_shell: bool = False
    wait: bool = False
    output_limit: Annotated[int, msgspec.Meta(ge=1024)] = OUTPUT_LIMIT
    """Ours: bytes kept of each of stdout and stderr."""
    merge_output: bool = False
    """Ours: stderr goes into stdout, in the order it was written."""
    stdin: str | None = None
    """Ours: UTF-8 text fed to the command, so that data is never part of a shell line."""
    user: str | None = None
    """Ours: whom it runs as, a name or number inside, perhaps with `:group`; None: the image's USER."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    job_id: str
    sandbox_id: str
    command: str | list[str]
    status: JobStatus
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    created_at: float = 0.0
    started_at: float | None = None
    completed_at: float | None = None
    error: str | None = None
    """`timeout`, `cancelled`, `out of memory` or why it never started; None when it ran and ended."""
    timed_out: bool = False
    """Ours: tells our 124 from the command's own."""
    oom_killed: bool = False
    ending: JobEnding | None = None
    """Ours: None until it has ended, and of agents from before there was this field."""
    output_open: bool = False
    """Ours: processes in the background could still write to its output when it ended; that is not kept."""
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    """Ours: sizes before any cut."""


class JobQueued(msgspec.Struct, frozen=True, kw_only=True):
    job_id: str
    status: JobStatus = JobStatus.QUEUED


class ApplyPatch(msgspec.Struct, frozen=True, kw_only=True):
    patch: str
    timeout_seconds: Seconds = 30.0
    cwd: str = "/workspace"
    """Ours: the directory the patch's paths are relative to."""


class PatchResult(msgspec.Struct, frozen=True, kw_only=True):
    success: bool
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    error: str | None = None


class UploadFile(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    content: str
    """Base64."""
    mode: Annotated[str, msgspec.Meta(pattern=MODE)] | None = None
    """Ours: octal digits; None: 0644, or that of the file that is replaced."""


class MoveFile(msgspec.Struct, frozen=True, kw_only=True):
    """What is at `path` is to be at `target`, in place of a file or an empty directory there."""

    path: str
    target: str


class PathDone(msgspec.Struct, frozen=True, kw_only=True):
    """A file or directory was removed, or is here now."""

    success: bool
    path: str


class FileWritten(msgspec.Struct, frozen=True, kw_only=True):
    success: bool
    path: str
    size: int


class FileContent(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    content: str
    """Base64."""
    size: int


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    type: str
    """`file`, `directory` or `other`, of a link what it leads to; `symlink`: it leads nowhere."""
    size: int
    modified: str
    """ISO 8601 in UTC, whole seconds."""
    modified_at: float
    """Ours: epoch seconds."""
    symlink: bool
    """Ours."""


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    files: list[FileEntry]


class SnapshotRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The sandbox's file system as it is now becomes an image that sandboxes can be created from."""

    image: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]


class SnapshotReply(msgspec.Struct, frozen=True, kw_only=True):
    image: str
    layers: int
    size: int


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A file system as the sandbox once had it, kept under a name as long as the sandbox is there."""

    name: str
    size: int
    """Bytes of the files that differ from the image."""
    created_at: float
    """Epoch seconds."""


class SnapshotDeleted(msgspec.Struct, frozen=True, kw_only=True):
    status: str
    name: str


class RestoreSandbox(msgspec.Struct, frozen=True, kw_only=True):
    """The file system becomes that of the snapshot of this name; all processes end."""

    name: str


class PullImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image of a registry becomes one that sandboxes can be created from."""

    reference: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
    """As for `docker pull`; `name@sha256:...` pins it."""
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=512)] | None = None
    """What it is called here; None: as the reference."""
    username: str | None = None
    password: str | None = None
    """Of the registry; kept nowhere."""
    plain_http: bool = False
    """Ask a registry of another machine without TLS."""


class ImageInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An image on one machine."""

    name: str
    layers: int
    sandboxes: int
    """Made from it, and not deleted."""
    shared: bool
    """It is for all keys."""
    digest: str | None = None
    """Of what a registry gave."""
    size: int | None = None
    """Bytes of its files."""
    created_at: float | None = None
    """When it came here, in epoch seconds."""
    user: str = ""
    working_directory: str = "/"


class ImageDeleted(msgspec.Struct, frozen=True, kw_only=True):
    status: str
    name: str


class ForkSandbox(msgspec.Struct, frozen=True, kw_only=True):
    """Independent sandboxes start from the file system that this one has now. What is None is inherited."""

    count: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    sandbox_ids: list[Annotated[str, msgspec.Meta(pattern=SANDBOX_ID)]] | None = None
    """As many as `count`; None: the server makes them."""
    block_network: bool | None = None
    cpu: str | None = None
    memory: str | None = None
    timeout: Seconds | None = None
    labels: dict[str, str] | None = None
    ttl_seconds: Seconds | None = None
    pids: Annotated[int, msgspec.Meta(ge=1)] | None = None
    snapshot: str | None = None
    """Start from this snapshot of its, in place of what it has now."""


class Acknowledgement(msgspec.Struct, frozen=True, kw_only=True):
    """Reply to DELETE, heartbeat, pause and resume: `deleted`, `ok`, `paused` or `resumed`."""

    status: str
    sandbox_id: str


class ServiceInfo(msgspec.Struct, frozen=True, kw_only=True):
    service: str
    version: str
    status: str = "running"


class Health(msgspec.Struct, frozen=True, kw_only=True):
    status: str
    detail: str = ""


class Amounts(msgspec.Struct, frozen=True, kw_only=True):
    """Cores and bytes."""

    cpu: float
    memory_bytes: int


class Node(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    capacity: Amounts
    allocatable: Amounts


class SandboxPod(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    namespace: str
    phase: str
    cpu_request: float
    memory_request_bytes: int


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """Reply to `GET /resources`; `available` is what is allocatable and not requested."""

    status: str
    nodes: list[Node]
    total_capacity: Amounts
    total_allocatable: Amounts
    total_requested: Amounts
    available: Amounts
    sandbox_pods: list[SandboxPod]
