"""Tasks on a table of invoices."""

import random
from collections.abc import Callable

from orchard.schemas.sites import ExpectedAnswer
from orchard.workers.domains.gui.sites.goals.interface import Goal, Maker, NoGoal
from orchard.workers.domains.gui.sites.ledger import ACTIONS, COLUMNS, FORMATS, STATES, Ledger
from orchard.workers.domains.gui.sites.play import Scene, Step, View, click, done, fill, has, pick, scene


def largest(ledger: Ledger, dice: random.Random) -> Goal:
    """Name the largest invoice of a state."""
    state = dice.choice(STATES[:4])
    found = sorted(ledger.matching({"state": state}), key=lambda row: -row["amount"])
    if len(found) < 3:
        raise NoGoal
    right = str(found[0]["number"])
    others = tuple(str(row["number"]) for row in found[1:])
    shown_first = f"row:{right}"

    def sorted_down(view: View) -> bool:
        rows = [each.key for each in view.elements if each.key.startswith("row:")]
        return rows[:1] == [shown_first] and len(rows) <= len(found)

    return Goal(
        statement=(
            f"What is the number of the {state} invoice with the largest amount? "
            "Answer with the number alone."
        ),
        records=ledger.records(),
        answer=ExpectedAnswer(value=right, others=others),
        scenes=(
            scene(
                "table:*",
                click(f"nav:{state}", unless=lambda view: _only(view, {str(row["number"]) for row in found})),
                click("sort:amount", unless=sorted_down),
                done(right),
            ),
            scene("*", click("table")),
        ),
    )


def _only(view: View, numbers: set[str]) -> bool:
    rows = [each.key.partition(":")[2] for each in view.elements if each.key.startswith("row:")]
    return {*rows} <= numbers


def mark(ledger: Ledger, dice: random.Random) -> Goal:
    """Set the state of two invoices of a customer."""
    state, label = dice.choice(sorted(ACTIONS.items()))
    fitting: dict[str, list[int]] = {}
    for row in ledger.rows.values():
        if row["state"] != state:
            fitting.setdefault(row["customer"], []).append(row["number"])
    customer = dice.choice([each for each, numbers in fitting.items() if len(numbers) >= 3])
    numbers = sorted(dice.sample(fitting[customer], 2))
    ledger.set(numbers, state)
    boxes = [f"row:{number}" for number in numbers]

    def reached(view: View) -> bool:
        states = view.records.get("states", {})
        return all(states.get(str(number)) == state for number in numbers)

    return Goal(
        statement=(
            f"Select the invoices {numbers[0]} and {numbers[1]} of {customer} and use the action {label}."
        ),
        records=ledger.records(),
        scenes=(
            scene(
                "table:*",
                done("It is done.", reached),
                click("confirm", unless=lambda view: not has("confirm")(view)),
                Step(
                    do="fill", key="q", value=customer, enter=True,
                    unless=lambda view: all(view.find(box) for box in boxes),
                ),
                *(pick(box) for box in boxes),
                Step(do="hover", key="actions", unless=has(f"set:{state}")),
                click(f"set:{state}"),
            ),
            scene("*", click("table")),
        ),
    )  # fmt: skip


def export(ledger: Ledger, dice: random.Random) -> Goal:
    """Export some columns of the invoices of a state."""
    state, kind = dice.choice(STATES[:4]), dice.choice(FORMATS)
    drawn = dice.sample(sorted(COLUMNS), dice.randrange(2, 4))
    columns = [each for each in COLUMNS if each in drawn]
    ledger.export(kind, state, columns)
    named = ", ".join(COLUMNS[each] for each in columns)

    def made(view: View) -> bool:
        return ledger.exports[0] in view.records.get("exports", [])

    boxes = (
        pick(f"column-{each}:yes")
        if each in columns
        else click(f"column-{each}:yes", unless=_off(f"column-{each}:yes"))
        for each in COLUMNS
    )
    return Goal(
        statement=f"Export the {state} invoices as {kind} with these columns alone: {named}.",
        records=ledger.records(),
        scenes=(
            scene("exports", click("table", unless=made), done("It is exported.")),
            scene(
                "table:*", click("export", unless=has("export-now")), pick(f"format:{kind}"),
                pick(f"state:{state}"), *boxes, click("export-now"),
            ),
            scene("*", click("table")),
        ),
    )  # fmt: skip


def _off(key: str) -> Callable[[View], bool]:
    def off(view: View) -> bool:
        element = view.find(key)
        return element is not None and not element.on

    return off


def contact(ledger: Ledger, dice: random.Random) -> Goal:
    """Say who the contact of an invoice is: on its page, in another tab."""
    number = dice.choice(sorted(ledger.rows))
    who = ledger.contacts[number]
    others = tuple(sorted({*ledger.contacts.values()} - {who}))
    return Goal(
        statement=f"Who is the contact of invoice {number}? Its details say so. Answer with the name alone.",
        records=ledger.records(),
        answer=ExpectedAnswer(value=who, others=others),
        scenes=(scene(f"invoice:{number}", done(who)), *_details(number)),
    )


def remind(ledger: Ledger, dice: random.Random) -> Goal:
    """Send a reminder for an invoice, from its page in another tab."""
    overdue = [row["number"] for row in ledger.matching({"state": "overdue"})]
    if not overdue:
        raise NoGoal
    number = dice.choice(overdue)
    ledger.reminded.append(number)

    def sent(view: View) -> bool:
        return view.records.get("reminded") == [number]

    return Goal(
        statement=f"Send one reminder for invoice {number}; its details have the button.",
        records=ledger.records(),
        scenes=(
            scene(f"invoice:{number}", click("remind", unless=sent), done("It is sent.")),
            *_details(number),
        ),
    )


def _details(number: int) -> tuple[Scene, ...]:
    key = f"details:{number}"
    return (
        scene(
            "table:*",
            click(key, unless=lambda view: view.find(key) is None),
            fill("q", str(number), enter=True),
        ),
        scene("*", click("table")),
    )


MAKERS: dict[str, Maker] = {
    "largest": largest,
    "mark": mark,
    "export": export,
    "contact": contact,
    "remind": remind,
}
