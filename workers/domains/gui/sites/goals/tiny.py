"""Tasks on the site `tiny`: one shape, or two or three in order."""

import random
from collections.abc import Sequence

from orchard.workers.domains.gui.sites.solving import Goal, Maker, NoGoal, click, done, scene
from orchard.workers.domains.gui.sites.tiny import TinySite, What


def _chain(length: int) -> Maker:
    def make(tiny: TinySite, _: random.Random) -> Goal:
        if len(tiny.targets) != length:
            raise NoGoal
        return in_order(tiny.targets)

    return make


def in_order(targets: Sequence[What]) -> Goal:
    """Asks for clicks on these shapes, one on each screen."""
    wanted = [" ".join(each) for each in targets]
    return Goal(
        statement=f"Click the {', then the '.join(wanted)}.",
        records={"clicked": wanted},
        scenes=(
            *(scene(f"screen:{at}", click(each)) for at, each in enumerate(wanted, 1)),
            scene("over", done("Done.")),
        ),
    )


MAKERS: dict[str, Maker] = {"one": _chain(1), "two": _chain(2), "three": _chain(3)}
