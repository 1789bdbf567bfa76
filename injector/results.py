"""What the SDK's methods return: the service's records, with the questions people ask of them."""

from collections.abc import Iterator
from typing import Any

import msgspec

from orchard.schemas.sandboxes import FileEntry, FileWritten, Health, Job, JobStatus, PatchResult


class _Subscriptable(msgspec.Struct, frozen=True, kw_only=True):
    """Fields by name too, `result["success"]`: callers of the published SDK were given dictionaries."""

    def __getitem__(self, name: str) -> Any:
        if name not in self.__struct_fields__:
            raise KeyError(name)
        return getattr(self, name)

    def get(self, name: str, default: Any = None) -> Any:
        """The field, or `default` when there is none of this name."""
        return getattr(self, name) if name in self.__struct_fields__ else default

    def keys(self) -> Iterator[str]:
        """Names of the fields; with `[]` this makes `dict(result)` work."""
        return iter(self.__struct_fields__)


class PatchOutcome(PatchResult, _Subscriptable, frozen=True, kw_only=True):
    """How applying a patch went."""


class Written(FileWritten, _Subscriptable, frozen=True, kw_only=True):
    """A file that was uploaded."""


class Entry(FileEntry, _Subscriptable, frozen=True, kw_only=True):
    """One entry of a directory."""


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """A directory's entries."""

    path: str
    files: list[Entry]


class HealthResult(Health, _Subscriptable, frozen=True, kw_only=True):
    """Whether the service can make sandboxes."""


class JobResult(Job, frozen=True, kw_only=True):
    """A job, with the questions people ask of it."""

    @property
    def is_complete(self) -> bool:
        """It has ended, in whatever way."""
        return self.status in (JobStatus.SUCCEEDED, JobStatus.FAILED)

    @property
    def succeeded(self) -> bool:
        """It ran and exited with 0."""
        return self.status is JobStatus.SUCCEEDED

    @property
    def failed(self) -> bool:
        """It ended otherwise, or never ran."""
        return self.status is JobStatus.FAILED


class PassedJob(Job, frozen=True, kw_only=True):
    """A job on its way through the orchestrator: what the command printed stays as the agent wrote it."""

    stdout: msgspec.Raw = msgspec.Raw(b'""')  # type: ignore[assignment]
    stderr: msgspec.Raw = msgspec.Raw(b'""')  # type: ignore[assignment]
