"""Assertions that are asked, and how much is done to the functions that hold them."""

import ast
from enum import IntEnum

import msgspec

from orchard.workers.domains.swe.sheets.conditions import Condition


class Treatment(IntEnum):
    """How much is done to a function, and what is left undone where the gold patch would deviate."""

    TOKENS = 0
    """Literals that stand on the side of the answers too are held back."""
    TRIMMED = 1
    """What nothing reads any more is taken out."""
    WHOLE = 2
    """Only the expected sides are taken out."""
    BITS = 3
    """Whole assertions are asked: one bit each."""
    INSIDE = 4
    """Left as it was, and judged in the process of the tested code."""


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """One assertion."""

    number: int
    function: str
    """`test_x` or `Class::test_x`, a helper's or a fixture's too."""
    line: int
    condition: Condition
    pinned: tuple[int, ...] = ()
    """Which of the expected values depend on tested code."""
    called: bool = False
    """Whether one of these is the result of a call, or of a fixture."""
    changing: bool = False
    """Whether one of these is another one on the next day."""
    inputs: tuple[int, ...] = ()
    """Which of the expected values are made of what the question is asked about."""


class RewrittenFile(msgspec.Struct, frozen=True, kw_only=True):
    sheet: ast.Module | str
    """With all expected sides gone, and nothing else; a text for one that is no module."""
    key: str
    sites: dict[int, Site]
