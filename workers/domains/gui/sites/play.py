"""How a task is played by who knows its site: scenes of steps on named elements, and one turn of calls from
them.

An element has a key (`data-k`), which nobody sees. What to do follows from the page that is shown alone, so
that a mistake, a page that was left or an attempt that begins again is gone on from.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

import msgspec

from orchard.schemas.sites import SiteSpec


class Element(msgspec.Struct, frozen=True, kw_only=True):
    """An element with a key, in pixels of the viewport."""

    key: str
    x: float
    """Of its middle, as `y`; where it is cut by its scrolling container or the viewport, of what is left."""
    y: float
    seen: bool
    """Whether a click there would reach it."""
    height: float = 0.0
    value: str = ""
    """Of a field, a list or a button; of anything else its text."""
    on: bool = False
    """Checked, or pressed."""
    inside: tuple[float, float] | None = None
    """A point of the container that must scroll before it is seen."""
    away: float = 0.0
    """Pixels that its page or container must scroll down, negative for up; sideways is not looked at."""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What the oracle sees: the page's elements with keys, and the records."""

    page: str
    """Name of the page: see `Page.name`. Empty where no page of the site is shown."""
    width: float
    height: float
    elements: tuple[Element, ...] = ()
    focus: str = ""
    """Key of the element that has it."""
    records: dict[str, Any] = {}
    site: SiteSpec | None = None
    """Whose page it is."""

    def find(self, key: str) -> Element | None:
        """The element of that key; of several, one that is seen."""
        found = [each for each in self.elements if each.key == key]
        return next((each for each in found if each.seen), found[0] if found else None)


@dataclass(frozen=True, kw_only=True)
class Step:
    """Something to do with an element."""

    do: Literal["click", "fill", "pick", "choose", "hover", "drag", "done"]
    """`fill` a field; `pick` a box or button that stays pressed; `choose` an entry of a list by its label."""
    key: str = ""
    value: str = ""
    """What to fill in, to choose, or to answer."""
    to: str = ""
    """Key to drag to."""
    side: int = 0
    """Where on that: its middle, the upper part (-1), or the lower (1)."""
    enter: bool = False
    """Whether to press Enter after filling in."""
    unless: Callable[[View], bool] = lambda _: False
    """Whether it is not needed, beside what the element itself says."""

    def met(self, view: View) -> bool:
        """Whether there is nothing to do."""
        element = view.find(self.key)
        if self.unless(view):
            return True
        if element is None or self.enter:
            return False
        match self.do:
            case "fill" | "choose":
                return element.value == self.value
            case "pick":
                return element.on
        return False


def click(key: str, unless: Callable[[View], bool] = lambda _: False) -> Step:
    """Click it."""
    return Step(do="click", key=key, unless=unless)


def fill(key: str, value: str, *, enter: bool = False) -> Step:
    """Have this in a field."""
    return Step(do="fill", key=key, value=value, enter=enter)


def pick(key: str) -> Step:
    """Have it checked."""
    return Step(do="pick", key=key)


def done(answer: str, when: Callable[[View], bool] = lambda _: True) -> Step:
    """Say that it is done, once it is."""
    return Step(do="done", value=answer, unless=lambda view: not when(view))


def has(key: str) -> Callable[[View], bool]:
    """Whether the page has an element of that key that can be clicked."""

    def seen(view: View) -> bool:
        element = view.find(key)
        return element is not None and element.seen

    return seen


@dataclass(frozen=True)
class Scene:
    """What to do on the pages whose name matches: the steps in order, each unless it is met."""

    pages: str
    steps: tuple[Step, ...]


def scene(pages: str, *steps: Step) -> Scene:
    """See Scene."""
    return Scene(pages, steps)


Call = tuple[str, dict[str, Any]]
"""Name of a tool, and its arguments."""
GETS_IN_THE_WAY = ("consent-accept",)
"""Elements that are clicked before anything else, where they are seen."""
_CALLS = 6
"""Of one turn."""
_LEAVES = ("click", "drag", "done")
"""What may change the page: the last of a turn."""


def turn(scenes: Sequence[Scene], view: View, home: str) -> list[Call]:
    """The calls of the next turn. `home` is the address to go to where nothing else can be done."""
    for key in GETS_IN_THE_WAY:
        element = view.find(key)
        if element is not None and element.seen:
            return [("click", {"point_2d": point(element, view)})]
    steps = next((each.steps for each in scenes if fnmatchcase(view.page, each.pages)), ())
    calls: list[Call] = []
    for step in steps:
        if step.met(view):
            continue
        if step.do == "done":
            return calls or [("done", {"response": step.value})]
        element = view.find(step.key)
        target = view.find(step.to) if step.to else None
        if element is None or (step.to and target is None):
            break
        hidden = next((each for each in (element, target) if each is not None and not each.seen), None)
        if hidden is not None:
            return calls or [_towards(hidden, view)]
        calls += _calls(step, element, target, view)
        if step.do in _LEAVES or step.enter or len(calls) >= _CALLS:
            break
    return calls or [("goto_url", {"url": home})]


def _calls(step: Step, element: Element, target: Element | None, view: View) -> list[Call]:
    at = {"point_2d": point(element, view)}
    match step.do:
        case "hover":
            return [("hover", at)]
        case "drag":
            assert target is not None
            x, y = target.x, target.y + step.side * target.height * 0.35
            end = [normal(x, view.width), normal(y, view.height)]
            ends = {"start_point_2d": at["point_2d"], "end_point_2d": end}
            return [("drag", {**ends, "steps": 10})]
        case "fill":
            enter: list[Call] = [("press_keys", {"keys": ["Enter"]})] if step.enter else []
            return [("click", at), ("write", {"message": step.value}), *enter]
        case "choose":
            keys = {"keys": [*step.value.lower().partition(" ")[0], "Enter"]}
            return [("click", at), ("press_keys", keys)]
    return [("click", at)]


def _towards(element: Element, view: View) -> Call:
    amount = round(min(max(abs(element.away) / view.height, 0.1), 1.0), 2)
    asked: dict[str, Any] = {"direction": "down" if element.away > 0 else "up", "amount": amount}
    if element.inside is not None:
        x, y = element.inside
        asked["point_2d"] = [normal(x, view.width), normal(y, view.height)]
    return ("scroll", asked)


def point(element: Element, view: View) -> list[int]:
    """Where it is, 0 to 1000 of the screen."""
    return [normal(element.x, view.width), normal(element.y, view.height)]


def normal(pixels: float, size: float) -> int:
    """Pixels as 0 to 1000 of the screen."""
    return round(min(max(pixels / size * 1000, 0), 1000))
