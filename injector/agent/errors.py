"""Errors that the agent answers with: a sentence, an HTTP status, and a `reason` for programs."""


class AgentError(Exception):
    status = 500
    reason = "agent_error"

    def __init__(self, detail: str, *, reason: str | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        if reason is not None:
            self.reason = reason


class RequestInvalid(AgentError):
    """The request can never succeed as it is."""

    status = 422
    reason = "request_invalid"


class TooLarge(RequestInvalid):
    """A file is larger than the request permits, or a directory than an archive takes."""

    status = 413
    reason = "file_too_large"


class NotFound(AgentError):
    """There is no such sandbox, job, file or image."""

    status = 404
    reason = "not_found"


class Forbidden(AgentError):
    """It exists, but belongs to another caller."""

    status = 403
    reason = "forbidden"


class Conflict(AgentError):
    """The sandbox id is taken, or its state does not permit the request."""

    status = 409
    reason = "conflict"


class SandboxGone(AgentError):
    """The sandbox failed and will not come back."""

    status = 410
    reason = "died"


class TimeIsUp(AgentError):
    status = 408
    reason = "wait_timeout"


class MachineUnfit(AgentError):
    """The machine lacks something that the agent needs; the sentence names the remedy."""

    status = 503
    reason = "machine_unfit"


class Unsupported(AgentError):
    """This backend cannot do it at all; the sentence names another way."""

    status = 501
    reason = "unsupported"
