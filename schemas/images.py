"""Pictures of messages: a message names blobs and says where they stand in its text, never their bytes."""

from collections.abc import Sequence

import msgspec

from orchard.schemas.blobs import BlobRef

MEDIA_TYPES = frozenset({"image/png", "image/jpeg", "image/webp", "image/gif"})
"""Of pictures that are kept as pictures: those that models read."""


class Image(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A picture of a message, as the model sees it."""

    blob: BlobRef
    """Its bytes, as a browser or a program made them."""
    media_type: str
    """One of MEDIA_TYPES."""
    width: int
    """In pixels."""
    height: int
    """In pixels."""
    at: int | None = None
    """Offset in characters in the message's content where it stands; None: after the text."""
    caption: str = ""
    """Text right before the picture. It is shown with it and left out with it, and is not in the content."""


def placed(content: str, images: Sequence[Image]) -> list[str | Image]:
    """Texts and pictures of a message in their order, without empty texts. Of `images`, those that are shown;
    they stand in the order of their offsets. An offset outside of the text is the nearest inside."""
    parts: list[str | Image] = []
    text, end = "", 0
    for image in images:
        at = len(content) if image.at is None else max(end, min(image.at, len(content)))
        text += content[end:at] + image.caption
        end = at
        if text:
            parts.append(text)
        parts.append(image)
        text = ""
    rest = content[end:]
    return [*parts, rest] if rest else parts
