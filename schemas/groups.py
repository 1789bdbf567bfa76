"""Groups of rollouts that are trained on together (learning.md, section 4)."""

from enum import StrEnum


class GroupOutcome(StrEnum):
    """How a group came together."""

    BALANCED = "balanced"
    """Its positive share lies in the interval."""
    RELAXED = "relaxed"
    """The budget was spent; both classes are there."""
    UNBALANCED = "unbalanced"
    """The budget was spent and one class is missing."""
    FIXED = "fixed"
    """All of a prompt's N rollouts, whatever their rewards."""
