"""What the tables say the stream of events must hold: the front door's half of `streams.stream_check`."""

import asyncio

from orchard.storage.archive.files import ArchiveFiles
from orchard.storage.archive.settings import ArchiveSettings, archive_url
from orchard.storage.errors import StorageError
from orchard.storage.reader import log_end
from orchard.streams.stream_check import TablesUnreadable
from orchard.streams.stream_state import ExpectedStream


async def expected(store_url: str, archive: ArchiveSettings) -> ExpectedStream:
    """Read what the store and its archive have now. Raises TablesUnreadable when they cannot be read."""
    try:
        return await asyncio.to_thread(_expected, store_url, archive)
    except StorageError as error:
        raise TablesUnreadable(str(error)) from error


def _expected(store_url: str, archive: ArchiveSettings) -> ExpectedStream:
    sealed = sum(part.removed for part in ArchiveFiles(archive_url(store_url, archive)).parts())
    watermark, last_id = log_end(store_url)
    return ExpectedStream(watermark, sealed, last_id)
