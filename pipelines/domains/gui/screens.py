"""Drawn drills: screens of shapes, for a tiny model that learns to see, and then to act on what it sees.

From nothing, a tower of a few layers needs many more screens than a browser shows in an hour before it tells
shapes and says where they are. These are drawn in a fraction of a millisecond. They have the shapes of the
tiny family, of several sizes, anywhere on grounds of any light colour: no layout, seed or task of that family
is among them. Some say what is on a screen. The others are whole episodes, in which the family's oracle acts
on drawn screens in the words of the harness. Needs Pillow.
"""

import io
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from orchard.pipelines.datasets.exporters.interface import EXTRAS, MARK
from orchard.pipelines.domains.gui.exporter import SCHEMA, written_call
from orchard.schemas.gui import SiteSpec
from orchard.schemas.messages import RESULT_TAGS
from orchard.workers.domains.gui.browser.actions import clicked, succeeded_here
from orchard.workers.domains.gui.browser.harness import CompactBrowser
from orchard.workers.domains.gui.browser.inputs import pixel
from orchard.workers.domains.gui.browser.observing import CAPTION, CLOSED, framed, tab_line
from orchard.workers.domains.gui.browser.prompts import request
from orchard.workers.domains.gui.sites.goals.tiny import in_order
from orchard.workers.domains.gui.sites.oracle import play
from orchard.workers.domains.gui.sites.solving import Element, View
from orchard.workers.domains.gui.sites.tiny import (
    COLOURS,
    MOST,
    OUTLINES,
    SHAPES,
    SHOWN,
    SIDE,
    SIZE,
    STROKE,
    TICK,
    TICK_COLOUR,
    Place,
    TinySite,
    What,
    scattered,
    shapes_beside,
    some_targets,
)

if TYPE_CHECKING:
    from PIL import Image, ImageDraw

SOURCE = "screen-drills"
ASKED, NAMES, PLACES = "asked", "names", "places"
"""What a drill asks for."""
QUALITY = 70
"""Quality of the JPEGs, that of a browser's screenshots."""
_SMALLEST = SIZE - 12
"""Pixels of a shape; the largest are those of the family."""
_LIGHT = 205
"""Minimum of each part of a ground's colour."""
_TRAY = 500
"""Rows that are written at once."""
_SITE = SiteSpec(name="tiny", seed=0, layout="scatter", theme="light")
"""A site that tells the oracle no more than the family."""
_TAB = tab_line(0, f"http://{TinySite.host}/", TinySite.title, active=True)
_SEEN = framed(SIDE, SIDE, 0, [_TAB])
"""Text beside a picture."""


def screen_drills(seed: int, count: int) -> Iterator[dict[str, Any]]:
    """Rows of the released GUI layout: a picture, then a line for each shape: its name, its middle in tenths.

    Half of them say which shapes and in which order, in the words of the family's tasks. The others ask for
    all in any order, and half of these for the middle before the name.
    """
    for number in range(count):
        dice = random.Random(f"{seed}-screen-{number}")
        size, paper = _look(dice)
        target = dice.choice(list(COLOURS)), dice.choice(SHAPES)
        shapes = _shapes(dice, target, size)
        said, asked = shapes, dice.choice((ASKED, ASKED, NAMES, PLACES))
        if asked == ASKED:
            said = shapes[: dice.randint(1, SHOWN)]
            asked = f"Click the {', then the '.join(' '.join(what) for what, _ in said)}."
        lines = []
        for what, place in said:
            middle = [str(round((at + size / 2) / SIDE * 10)) for at in place]
            lines.append(" ".join([*middle, *what] if asked == PLACES else [*what, *middle]))
        messages = [("user", f"{asked}\n{MARK}"), ("assistant", "\n".join(lines))]
        yield _row(f"screen-{seed}-{number}", messages, drawn(shapes, size, paper))


def screen_episodes(seed: int, count: int) -> Iterator[dict[str, Any]]:
    """Rows of the released GUI layout, one a step, of whole episodes: one, two or three screens, each with a
    shape to click, and the tick after the last.

    Statements, answers and results are made by the code that makes them in a browser.
    """
    for number in range(count):
        dice = random.Random(f"{seed}-episode-{number}")
        size, paper = _look(dice)
        targets = some_targets(dice)[: dice.randint(1, MOST)]
        goal = in_order(targets)
        messages = [("system", CompactBrowser.system)]
        before, after = request(goal.statement, ""), ""
        for step, target in enumerate([*targets, None], 1):
            shapes = [] if target is None else _shapes(dice, target, size)
            elements = tuple(
                Element(key=" ".join(what), x=left + size / 2, y=top + size / 2, seen=True)
                for what, (left, top) in shapes
            )
            page = f"screen:{step}" if shapes else "over"
            view = View(page=page, width=SIDE, height=SIDE, elements=elements)
            turn = play(_SITE, goal, view, seed=seed, number=step - 1, mistakes=0.0)
            [call] = turn.calls
            answer = f"{turn.text}\n{written_call({'name': call.name, 'arguments': call.arguments})}"
            shown = f"{_SEEN.removesuffix(CLOSED)}{CAPTION}{MARK}{CLOSED}"
            picture = drawn(shapes, size, paper) if shapes else _drawn_tick(paper)
            said = [*messages, ("user", before + shown + after), ("assistant", answer)]
            yield _row(f"episode-{seed}-{number}", said, picture, acting=True)
            messages = [*messages, ("user", before + _SEEN + after), ("assistant", answer)]
            if target is not None:
                at = pixel(json.loads(call.arguments)["point_2d"], SIDE, SIDE)
                element = "<circle>" if target[1] == "circle" else "<polygon>"
                before, after = f"{RESULT_TAGS[0]}{succeeded_here(clicked(element, at))}\n", RESULT_TAGS[1]


def _look(dice: random.Random) -> tuple[int, tuple[int, ...]]:
    return dice.randint(_SMALLEST, SIZE), tuple(dice.randint(_LIGHT, 255) for _ in range(3))


def _shapes(dice: random.Random, target: What, size: int) -> list[tuple[What, Place]]:
    """Shapes beside each other on a screen, the target among them, each anywhere on it."""
    return list(zip(shapes_beside(dice, target), scattered(dice, size), strict=True))


def _row(
    task: str, messages: Sequence[tuple[str, str]], picture: bytes, *, acting: bool = False
) -> dict[str, Any]:
    """A row of the layout. With `acting`, each answer is a call, and each further message of the user the
    result of one."""
    own: dict[str, Any] = {"resolved": True}
    if acting:
        own |= {
            "thoughts": [],
            "calls": [[at, 1] for at, (role, _) in enumerate(messages) if role == "assistant"],
            "results": [at for at, (role, _) in enumerate(messages) if role == "user" and at > 1],
            "tools": CompactBrowser.tools,
        }
    metadata = {"task_id": task, "source": SOURCE, "model": SOURCE, EXTRAS: own}
    return {
        "messages": [{"role": role, "content": content} for role, content in messages],
        "images": [{"bytes": picture, "path": None}],
        "reward": 1.0,
        "status": "completed",
        "metadata": json.dumps(metadata),
    }


def write_drills(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write drills as a Parquet file, atomically: `orchard dataset import --format orchard-gui` reads it."""
    temporary = path.with_name(f".{path.name}")
    with pq.ParquetWriter(temporary, SCHEMA) as writer:
        tray: list[dict[str, Any]] = []
        for row in rows:
            tray.append(row)
            if len(tray) == _TRAY:
                writer.write_table(pa.Table.from_pylist(tray, SCHEMA))
                tray.clear()
        if tray:
            writer.write_table(pa.Table.from_pylist(tray, SCHEMA))
    temporary.replace(path)


def drawn(shapes: Sequence[tuple[What, Place]], size: int, paper: tuple[int, ...]) -> bytes:
    """A screen as JPEG, as a browser shows it: shapes of `size` pixels with the left and top of each."""
    image, draw = _blank(paper)
    for (colour, shape), (left, top) in shapes:
        points = [(left + x * size / 100, top + y * size / 100) for x, y in OUTLINES[shape]]
        if len(points) == 2:
            draw.ellipse([*points[0], *points[1]], fill=COLOURS[colour])
        else:
            draw.polygon(points, fill=COLOURS[colour])
    return _jpeg(image)


def _drawn_tick(paper: tuple[int, ...]) -> bytes:
    image, draw = _blank(paper)
    corners = [(x * SIDE / 100, y * SIDE / 100) for x, y in TICK]
    draw.line(corners, fill=TICK_COLOUR, width=round(STROKE * SIDE / 100), joint="curve")
    return _jpeg(image)


def _blank(paper: tuple[int, ...]) -> tuple["Image.Image", "ImageDraw.ImageDraw"]:
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (SIDE, SIDE), paper)
    return image, ImageDraw.Draw(image)


def _jpeg(image: "Image.Image") -> bytes:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=QUALITY)
    return out.getvalue()
