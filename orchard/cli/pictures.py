"""Names a message's pictures on a terminal, and writes them to files."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from orchard.schemas.messages import Image, MessageNode, placed
from orchard.storage.blobs import BlobStore


def with_pictures(node: MessageNode) -> str:
    """Text of a message with the name of each picture in its place."""
    return "".join(
        each if isinstance(each, str) else f"[{_named(each)}]" for each in placed(node.content, node.images)
    )


def _named(image: Image) -> str:
    size = f"{image.width} x {image.height}, {image.blob.size:,} bytes"
    return f"picture {image.media_type}, {size}, sha256 {image.blob.sha256}"


def write_pictures(blobs: BlobStore, nodes: Iterable[MessageNode], out: Path) -> int:
    """Writes the pictures of messages into a directory as `TURN-NUMBER-SHA256.png` and returns their
    number. Raises BlobMissing, BlobCorrupt, and OSError."""
    out.mkdir(parents=True, exist_ok=True)
    numbers: Counter[int] = Counter()
    for node in nodes:
        for image in node.images:
            numbers[node.turn] += 1
            kind = image.media_type.rpartition("/")[2]
            name = f"{node.turn:04}-{numbers[node.turn]}-{image.blob.sha256[:16]}.{kind}"
            (out / name).write_bytes(blobs.get(image.blob))
    return numbers.total()
