"""Translates what models write into what browsers take: coordinates to pixels, and names of keys. Pure."""

from dataclasses import dataclass

FULL = 1000.0
"""The coordinate of the last pixel, for every screen size."""
_NAMED = (
    *("Alt", "Control", "Meta", "Shift", "Enter", "Tab", "Space", "Backspace", "Delete", "Escape"),
    *("ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Home", "End", "PageUp", "PageDown", "Insert"),
    *(f"F{number}" for number in range(1, 13)),
)
_OTHERS = {
    "Ctrl": "Control",
    "Cmd": "Meta",
    "Command": "Meta",
    "Option": "Alt",
    "Return": "Enter",
    "Esc": "Escape",
    "Del": "Delete",
    "Spacebar": "Space",
    "Up": "ArrowUp",
    "Down": "ArrowDown",
    "Left": "ArrowLeft",
    "Right": "ArrowRight",
}
_KEYS = {name.lower(): key for name, key in ({name: name for name in _NAMED} | _OTHERS).items()}


class OffScreen(ValueError):
    """The point is outside of the screen; the text is one sentence that says so."""


@dataclass(frozen=True)
class Pixel:
    """A position in CSS pixels from the screen's top left corner."""

    x: float
    y: float

    def __str__(self) -> str:
        return f"({self.x:.0f}, {self.y:.0f})"


def pixel(point: list[float], width: int, height: int) -> Pixel:
    """Converts a point with coordinates 0 to 1000. Raises OffScreen."""
    x, y = point
    if not (0 <= x <= FULL and 0 <= y <= FULL):
        raise OffScreen(f"the point [{x:g}, {y:g}] is not on the screen: coordinates go from 0 to 1000.")
    return Pixel(min(x / FULL * width, width - 1), min(y / FULL * height, height - 1))


class UnknownKey(ValueError):
    pass


def key(name: str) -> str:
    if (known := _KEYS.get(name.lower())) is not None:
        return known
    if name == " ":
        return "Space"
    if len(name) == 1 and name.isprintable() and name.isascii():
        return name
    raise UnknownKey(f"there is no key {name[:40]!r}.")
