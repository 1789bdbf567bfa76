"""Numbers that a configuration may have, and Kubernetes quantities: `500m` of a core, `2Gi` of memory.

Every number of a configuration has one of these types (a test sees to it), so that what cannot be is refused
where it is read: zero slots, a negative time, NaN, infinity.
"""

import re
from fractions import Fraction
from typing import Annotated, NamedTuple

import msgspec


class Unit(NamedTuple):
    """The unit of a number in a configuration; documents show it, and it has no other effect."""

    name: str


Count = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
"""A number of things, at least one."""
Size = Annotated[int, msgspec.Meta(ge=1, le=2**53), Unit("bytes")]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
"""A TCP port; 0 takes any free one."""
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9), Unit("s")]
"""A time that may be zero."""
Duration = Annotated[float, msgspec.Meta(gt=0, le=1e9), Unit("s")]
"""A time that must pass."""
Weight = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
"""A share or a price."""

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
"""Powers of ten by suffix."""
_QUANTITY = re.compile(
    r"\+?(?P<number>[0-9]+\.?[0-9]*|\.[0-9]+)"
    r"(?:(?P<suffix>[numkMGTPE]|[KMGTPE]i)|[eE](?P<exponent>[+-]?[0-9]{1,2}))?"
)
_LONGEST_TEXT = 64
_LARGEST = 2**63 - 1
"""Largest value, the same as in Kubernetes, where quantities are 64-bit numbers."""


class InvalidQuantity(ValueError):
    """Text that is not a Kubernetes resource quantity."""


def _parse(text: str) -> Fraction:
    match = _QUANTITY.fullmatch(text.strip()) if len(text) <= _LONGEST_TEXT else None
    if match is None:
        raise InvalidQuantity(
            f"{text[:80]!r} is not a resource quantity: write it like '500m', '2', '1e9' or '4Gi'"
        )
    suffix = match["suffix"] or ""
    power = int(match["exponent"] or 0) + _DECIMAL.get(suffix, 0)
    scale = _BINARY.get(suffix, 1) * (Fraction(10**power) if power >= 0 else Fraction(1, 10**-power))
    value = Fraction("0" + match["number"].rstrip(".")) * scale
    if value > _LARGEST:
        raise InvalidQuantity(
            f"{text!r} is over the largest quantity, which is {_LARGEST}: choose a smaller one"
        )
    return value


def parse_bytes(text: str) -> int:
    """Converts a memory quantity to bytes; raises InvalidQuantity when it is none or not positive."""
    value = int(_parse(text))
    if value <= 0:
        raise InvalidQuantity(f"memory must be positive, not {text!r}")
    return value


def parse_cores(text: str) -> float:
    """Converts a CPU quantity to cores; raises InvalidQuantity when it is none or not positive."""
    value = float(_parse(text))
    if value <= 0:
        raise InvalidQuantity(f"cpu must be positive, not {text!r}")
    return value


def format_bytes(value: int) -> str:
    """Formats bytes as the shortest binary quantity that is exactly equal."""
    for suffix in ("Ti", "Gi", "Mi", "Ki"):
        if value % _BINARY[suffix] == 0:
            return f"{value // _BINARY[suffix]}{suffix}"
    return str(value)
