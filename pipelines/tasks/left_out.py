"""The account of what an import leaves out: a bad item costs itself, and is named with its reason. Pure."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

SHOWN = 20
"""Items that a message names."""
_REASONS = 10
"""Reasons that a message counts, where it does not name all items."""


_VALUES = re.compile(r"'[^']*'|\b\d+\b")


class LeftOut(NamedTuple):
    """An item that was not imported."""

    name: str
    """Row, file, directory or task."""
    why: str

    def __str__(self) -> str:
        """One line, which can be printed."""
        said = " ".join(f"{self.name}: {self.why}".split())
        return said.encode(errors="replace").decode()


class NotImported(ValueError):
    """Nothing of a source was imported: no item can be, or the user wants all or none."""

    def __init__(self, source: str, good: int, left_out: Sequence[LeftOut]) -> None:
        whole = f"{len(left_out)} of {len(left_out) + good} items of {source} cannot be imported, and"
        head = f"{whole} nothing was, as --strict wants it" if good else f"{source} has no item to import"
        super().__init__("\n".join([head, *listed(left_out)]))
        self.left_out = left_out


def insist(source: str, good: int, left_out: Sequence[LeftOut], *, strict: bool) -> None:
    """Raise NotImported where nothing can be imported, or `strict` and not all of it."""
    if left_out and (strict or not good):
        raise NotImported(source, good, left_out)


def listed(left_out: Sequence[LeftOut]) -> list[str]:
    """A line for each of the first; if there are more, their number, and how many items the most frequent
    reasons cost."""
    lines = [f"  {each}" for each in left_out[:SHOWN]]
    more = len(left_out) - SHOWN
    if more <= 0:
        return lines
    counts = Counter(_reason(each) for each in left_out).most_common(_REASONS)
    return [*lines, f"  and {more} more; by reason:", *(f"  {count}: {reason}" for reason, count in counts)]


def _reason(item: LeftOut) -> str:
    """What is wrong, and in which column; values in quotes and numbers left out."""
    _, comma, column = item.name.partition(", column ")
    said = _VALUES.sub("...", str(item._replace(name="")).removeprefix(":").strip())
    return f"column {column}: {said}" if comma else said
