"""A campaign with pictures goes to the archive: what was shown, and the pictures, are there as before."""

from pathlib import Path
from typing import Any

import pytest

from orchard.pipelines.campaigns.archiving import Archiving
from orchard.schemas.subjects import campaign_subjects
from orchard.storage.archive.verify import verify_archive
from orchard.storage.blobs import BlobStore
from orchard.storage.reader import open_tables
from orchard.storage.settings import ArchiveSettings
from orchard.storage.upkeep.maintenance import rebuild_derived, rebuild_events
from orchard.streams import names
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher
from orchard.streams.reading import subjects
from tests.gui_log import GuiAuthor, screen
from tests.storage.test_archive import Write, write_to

pytestmark = pytest.mark.long

LOOKS = "select rollout_id, turn, number, sha256, size, width, height from images order by all"
SHOWN = "select rollout_id, node, images_shown from llm_calls_all order by all"
MESSAGES = "select rollout_id, node_id, content, images from messages_all order by all"


def _pictured(store: str) -> list[list[tuple[Any, ...]]]:
    with open_tables(store) as tables:
        return [tables.execute(asked).fetchall() for asked in (LOOKS, SHOWN, MESSAGES)]


async def test_pictures_of_an_archived_campaign_are_read_as_before(
    connection: Connection, publisher: Publisher, store: str, write: Write, tmp_path: Path
) -> None:
    author = GuiAuthor(BlobStore(store))
    await publisher.events([*author.played("g1", 3, last=2), *author.played("g2", 2, resolved=False)])
    await write()
    before = _pictured(store)
    looks, shown, _ = before
    assert len(looks) == 5 and [len(images) for *_, images in shown if images] != [1] * len(shown)

    archiving = Archiving(connection, store, BlobStore(store), ArchiveSettings())
    async for _ in archiving.archive("gui"):
        pass
    left = await subjects(connection, names.EVENTS, campaign_subjects("gui"))
    assert not any(subject.endswith("message.appended") for subject in left)

    await rebuild_events(store, connection)
    rebuild_derived(store)
    assert _pictured(store) == before
    fresh = str(tmp_path / "fresh")
    await write_to(fresh, connection, archiving.shelf.location.url)
    assert _pictured(fresh) == before
    assert verify_archive(archiving.shelf, store).findings == []
    stored = {BlobStore(store).read(sha256) for _, _, _, sha256, *_ in looks}
    assert stored == {screen(number) for number in range(1, 6)}
