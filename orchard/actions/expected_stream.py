"""What the event stream must contain according to the tables; used by `streams.stream_check`."""

import asyncio

from orchard.storage.archive.files import ArchiveFiles
from orchard.storage.errors import StorageError
from orchard.storage.reader import log_end
from orchard.storage.settings import ArchiveSettings, archive_url
from orchard.streams.stream_check import TablesUnreadable
from orchard.streams.stream_state import ExpectedStream


async def expected(store_url: str, archive: ArchiveSettings) -> ExpectedStream:
    """Reads what store and archive have now. Raises TablesUnreadable."""
    try:
        return await asyncio.to_thread(_expected, store_url, archive)
    except StorageError as error:
        raise TablesUnreadable(str(error)) from error


def _expected(store_url: str, archive: ArchiveSettings) -> ExpectedStream:
    sealed = sum(part.removed for part in ArchiveFiles(archive_url(store_url, archive)).parts())
    watermark, last_id = log_end(store_url)
    return ExpectedStream(watermark, sealed, last_id)
