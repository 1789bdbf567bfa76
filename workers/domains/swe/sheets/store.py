"""Question sheets in a store: one file a task, `sheets/ab/<task_hash>`, made once and read by every worker."""

import msgspec

from orchard.schemas.tasks import Task, task_hash
from orchard.storage.errors import store_errors
from orchard.storage.location import Location
from orchard.workers.domains.swe.sheets.sheet import FORMAT, Sheet


class SheetStore:
    """Synchronous: async callers use `asyncio.to_thread`. Raises what BlobStore raises."""

    def __init__(self, url: str) -> None:
        self._location = Location.parse(url)

    def get(self, task: Task) -> Sheet | None:
        """Returns the sheet of a task; None if there is none, or one of another format."""
        with store_errors(self._location.url):
            data = self._location.read(*_place(task))
        if data is None:
            return None
        try:
            sheet = msgspec.json.decode(data, type=Sheet)
        except msgspec.DecodeError:
            return None  # cut off, or of another format: it is made again
        return sheet if sheet.format == FORMAT else None

    def put(self, task: Task, sheet: Sheet) -> None:
        with store_errors(self._location.url):
            self._location.write(msgspec.json.encode(sheet), *_place(task))


def _place(task: Task) -> tuple[str, ...]:
    name = task_hash(task)
    return "sheets", name[:2], name
