"""The sandbox service's HTTP contract as records; docs/schemas/openapi.json has its routes.

Field names, defaults and states are those of the published Orchard Env, so that its clients work unchanged.
"""

from enum import StrEnum
from typing import Annotated

import msgspec

PROGRAM = r"^[A-Za-z0-9][A-Za-z0-9._-]*$(?!\n)"
SANDBOX_ID = r"^[a-z0-9]([a-z0-9-]{0,53}[a-z0-9])?$(?!\n)"
"""Pattern of a DNS label, short enough that `sandbox-<id>` is one too; in Python `$` alone would let a line
end pass."""

MODE = r"^[0-7]{3,4}$(?!\n)"
"""Pattern of a file's mode, in octal digits."""

VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$(?!\n)"
"""Pattern of the name of a variable of a sandbox's environment."""
NO_ZERO = r"^[^\x00]*$(?!\n)"
"""Pattern of a variable's value: any text without a NUL."""
VARIABLES, ENVIRONMENT_SIZE = 128, 32 * 1024
"""Maximum number of variables of a sandbox's environment, and of bytes of all their names and values."""

EGRESS, VOLUMES = 64, 16
"""Maximum number of a sandbox's egress rules, and of its volumes."""

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
    """How a job ended, for programs; `error` is for people. A value that this version does not know is read
    as `unknown`."""

    EXITED = "exited"
    """Its process exited with any status, or by a signal that the service did not send."""
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    OUT_OF_MEMORY = "out_of_memory"
    """The kernel killed its process for memory."""
    NOT_STARTED = "not_started"
    """Nothing ran: a missing working directory or user, a sandbox full of processes, ..."""
    NOT_FOUND = "not_found"
    """Nothing ran: the program, or its interpreter, does not exist."""
    NOT_PERMITTED = "not_permitted"
    """Nothing ran: the program may not be executed, or its working directory not be entered."""
    SANDBOX_DIED = "sandbox_died"
    SANDBOX_DELETED = "sandbox_deleted"
    SANDBOX_RESTORED = "sandbox_restored"
    """The sandbox ended while the job ran, or was restored: this says nothing about the command."""
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, _value: object) -> "JobEnding":
        return cls.UNKNOWN


ENDED_WITH_SANDBOX = frozenset(
    {JobEnding.SANDBOX_DIED, JobEnding.SANDBOX_DELETED, JobEnding.SANDBOX_RESTORED}
)


class CreateSandbox(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Leaves out what has its default: a service of the version before refuses a field that it lacks."""

    image: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
    block_network: bool = True
    """False: the sandbox has a network of its own with outbound connections to public addresses; inbound is
    always closed."""
    sandbox_id: Annotated[str, msgspec.Meta(pattern=SANDBOX_ID)] | None = None
    cpu: str = "4"
    memory: str = "16Gi"
    timeout: Seconds = 3600.0
    """Seconds until the sandbox must be ready."""
    labels: dict[str, str] = {}
    """Ours: labels such as campaign, rollout and purpose; `GET /sandboxes?label=k=v` filters by them."""
    ttl_seconds: Seconds | None = None
    """Ours: the sandbox is removed this long after its last heartbeat or request."""
    pids: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Ours: maximum number of processes; None is the backend's default."""
    env: Annotated[
        dict[
            Annotated[str, msgspec.Meta(pattern=VARIABLE)],
            Annotated[str, msgspec.Meta(pattern=NO_ZERO)],
        ],
        msgspec.Meta(max_length=VARIABLES),
    ] = {}
    """Ours: variables of every command, which its own override; 32 KiB at most. No answer and no log has
    them."""
    layers: Annotated[
        list[Annotated[str, msgspec.Meta(min_length=1, max_length=512)]], msgspec.Meta(max_length=8)
    ] = []
    """Ours: images whose files are laid over those of `image`, later ones on top."""
    programs: Annotated[
        list[Annotated[str, msgspec.Meta(pattern=PROGRAM, max_length=128)]], msgspec.Meta(max_length=8)
    ] = []
    """Ours: programs of `orchard harness install` whose commands are on the PATH, on one machine; a cluster
    refuses them."""
    egress: Annotated[list[str], msgspec.Meta(max_length=EGRESS)] = []
    """Ours: the addresses that can be reached in spite of `block_network`, over TCP: `HOST:PORT` each."""
    gpus: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Ours: GPUs on Kubernetes, of the kind and up to the number that its administrator allows."""
    volumes: Annotated[dict[str, str], msgspec.Meta(max_length=VOLUMES)] = {}
    """Ours: volumes on Kubernetes: directory where it is mounted, by the administrator's name of the
    volume."""


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
    """Time of creation, in epoch seconds."""
    ready: bool
    status: SandboxStatus
    status_message: str = ""
    reason: str = ""
    """Ours: reason for programs: `image_missing`, `out_of_memory`, `agent_replaced`, `expired`, ..."""
    labels: dict[str, str] = {}
    paused: bool = False
    """Ours: whether its processes are frozen, until it is resumed."""


class ExecRequest(msgspec.Struct, frozen=True, kw_only=True):
    command: str | list[str]
    """Command line for the image's shell, or an argument list that is executed as it is."""
    timeout_seconds: Seconds = 300.0
    cwd: str = "/workspace"
    env: dict[str, str] = {}
    """Variables of the command. Names are not empty and have no `=`, and neither names nor values have a
    NUL."""
    login_shell: bool = False
    wait: bool = False
    output_limit: Annotated[int, msgspec.Meta(ge=1024)] = OUTPUT_LIMIT
    """Ours: bytes kept of each of stdout and stderr."""
    merge_output: bool = False
    """Ours: whether stderr goes into stdout, in the order it was written."""
    stdin: str | None = None
    """Ours: UTF-8 text fed to the command, so that data is never part of a shell line."""
    user: str | None = None
    """Ours: user that the command runs as, a name or number inside, perhaps with `:group`; None: the image's
    USER."""


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
    """Error for people: `timeout`, `cancelled`, `out of memory` or why it never started; None when it ran and
    ended."""
    timed_out: bool = False
    """Ours: whether the service ended it, which tells its 124 from the command's own."""
    oom_killed: bool = False
    ending: JobEnding | None = None
    """Ours: how the job ended; None until then, and from agents that are older than this field."""
    output_open: bool = False
    """Ours: whether background processes could still write to its output when it ended; that is not kept."""
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    """Ours: size of stderr before any cut, as `stdout_bytes` is that of stdout."""


class JobQueued(msgspec.Struct, frozen=True, kw_only=True):
    job_id: str
    status: JobStatus = JobStatus.QUEUED


class ApplyPatch(msgspec.Struct, frozen=True, kw_only=True):
    patch: str
    timeout_seconds: Seconds = 30.0
    cwd: str = "/workspace"
    """Ours: directory that the patch's paths are relative to."""


class PatchResult(msgspec.Struct, frozen=True, kw_only=True):
    success: bool
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    error: str | None = None


class UploadFile(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    content: str
    """Content of the file in Base64."""
    mode: Annotated[str, msgspec.Meta(pattern=MODE)] | None = None
    """Ours: mode in octal digits; None: 0644, or that of the file that is replaced."""


class MoveFile(msgspec.Struct, frozen=True, kw_only=True):
    """Moves the file or directory at `path` to `target`, in place of a file or an empty directory there."""

    path: str
    target: str


class PathDone(msgspec.Struct, frozen=True, kw_only=True):
    """Reply to a removal, or to the creation of a directory."""

    success: bool
    path: str


class FileWritten(msgspec.Struct, frozen=True, kw_only=True):
    success: bool
    path: str
    size: int


class FileContent(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    content: str
    """Content of the file in Base64."""
    size: int


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    type: str
    """Type of the entry: `file`, `directory` or `other`, for a link that of its target; `symlink`: it leads
    nowhere."""
    size: int
    modified: str
    """Time of the last change, ISO 8601 in UTC, whole seconds."""
    modified_at: float
    """Ours: time of the last change, in epoch seconds."""
    symlink: bool
    """Ours: whether the entry is a link."""


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    files: list[FileEntry]


class SnapshotRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Makes the sandbox's file system, as it is now, an image that sandboxes can be created from."""

    image: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]


class SnapshotReply(msgspec.Struct, frozen=True, kw_only=True):
    image: str
    layers: int
    size: int


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A copy of the sandbox's file system, kept under a name until the sandbox is deleted."""

    name: str
    size: int
    """Size of the files that differ from the image, in bytes."""
    created_at: float
    """Time of creation, in epoch seconds."""


class SnapshotDeleted(msgspec.Struct, frozen=True, kw_only=True):
    status: str
    name: str


class RestoreSandbox(msgspec.Struct, frozen=True, kw_only=True):
    """Restores the snapshot of this name; all processes end."""

    name: str


class PullImage(msgspec.Struct, frozen=True, kw_only=True):
    """Pulls an image from a registry, so that sandboxes can be created from it."""

    reference: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
    """Reference as for `docker pull`; `name@sha256:...` pins the image."""
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=512)] | None = None
    """Name of the image on this machine; None: the reference."""
    username: str | None = None
    password: str | None = None
    """Password for the registry, which is not stored."""
    plain_http: bool = False
    """Whether to ask a registry on another machine without TLS."""


class ImageInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An image that is on one machine."""

    name: str
    layers: int
    sandboxes: int
    """Number of sandboxes that were made from it and not deleted."""
    shared: bool
    """Whether sandboxes of all keys may use it."""
    digest: str | None = None
    """Digest of the image in its registry."""
    size: int | None = None
    """Size of its files in bytes."""
    created_at: float | None = None
    """Time of its import or pull, in epoch seconds."""
    user: str = ""
    working_directory: str = "/"


class ImageDeleted(msgspec.Struct, frozen=True, kw_only=True):
    status: str
    name: str


class ForkSandbox(msgspec.Struct, frozen=True, kw_only=True):
    """Starts independent sandboxes from the file system that this one has now. A field that is None is
    inherited."""

    count: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    sandbox_ids: list[Annotated[str, msgspec.Meta(pattern=SANDBOX_ID)]] | None = None
    """Ids of the new sandboxes, as many as `count`; None: the server makes them."""
    block_network: bool | None = None
    cpu: str | None = None
    memory: str | None = None
    timeout: Seconds | None = None
    labels: dict[str, str] | None = None
    ttl_seconds: Seconds | None = None
    pids: Annotated[int, msgspec.Meta(ge=1)] | None = None
    snapshot: str | None = None
    """Name of a snapshot to start from, in place of the present file system."""


class ImageDemand(msgspec.Struct, frozen=True, kw_only=True):
    """Tells a cluster which images will soon be asked for, so that its warm pools follow. It holds for a
    minute."""

    images: Annotated[
        dict[Annotated[str, msgspec.Meta(min_length=1, max_length=512)], Annotated[int, msgspec.Meta(ge=0)]],
        msgspec.Meta(max_length=1000),
    ]
    """Sandboxes that will be asked for, by image; images that are left out have none."""


class PrepareImages(msgspec.Struct, frozen=True, kw_only=True):
    """Pulls images to all nodes of a cluster, a step at each request: repeat it until it is done."""

    images: Annotated[
        list[Annotated[str, msgspec.Meta(min_length=1, max_length=512)]],
        msgspec.Meta(min_length=1, max_length=20),
    ]


class PreparedImage(msgspec.Struct, frozen=True, kw_only=True):
    image: str
    pulled: int
    """Nodes that have it."""
    failed: int = 0
    """Nodes that could not pull it so far."""
    reason: str = ""
    """`image_missing`, `image_denied`, or `image_unavailable`, which may pass."""
    message: str = ""
    """A node's own words."""


class PreparedImages(msgspec.Struct, frozen=True, kw_only=True):
    """How far the nodes are with the images of one `PrepareImages`."""

    nodes: int
    skipped: int
    """Nodes without room: their disk has enough images, or no Pod fits."""
    done: bool
    """Whether nothing more will come."""
    images: list[PreparedImage]

    def has(self, image: PreparedImage) -> bool:
        """Whether the image is on a node, and on all that have room."""
        return image.pulled > 0 and image.pulled + self.skipped >= self.nodes


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
    copies: bool | None = None
    """Whether sandboxes can be forked and restored; null: the service does not say."""


class Amounts(msgspec.Struct, frozen=True, kw_only=True):
    """Amounts of CPU in cores and of memory in bytes."""

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
