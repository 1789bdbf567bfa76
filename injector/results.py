"""Results of the SDK's methods: the service's records with convenience methods."""

import signal
from collections.abc import Iterator
from typing import Any

import msgspec

from orchard.injector.errors import SandboxFailed
from orchard.schemas.sandboxes import (
    ENDED_WITH_SANDBOX,
    FileEntry,
    FileWritten,
    Health,
    Job,
    JobEnding,
    JobStatus,
    PatchResult,
)


class _Subscriptable(msgspec.Struct, frozen=True, kw_only=True):
    """Fields by name too, `result["success"]`: earlier SDKs returned dictionaries."""

    def __getitem__(self, name: str) -> Any:
        if name not in self.__struct_fields__:
            raise KeyError(name)
        return getattr(self, name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the field, or `default` when there is none of this name."""
        return getattr(self, name) if name in self.__struct_fields__ else default

    def keys(self) -> Iterator[str]:
        """Names of the fields, which with `[]` makes `dict(result)` work."""
        return iter(self.__struct_fields__)


class PatchOutcome(PatchResult, _Subscriptable, frozen=True, kw_only=True):
    pass


class UploadResult(FileWritten, _Subscriptable, frozen=True, kw_only=True):
    pass


class DirectoryEntry(FileEntry, _Subscriptable, frozen=True, kw_only=True):
    pass


class DirectoryListing(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    files: list[DirectoryEntry]


class HealthResult(Health, _Subscriptable, frozen=True, kw_only=True):
    """Whether the service can make sandboxes."""


class JobResult(Job, frozen=True, kw_only=True):
    @property
    def is_complete(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self.status in (JobStatus.SUCCEEDED, JobStatus.FAILED)

    @property
    def succeeded(self) -> bool:
        return self.status is JobStatus.SUCCEEDED

    @property
    def failed(self) -> bool:
        """Whether it failed, or never ran."""
        return self.status is JobStatus.FAILED


class PassedJob(Job, frozen=True, kw_only=True):
    """A job that the orchestrator forwards: the output stays encoded as the agent wrote it."""

    stdout: msgspec.Raw = msgspec.Raw(b'""')  # type: ignore[assignment]
    stderr: msgspec.Raw = msgspec.Raw(b'""')  # type: ignore[assignment]


def ended_with_sandbox(job: Job) -> bool:
    """Whether the sandbox ended, or was restored to a snapshot, under the command.

    Some agents do not say so (before `ending` existed, or later ones with a value unknown here). Then a job
    without exit code was never reported by its process, and a SIGKILL with a reason that is neither time nor
    memory was the service's: nothing here cancels commands.
    """
    if job.ending not in (None, JobEnding.UNKNOWN):
        return job.ending in ENDED_WITH_SANDBOX
    killed = job.exit_code == -signal.SIGKILL and job.error is not None
    return job.exit_code is None or (killed and not (job.timed_out or job.oom_killed))


def check_outlived(job: Job) -> None:
    """Raise SandboxFailed if the sandbox ended under the command: the job says nothing about the command."""
    if ended_with_sandbox(job):
        raise SandboxFailed(f"sandbox {job.sandbox_id} ended under a command: {job.error or 'it is gone'}")
