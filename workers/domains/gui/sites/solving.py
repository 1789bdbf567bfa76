"""How a task on a site is solved by a program that knows the site: scenes of steps on named elements, which
become one turn's calls.

Elements have an invisible key (`data-k`). The next action follows from the page that is shown alone, so that
it continues after a mistake, after leaving a page, and in an attempt that begins again.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

import msgspec

from orchard.schemas.gui import ExpectedAnswer, Records, SiteSpec


class Element(msgspec.Struct, frozen=True, kw_only=True):
    """An element with a key; sizes are in pixels of the viewport."""

    key: str
    x: float
    """Centre of the element's visible part; `y` likewise. Scrolling containers and the viewport cut it."""
    y: float
    seen: bool
    """Whether a click there would reach it."""
    height: float = 0.0
    value: str = ""
    """The value of a field, list or button; the text of any other element."""
    on: bool = False
    inside: tuple[float, float] | None = None
    """A point of the container that must be scrolled to show it."""
    away: float = 0.0
    """Pixels by which its page or container must scroll down; negative means up. Horizontal scrolling is
    ignored."""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The oracle's input: the page's elements that have keys, and the site's records."""

    page: str
    """The `SitePage.name` of the page that is shown; empty if it is no page of the site."""
    width: float
    height: float
    elements: tuple[Element, ...] = ()
    focus: str = ""
    records: dict[str, Any] = {}
    site: SiteSpec | None = None

    def find(self, key: str) -> Element | None:
        """Returns the element with that key; if there are several, a visible one."""
        found = [each for each in self.elements if each.key == key]
        return next((each for each in found if each.seen), found[0] if found else None)


@dataclass(frozen=True, kw_only=True)
class SolutionStep:
    do: Literal["click", "fill", "pick", "choose", "hover", "drag", "done"]
    """`fill` a field; `pick` a box or a button that stays pressed; `choose` an entry of a list by its
    label."""
    key: str = ""
    value: str = ""
    """The text to fill in, the label to choose, or the answer."""
    to: str = ""
    """Key of the element to drag to."""
    side: int = 0
    """The part of the target to drop on: its middle (0), the upper part (-1), or the lower (1)."""
    enter: bool = False
    unless: Callable[[View], bool] = lambda _: False
    """A further condition under which the step is skipped."""

    def met(self, view: View) -> bool:
        """Whether the step can be skipped."""
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


def click(key: str, unless: Callable[[View], bool] = lambda _: False) -> SolutionStep:
    return SolutionStep(do="click", key=key, unless=unless)


def fill(key: str, value: str, *, enter: bool = False) -> SolutionStep:
    return SolutionStep(do="fill", key=key, value=value, enter=enter)


def pick(key: str) -> SolutionStep:
    return SolutionStep(do="pick", key=key)


def done(answer: str, when: Callable[[View], bool] = lambda _: True) -> SolutionStep:
    """Ends the task with an answer once the condition holds."""
    return SolutionStep(do="done", value=answer, unless=lambda view: not when(view))


def has(key: str) -> Callable[[View], bool]:
    """Returns a condition: the page has a clickable element with that key."""

    def seen(view: View) -> bool:
        element = view.find(key)
        return element is not None and element.seen

    return seen


@dataclass(frozen=True)
class Scene:
    """The steps for pages whose name matches a pattern, in order; a step that is met is skipped."""

    pages: str
    steps: tuple[SolutionStep, ...]


def scene(pages: str, *steps: SolutionStep) -> Scene:
    return Scene(pages, steps)


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A task on a site: its statement, the expected result, and its solution."""

    statement: str
    records: Records
    """The site's records when the task is done."""
    scenes: tuple[Scene, ...]
    answer: ExpectedAnswer | None = None


Maker = Callable[[Any, random.Random], Goal]
"""Makes a goal on a site's initial content. It may change the content, to find the expected records."""


class NoGoal(Exception):
    """The content of this seed has no such task."""


Call = tuple[str, dict[str, Any]]
GETS_IN_THE_WAY = ("consent-accept",)
"""Elements that are clicked before anything else if they are visible."""
_CALLS = 6
_LEAVES = ("click", "drag", "done")
"""Actions that may change the page; they end a turn."""


def turn(scenes: Sequence[Scene], view: View, home: str) -> list[Call]:
    """Returns the calls of the next turn. `home` is the address to open when no step applies."""
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


def _calls(step: SolutionStep, element: Element, target: Element | None, view: View) -> list[Call]:
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
    """Returns the element's centre, each coordinate 0 to 1000."""
    return [normal(element.x, view.width), normal(element.y, view.height)]


def normal(pixels: float, size: float) -> int:
    """Converts pixels to 0 to 1000 of the screen."""
    return round(min(max(pixels / size * 1000, 0), 1000))
