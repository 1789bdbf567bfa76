"""Constants of the HTTP interface between an orchestrator and an agent, and defaults of its requests."""

from enum import StrEnum

VERSION = "0.1.0"
"""The project's version; a constant because the payload has no package metadata."""
VERSION_HEADER = "X-Agent-Version"
"""Header of every response, by which a version mismatch is told from a fault."""
UNKNOWN = "unknown"
"""Version of agents that send no header."""
REQUEST_ID_HEADER = "X-Request-ID"
"""Header of an orchestrator's responses, and of its requests to agents."""
KEY_HEADER = "Idempotency-Key"
REASON_HEADER = "X-Error-Reason"
INTRODUCTION = "/introduction"
"""Path of the request that gives the agent of a container its key."""
FRAME_LIMIT = 16 * 1024 * 1024
"""Bytes of one WebSocket message, a frame of a terminal session."""

COUNT_LIMIT_VARIABLE = "ORCHARD_SANDBOX_COUNT"
"""Environment variable with the most sandboxes that live at once."""
WORKSPACE = "/workspace"
"""Directory of a sandbox that commands and relative paths start from."""
COMMAND_TIMEOUT = 300.0
"""Seconds after which a command is killed, unless its request says otherwise."""
WAIT_TIMEOUT = 300.0
"""Seconds that a request for the end of a start or a job waits, unless it says otherwise."""


class CommandEnding(StrEnum):
    """Values of `JobEnding` in the HTTP contract, which explains each."""

    EXITED = "exited"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    OUT_OF_MEMORY = "out_of_memory"
    NOT_STARTED = "not_started"
    NOT_FOUND = "not_found"
    NOT_PERMITTED = "not_permitted"
    SANDBOX_DIED = "sandbox_died"
    SANDBOX_DELETED = "sandbox_deleted"
    SANDBOX_RESTORED = "sandbox_restored"


SENTENCES = {
    CommandEnding.TIMEOUT: "timeout",
    CommandEnding.CANCELLED: "cancelled",
    CommandEnding.OUT_OF_MEMORY: "out of memory",
    CommandEnding.SANDBOX_DIED: "the sandbox died",
    CommandEnding.SANDBOX_DELETED: "the sandbox was deleted",
    CommandEnding.SANDBOX_RESTORED: "the sandbox was restored",
}
"""`error` texts of the endings that need no details."""
