"""A full disk stops the writer in one sentence; with space again, it goes on and nothing is missing."""

import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from orchard.storage.blobs import BlobStore
from orchard.storage.errors import StoreFull
from orchard.storage.reader import open_tables
from orchard.storage.upkeep.maintenance import check
from orchard.storage.writing.writer import WriterSettings
from orchard.streams.publisher import Publisher

Write = Callable[..., Awaitable[None]]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[str]:
    """A store on a file system of 1 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], check=True)
    yield str(place)
    subprocess.run(["umount", str(place)], check=True)


def _fill(store: str, leave: int) -> Path:
    """A file that leaves about so many bytes."""
    path = Path(store) / "filler"
    with path.open("wb", buffering=0) as file:
        written = 0
        try:
            while True:
                written += file.write(b"x" * 4096)
        except OSError:
            pass
        file.truncate(max(0, written - leave))
    return path


@pytest.mark.long
@pytest.mark.parametrize("leave", [0, 40_000, 120_000])
async def test_a_full_disk_stops_the_writer_and_nothing_is_half_done(
    publisher: Publisher, store: str, write: Write, log, prose: Callable[[int], str], leave: int
) -> None:
    await publisher.events(log.whole_rollout(0))
    await write()
    filler = _fill(store, leave)
    texts = [prose(20_000) for _ in range(20)]
    await publisher.events([e for n, text in enumerate(texts, 1) for e in log.whole_rollout(n, text)])
    with pytest.raises(StoreFull, match=r"no space left in the store .*: free some space and start again"):
        await write(WriterSettings(commit_rows=20))
    with open_tables(store) as tables:
        sequences = [row[0] for row in tables.sql("select sequence from events order by 1").fetchall()]
        assert sequences == list(range(1, len(sequences) + 1))
    assert check(store) == []

    filler.unlink()
    await write()
    with open_tables(store) as tables:
        assert tables.sql("select count(*) from events").fetchall() == [(126,)]
        assert tables.sql("select count(*) from messages").fetchall() == [(21,)]
    assert check(store) == []


async def test_a_disk_that_is_full_from_the_start_is_said_so(store: str, write: Write) -> None:
    filler = _fill(store, 0)
    with pytest.raises(StoreFull):
        await write()
    filler.unlink()
    await write()


def test_a_blob_that_does_not_fit_leaves_nothing(store: str) -> None:
    _fill(store, 100_000)
    blobs = BlobStore(store)
    with pytest.raises(StoreFull):
        blobs.put(b"y" * 500_000)
    assert [path for path in (Path(store) / "blobs").rglob("*") if path.is_file()] == []
    assert blobs.get(blobs.put(b"small")) == b"small"
