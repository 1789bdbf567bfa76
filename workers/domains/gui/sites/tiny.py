"""The site `tiny`, for tiny policies: shapes to click in an order. Only the screen shows where they stand.

A screen of 256 x 256 pixels shows some shapes; the right one leads to the next screen, where all have moved.
The last screen is a tick, and after a wrong click it is a cross, on which clicks do nothing. Address, title
and elements are the same throughout, so no text says where to click or how it went.
"""

import math
import random
from collections.abc import Mapping

from orchard.schemas.gui import Records, SiteSpec
from orchard.workers.domains.gui.sites.pages import (
    Link,
    Missing,
    Redirect,
    SitePage,
    SiteResponse,
    missing_number,
)

SIDE = 256
"""The screen's width and height in pixels."""
SIZE = 80
"""A shape's width and height in pixels."""
OUTLINES: dict[str, tuple[tuple[int, int], ...]] = {
    "circle": ((4, 4), (96, 96)),
    "square": ((8, 8), (92, 8), (92, 92), (8, 92)),
    "triangle": ((50, 4), (97, 94), (3, 94)),
    "star": (
        (50, 2), (61, 37), (98, 37), (68, 59), (79, 95), (50, 73), (21, 95), (32, 59), (2, 37), (39, 37),
    ),
    "cross": (
        (34, 4), (66, 4), (66, 34), (96, 34), (96, 66), (66, 66),
        (66, 96), (34, 96), (34, 66), (4, 66), (4, 34), (34, 34),
    ),
}  # fmt: skip
"""Maps a shape to its corners in a box of 100 x 100; a circle has two, those of its bounding box."""
SHAPES = tuple(OUTLINES)
TICK = (15, 55), (40, 80), (85, 22)
"""Corners of the last screen's tick, in a box of 100 x 100."""
TICK_COLOUR = "#22aa22"
STROKE = 14
COLOURS = {"red": "#d62728", "blue": "#1f6fd6", "green": "#21963b", "yellow": "#e9b60c", "purple": "#8b3fc0"}
What = tuple[str, str]
_PAIRS: list[What] = [(colour, shape) for colour in COLOURS for shape in SHAPES]
PAPERS = {"light": "#ffffff", "sand": "#f3e8d2", "mist": "#dfe9f2"}
"""Maps a theme to its background colour."""
SHOWN = 3
MOST = 3
Place = tuple[int, int]
"""Left and top of a shape, in pixels."""


class TinySite:
    title = "Shapes"
    host = "shapes.test"
    links: tuple[Link, ...] = ()
    screen: tuple[int, int] | None = (SIDE, SIDE)

    def __init__(self, site: SiteSpec) -> None:
        self.targets = some_targets(random.Random(f"tiny-{site.seed}"))[: 1 + site.seed // 2 % MOST]
        """The colour and shape to click on each screen."""
        self.screens = [
            _screen(random.Random(f"tiny-{site.seed}-{at}"), target, site.layout)
            for at, target in enumerate(self.targets)
        ]
        self._paper = PAPERS[site.theme]
        self.clicked: list[str] = []

    def records(self) -> Records:
        return {"clicked": list(self.clicked)}

    @property
    def wrong(self) -> bool:
        return self.clicked != [" ".join(each) for each in self.targets[: len(self.clicked)]]

    def get(self, path: str, query: Mapping[str, str]) -> SiteResponse:  # noqa: ARG002
        if path != "/":
            raise Missing(path)
        at = len(self.clicked)
        over = self.wrong or at >= len(self.targets)
        name = "over" if over else f"screen:{at + 1}"
        shown = [] if over else self.screens[at]
        data = {
            "shapes": [(place, " ".join(what), _svg(what[1]), COLOURS[what[0]]) for what, place in shown],
            "over": over, "wrong": self.wrong, "paper": self._paper, "side": SIDE, "size": SIZE,
            "tick": TICK, "tick_colour": TICK_COLOUR, "stroke": STROKE,
        }  # fmt: skip
        return SitePage(name=name, title=self.title, template="tiny.html", data=data)

    def post(self, path: str, form: Mapping[str, str]) -> SiteResponse:
        at = len(self.clicked)
        if path != "/" or self.wrong or at >= len(self.targets):
            raise Missing(path)
        place = missing_number(form.get("place", ""))
        if place >= len(self.screens[at]):
            raise Missing(path)
        what, _ = self.screens[at][place]
        self.clicked.append(" ".join(what))
        return Redirect("/")


def _svg(shape: str) -> str:
    corners = OUTLINES[shape]
    if len(corners) == 2:
        (left, _), (right, _) = corners
        middle = (left + right) // 2
        return f'<circle cx="{middle}" cy="{middle}" r="{right - middle}"/>'
    return f'<polygon points="{" ".join(f"{x},{y}" for x, y in corners)}"/>'


def some_targets(dice: random.Random) -> list[What]:
    """Draws MOST different targets, one for each screen."""
    return dice.sample(_PAIRS, MOST)


def _screen(dice: random.Random, target: What, layout: str) -> list[tuple[What, Place]]:
    return list(zip(shapes_beside(dice, target), _places(dice, layout), strict=True))


def shapes_beside(dice: random.Random, target: What) -> list[What]:
    """Returns the shapes of a screen in random order; no two have equal colour and shape."""
    shapes = [target, *dice.sample([each for each in _PAIRS if each != target], SHOWN - 1)]
    dice.shuffle(shapes)
    return shapes


def _places(dice: random.Random, layout: str) -> list[Place]:
    room, cell = SIDE - SIZE, SIDE // 3
    spare = room - 2 * cell + 1
    match layout:
        case "grid":
            cells = dice.sample([(column, row) for column in range(3) for row in range(3)], SHOWN)
            return [
                (column * cell + dice.randrange(spare), row * cell + dice.randrange(spare))
                for column, row in cells
            ]
        case "row":
            top = dice.randrange(room)
            return [(column * cell + dice.randrange(spare), top) for column in range(SHOWN)]
        case "column":
            left = dice.randrange(room)
            return [(left, row * cell + dice.randrange(spare)) for row in range(SHOWN)]
        case "ring":
            turn = dice.random() * math.tau
            angles = [turn + math.tau * at / SHOWN for at in range(SHOWN)]
            middle = room / 2
            around = [(math.cos(angle), math.sin(angle)) for angle in angles]
            return [(round(middle + middle * x), round(middle + middle * y)) for x, y in around]
        case "scatter":
            return scattered(dice, SIZE)
    raise KeyError(layout)


def scattered(dice: random.Random, size: int) -> list[Place]:
    """Draws positions of SHOWN shapes of `size` pixels anywhere on the screen, without overlap."""
    room = SIDE - size
    while True:
        found = [(dice.randrange(room), dice.randrange(room)) for _ in range(SHOWN)]
        pairs = [(a, b) for at, a in enumerate(found) for b in found[:at]]
        if all(max(abs(a[0] - b[0]), abs(a[1] - b[1])) > size + 2 for a, b in pairs):
            return found
