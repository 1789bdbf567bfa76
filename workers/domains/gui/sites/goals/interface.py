"""What a task on a site is, before it is a Task."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from orchard.schemas.sites import ExpectedAnswer, Records
from orchard.workers.domains.gui.sites.play import Scene


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What is to be done on a site, how it is judged, and how it is played."""

    statement: str
    records: Records
    """Of the site, when it is done."""
    scenes: tuple[Scene, ...]
    answer: ExpectedAnswer | None = None


Maker = Callable[[Any, random.Random], Goal]
"""Makes a goal on a site's content as it is at its beginning. It may change the content: that is how it
finds the records of the end."""


class NoGoal(Exception):
    """This seed's content has no such task."""
