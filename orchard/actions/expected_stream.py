"""What the event streams must contain according to the tables; used by `streams.stream_check`."""

import asyncio
from collections import Counter

from orchard.schemas.positions import own_sequence
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
    sealed: Counter[int] = Counter()
    for part in ArchiveFiles(archive_url(store_url, archive)).parts():
        sealed[part.stream] += part.removed
    watermark, last_ids = log_end(store_url)
    first, *others = (
        ExpectedStream(own_sequence(watermark.last(stream)), sealed[stream], last_ids.get(stream))
        for stream in range(max(len(watermark), 1))
    )
    return first._replace(others=tuple(others))
