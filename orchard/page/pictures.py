"""Serves pictures of messages, and draws the following click on each."""

import json
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from orchard.actions.rollout_turns import ShownPicture
from orchard.workers.episode.pictures import NotAPicture, read_picture

SERVED = frozenset({"image/png", "image/jpeg", "image/webp"})
SCALE = 1000
"""Range of the coordinates that models name, in both directions of the screen."""


def picture_address(picture: ShownPicture) -> str:
    return f"/rollouts/{picture.rollout}/pictures/{picture.sha256}"


def overlay(picture: ShownPicture) -> Markup:
    """Marks the points that the calls name, as SVG over the picture; empty without points."""
    pointed = [points(call["arguments"]) for call in picture.calls]
    marks = [_mark(each, picture.width, picture.height) for each in pointed if each]
    if not marks:
        return Markup("")
    return Markup('<svg class="aim" viewBox="0 0 {} {}" aria-hidden="true">{}</svg>').format(
        picture.width, picture.height, Markup("").join(marks)
    )


def points(arguments: str) -> list[tuple[float, float]]:
    """Points in the arguments of a call, in order: pairs of numbers from 0 to SCALE."""
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return []
    values = found.values() if isinstance(found, dict) else ()
    return [(float(value[0]), float(value[1])) for value in values if _is_point(value)]


def _is_point(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(type(each) in (int, float) and 0 <= each <= SCALE for each in value)
    )


def _mark(found: Sequence[tuple[float, float]], width: int, height: int) -> Markup:
    """Draws a ring at each point, and a line between consecutive ones."""
    at = [(round(x * width / SCALE, 1), round(y * height / SCALE, 1)) for x, y in found]
    size = max(width, height) / 60
    line = " ".join(f"{x},{y}" for x, y in at)
    rings = Markup("").join(
        Markup('<circle cx="{}" cy="{}" r="{:.1f}"/><circle class="dot" cx="{}" cy="{}" r="{:.1f}"/>').format(
            x, y, size, x, y, size / 4
        )
        for x, y in at
    )
    path = Markup('<polyline points="{}"/>').format(line) if len(at) > 1 else Markup("")
    return path + rings


def served_type(data: bytes) -> str | None:
    """Detects the media type from the bytes; None if it is not served."""
    try:
        found = read_picture(data).media_type
    except NotAPicture:
        return None
    return found if found in SERVED else None
