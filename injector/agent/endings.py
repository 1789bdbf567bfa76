"""How a command ended: a value for programs, and the `error` text that people read."""

from enum import StrEnum


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
