"""Tasks on the site `desk`. Each begins at the login."""

import random
from typing import Any

from orchard.schemas.gui import ExpectedAnswer
from orchard.workers.domains.gui.sites import vocabulary
from orchard.workers.domains.gui.sites.desk import PRIORITIES, TOPICS, DeskSite
from orchard.workers.domains.gui.sites.solving import (
    Goal,
    Maker,
    NoGoal,
    Scene,
    SolutionStep,
    View,
    click,
    done,
    fill,
    pick,
    scene,
)

_REPLIES = (
    "We have replaced the part.", "Please restart it and try again.", "The new version is installed.",
    "Your account was unlocked.", "A technician comes tomorrow.",
)  # fmt: skip


def _sign_in(desk: DeskSite) -> str:
    return f'Sign in as "{desk.user}" with the password "{desk.password}".'


def _login(desk: DeskSite) -> Scene:
    return scene("login", fill("user", desk.user), fill("password", desk.password), click("enter"))


def _ticket(desk: DeskSite, number: int, *steps: SolutionStep) -> tuple[Scene, ...]:
    """Leads from any page to a ticket, with the steps there."""
    return (
        _login(desk),
        scene(f"ticket:{number}", *steps),
        scene("queue:*", click(f"ticket:{number}", unless=lambda view: view.find(f"ticket:{number}") is None),
              fill("q", str(number), enter=True)),
        scene("*", click("queue")),
    )  # fmt: skip


def _is(number: int, changes: dict[str, Any]) -> Any:
    def changed(view: View) -> bool:
        found = view.records.get("tickets", {}).get(str(number), {})
        return all(found.get(key) == value for key, value in changes.items())

    return changed


def close(desk: DeskSite, dice: random.Random) -> Goal:
    number = dice.choice([number for number, each in desk.tickets.items() if each["state"] != "resolved"])
    reply, by, subject = dice.choice(_REPLIES), desk.tickets[number]["by"], desk.tickets[number]["subject"]
    desk.change(number, state="resolved", reply=reply)
    after = {"state": "resolved", "replies": [reply]}
    return Goal(
        statement=(
            f'{_sign_in(desk)} Reply "{reply}" to the ticket "{subject}" of {by} and set it to resolved.'
        ),
        records=desk.records(),
        scenes=_ticket(
            desk, number, done("It is resolved.", _is(number, after)),
            pick("state:resolved"), fill("reply", reply), click("save"),
        ),
    )  # fmt: skip


def assign(desk: DeskSite, dice: random.Random) -> Goal:
    number = dice.choice(sorted(desk.tickets))
    ticket = desk.tickets[number]
    agent = dice.choice([each for each in desk.agents if each != ticket["agent"]])
    priority = dice.choice([each for each in PRIORITIES if each != ticket["priority"]])
    desk.change(number, agent=agent, priority=priority)
    after = {"agent": agent, "priority": priority}
    return Goal(
        statement=f"{_sign_in(desk)} Assign ticket {number} to {agent} and set its priority to {priority}.",
        records=desk.records(),
        scenes=_ticket(
            desk, number, done("It is assigned.", _is(number, after)),
            pick(f"priority:{priority}"), SolutionStep(do="choose", key="agent", value=agent), click("save"),
        ),
    )  # fmt: skip


def report(desk: DeskSite, dice: random.Random) -> Goal:
    subject, by = f"Room {dice.randrange(100, 400)}: no network", vocabulary.person(dice)
    topic, priority = dice.choice(TOPICS), dice.choice(PRIORITIES)
    number = desk.open(subject=subject, by=by, topic=topic, priority=priority)
    return Goal(
        statement=(
            f'{_sign_in(desk)} Open a ticket with the subject "{subject}", reported by {by}, topic {topic}, '
            f"priority {priority}."
        ),
        records=desk.records(),
        scenes=(
            _login(desk),
            scene(f"ticket:{number}", done(f"It is ticket {number}.")),
            scene(
                "new", fill("subject", subject), fill("by", by), pick(f"topic:{topic}"),
                pick(f"priority:{priority}"), click("open"),
            ),
            scene("*", click("new")),
        ),
    )  # fmt: skip


def count(desk: DeskSite, dice: random.Random) -> Goal:
    state, priority = dice.choice(("open", "waiting")), dice.choice(PRIORITIES)
    right = len(desk.matching({"state": state, "priority": priority}))
    return Goal(
        statement=(
            f"{_sign_in(desk)} How many tickets are in the state {state} with the priority {priority}? "
            "Answer with the number alone."
        ),
        records=desk.records(),
        answer=ExpectedAnswer(value=str(right), others=(str(right + 1), str(right + 2))),
        scenes=_filtered(desk, state, priority, done(str(right))),
    )


def oldest(desk: DeskSite, dice: random.Random) -> Goal:
    state, priority = dice.choice(("open", "waiting")), dice.choice(PRIORITIES)
    found = desk.matching({"state": state, "priority": priority})
    if len(found) < 2:
        raise NoGoal
    return Goal(
        statement=(
            f"{_sign_in(desk)} What is the number of the oldest ticket in the state {state} with the "
            f"priority {priority}? Answer with the number alone."
        ),
        records=desk.records(),
        answer=ExpectedAnswer(value=str(found[0]), others=tuple(map(str, found[1:]))),
        scenes=_filtered(desk, state, priority, done(str(found[0]))),
    )


def _filtered(desk: DeskSite, state: str, priority: str, last: SolutionStep) -> tuple[Scene, ...]:
    shown = desk.matching({"state": state, "priority": priority})

    def applied(view: View) -> bool:
        tickets = [each.key for each in view.elements if each.key.startswith("ticket:")]
        return tickets == [f"ticket:{number}" for number in shown[: len(tickets)]] and (
            view.find(f"count:{len(shown)}") is not None
        )

    return (
        _login(desk),
        scene(
            "queue:*", pick(f"state:{state}"), pick(f"priority:{priority}"), click("apply", unless=applied),
            last,
        ),
        scene("*", click("queue")),
    )  # fmt: skip


MAKERS: dict[str, Maker] = {
    "close": close,
    "assign": assign,
    "report": report,
    "count": count,
    "oldest": oldest,
}
