"""The operations of the sandbox service as a table.

The client calls them, the orchestrator serves or forwards them, the OpenAPI document lists them. The agent
has an HTTP interface of its own (`agent/server.py`) with the forwarded ones.
"""

import re
from typing import Any, Literal, NamedTuple

import msgspec

from orchard.injector.agent.protocol import KEY_HEADER
from orchard.schemas.sandboxes import (
    Acknowledgement,
    ApplyPatch,
    CreateSandbox,
    ExecRequest,
    FileContent,
    FileList,
    FileWritten,
    ForkSandbox,
    Health,
    ImageDeleted,
    ImageDemand,
    ImageInfo,
    Job,
    JobQueued,
    MoveFile,
    PatchResult,
    PathDone,
    PreparedImages,
    PrepareImages,
    PullImage,
    Resources,
    RestoreSandbox,
    SandboxCreatedReply,
    SandboxInfo,
    ServiceInfo,
    Snapshot,
    SnapshotDeleted,
    SnapshotReply,
    SnapshotRequest,
    UploadFile,
)

JSON = "application/json"
RAW = "application/octet-stream"
TAR = "application/x-tar"
PLAIN = "text/plain"
HTML = "text/html"
EVENTS = "text/event-stream"
API_KEY_HEADER = "X-API-Key"


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Any error but 422; the header X-Error-Reason has a word for programs."""

    detail: str


class FieldProblem(msgspec.Struct, frozen=True, kw_only=True):
    """One invalid field of a request, and where it is."""

    loc: list[str | int]
    msg: str
    type: str


class ValidationProblem(msgspec.Struct, frozen=True, kw_only=True):
    """Error 422: the request is invalid, or can never be satisfied."""

    detail: list[FieldProblem] | str


class Parameter(NamedTuple):
    name: str
    summary: str
    kind: Any = str
    place: Literal["query", "header"] = "query"
    required: bool = False


class ApiOperation(NamedTuple):
    """One operation; `name` is that of the orchestrator's handler without its underscore; one without
    handler is forwarded to the agent."""

    method: str
    path: str
    name: str
    summary: str
    reply: Any = None
    """Record of a 200 response in JSON; None if there is none."""
    request: Any = None
    parameters: tuple[Parameter, ...] = ()
    errors: tuple[int, ...] = ()
    other_reply: Any = None
    """Alternative record of a 200 response."""
    reply_media: str | None = None
    """Alternative media type of a 200 response, or its only one if there is no record."""
    request_media: str | None = None
    """Alternative media type of the body, or its only one if there is no record."""
    status: int = 200
    open: bool = False
    """Whether it needs no key."""
    unlimited: bool = False
    """Whether it is exempt from all limits, because it frees a resource or keeps one alive."""

    def at(self, name: str) -> str:
        """Return the path for the sandbox or job `name`."""
        return re.sub(r"{\w+}", lambda _: name, self.path)


KEY = Parameter(KEY_HEADER, "the same again returns what the first request made", place="header")
TIMEOUT = Parameter("timeout", "seconds to wait", float)
PATH = Parameter("path", "in the sandbox; relative: to the image's working directory", required=True)
WORKSPACE = Parameter("path", "the same, /workspace where it is left out")
LIMIT = Parameter("limit", "bytes; a larger file is refused with 413", int)
LABEL = Parameter("label", "`name=value`; only sandboxes that carry all of them", list[str])
_API_KEY = Parameter("api_key", "the key, where no header can be sent")
_SANDBOX = (404, 409, 410)

SERVICE = ApiOperation("GET", "/", "service", "what this is", ServiceInfo, open=True)
HEALTH = ApiOperation("GET", "/health", "health", "whether sandboxes can be made", Health, open=True)
METRICS = ApiOperation("GET", "/metrics", "serve_metrics", "for Prometheus", reply_media=PLAIN, open=True)
OPENAPI = ApiOperation("GET", "/openapi.json", "serve_openapi", "this document", dict[str, Any])
DOCS = ApiOperation("GET", "/docs", "serve_docs", "this document as a page", reply_media=HTML, open=True)
RESOURCES = ApiOperation("GET", "/resources", "resources", "what there is and what is asked for", Resources)
CREATE = ApiOperation(
    "POST",
    "/sandboxes",
    "create",
    "begin to create a sandbox",
    SandboxCreatedReply,
    CreateSandbox,
    (KEY,),
    (409,),
)
LIST = ApiOperation("GET", "/sandboxes", "list", "all sandboxes", list[SandboxInfo], None, (LABEL,), (422,))
GET = ApiOperation("GET", "/sandboxes/{id}", "get", "one sandbox", SandboxInfo, errors=(404,))
WAIT = ApiOperation(
    "GET",
    "/sandboxes/{id}/wait",
    "wait",
    "the sandbox once it is ready or failed",
    SandboxInfo,
    parameters=(TIMEOUT,),
    errors=(404, 408, 422),
)
DELETE = ApiOperation(
    "DELETE",
    "/sandboxes/{id}",
    "delete",
    "remove a sandbox, or none",
    Acknowledgement,
    errors=(404,),
    unlimited=True,
)
HEARTBEAT = ApiOperation(
    "POST",
    "/sandboxes/{id}/heartbeat",
    "heartbeat",
    "it is needed",
    Acknowledgement,
    errors=_SANDBOX,
    unlimited=True,
)
PAUSE = ApiOperation(
    "POST",
    "/sandboxes/{id}/pause",
    "pause",
    "freeze all its processes; files can still be read and written, commands are refused",
    Acknowledgement,
    errors=(*_SANDBOX, 501),
)
RESUME = ApiOperation(
    "POST",
    "/sandboxes/{id}/resume",
    "resume",
    "let its processes go on",
    Acknowledgement,
    errors=(*_SANDBOX, 501),
    unlimited=True,
)
EXEC = ApiOperation(
    "POST",
    "/sandboxes/{id}/exec",
    "exec",
    "run a command; with `wait` the answer is its job",
    Job,
    ExecRequest,
    (KEY,),
    _SANDBOX,
    JobQueued,
)
TERMINAL = ApiOperation(
    "GET",
    "/sandboxes/{id}/exec/pty",
    "terminal",
    "a terminal session: a WebSocket of JSON frames",
    parameters=(_API_KEY,),
    errors=(400, *_SANDBOX),
    status=101,
)
TUNNEL = ApiOperation(
    "GET",
    "/sandboxes/{id}/tunnel",
    "tunnel",
    "TCP connections into or out of the sandbox: a WebSocket of frames, each of one connection",
    parameters=(
        Parameter(
            "port", "inside, at 127.0.0.1; 0, of a reverse tunnel: any that is free", int, required=True
        ),
        Parameter(
            "direction", "`forward`: to the port inside; `reverse`: from it", Literal["forward", "reverse"]
        ),
        Parameter("name", "the tunnel takes the place of the one of the same name"),
        Parameter("idle_seconds", "a connection on which nothing moves for so long is reset", float),
    ),
    errors=(400, *_SANDBOX, 422),
    status=101,
)
APPLY_PATCH = ApiOperation(
    "POST",
    "/sandboxes/{id}/apply_patch",
    "apply_patch",
    "apply a unified diff",
    PatchResult,
    ApplyPatch,
    (KEY,),
    _SANDBOX,
)
WRITE = ApiOperation(
    "POST",
    "/sandboxes/{id}/files",
    "write",
    "make or replace a file: in JSON, or as it is with `path` in the query",
    FileWritten,
    UploadFile,
    (PATH._replace(required=False), Parameter("mode", "octal digits, as in `755`")),
    _SANDBOX,
    request_media=RAW,
)
REMOVE = ApiOperation(
    "DELETE",
    "/sandboxes/{id}/files",
    "remove",
    "remove a file, a link or a directory with all that is in it",
    PathDone,
    parameters=(PATH,),
    errors=(*_SANDBOX, 422),
)
MOVE = ApiOperation(
    "POST",
    "/sandboxes/{id}/files/move",
    "move",
    "rename a file, a link or a directory; directories above are made where they are missing",
    PathDone,
    MoveFile,
    errors=_SANDBOX,
)
READ = ApiOperation(
    "GET",
    "/sandboxes/{id}/files",
    "read",
    "a file: in JSON, or as it is where that is accepted",
    FileContent,
    parameters=(PATH, LIMIT),
    errors=(*_SANDBOX, 413, 422),
    reply_media=RAW,
)
FILES = ApiOperation(
    "GET",
    "/sandboxes/{id}/files/list",
    "files",
    "a directory's entries",
    FileList,
    parameters=(WORKSPACE,),
    errors=(*_SANDBOX, 422),
)
WATCH = ApiOperation(
    "GET",
    "/sandboxes/{id}/files/watch",
    "watch",
    "changes of files below a directory as they happen: events `watching`, then `created`, `changed`, "
    "`removed` (`path`, `directory`) and `lost`; `end` is the last",
    parameters=(WORKSPACE, Parameter("timeout", "seconds until it ends; without, it does not", float)),
    errors=(*_SANDBOX, 422),
    reply_media=EVENTS,
)
READ_ARCHIVE = ApiOperation(
    "GET",
    "/sandboxes/{id}/archive",
    "read_archive",
    "a directory as a tar stream, names relative to it",
    parameters=(PATH,),
    errors=(*_SANDBOX, 422),
    reply_media=TAR,
)
WRITE_ARCHIVE = ApiOperation(
    "PUT",
    "/sandboxes/{id}/archive",
    "write_archive",
    "unpack a tar stream into a directory, which is made where it is missing",
    FileWritten,
    parameters=(PATH,),
    errors=(*_SANDBOX, 422),
    request_media=TAR,
)
FORK = ApiOperation(
    "POST",
    "/sandboxes/{id}/fork",
    "fork",
    "begin to create copies: the file system as it is now, none of the processes",
    list[SandboxInfo],
    ForkSandbox,
    (KEY,),
    (*_SANDBOX, 501),
)
SNAPSHOT = ApiOperation(
    "POST",
    "/sandboxes/{id}/snapshot",
    "snapshot",
    "make the file system an image",
    SnapshotReply,
    SnapshotRequest,
    errors=(*_SANDBOX, 501),
)
_SNAPSHOT = Parameter("name", "of the snapshot: up to 64 letters, digits, `.`, `_`, `-`", required=True)
SNAPSHOTS = ApiOperation(
    "GET",
    "/sandboxes/{id}/snapshots",
    "snapshots",
    "its snapshots that are kept by name, oldest first",
    list[Snapshot],
    errors=_SANDBOX,
)
TAKE_SNAPSHOT = ApiOperation(
    "PUT",
    "/sandboxes/{id}/snapshots",
    "take_snapshot",
    "keep the file system as it is now under a name, in place of what had that name",
    Snapshot,
    parameters=(_SNAPSHOT,),
    errors=(*_SANDBOX, 422, 501),
)
DELETE_SNAPSHOT = ApiOperation(
    "DELETE",
    "/sandboxes/{id}/snapshots",
    "delete_snapshot",
    "give up a snapshot",
    SnapshotDeleted,
    parameters=(_SNAPSHOT,),
    errors=(*_SANDBOX, 422),
)
RESTORE = ApiOperation(
    "POST",
    "/sandboxes/{id}/restore",
    "restore",
    "start again from a snapshot of its: all processes end, id, limits and jobs' results stay",
    SandboxInfo,
    RestoreSandbox,
    errors=_SANDBOX,
)
JOB = ApiOperation("GET", "/jobs/{job}", "job", "a job as it is", Job, errors=_SANDBOX)
JOBS = ApiOperation(
    "GET",
    "/sandboxes/{id}/jobs",
    "jobs",
    "its jobs, oldest first, without what they printed",
    list[Job],
    errors=_SANDBOX,
)
WAIT_JOB = ApiOperation(
    "GET",
    "/jobs/{job}/wait",
    "wait_job",
    "a job when it ended, or as it is when time is up",
    Job,
    parameters=(TIMEOUT,),
    errors=(*_SANDBOX, 422),
)
FOLLOW = ApiOperation(
    "GET",
    "/jobs/{job}/events",
    "follow",
    "what a job prints while it runs: events `stdout`, `stderr` (`data` in Base64, `skipped` bytes), `exit`",
    parameters=(Parameter("offset", "the `id` of the last event that arrived; 0.0 is the beginning"),),
    errors=(*_SANDBOX, 422),
    reply_media=EVENTS,
)
CANCEL_JOB = ApiOperation(
    "DELETE", "/jobs/{job}", "cancel_job", "kill a job's process group", Job, errors=_SANDBOX, unlimited=True
)

IMAGE = Parameter("name", "of the image", required=True)
IMAGES = ApiOperation(
    "GET", "/images", "images", "the images on this machine", list[ImageInfo], errors=(501,)
)
PULL_IMAGE = ApiOperation(
    "POST",
    "/images/pull",
    "pull_image",
    "fetch an image from a registry; the answer comes when it is here",
    ImageInfo,
    PullImage,
    errors=(404, 409, 422, 501, 502),
)
PREPARE = ApiOperation(
    "POST",
    "/images/prepare",
    "prepare",
    "pull images to all nodes of a cluster, a step at each request",
    PreparedImages,
    PrepareImages,
    errors=(403, 422, 501),
)
DEMAND = ApiOperation(
    "PUT",
    "/images/demand",
    "demand",
    "tell which images will soon be asked for: warm pools of a cluster follow for a minute",
    ImageDemand,
    ImageDemand,
    errors=(403, 422, 501),
)
IMPORT_IMAGE = ApiOperation(
    "POST",
    "/images",
    "import_image",
    "bring an image: a `docker save` archive, or an OCI image layout in a tar archive",
    ImageInfo,
    parameters=(IMAGE,),
    errors=(409, 413, 422, 501),
    request_media=TAR,
)
DELETE_IMAGE = ApiOperation(
    "DELETE",
    "/images",
    "delete_image",
    "delete an image that no sandbox was made from",
    ImageDeleted,
    parameters=(IMAGE,),
    errors=(404, 409, 422, 501),
)

OPERATIONS = tuple(one for one in list(globals().values()) if isinstance(one, ApiOperation))
