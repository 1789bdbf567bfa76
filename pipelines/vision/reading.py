"""Decodes, scales and cuts pictures into patches for a vision-language model. Needs Pillow."""

import io
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from orchard.pipelines.models.directories import first_line, load_processor
from orchard.pipelines.vision.places import Grid

LARGEST_BYTES = 20 * 2**20
LARGEST_PIXELS = 64 * 10**6
"""Maximum pixels of a picture before it is scaled: 8192 x 7812. A small file may unfold to any size."""
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")

Pixels = npt.NDArray[np.float32]


class BadPicture(ValueError):
    """Bytes are not a picture that a model can be shown; the message is one sentence."""


class Seen(NamedTuple):
    """A picture in the form that the model takes."""

    pixels: Pixels
    """[patches, values of a patch]."""
    grid: Grid


class PictureReader:
    """The image processor of a model. Safe to share between threads."""

    def __init__(self, processor: Any) -> None:
        """`processor` is an image processor of `transformers` of Qwen's family."""
        self.processor = processor
        self.merge: int = processor.merge_size

    @classmethod
    def load(cls, name: str | Path) -> "PictureReader":
        """Load the reader of the model in a directory, or of that name on the Hub. Raises ModelError."""
        return cls(load_processor(name))

    def tokens(self, width: int, height: int) -> int:
        """Tokens of a picture of this size, in pixels."""
        patches: int = self.processor.get_number_of_image_patches(height, width)
        return patches // self.merge**2

    def read(self, data: bytes) -> Seen:
        return self._patches(decoded(data))

    def read_black(self, data: bytes) -> Seen:
        """The patches of a black picture of the same size. Raises BadPicture."""
        from PIL import Image

        return self._patches(Image.new("RGB", decoded(data).size))

    def _patches(self, picture: Any) -> Seen:
        try:
            read = self.processor(images=[picture], return_tensors="np")
        except ValueError as error:  # a side of one pixel, for example
            raise BadPicture(f"the picture cannot be shown: {first_line(error)}") from error
        frames, rows, columns = (int(side) for side in read["image_grid_thw"][0])
        return Seen(np.ascontiguousarray(read["pixel_values"], np.float32), Grid(frames, rows, columns))

    def blank(self) -> Seen:
        """The smallest picture there is, of one token: grey."""
        values = 3 * self.processor.temporal_patch_size * self.processor.patch_size**2
        return Seen(np.zeros((self.merge**2, values), np.float32), Grid(1, self.merge, self.merge))


def decoded(data: bytes) -> Any:
    """The Pillow image of a file's bytes, in RGB. Raises BadPicture."""
    from PIL import Image, UnidentifiedImageError

    if len(data) > LARGEST_BYTES:
        raise BadPicture(f"the picture has {len(data):,} bytes: send at most {LARGEST_BYTES:,}")
    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            if image.width * image.height > LARGEST_PIXELS:
                raise BadPicture(
                    f"the picture has {image.width} x {image.height} pixels: send at most {LARGEST_PIXELS:,}"
                )
            return image.convert("RGB")
    except UnidentifiedImageError:
        raise BadPicture(
            f"the bytes are no picture of a known kind: send one of {', '.join(_FORMATS)}"
        ) from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        if isinstance(error, BadPicture):
            raise
        raise BadPicture(f"the picture cannot be decoded: {error}") from error


class Pictures:
    """Pictures by their SHA-256, each read once; the newest are kept, up to a number of bytes."""

    def __init__(
        self, reader: PictureReader, fetch: Callable[[str], bytes], *, keep_bytes: int = 2**30
    ) -> None:
        """`fetch` gives the bytes of a picture."""
        self.reader = reader
        self._fetch = fetch
        self._keep = keep_bytes
        self._held = 0
        self._seen: OrderedDict[str, Seen] = OrderedDict()

    def get(self, sha256: str) -> Seen:
        """A picture by its SHA-256. Raises BadPicture, and what `fetch` raises."""
        if (seen := self._seen.get(sha256)) is not None:
            self._seen.move_to_end(sha256)
            return seen
        seen = self.reader.read(self._fetch(sha256))
        self._seen[sha256] = seen
        self._held += seen.pixels.nbytes
        while self._held > self._keep and len(self._seen) > 1:
            self._held -= self._seen.popitem(last=False)[1].pixels.nbytes
        return seen
