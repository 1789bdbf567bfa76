"""The routes of the sandbox service as a table: the application serves it, the OpenAPI document says it."""

from typing import Any, Literal, NamedTuple

import msgspec

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
    Job,
    JobQueued,
    PatchResult,
    Resources,
    SandboxCreatedReply,
    SandboxInfo,
    ServiceInfo,
    SnapshotReply,
    SnapshotRequest,
    UploadFile,
)

JSON = "application/json"
RAW = "application/octet-stream"
TAR = "application/x-tar"
PLAIN = "text/plain"
TERMINAL = "/sandboxes/{id}/exec/pty"


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Any error but 422; the header X-Error-Reason has a word for programs."""

    detail: str


class FieldProblem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with a request, and where."""

    loc: list[str | int]
    msg: str
    type: str


class ValidationProblem(msgspec.Struct, frozen=True, kw_only=True):
    """422: the request does not fit, or can never be done."""

    detail: list[FieldProblem] | str


class Parameter(NamedTuple):
    """One of the query or the headers."""

    name: str
    summary: str
    kind: Any = str
    place: Literal["query", "header"] = "query"
    required: bool = False


class Route(NamedTuple):
    """One operation; `name` is its handler's, without the underscore."""

    method: str
    path: str
    name: str
    summary: str
    reply: Any = None
    """Record of a 200 in JSON; None where there is none."""
    request: Any = None
    """Record of the body."""
    parameters: tuple[Parameter, ...] = ()
    errors: tuple[int, ...] = ()
    """Beside those that any route may answer with."""
    other_reply: Any = None
    """Another record of a 200."""
    reply_media: str | None = None
    """What a 200 may be instead of JSON."""
    request_media: str | None = None
    """What the body may be instead of JSON, or must be where there is no record."""
    status: int = 200
    open: bool = False
    """Answered without a key."""
    unlimited: bool = False
    """Beyond all limits, because it lets go of what is there or says that it is needed."""


KEY = Parameter("Idempotency-Key", "the same again returns what the first request made", place="header")
TIMEOUT = Parameter("timeout", "seconds to wait", float)
PATH = Parameter("path", "an absolute path in the sandbox", required=True)
LIMIT = Parameter("limit", "bytes; a larger file is refused with 413", int)
LABEL = Parameter("label", "`name=value`; only sandboxes that carry all of them", list[str])
SANDBOX_ERRORS = (404, 409, 410)

ROUTES = (
    Route("GET", "/", "service", "what this is", ServiceInfo, open=True),
    Route("GET", "/health", "health", "whether sandboxes can be made", Health, open=True),
    Route("GET", "/metrics", "serve_metrics", "for Prometheus", reply_media=PLAIN, open=True),
    Route("GET", "/openapi.json", "serve_openapi", "this document", dict[str, Any]),
    Route("GET", "/resources", "resources", "what there is and what is asked for", Resources),
    Route(
        "POST",
        "/sandboxes",
        "create",
        "begin to create a sandbox",
        SandboxCreatedReply,
        CreateSandbox,
        (KEY,),
        (409,),
    ),
    Route(
        "GET", "/sandboxes", "list", "all sandboxes", list[SandboxInfo], parameters=(LABEL,), errors=(422,)
    ),
    Route("GET", "/sandboxes/{id}", "get", "one sandbox", SandboxInfo, errors=(404,)),
    Route(
        "GET",
        "/sandboxes/{id}/wait",
        "wait",
        "the sandbox once it is ready or failed",
        SandboxInfo,
        parameters=(TIMEOUT,),
        errors=(404, 408, 422),
    ),
    Route(
        "DELETE",
        "/sandboxes/{id}",
        "delete",
        "remove a sandbox, or none",
        Acknowledgement,
        errors=(404,),
        unlimited=True,
    ),
    Route(
        "POST",
        "/sandboxes/{id}/heartbeat",
        "heartbeat",
        "it is needed",
        Acknowledgement,
        errors=SANDBOX_ERRORS,
        unlimited=True,
    ),
    Route(
        "POST",
        "/sandboxes/{id}/exec",
        "exec",
        "run a command; with `wait` the answer is its job",
        Job,
        ExecRequest,
        (KEY,),
        SANDBOX_ERRORS,
        other_reply=JobQueued,
    ),
    Route(
        "GET",
        TERMINAL,
        "terminal",
        "a terminal session: a WebSocket of JSON frames",
        parameters=(Parameter("api_key", "the key, where no header can be sent"),),
        errors=(400, *SANDBOX_ERRORS),
        status=101,
    ),
    Route(
        "POST",
        "/sandboxes/{id}/apply_patch",
        "apply_patch",
        "apply a unified diff",
        PatchResult,
        ApplyPatch,
        (KEY,),
        SANDBOX_ERRORS,
    ),
    Route(
        "POST",
        "/sandboxes/{id}/files",
        "write",
        "make or replace a file: in JSON, or as it is with `path` in the query",
        FileWritten,
        UploadFile,
        (PATH._replace(required=False),),
        SANDBOX_ERRORS,
        request_media=RAW,
    ),
    Route(
        "GET",
        "/sandboxes/{id}/files",
        "read",
        "a file: in JSON, or as it is where that is accepted",
        FileContent,
        parameters=(PATH, LIMIT),
        errors=(*SANDBOX_ERRORS, 413, 422),
        reply_media=RAW,
    ),
    Route(
        "GET",
        "/sandboxes/{id}/files/list",
        "files",
        "a directory's entries",
        FileList,
        parameters=(PATH,),
        errors=(*SANDBOX_ERRORS, 422),
    ),
    Route(
        "GET",
        "/sandboxes/{id}/archive",
        "read_archive",
        "a directory as a tar stream, names relative to it",
        parameters=(PATH,),
        errors=(*SANDBOX_ERRORS, 422),
        reply_media=TAR,
    ),
    Route(
        "PUT",
        "/sandboxes/{id}/archive",
        "write_archive",
        "unpack a tar stream into a directory, which is made where it is missing",
        FileWritten,
        parameters=(PATH,),
        errors=(*SANDBOX_ERRORS, 422),
        request_media=TAR,
    ),
    Route(
        "POST",
        "/sandboxes/{id}/fork",
        "fork",
        "begin to create copies: the file system as it is now, none of the processes",
        list[SandboxInfo],
        ForkSandbox,
        (KEY,),
        (*SANDBOX_ERRORS, 501),
    ),
    Route(
        "POST",
        "/sandboxes/{id}/snapshot",
        "snapshot",
        "make the file system an image",
        SnapshotReply,
        SnapshotRequest,
        errors=(*SANDBOX_ERRORS, 501),
    ),
    Route("GET", "/jobs/{job}", "job", "a job as it is", Job, errors=SANDBOX_ERRORS),
    Route(
        "GET",
        "/jobs/{job}/wait",
        "wait_job",
        "a job when it ended, or as it is when time is up",
        Job,
        parameters=(TIMEOUT,),
        errors=(*SANDBOX_ERRORS, 422),
    ),
    Route(
        "DELETE",
        "/jobs/{job}",
        "cancel_job",
        "kill a job's process group",
        Job,
        errors=SANDBOX_ERRORS,
        unlimited=True,
    ),
)
