"""Blobs are what their name says, or an error."""

import hashlib
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchard.schemas.blobs import BlobRef
from orchard.storage.blobs import BlobStore
from orchard.storage.errors import BlobCorrupt, BlobMissing, StoreUnreachable


def _path(store: Path, reference: BlobRef) -> Path:
    name = reference.sha256
    return store / "blobs" / name[:2] / name[2:4] / name


def test_what_is_put_is_got_back(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path)
    reference = blobs.put(b"some text", "text/plain")
    assert reference == BlobRef(
        sha256=hashlib.sha256(b"some text").hexdigest(), size=9, media_type="text/plain"
    )
    assert blobs.has(reference)
    assert blobs.get(reference) == b"some text"
    assert _path(tmp_path, reference).read_bytes() == b"some text"


@settings(max_examples=25, deadline=None)
@given(data=st.binary(max_size=2000))
def test_any_bytes_survive(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    blobs = BlobStore(tmp_path_factory.getbasetemp() / "any")
    assert blobs.get(blobs.put(data)) == data


def test_a_blob_that_is_not_there_is_missing(tmp_path: Path) -> None:
    reference = BlobRef(sha256="ab" * 32, size=3)
    assert not BlobStore(tmp_path).has(reference)
    with pytest.raises(BlobMissing, match=r"abab.* is not in the store"):
        BlobStore(tmp_path).get(reference)


def test_a_name_that_is_no_hash_is_refused_whatever_it_points_to(tmp_path: Path) -> None:
    with pytest.raises(BlobMissing, match="64 lower-case hexadecimal digits"):
        BlobStore(tmp_path).get(BlobRef(sha256="../../secret", size=1))


@pytest.mark.parametrize("damage", [b"s0me text", b"some", b""])
def test_a_corrupt_blob_is_an_error_and_is_healed_by_putting_it_again(tmp_path: Path, damage: bytes) -> None:
    blobs = BlobStore(tmp_path)
    reference = blobs.put(b"some text")
    _path(tmp_path, reference).write_bytes(damage)
    with pytest.raises(BlobCorrupt, match=r"is corrupt .*: delete the file and put the blob again"):
        blobs.get(reference)
    blobs.put(b"some text")
    assert blobs.get(reference) == b"some text"


def test_many_writers_of_one_blob_leave_one_whole_file(tmp_path: Path) -> None:
    data = b"x" * 300_000
    threads = [threading.Thread(target=BlobStore(tmp_path).put, args=(data,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.read_bytes() for path in files] == [data]


def test_a_store_that_is_a_file_is_unreachable(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("not a directory")
    with pytest.raises(StoreUnreachable, match="cannot be used"):
        BlobStore(place).put(b"x")


def test_blobs_that_are_put_together_are_there_when_the_block_ends(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path)
    corrupt = blobs.put(b"two")
    _path(tmp_path, corrupt).write_bytes(b"xx")
    with blobs.together() as several:
        references = [several.put(data) for data in (b"one", b"two", b"one")]
        assert not blobs.has(references[0])
    assert [blobs.get(reference) for reference in references] == [b"one", b"two", b"one"]


def test_blobs_put_together_are_not_stored_after_an_error(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path)
    with pytest.raises(KeyError), blobs.together() as several:
        reference = several.put(b"one")
        raise KeyError
    assert not blobs.has(reference)


def test_a_blob_that_is_there_is_made_durable_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may have written it without a sync, as `together` does for some milliseconds."""
    store = BlobStore(tmp_path)
    reference = store.put(b"large")
    synced, fsync = list[str](), os.fsync

    def recorded(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    store.put(b"large")
    file = next(tmp_path.rglob(reference.sha256))
    assert synced == [str(file), str(file.parent)]
