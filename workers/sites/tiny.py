"""Small worlds for tiny policies: shapes to click, in an order. Where they stand is on the screen alone.

A screen of 256 x 256 pixels shows some shapes; the right one leads to the next screen, where all stand
elsewhere. The last screen is a tick, and after a wrong click it is a cross: nothing more happens then.
Address, title and elements are the same throughout, so no text says where to click or how it went.
"""

import math
import random
from collections.abc import Mapping

from orchard.schemas.sites import Records, Site
from orchard.workers.sites.pages import Link, Missing, Page, Redirect, Reply, missing_number

SIDE = 256
"""Pixels of the screen, both ways."""
SIZE = 56
"""Pixels of a shape."""
SHAPES = {
    "circle": '<circle cx="50" cy="50" r="46"/>',
    "square": '<rect x="8" y="8" width="84" height="84"/>',
    "triangle": '<polygon points="50,4 97,94 3,94"/>',
    "star": '<polygon points="50,2 61,37 98,37 68,59 79,95 50,73 21,95 32,59 2,37 39,37"/>',
    "cross": '<polygon points="34,4 66,4 66,34 96,34 96,66 66,66 66,96 34,96 34,66 4,66 4,34 34,34"/>',
}
"""Shape to SVG, in a box of 100 x 100."""
COLOURS = {"red": "#d62728", "blue": "#1f6fd6", "green": "#21963b", "yellow": "#e9b60c", "purple": "#8b3fc0"}
PAPERS = {"light": "#ffffff", "sand": "#f3e8d2", "mist": "#dfe9f2"}
"""Theme to background."""
SHOWN = 3
"""Shapes on a screen."""
MOST = 3
"""Screens of a task."""
Place = tuple[int, int]
"""Left and top of a shape, in pixels."""


class Tiny:
    """See Content."""

    title = "Shapes"
    host = "shapes.test"
    links: tuple[Link, ...] = ()
    screen: tuple[int, int] | None = (SIDE, SIDE)

    def __init__(self, site: Site) -> None:
        self.targets = _targets(random.Random(f"tiny-{site.seed}"))[: 1 + site.seed // 2 % MOST]
        """Colour and shape to click, screen by screen."""
        self.screens = [
            _screen(random.Random(f"tiny-{site.seed}-{at}"), target, site.layout)
            for at, target in enumerate(self.targets)
        ]
        self._paper = PAPERS[site.theme]
        self.clicked: list[str] = []

    def records(self) -> Records:
        """See Content."""
        return {"clicked": list(self.clicked)}

    @property
    def wrong(self) -> bool:
        """Whether something else was clicked."""
        return self.clicked != [" ".join(each) for each in self.targets[: len(self.clicked)]]

    def get(self, path: str, query: Mapping[str, str]) -> Reply:  # noqa: ARG002
        """See Content."""
        if path != "/":
            raise Missing(path)
        at = len(self.clicked)
        over = self.wrong or at >= len(self.targets)
        name = "over" if over else f"screen:{at + 1}"
        shown = [] if over else self.screens[at]
        data = {
            "shapes": [(place, " ".join(what), SHAPES[what[1]], COLOURS[what[0]]) for what, place in shown],
            "over": over, "wrong": self.wrong, "paper": self._paper, "side": SIDE, "size": SIZE,
        }  # fmt: skip
        return Page(name=name, title=self.title, template="tiny.html", data=data)

    def post(self, path: str, form: Mapping[str, str]) -> Reply:
        """See Content."""
        at = len(self.clicked)
        if path != "/" or self.wrong or at >= len(self.targets):
            raise Missing(path)
        place = missing_number(form.get("place", ""))
        if place >= len(self.screens[at]):
            raise Missing(path)
        what, _ = self.screens[at][place]
        self.clicked.append(" ".join(what))
        return Redirect("/")


def _targets(dice: random.Random) -> list[tuple[str, str]]:
    pairs = [(colour, shape) for colour in COLOURS for shape in SHAPES]
    return dice.sample(pairs, MOST)


def _screen(dice: random.Random, target: tuple[str, str], layout: str) -> list[tuple[tuple[str, str], Place]]:
    """The shapes of a screen with their places. One differs from the target in colour, one in shape."""
    colour, shape = target
    others = [
        (dice.choice([each for each in COLOURS if each != colour]), shape),
        (colour, dice.choice([each for each in SHAPES if each != shape])),
    ]
    shapes = [target, *others]
    dice.shuffle(shapes)
    return list(zip(shapes, _places(dice, layout), strict=True))


def _places(dice: random.Random, layout: str) -> list[Place]:
    room = SIDE - SIZE
    match layout:
        case "grid":
            cells = dice.sample([(column, row) for column in range(3) for row in range(3)], SHOWN)
            return [
                (column * 85 + 8 + dice.randrange(20), row * 85 + 8 + dice.randrange(20))
                for column, row in cells
            ]
        case "row":
            top = dice.randrange(room)
            return [(column * 85 + 5 + dice.randrange(22), top) for column in range(SHOWN)]
        case "column":
            left = dice.randrange(room)
            return [(left, row * 85 + 5 + dice.randrange(22)) for row in range(SHOWN)]
        case "ring":
            turn = dice.random() * math.tau
            angles = [turn + math.tau * at / SHOWN for at in range(SHOWN)]
            return [(round(room / 2 + 92 * math.cos(a)), round(room / 2 + 92 * math.sin(a))) for a in angles]
        case "scatter":
            return _scattered(dice, room)
    raise KeyError(layout)


def _scattered(dice: random.Random, room: int) -> list[Place]:
    while True:
        found = [(dice.randrange(room), dice.randrange(room)) for _ in range(SHOWN)]
        pairs = [(a, b) for at, a in enumerate(found) for b in found[:at]]
        if all(max(abs(a[0] - b[0]), abs(a[1] - b[1])) > SIZE + 6 for a, b in pairs):
            return found
