"""Question sheets in a store: one file a task, `sheets/ab/<task_hash>`, read by every worker."""

import msgspec

from orchard.schemas.tasks import Task, task_hash
from orchard.storage.blobs import BlobStore, NamedBlobs
from orchard.workers.domains.swe.sheets.sheet import FORMAT, Sheet


class SheetStore:
    """Synchronous: async callers use `asyncio.to_thread`. Raises what NamedBlobs raises."""

    def __init__(self, blobs: BlobStore) -> None:
        self._files = NamedBlobs(blobs.url, "sheets")

    def get(self, task: Task) -> Sheet | None:
        """Returns the sheet of a task; None if there is none, or one of another format."""
        data = self._files.get(task_hash(task))
        if data is None:
            return None
        try:
            sheet = msgspec.json.decode(data, type=Sheet)
        except msgspec.DecodeError:
            return None  # cut off, or of another format: it is made again
        return sheet if sheet.format == FORMAT else None

    def put(self, task: Task, sheet: Sheet) -> None:
        self._files.put(task_hash(task), msgspec.json.encode(sheet))
