"""The Delta log of a table, opened; where it cannot be read, the damage and the command that mends it.

Damage is told from a store that is out of reach by looking: where every file of the log can be read and Delta
still cannot make a table of them, they are not what was written.
"""

import secrets

import pyarrow.fs as pafs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from orchard.storage.errors import StoreDamaged, is_full, store_errors
from orchard.storage.location import Location
from orchard.storage.tables import EVENTS

_LOG = "_delta_log"
_SERVICE = "Generic S3 error"
"""What Delta says of a service that did not answer, which may answer the next request."""
_REASON = 200
"""Characters of Delta's own words."""


def mending(table: str) -> str:
    """The command that makes a table anew."""
    command = "orchard store rebuild --from-stream" if table == EVENTS else "orchard store rebuild"
    return f"stop `orchard up` and run `{command}`"


def file_damaged(table: str, file: str) -> StoreDamaged:
    """A file of a table is gone, shorter, or has other bytes than it was written with."""
    return StoreDamaged(f"{table}: the Parquet file {file} is damaged: restore it, or {mending(table)}")


def opened(location: Location, table: str) -> DeltaTable | None:
    """The table as it is now; None where there is none yet. Raises StoreDamaged or StoreUnreachable."""
    with store_errors(location.url):
        try:
            return DeltaTable(location.table_url(table), storage_options=location.storage_options)
        except TableNotFoundError as error:
            if _was_there(location, table):
                raise _damaged(table, error) from error
            return None
        except DeltaError as error:
            if is_full(error) or _SERVICE in str(error) or not _readable(location, table):
                raise
            raise _damaged(table, error) from error


def set_aside(location: Location, table: str) -> None:
    """Puts the log of a table beside it, where Delta does not look, so that the table can be made anew."""
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


def _was_there(location: Location, table: str) -> bool:
    """Whether a table without a commit was one: it has a file that a log names."""
    found = location.filesystem.get_file_info(
        pafs.FileSelector(location.key("tables", table), allow_not_found=True, recursive=True)
    )
    return any(info.type == pafs.FileType.File for info in found)


def _readable(location: Location, table: str) -> bool:
    """Whether all files of the log can be read, whatever is in them."""
    files = location.filesystem
    found = files.get_file_info(pafs.FileSelector(location.key("tables", table, _LOG), allow_not_found=True))
    try:
        for info in found:
            if info.type == pafs.FileType.File:
                with files.open_input_stream(info.path) as source:
                    source.read()
    except OSError:
        return False
    return True
