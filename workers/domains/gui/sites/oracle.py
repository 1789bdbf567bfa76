"""The oracle for generated sites: it knows their content and solves tasks with the 13 browser tools.

It is no model, and its fingerprint says so. It makes seeded mistakes at a given rate per turn, so that its
logs hold successes and failures. It is stateless and reads no store: the request's seed identifies the
attempt, the attempt's window shows the site and the page, and the conversation tells the task and the turn.
"""

import json
import random
from collections.abc import Callable, Iterable, Mapping

from orchard.schemas.gui import SiteSpec
from orchard.schemas.identity import digest
from orchard.schemas.messages import ToolCall
from orchard.schemas.tasks import Task
from orchard.workers.domains.gui.sites.catalog import content_of
from orchard.workers.domains.gui.sites.goals import Goal, NoGoal, goal_of, kinds_of
from orchard.workers.domains.gui.sites.mistakes import mistaken
from orchard.workers.domains.gui.sites.solving import Call, View, point, turn
from orchard.workers.domains.gui.sites.window import look
from orchard.workers.llm.answers import ORACLE_FINGERPRINT
from orchard.workers.oracle.behaviours import Behaviour
from orchard.workers.oracle.interface import CannotPlay, OracleRequest
from orchard.workers.oracle.replies import Reply, Turn, usage

TOOLS = frozenset({"click", "goto_url", "done"})
"""A request that offers all these tools is about a browser."""
MISTAKES = 0.08
"""Share of turns with a mistake, unless the model's name gives another: `oracle/0.3`."""
PATIENCE = 40
PATIENCE_DOWN = 3
"""Maximum turns on a site that is down."""
_COARSE = -2
"""Digits for rounding points in the tiny family: to whole hundreds, because its shapes are large and its
policies have few tokens."""


class SitesPlayer:
    """Answers conversations that offer the browser tools; the site determines the task."""

    def __init__(self, _tasks: Callable[[], Iterable[Task]], _mix: Mapping[Behaviour, float]) -> None: ...

    async def start(self) -> None:
        """Does nothing: sites need no index of statements."""

    def plays(self, request: OracleRequest) -> bool:
        return TOOLS.issubset(request.tool_names)

    async def reply(self, request: OracleRequest) -> Reply:
        rate, seed = _rate(request.variant), request.seed or 0
        try:
            view = await look(seed)
        except LookupError as error:
            raise CannotPlay(f"the oracle sees no page: {error}") from error
        goal = view.site and _goal(view.site, request.spoken("user"))
        if not (view.site and goal):
            raise CannotPlay("the site that is shown has no task with a statement of this conversation")
        number = sum(each.get("role") == "assistant" for each in request.messages)
        said = play(view.site, goal, view, seed=seed, number=number, mistakes=rate)
        return Reply(
            id=f"oracle-{digest([view.site, goal.statement, seed, number], 12)}",
            model=request.model,
            fingerprint=f"{ORACLE_FINGERPRINT}/sites",
            turn=said,
            usage=usage(request.messages, request.tools or [], said),
        )


def _rate(asked: str) -> float:
    try:
        return float(asked) if asked else MISTAKES
    except ValueError:
        raise CannotPlay(
            "on sites the model is oracle, or oracle/SHARE with a share of mistakes from 0 to 1"
        ) from None


def _goal(site: SiteSpec, text: str) -> Goal | None:
    """Finds the site's task whose statement is in the conversation."""
    goals = []
    for kind in kinds_of(site.name):
        try:
            goals.append(goal_of(site, kind))
        except NoGoal:
            continue
    found = [goal for goal in goals if goal.statement in text]
    return max(found, key=lambda goal: len(goal.statement), default=None)


def play(site: SiteSpec, goal: Goal, view: View, *, seed: int, number: int, mistakes: float) -> Turn:
    """Returns the answer at turn `number` (from 0) of a rollout; equal arguments give equal answers."""
    dice = random.Random(f"{seed}-{number}-{goal.statement}")
    calls = turn(goal.scenes, view, f"http://{content_of(site).host}/")
    if number >= (PATIENCE_DOWN if view.page == "down" else PATIENCE):
        calls = [("done", {"response": "I could not do it."})]
    if site.name == "tiny":
        thought, calls = _found(calls, view), [_coarsely(each) for each in calls]
    else:
        thought = _thought(calls)
    if dice.random() < mistakes:
        calls = mistaken(calls, view, goal.answer, dice)
    if not calls:
        return Turn(text="<think>I am not sure what to do next.</think>")
    return Turn(text=f"<think>{thought}</think>", calls=tuple(_call(each) for each in calls))


def _call(call: Call) -> ToolCall:
    name, arguments = call
    return ToolCall(id="", name=name, arguments=json.dumps(arguments))


def _found(calls: list[Call], view: View) -> str:
    """Returns what is clicked next and where, as digits of hundreds: a tiny policy first names what it looks
    for, then where it sees it."""
    for _, given in calls:
        for each in view.elements:
            if point(each, view) == given.get("point_2d"):
                return " ".join([each.key, *(str(round(at / 100)) for at in point(each, view))])
    return "Nothing is left."


def _coarsely(call: Call) -> Call:
    name, given = call
    return name, {
        key: [round(at, _COARSE) for at in value] if key == "point_2d" else value
        for key, value in given.items()
    }


def _thought(calls: list[Call]) -> str:
    name, arguments = calls[-1]
    match name:
        case "done":
            return "The task is done: I say so."
        case "scroll":
            return f"What I need is not on the screen: I scroll {arguments['direction']}."
        case "goto_url":
            return "I start again from the first page."
        case "drag":
            return "I drag it to its place."
        case "hover":
            return "I open the menu."
    return "I fill in what is asked, and go on." if len(calls) > 1 else "I click what leads on."
