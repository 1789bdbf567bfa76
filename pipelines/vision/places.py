"""Computes the places of pictures in a sequence of tokens, and the three positions of every token.

Pure. A picture is a run of equal tokens, one for each square of merged patches. Models of Qwen's
family count three positions: text has one number for all three; the tokens of a picture share the
first, and have their row and column in the others. What follows a picture continues after the larger
of its sides.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

PICTURE = "\ue0f6"
"""Placeholder for a picture in the text of a message that is going to be tokenized."""


class Grid(NamedTuple):
    frames: int
    rows: int
    columns: int

    def tokens(self, merge: int) -> int:
        """Tokens of the picture, where one stands for `merge` x `merge` patches."""
        return self.frames * (self.rows // merge) * (self.columns // merge)


class Misplaced(ValueError):
    """A sequence's picture tokens are not those of its pictures; the message is one sentence."""


def flat(content: str | Sequence[dict[str, Any]] | None) -> str:
    """A message's content as one text, with PICTURE for each of its pictures and for nothing else.

    `content` is a text, or parts as chat completions have them; parts that are neither text nor a picture
    are left out.
    """
    if content is None or isinstance(content, str):
        return _plain(content or "")
    return "".join(
        PICTURE if part.get("type") == "image_url" else _plain(part.get("text") or "") for part in content
    )


def picture_urls(messages: Iterable[dict[str, Any]]) -> list[str]:
    """The addresses of all pictures of chat messages, in their order. Raises KeyError or TypeError for a part
    that has none."""
    return [
        part["image_url"]["url"]
        for message in messages
        if isinstance(parts := message.get("content"), list)
        for part in parts
        if part.get("type") == "image_url"
    ]


def _plain(text: str) -> str:
    return text.replace(PICTURE, "\ufffd")


def runs(ids: npt.NDArray[np.integer[Any]], token: int, lengths: Sequence[int]) -> list[int]:
    """Index of each picture's first token: `lengths` are the tokens of the pictures, in their order,
    `token` is the token that pictures consist of. Raises Misplaced unless these are exactly the places
    of `token` in `ids`."""
    places = np.flatnonzero(ids == token)
    if len(places) != sum(lengths):
        raise Misplaced(
            f"{len(places)} picture tokens stand where {len(lengths)} pictures have {sum(lengths)}: the "
            "pictures were cut up by other settings, or the sequence was cut off"
        )
    found, at = [], 0
    for length in lengths:
        first = int(places[at])
        if places[at + length - 1] - first != length - 1:
            raise Misplaced("the tokens of a picture do not stand together")
        found.append(first)
        at += length
    return found


def positions(length: int, places: Iterable[tuple[int, Grid]], merge: int) -> npt.NDArray[np.int64]:
    """Positions [3, length] of a sequence with pictures that begin at `places`, in their order."""
    found = np.empty((3, length), np.int64)
    at, position = 0, 0
    for first, grid in places:
        found[:, at:first] = np.arange(position, position + first - at)
        position += first - at
        rows, columns = grid.rows // merge, grid.columns // merge
        shape = (grid.frames, rows, columns)
        at = first + grid.tokens(merge)
        found[:, first:at] = np.indices(shape).reshape(3, -1) + position
        position += max(rows, columns)
    found[:, at:] = np.arange(position, position + length - at)
    return found
