"""Verifies that a part of the archive matches its manifest and the tables; reads every byte."""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from orchard.schemas.archives import ArchiveManifest, ArchiveSegment
from orchard.storage.archive.files import ArchiveFiles, ArchivePart
from orchard.storage.archive.listing import recorded, relisted
from orchard.storage.archive.segments import ContentDigest, counted_subject, is_fence
from orchard.storage.errors import ArchiveCorrupt


@dataclass
class Verified:
    """What was read, and each problem as a sentence."""

    parts: int = 0
    events: int = 0
    findings: list[str] = field(default_factory=list)


def verify_archive(files: ArchiveFiles, store_url: str, campaigns: Collection[str] = ()) -> Verified:
    """Check every part, or those of some campaigns, and that every part recorded in the log exists."""
    found = Verified()
    parts = [part for part in files.parts() if not campaigns or part.campaign in campaigns]
    missing = set(recorded(store_url)) - {(part.campaign, part.sha256) for part in parts}
    for campaign, sha256 in sorted(missing):
        if not campaigns or campaign in campaigns:
            found.findings.append(
                f"{campaign}: the manifest {sha256} that the log has recorded is not in "
                f"{files.location.url}: restore it from a copy"
            )
    for part in parts:
        found.parts += 1
        events = 0
        try:
            for read in check_part(files, part, store_url):
                events = read
        except ArchiveCorrupt as error:
            found.findings.append(str(error))
        found.events += events
    return found


def check_part(files: ArchiveFiles, part: ArchivePart, store_url: str | None) -> Iterator[int]:
    """Check a part; yields the events read so far. Raises ArchiveCorrupt for the first problem.

    With a store, the part must hold what the store's table `events` lists.
    """
    manifest = files.manifest(part)
    where = f"{files.location.url}/{part.campaign}/{part.name}"
    if (manifest.campaign, manifest.through, manifest.removed) != (part.campaign, part.through, part.removed):
        raise ArchiveCorrupt(f"{where} is in the wrong place: its manifest is of another part")
    found: list[tuple[int, str]] = []
    counts: Counter[str] = Counter()
    size = 0
    for segment in manifest.segments:
        for sequence, subject, length in _read(files, part.campaign, segment):
            found.append((sequence, subject))
            counts[counted_subject(subject)] += 1
            size += length
        yield len(found)
    if problem := _differs(manifest, found, counts, size):
        raise ArchiveCorrupt(f"{where} {problem}: restore its files from a copy")
    if store_url is not None:
        listing = relisted(store_url, part.campaign, manifest.after, manifest.through)
        if difference := listing.differs(found):
            raise ArchiveCorrupt(
                f"{where} is not what the tables of {store_url} have: {difference}; the archive or the store "
                "belongs to another stream, or one of them was changed"
            )


def _read(files: ArchiveFiles, campaign: str, segment: ArchiveSegment) -> Iterator[tuple[int, str, int]]:
    """Yield sequence, subject and payload bytes of a segment's messages, and verify hash and range."""
    content, events, first, last = ContentDigest(), 0, 0, 0
    for messages in files.messages(campaign, segment):
        for message in messages:
            content.take(message)
            events, first, last = events + 1, first or message.sequence, message.sequence
            yield message.sequence, message.subject, len(message.data)
    expected = (segment.content_sha256, segment.events, segment.first_sequence, segment.last_sequence)
    if (content.hexdigest(), events, first, last) != expected:
        raise ArchiveCorrupt(
            f"{files.location.url}/{campaign}/{segment.path} holds other messages than its manifest says: "
            "restore the file from a copy"
        )


def _differs(manifest: ArchiveManifest, found: list[tuple[int, str]], counts: Counter[str], size: int) -> str:
    """Describe what the manifest says wrongly of its messages; empty when all is right."""
    sequences = [sequence for sequence, _ in found]
    if any(later <= earlier for earlier, later in pairwise(sequences)):
        return "names messages that are not in the order of the stream"
    if not sequences or sequences[0] <= manifest.after or sequences[-1] > manifest.through:
        return "names messages outside of its range"
    said = (manifest.first_sequence, manifest.last_sequence, manifest.events, manifest.bytes)
    if said != (sequences[0], sequences[-1], len(found), size) or manifest.subjects != dict(counts):
        return "counts other messages than its segments hold"
    if manifest.removed != sum(not is_fence(subject) for _, subject in found):
        return "counts other fences than its segments hold"
    return ""
