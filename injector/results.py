"""Results of the SDK's methods: the service's records with convenience methods."""

from collections.abc import Iterator
from typing import Any

import msgspec

from orchard.schemas.sandboxes import FileEntry, FileWritten, Health, Job, JobStatus, PatchResult


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
