"""How well a reward is protected from code that forges it."""

from enum import StrEnum


class Protected(StrEnum):
    """What a submission that repairs nothing would have to know to get a +1, strongest first."""

    VALUE = "value"
    """A value that stands neither in the files of the tests, nor in their inputs, nor in their data."""
    ECHO = "echo"
    """Which parts of the inputs make up the answer: all of them are there."""
    BIT = "bit"
    """One bit, for example whether something is true: a guess is right half of the time."""
    INSIDE = "inside"
    """How its own process or sandbox is judged, since the verdict is reached there."""
    FORGEABLE = "forgeable"
    """Nothing: a forger that does not know the task got a +1 when the task was validated."""


UNLABELLED = Protected.INSIDE
"""What a missing label counts as: of a task that was not validated, or a reward that was given, before there
were labels."""

_STRENGTH = {label: strength for strength, label in enumerate(reversed(Protected))}


def is_at_least(label: Protected | None, minimum: Protected) -> bool:
    return _STRENGTH[label or UNLABELLED] >= _STRENGTH[minimum]
