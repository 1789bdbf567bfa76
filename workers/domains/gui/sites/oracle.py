"""The oracle on generated sites: it knows them, and plays tasks by the 13 tools.

It is no model: its fingerprint says so. It makes seeded mistakes, at a stated rate for each turn, so that a
log of it holds successes and failures. It is stateless, and reads no store: the seed of a request says which
attempt it is, that attempt's window which site and page it shows, and the conversation which task and turn.
"""

import json
import random
from collections.abc import Callable, Iterable, Mapping

from orchard.schemas.identity import digest
from orchard.schemas.messages import ToolCall
from orchard.schemas.sites import SiteSpec
from orchard.schemas.tasks import Task
from orchard.workers.domains.gui.sites.catalog import content_of
from orchard.workers.domains.gui.sites.goals import Goal, NoGoal, goal_of, kinds_of
from orchard.workers.domains.gui.sites.mistakes import mistaken
from orchard.workers.domains.gui.sites.play import Call, View, point, turn
from orchard.workers.domains.gui.sites.window import look
from orchard.workers.llm.answers import ORACLE_FINGERPRINT
from orchard.workers.oracle.behaviours import Behaviour
from orchard.workers.oracle.interface import CannotPlay, OracleRequest
from orchard.workers.oracle.replies import Reply, usage
from orchard.workers.oracle.turns import Turn

TOOLS = frozenset({"click", "goto_url", "done"})
"""Tools of a request that is about a browser."""
MISTAKES = 0.08
"""Share of turns with a mistake, unless the model's name says another: `oracle/0.3`."""
PATIENCE = 40
"""Turns after which it gives up."""
PATIENCE_DOWN = 3
"""As PATIENCE, on a site that is down."""
_COARSE = -2
"""In the tiny family points are whole hundreds: the shapes are large, and its policies have few tokens."""


class SitesPlayer:
    """Plays conversations that offer the tools of a browser. The site says what the tasks are."""

    def __init__(self, _tasks: Callable[[], Iterable[Task]], _mix: Mapping[Behaviour, float]) -> None:
        """Takes what every player is given, and needs none of it."""

    async def start(self) -> None:
        """Reads nothing."""

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
    """The task of the site whose statement is in the conversation."""
    goals = []
    for kind in kinds_of(site.name):
        try:
            goals.append(goal_of(site, kind))
        except NoGoal:
            continue
    found = [goal for goal in goals if goal.statement in text]
    return max(found, key=lambda goal: len(goal.statement), default=None)


def play(site: SiteSpec, goal: Goal, view: View, *, seed: int, number: int, mistakes: float) -> Turn:
    """The answer at turn `number` (0 is the first) of a rollout: the same for the same arguments."""
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
    """What is clicked next and where it is, in hundreds, a digit each: a tiny policy first says what it looks
    for, and then where it sees it."""
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
