"""Reads pictures, stores them as blobs, and makes `data:` URLs of them for a model."""

import asyncio
import base64
import re

import msgspec

from orchard.schemas.messages import MEDIA_TYPES, Image
from orchard.storage.blobs import BlobStore

LARGEST = 16384
"""Most pixels of a side; no model reads more."""
_HELD = 8 * 1024 * 1024
"""Bytes of pictures that an attempt keeps in memory: more than a window of screenshots has."""
_DATA_URL = re.compile(r"data:(image/[a-z+.-]+);base64,([A-Za-z0-9+/=\s]*)", re.I)
_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Segments of a JPEG that hold its size."""


class NotAPicture(ValueError):
    """The bytes are no picture of a supported kind; the text says why."""


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """A picture with its bytes; the other fields are those of Image."""

    data: bytes
    media_type: str
    width: int
    height: int
    at: int | None = None
    caption: str = ""


def read_picture(data: bytes, *, at: int | None = None, caption: str = "") -> Picture:
    """Reads type and size from a picture's bytes. Raises NotAPicture."""
    try:
        media_type, width, height = _measured(data)
    except IndexError:
        raise NotAPicture("the picture is cut off") from None
    if not (0 < width <= LARGEST and 0 < height <= LARGEST):
        raise NotAPicture(f"a picture of {width} x {height} pixels: use 1 to {LARGEST} a side")
    return Picture(data=data, media_type=media_type, width=width, height=height, at=at, caption=caption)


def picture_of_url(url: str, *, at: int | None = None) -> Picture | None:
    """Returns the picture in a `data:` URL; None for any other URL, and for bytes that are no picture."""
    found = _DATA_URL.fullmatch(url)
    if found is None:
        return None
    try:
        return read_picture(base64.b64decode(found[2]), at=at)
    except ValueError:  # NotAPicture is one
        return None


def data_url(data: bytes, media_type: str) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


class PictureStore:
    """Stores the pictures of one attempt, each once, and keeps the newest in memory."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._held: dict[str, bytes] = {}

    async def put(self, picture: Picture) -> Image:
        """Stores a picture. Raises StorageError."""
        blob = await asyncio.to_thread(self._blobs.put, picture.data, picture.media_type)
        self._hold(blob.sha256, picture.data)
        return Image(
            blob=blob,
            media_type=picture.media_type,
            width=picture.width,
            height=picture.height,
            at=picture.at,
            caption=picture.caption,
        )

    async def url(self, image: Image) -> str:
        """Returns the `data:` URL of a stored picture. Raises StorageError."""
        data = self._held.get(image.blob.sha256)
        if data is None:
            data = await asyncio.to_thread(self._blobs.get, image.blob)
        self._hold(image.blob.sha256, data)
        return data_url(data, image.media_type)

    def _hold(self, sha256: str, data: bytes) -> None:
        self._held.pop(sha256, None)
        self._held[sha256] = data
        while len(self._held) > 1 and sum(map(len, self._held.values())) > _HELD:
            del self._held[next(iter(self._held))]


def _measured(data: bytes) -> tuple[str, int, int]:
    """Returns media type, width and height. Raises NotAPicture, and IndexError for bytes that are cut off."""
    if data.startswith(b"\x89PNG\r\n\x1a\n") and data[12:16] == b"IHDR":
        return "image/png", _number(data, 16, 4), _number(data, 20, 4)
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif", _little(data, 6, 2), _little(data, 8, 2)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp", *_webp(data)
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg", *_jpeg(data)
    kinds = ", ".join(sorted(MEDIA_TYPES))
    raise NotAPicture(f"the bytes are no picture of a kind that is kept ({kinds})")


def _webp(data: bytes) -> tuple[int, int]:
    match data[12:16]:
        case b"VP8X":
            return 1 + _little(data, 24, 3), 1 + _little(data, 27, 3)
        case b"VP8L":
            bits = _little(data, 21, 4)
            return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        case b"VP8 ":
            return _little(data, 26, 2) & 0x3FFF, _little(data, 28, 2) & 0x3FFF
    raise NotAPicture("the WebP picture has no size")


def _jpeg(data: bytes) -> tuple[int, int]:
    at = 2
    while True:
        if data[at] != 0xFF:
            raise NotAPicture("the JPEG picture is broken")
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
        elif marker in _JPEG_SIZES:
            return _number(data, at + 7, 2), _number(data, at + 5, 2)
        else:
            at += 2 + max(2, _number(data, at + 2, 2))


def _number(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(_exactly(data, at, size), "big")


def _little(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(_exactly(data, at, size), "little")


def _exactly(data: bytes, at: int, size: int) -> bytes:
    if len(data) < at + size:
        raise IndexError
    return data[at : at + size]
