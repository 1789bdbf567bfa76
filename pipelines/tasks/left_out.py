"""The account of what an import leaves out: a bad item costs itself, and is named with its reason. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

SHOWN = 20
"""Items that a message names."""


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
    """A line for each of the first, and one for the rest."""
    lines = [f"  {each}" for each in left_out[:SHOWN]]
    more = len(left_out) - SHOWN
    return [*lines, f"  and {more} more"] if more > 0 else lines
