"""The files of an archive: `<archive>/<campaign>/` has segments and the manifests that name them.

A file has the SHA-256 of its bytes in its name and is never changed. A manifest is written last, so a file
that no manifest names was left by a killed run.
"""

import hashlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec
import pyarrow.fs as pafs

from orchard.schemas.archives import MANIFEST_VERSION, ArchiveManifest, ArchiveSegment
from orchard.schemas.positions import START, Position, stream_of
from orchard.storage.archive.segments import read_segment
from orchard.storage.errors import ArchiveCorrupt, store_errors
from orchard.storage.location import Location
from orchard.streams.reader import Arrived

_MANIFEST = re.compile(r"manifest-(\d{20})-(\d+)-([0-9a-f]{64})\.json")
_LEFT_OVER = timedelta(days=1)
"""Age from which a file without a manifest belongs to no running archiver any more."""


class ArchivePart(NamedTuple):
    """A manifest of a campaign's events in one stream, as described by its file's name."""

    campaign: str
    through: int
    """Sequence up to which the campaign's events of this stream are in this part or in earlier ones."""
    removed: int
    """Number of events that this part lets leave the stream."""
    sha256: str

    @property
    def stream(self) -> int:
        return stream_of(self.through)

    @property
    def name(self) -> str:
        return f"manifest-{self.through:020}-{self.removed}-{self.sha256}.json"


class ArchiveFiles:
    """The files of one archive. Synchronous: async callers use threads."""

    def __init__(self, url: str) -> None:
        self.location = Location.parse(url)

    def parts(self, campaign: str | None = None) -> list[ArchivePart]:
        """List all parts, or those of one campaign, by campaign and position. Reads no files."""
        found = []
        for info in self._listed(campaign):
            directory, _, name = info.path.rpartition("/")
            if match := _MANIFEST.fullmatch(name):
                through, removed, sha256 = match.groups()
                found.append(ArchivePart(directory.rpartition("/")[2], int(through), int(removed), sha256))
        return sorted(found)

    def reached(self) -> dict[str, Position]:
        """The position up to which each campaign's events are in the archive."""
        found: dict[str, Position] = {}
        for part in self.parts():
            found[part.campaign] = found.get(part.campaign, START).with_last(part.through)
        return found

    def manifest(self, part: ArchivePart) -> ArchiveManifest:
        """Read and verify a manifest. Raises ArchiveCorrupt."""
        data = self._read(part.campaign, part.name)
        if hashlib.sha256(data).hexdigest() != part.sha256:
            raise ArchiveCorrupt(
                f"{self._key(part.campaign, part.name)} does not have the SHA-256 that is in its name: "
                "restore the file from a copy"
            )
        try:
            manifest = msgspec.json.decode(data, type=ArchiveManifest)
        except msgspec.DecodeError as error:
            raise ArchiveCorrupt(
                f"{self._key(part.campaign, part.name)} is no manifest that this version reads ({error}): "
                "use a newer Orchard"
            ) from error
        if manifest.version > MANIFEST_VERSION:
            raise ArchiveCorrupt(
                f"{self._key(part.campaign, part.name)} has version {manifest.version}: use a newer Orchard"
            )
        return manifest

    def messages(self, campaign: str, segment: ArchiveSegment, after: int = 0) -> Iterator[list[Arrived]]:
        """Yield the messages of a verified segment at sequences over `after`. Raises ArchiveCorrupt."""
        data = self._read(campaign, segment.path)
        if hashlib.sha256(data).hexdigest() != segment.sha256:
            raise ArchiveCorrupt(
                f"{self._key(campaign, segment.path)} does not have the SHA-256 that its manifest names: "
                "restore the file from a copy"
            )
        return read_segment(data, after)

    def put_segment(self, campaign: str, segment: ArchiveSegment, data: bytes) -> None:
        """Store a segment's file durably."""
        self._write(campaign, segment.path, data)

    def put_manifest(self, manifest: ArchiveManifest) -> ArchivePart:
        """Store a manifest durably: from then on its events are in the archive."""
        data = msgspec.json.format(msgspec.json.encode(manifest)) + b"\n"
        part = ArchivePart(
            manifest.campaign, manifest.through, manifest.removed, hashlib.sha256(data).hexdigest()
        )
        self._write(part.campaign, part.name, data)
        return part

    def sweep(self, campaign: str) -> int:
        """Delete what killed runs left of a campaign more than a day ago; returns the number of files."""
        named = {
            name
            for part in self.parts(campaign)
            for name in (part.name, *(segment.path for segment in self.manifest(part).segments))
        }
        oldest = datetime.now(UTC) - _LEFT_OVER
        left = [
            info.path
            for info in self._listed(campaign)
            if info.path.rpartition("/")[2] not in named and info.mtime < oldest
        ]
        with store_errors(self.location.url):
            for path in left:
                self.location.filesystem.delete_file(path)
        return len(left)

    def _listed(self, campaign: str | None) -> list[pafs.FileInfo]:
        root = self.location.key(campaign) if campaign else self.location.key()
        selector = pafs.FileSelector(root.rstrip("/"), recursive=campaign is None, allow_not_found=True)
        with store_errors(self.location.url):
            return [
                info
                for info in self.location.filesystem.get_file_info(selector)
                if info.type == pafs.FileType.File
            ]

    def _key(self, campaign: str, name: str) -> str:
        return self.location.key(campaign, name)

    def _read(self, campaign: str, name: str) -> bytes:
        with store_errors(self.location.url):
            data = self.location.read(campaign, name)
        if data is None:
            raise ArchiveCorrupt(f"{self._key(campaign, name)} is missing: restore the file from a copy")
        return data

    def _write(self, campaign: str, name: str, data: bytes) -> None:
        with store_errors(self.location.url):
            self.location.write(data, campaign, name)
