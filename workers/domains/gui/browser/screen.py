"""Points as models name them, and pixels as the browser has them. Pure."""

from dataclasses import dataclass

FULL = 1000.0
"""The last pixel, whatever the size of the screen is."""


class OffScreen(ValueError):
    """A point that is not on the screen; one sentence says why."""


@dataclass(frozen=True)
class Pixel:
    """A place on the screen, in CSS pixels from its top left corner."""

    x: float
    y: float

    def __str__(self) -> str:
        return f"({self.x:.0f}, {self.y:.0f})"


def pixel(point: list[float], width: int, height: int) -> Pixel:
    """The pixel of a point whose coordinates are 0 to 1000 of a screen. Raises OffScreen."""
    x, y = point
    if not (0 <= x <= FULL and 0 <= y <= FULL):
        raise OffScreen(f"the point [{x:g}, {y:g}] is not on the screen: coordinates go from 0 to 1000.")
    return Pixel(min(x / FULL * width, width - 1), min(y / FULL * height, height - 1))
