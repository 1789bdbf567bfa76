"""What the agent answers when it cannot do as asked: a sentence, an HTTP status, a word for programs."""


class AgentError(Exception):
    """`status` is the HTTP status of the answer, `reason` a word for programs."""

    status = 500
    reason = "agent_error"

    def __init__(self, detail: str, *, reason: str | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        if reason is not None:
            self.reason = reason


class RequestInvalid(AgentError):
    """The request can never be done as it is."""

    status = 422
    reason = "request_invalid"


class TooLarge(RequestInvalid):
    """A file is larger than the request is willing to take."""

    status = 413
    reason = "file_too_large"


class NotFound(AgentError):
    """No such sandbox, job, file or image."""

    status = 404
    reason = "not_found"


class Forbidden(AgentError):
    """It is there, and not the caller's to change."""

    status = 403
    reason = "forbidden"


class Conflict(AgentError):
    """Another sandbox has this id, or the sandbox is not in the state that the request needs."""

    status = 409
    reason = "conflict"


class SandboxGone(AgentError):
    """The sandbox failed and will not come back."""

    status = 410
    reason = "died"


class TimeIsUp(AgentError):
    """A wait ended before what it waited for."""

    status = 408
    reason = "wait_timeout"


class MachineUnfit(AgentError):
    """This machine lacks something that the agent needs; the sentence names the remedy."""

    status = 503
    reason = "machine_unfit"


class Unsupported(AgentError):
    """What holds the sandboxes here cannot do this at all; the sentence names another way."""

    status = 501
    reason = "unsupported"
