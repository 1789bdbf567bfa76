"""Opens the Delta log of a table; if it is damaged, reports the damage and the command that mends it.

Damage is told from an unreachable store by reading: if every file of the log can be read and Delta still
cannot make a table of them, they are not what was written. A log that changes while it is read, because a
writer makes the table or cleans its log, is read again.
"""

import contextlib
import secrets
from collections.abc import Iterable
from pathlib import Path

import pyarrow.fs as pafs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from orchard.storage.errors import StoreDamaged, is_full, store_errors
from orchard.storage.location import Location
from orchard.storage.tables import EVENTS

_LOG = "_delta_log"
_UNFINISHED = "#"
"""Part of the name that Delta gives a file in a directory until it is whole."""
_SERVICE = "Generic S3 error"
"""Delta's message for a service that did not respond, but may respond to the next request."""
_REASON = 200


def mending(table: str) -> str:
    command = "orchard store rebuild --from-stream" if table == EVENTS else "orchard store rebuild"
    return f"stop `orchard up` and run `{command}`"


def file_damaged(table: str, file: str) -> StoreDamaged:
    """Error for a file of a table that is gone, shorter, or has other bytes than it was written with."""
    return StoreDamaged(f"{table}: the Parquet file {file} is damaged: restore it, or {mending(table)}")


def opened(location: Location, table: str) -> DeltaTable | None:
    """Open the current table; None if there is none yet. Raises StoreDamaged or StoreUnreachable."""
    seen: dict[str, int | None] | None = None
    with store_errors(location.url):
        while True:
            try:
                return DeltaTable(location.table_url(table), storage_options=location.storage_options)
            except DeltaError as error:
                if is_full(error) or _SERVICE in str(error):
                    raise
                there = _files(location, table)
                if isinstance(error, TableNotFoundError) and not there:
                    return None
                if there == seen:
                    if isinstance(error, TableNotFoundError) or _readable(location, there):
                        raise _damaged(table, error) from error
                    raise
                seen = there


class FollowedTable:
    """A table that is looked at again and again: after the first look only what is new of its log is read,
    unless it has another log by now, which in a directory is seen."""

    def __init__(self, location: Location, table: str) -> None:
        self.location, self.table = location, table
        self._delta: DeltaTable | None = None
        self.newest: tuple[int, int] | None = None
        """Inode and time of change of the newest commit at the last look; None in S3, and without a table."""

    def current(self) -> DeltaTable | None:
        """Return the newest snapshot, mostly the same object; None if there is no table. Raises as `opened`
        does."""
        if self._delta is None or self._newest_commit() != self.newest or not self._updated():
            self._delta = opened(self.location, self.table)
        self.newest = self._newest_commit()
        return self._delta

    def _updated(self) -> bool:
        """Read the new commits; False if that fails. Where the newest known one is still there, the next one
        is looked for by its name, which costs a fraction of asking Delta."""
        assert self._delta is not None
        with store_errors(self.location.url), contextlib.suppress(DeltaError):  # `opened` says why
            if self.newest is None or self._commit(self._delta.version() + 1).exists():
                self._delta.update_incremental()
            return True
        return False

    def _newest_commit(self) -> tuple[int, int] | None:
        if self._delta is None or self.location.is_s3:
            return None
        try:
            found = self._commit(self._delta.version()).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _commit(self, version: int) -> Path:
        """File of a commit in a directory."""
        return self.location.path / "tables" / self.table / _LOG / f"{version:020}.json"


def set_aside(location: Location, table: str) -> None:
    """Move the log of a table to where Delta does not look, so that the table can be made anew."""
    files, log = location.filesystem, location.key("tables", table, _LOG)
    with store_errors(location.url):
        if files.get_file_info(log).type != pafs.FileType.Directory:
            return
        beside = location.key("tables", table, f"_damaged_log_{secrets.token_hex(6)}")
        if not location.is_s3:
            files.move(log, beside)
            return
        for info in files.get_file_info(pafs.FileSelector(log, recursive=True)):
            if info.type == pafs.FileType.File:
                files.move(info.path, f"{beside}{info.path.removeprefix(log)}")


def _damaged(table: str, error: Exception) -> StoreDamaged:
    lines = str(error).splitlines() or [type(error).__name__]
    return StoreDamaged(f"{table}: its log is damaged ({lines[0][:_REASON]}): {mending(table)}")


def _files(location: Location, table: str) -> dict[str, int | None]:
    """Finished files in a table's directory with their sizes; none is written a second time."""
    found = location.filesystem.get_file_info(
        pafs.FileSelector(location.key("tables", table), allow_not_found=True, recursive=True)
    )
    return {
        info.path: info.size
        for info in found
        if info.type == pafs.FileType.File and _UNFINISHED not in info.base_name
    }


def _readable(location: Location, files: Iterable[str]) -> bool:
    """Whether all files of the log can be read, whatever their content."""
    try:
        for path in files:
            if f"/{_LOG}/" in path:
                with location.filesystem.open_input_stream(path) as source:
                    source.read()
    except OSError:
        return False
    return True
