"""Mistakes that the oracle makes on purpose, of the kinds that models make."""

import random
from collections.abc import Callable

from orchard.schemas.gui import ExpectedAnswer
from orchard.workers.domains.gui.sites.solving import Call, View, point


def mistaken(calls: list[Call], view: View, answer: ExpectedAnswer | None, dice: random.Random) -> list[Call]:
    """Returns a turn's calls with a fitting mistake; an empty list means an answer that cannot be parsed."""
    if calls[-1][0] == "done":
        return _wrong_end(calls, answer, dice)
    return dice.choice(_SLIPS)(calls, view, dice)


def _wrong_end(calls: list[Call], answer: ExpectedAnswer | None, dice: random.Random) -> list[Call]:
    if answer is not None and answer.others:
        return [("done", {"response": dice.choice(answer.others)})]
    return [("done", {"response": "I could not find it."})] if answer is not None else calls


def _beside(calls: list[Call], _: View, dice: random.Random) -> list[Call]:
    """Moves the pointer beside its target."""
    return [
        (
            name,
            {key: _moved(value, dice) if key.endswith("point_2d") else value for key, value in given.items()},
        )
        for name, given in calls
    ]


def _moved(at: list[int], dice: random.Random) -> list[int]:
    return [min(max(each + dice.choice((-1, 1)) * dice.randrange(30, 120), 0), 1000) for each in at]


def _other(calls: list[Call], view: View, dice: random.Random) -> list[Call]:
    seen = [each for each in view.elements if each.seen]
    return [*calls[:-1], ("click", {"point_2d": point(dice.choice(seen), view)})] if seen else []


def _typo(calls: list[Call], view: View, dice: random.Random) -> list[Call]:
    """Cuts the text short, but continues as if it were whole."""
    if not any(name == "write" for name, _ in calls):
        return _other(calls, view, dice)
    return [
        (name, {"message": str(given["message"])[:-1]}) if name == "write" else (name, given)
        for name, given in calls
    ]


def _early(_: list[Call], __: View, dice: random.Random) -> list[Call]:
    """Ends before the task is done."""
    return [("done", {"response": dice.choice(("It is done.", "I could not do it."))})]


def _outside(_: list[Call], __: View, dice: random.Random) -> list[Call]:
    """Clicks a point in pixels, outside of the coordinate range."""
    return [("click", {"point_2d": [dice.randrange(1001, 1280), dice.randrange(1, 1000)]})]


def _nothing(_: list[Call], __: View, ___: random.Random) -> list[Call]:
    return []


_SLIPS: tuple[Callable[[list[Call], View, random.Random], list[Call]], ...] = (
    _beside,
    _beside,
    _other,
    _other,
    _typo,
    _early,
    _outside,
    _nothing,
)
