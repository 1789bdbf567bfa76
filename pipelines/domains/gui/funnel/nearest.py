"""Stage five: greedy removal of near duplicates by an exact index. Pure.

Vectors come in blocks, in the order of the pool. One is dropped when its cosine with a kept one is above the
threshold; `like` is the first such. Nothing is estimated: a short vector bounds each cosine from above (the
first coordinates after a rotation, and the length of the rest: Cauchy and Schwarz), and only pairs whose
bound reaches the threshold are multiplied out, those near it in double precision.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

SHORT = 64
"""Coordinates of the vectors that bound."""
_SLACK = 1e-5
"""Margin for rounding errors of short vectors in single precision."""
_ROUNDING = 1e-3
"""Margin for rounding errors of whole vectors, with thousands of coordinates."""
_ACROSS = 16384
"""Kept vectors that a block is compared with at once: 128 MiB for a block of 2,048."""


def unit(vectors: npt.NDArray[np.floating]) -> Floats:
    """Rows of length 1; a row of zeros stays."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    found: Floats = (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    return found


class Greedy:
    """The fold: the vectors kept so far, and the decision on each."""

    def __init__(self, threshold: float, dimensions: int) -> None:
        self._threshold = threshold
        self._rotation = _rotation(dimensions)
        self._kept = np.zeros((0, dimensions), dtype=np.float32)
        self._short = np.zeros((0, min(SHORT, dimensions) + 1), dtype=np.float32)
        self._size = 0
        self._places: list[int] = []
        self.like: list[int] = []
        """For each vector that was seen the index of the kept one that it is like; -1 where it is kept."""
        self.similarity: list[float] = []

    @property
    def seen(self) -> int:
        return len(self.like)

    def step(self, block: Floats) -> None:
        """Decide on the next vectors, rows of length 1."""
        short = self._shortened(block)
        like, similarity = self._against_kept(block, short)
        start = self.seen
        rows = [row for row in range(len(block)) if like[row] < 0]
        left = block[rows].astype(np.float64)
        within = left @ left.T
        fresh: list[int] = []
        for at, row in enumerate(rows):
            above = np.flatnonzero(within[at, fresh] > self._threshold)
            if len(above):
                first = fresh[int(above[0])]
                like[row], similarity[row] = start + rows[first], float(within[at, first])
            else:
                fresh.append(at)
        kept = [rows[at] for at in fresh]
        self._keep(block[kept], short[kept], [start + row for row in kept])
        self.like += like
        self.similarity += similarity

    def restore(self, like: list[int], similarity: list[float], blocks: Iterator[Floats]) -> None:
        """Take over decisions on the vectors of `blocks`, made before."""
        for block in blocks:
            fresh = [row for row in range(len(block)) if like[self.seen + row] < 0]
            self._keep(block[fresh], self._shortened(block[fresh]), [self.seen + row for row in fresh])
            end = self.seen + len(block)
            self.similarity += similarity[self.seen : end]
            self.like += like[self.seen : end]

    def _against_kept(self, block: Floats, short: Floats) -> tuple[list[int], list[float]]:
        like, similarity = [-1] * len(block), [0.0] * len(block)
        open_ = np.arange(len(block))
        for begin in range(0, self._size, _ACROSS):
            end = min(begin + _ACROSS, self._size)
            bounds = short[open_] @ self._short[begin:end].T
            near = open_[bounds.max(axis=1) > self._threshold - _SLACK]
            rounded = block[near] @ self._kept[begin:end].T
            for row in np.flatnonzero(rounded.max(axis=1, initial=-1) > self._threshold - _ROUNDING):
                columns = begin + np.flatnonzero(rounded[row] > self._threshold - _ROUNDING)
                place = int(near[row])
                exact = self._kept[columns].astype(np.float64) @ block[place].astype(np.float64)
                above = np.flatnonzero(exact > self._threshold)
                if len(above):
                    first = int(above[0])
                    like[place] = self._places[int(columns[first])]
                    similarity[place] = float(exact[first])
            open_ = open_[[like[row] < 0 for row in open_]]
            if not len(open_):
                break
        return like, similarity

    def _shortened(self, vectors: Floats) -> Floats:
        """The short vectors in double precision: rounding of a small rest would be rounding of a bound."""
        exact = vectors.astype(np.float64)
        rotated = exact @ self._rotation
        rest = (exact**2).sum(axis=1) - (rotated**2).sum(axis=1)
        return np.column_stack((rotated, np.sqrt(np.maximum(rest, 0)))).astype(np.float32)

    def _keep(self, vectors: Floats, short: Floats, places: list[int]) -> None:
        needed = self._size + len(vectors)
        if needed > len(self._kept):
            room = max(needed, len(self._kept) * 3 // 2)
            self._kept = _grown(self._kept, self._size, room)
            self._short = _grown(self._short, self._size, room)
        self._kept[self._size : needed] = vectors
        self._short[self._size : needed] = short
        self._size = needed
        self._places += places


def _rotation(dimensions: int) -> npt.NDArray[np.float64]:
    """Orthonormal columns, so that short vectors take a part of every coordinate; always the same ones."""
    if dimensions <= SHORT:
        return np.eye(dimensions)
    found: npt.NDArray[np.float64] = np.linalg.qr(
        np.random.default_rng(0).standard_normal((dimensions, SHORT))
    )[0]
    return found


def _grown(old: Floats, size: int, room: int) -> Floats:
    new = np.zeros((room, old.shape[1]), dtype=np.float32)
    new[:size] = old[:size]
    return new
