"""Errors of the sandbox service, one type for each thing that a caller would do about it."""

from collections.abc import Mapping

import msgspec

from orchard.injector.agent.protocol import REASON_HEADER, REQUEST_ID_HEADER


class SandboxError(Exception):
    """Any failure of the sandbox service; a command's own failure is a JobResult instead.

    `status` is its HTTP status, `reason` a word for programs.
    """

    default_status = 500
    default_reason = "sandbox_error"

    def __init__(self, detail: str, *, status: int | None = None, reason: str | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.status = self.default_status if status is None else status
        self.reason = self.default_reason if reason is None else reason


class SandboxUnavailable(SandboxError):
    """The service cannot be reached or is overloaded; the same request may work later."""

    default_status = 503
    default_reason = "unavailable"
    retry_after: float | None = None
    """Seconds after which the service asks to be tried again, if it said so."""


PASSING = frozenset({"quota_exceeded", "registry_resting", "image_unavailable"})
"""Reasons of temporary failures: wait and retry, without counting attempts."""


class SandboxOverLimit(SandboxUnavailable):
    """The key has reached a limit of requests or sandboxes. The same request may work later."""

    default_status = 429
    default_reason = "over_limit"


class SandboxNotFound(SandboxError):
    """The sandbox or job does not exist, or no longer."""

    default_status = 404
    default_reason = "not_found"


class SandboxFailed(SandboxError):
    """The sandbox did not start, or it died, and will not come back.

    Reasons: `image_missing`, `image_denied`, `image_unavailable`, `image_invalid`, `start_failed`,
    `start_timeout`, `out_of_memory`, `died`, `agent_died`, ...
    """

    default_status = 410
    default_reason = "died"


class SandboxConflict(SandboxError):
    """The id is taken, an idempotency key was used for something else, or the sandbox is still `pending`."""

    default_status = 409
    default_reason = "conflict"


class SandboxRequestInvalid(SandboxError):
    """The request can never work as it is: a bad field, path, name or key."""

    default_status = 422
    default_reason = "request_invalid"


class SandboxRefused(SandboxRequestInvalid):
    """The cluster's policies reject such a sandbox; the sentence quotes them.

    The same request is refused for a minute without asking the cluster.
    """

    default_reason = "sandbox_refused"


class SandboxUnsupported(SandboxRequestInvalid):
    """This backend cannot do it; the sentence names another way."""

    default_status = 501
    default_reason = "unsupported"


class SandboxWaitTimeout(SandboxError):
    default_status = 408
    default_reason = "wait_timeout"


class SandboxFileMissing(SandboxRequestInvalid, FileNotFoundError):
    """The file or directory does not exist in the sandbox."""

    default_status = 404
    default_reason = "file_missing"


class SandboxFileTooLarge(SandboxRequestInvalid):
    """A file or directory is larger than the caller permits; it may be mostly holes."""

    default_status = 413
    default_reason = "file_too_large"


_BY_STATUS: dict[int, type[SandboxError]] = {
    401: SandboxRequestInvalid,
    403: SandboxRequestInvalid,
    404: SandboxNotFound,
    408: SandboxWaitTimeout,
    409: SandboxConflict,
    410: SandboxFailed,
    429: SandboxOverLimit,
    501: SandboxUnsupported,
    503: SandboxUnavailable,
}


def error_for(status: int, detail: str, reason: str | None) -> SandboxError:
    if reason == SandboxFileMissing.default_reason:
        return SandboxFileMissing(detail)
    if reason == SandboxFileTooLarge.default_reason:
        return SandboxFileTooLarge(detail)
    if reason == SandboxRefused.default_reason:
        return SandboxRefused(detail)
    kind = _BY_STATUS.get(status, SandboxRequestInvalid if 400 <= status < 500 else SandboxError)
    return kind(detail, status=status, reason=reason)


def is_own_error(headers: Mapping[str, str], body: bytes) -> bool:
    """Whether an error is the service's own word, and not that of a proxy in front of it: it has a reason.

    The version before gave some errors no reason; they have a request id and a `detail`.
    """
    if REASON_HEADER in headers:
        return True
    try:
        return REQUEST_ID_HEADER in headers and "detail" in msgspec.json.decode(body, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False


def is_own_refusal(headers: Mapping[str, str]) -> bool:
    """The same of a WebSocket that was refused, of which no body can be read."""
    return REASON_HEADER in headers or REQUEST_ID_HEADER in headers


def detail_of(data: bytes) -> str:
    try:
        detail = msgspec.json.decode(data)["detail"]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
        return data.decode(errors="replace")[:500]
    if isinstance(detail, list):
        return "; ".join(f"{'.'.join(map(str, one['loc'][1:]))}: {one['msg']}" for one in detail)
    return str(detail)
