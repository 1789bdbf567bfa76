"""Drawn drills: screens of shapes, and what is on them, for a tiny model that learns to see.

From nothing, a tower of a few layers needs many more screens than a browser shows in an hour before it tells
shapes and says where they are. These are drawn in a fraction of a millisecond. They have the shapes of the
tiny family, of several sizes, anywhere on grounds of any light colour: no layout, seed or task of that family
is among them. Needs Pillow.
"""

import io
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from orchard.pipelines.datasets.exporters.gui import EXTRAS, SCHEMA
from orchard.pipelines.datasets.exporters.interface import MARK
from orchard.workers.sites.tiny import (
    COLOURS,
    OUTLINES,
    SHAPES,
    SHOWN,
    SIDE,
    SIZE,
    Place,
    What,
    scattered,
    shapes_beside,
)

SOURCE = "screen-drills"
ASKED, NAMES, PLACES = "asked", "names", "places"
"""What a drill asks for."""
QUALITY = 70
"""Of JPEG, as of a browser's screenshots."""
_SMALLEST = SIZE - 12
"""Pixels of a shape; the largest are those of the family."""
_LIGHT = 205
"""Of each part of a ground's colour, at least."""
_TRAY = 500
"""Rows written at once."""


def screen_drills(seed: int, count: int) -> Iterator[dict[str, Any]]:
    """Rows of the released GUI layout: a picture, then a line for each shape: its name, its middle in tenths.

    Half of them say which shapes and in which order, in the words of the family's tasks. The others ask for
    all in any order, and half of these for the middle before the name.
    """
    for number in range(count):
        dice = random.Random(f"{seed}-screen-{number}")
        size = dice.randint(_SMALLEST, SIZE)
        target = dice.choice(list(COLOURS)), dice.choice(SHAPES)
        shapes = list(zip(shapes_beside(dice, target), scattered(dice, size), strict=True))
        paper = tuple(dice.randint(_LIGHT, 255) for _ in range(3))
        said, asked = shapes, dice.choice((ASKED, ASKED, NAMES, PLACES))
        if asked == ASKED:
            said = shapes[: dice.randint(1, SHOWN)]
            asked = f"Click the {', then the '.join(' '.join(what) for what, _ in said)}."
        lines = []
        for what, place in said:
            middle = [str(round((at + size / 2) / SIDE * 10)) for at in place]
            lines.append(" ".join([*middle, *what] if asked == PLACES else [*what, *middle]))
        metadata = {
            "task_id": f"screen-{seed}-{number}",
            "source": SOURCE,
            "model": SOURCE,
            EXTRAS: {"resolved": True},
        }
        yield {
            "messages": [
                {"role": "user", "content": f"{asked}\n{MARK}"},
                {"role": "assistant", "content": "\n".join(lines)},
            ],
            "images": [{"bytes": drawn(shapes, size, paper), "path": None}],
            "reward": 1.0,
            "status": "completed",
            "metadata": json.dumps(metadata),
        }


def write_drills(path: Path, seed: int, count: int) -> None:
    """The drills as a Parquet file, put in place at once: `orchard dataset import --format orchard-gui` reads
    it."""
    temporary = path.with_name(f".{path.name}")
    with pq.ParquetWriter(temporary, SCHEMA) as writer:
        tray: list[dict[str, Any]] = []
        for row in screen_drills(seed, count):
            tray.append(row)
            if len(tray) == _TRAY:
                writer.write_table(pa.Table.from_pylist(tray, SCHEMA))
                tray.clear()
        if tray:
            writer.write_table(pa.Table.from_pylist(tray, SCHEMA))
    temporary.replace(path)


def drawn(shapes: Sequence[tuple[What, Place]], size: int, paper: tuple[int, ...]) -> bytes:
    """A screen as JPEG, as a browser shows it: shapes of `size` pixels with the left and top of each."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (SIDE, SIDE), paper)
    draw = ImageDraw.Draw(image)
    for (colour, shape), (left, top) in shapes:
        points = [(left + x * size / 100, top + y * size / 100) for x, y in OUTLINES[shape]]
        if len(points) == 2:
            draw.ellipse([*points[0], *points[1]], fill=COLOURS[colour])
        else:
            draw.polygon(points, fill=COLOURS[colour])
    out = io.BytesIO()
    image.save(out, "JPEG", quality=QUALITY)
    return out.getvalue()
