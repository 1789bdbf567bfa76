"""Tasks on the site `ledger`."""

import random
from collections.abc import Callable

from orchard.schemas.gui import ExpectedAnswer
from orchard.workers.domains.gui.sites.ledger import ACTIONS, COLUMNS, FORMATS, STATES, LedgerSite
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
    has,
    pick,
    scene,
)


def largest(ledger: LedgerSite, dice: random.Random) -> Goal:
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


def mark(ledger: LedgerSite, dice: random.Random) -> Goal:
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
                SolutionStep(
                    do="fill", key="q", value=customer, enter=True,
                    unless=lambda view: all(view.find(box) for box in boxes),
                ),
                *(pick(box) for box in boxes),
                SolutionStep(do="hover", key="actions", unless=has(f"set:{state}")),
                click(f"set:{state}"),
            ),
            scene("*", click("table")),
        ),
    )  # fmt: skip


def export(ledger: LedgerSite, dice: random.Random) -> Goal:
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


def contact(ledger: LedgerSite, dice: random.Random) -> Goal:
    """Asks for an invoice's contact, which its page in another tab shows."""
    number = dice.choice(sorted(ledger.rows))
    who = ledger.contacts[number]
    others = tuple(sorted({*ledger.contacts.values()} - {who}))
    return Goal(
        statement=f"Who is the contact of invoice {number}? Its details say so. Answer with the name alone.",
        records=ledger.records(),
        answer=ExpectedAnswer(value=who, others=others),
        scenes=(scene(f"invoice:{number}", done(who)), *_details(number)),
    )


def remind(ledger: LedgerSite, dice: random.Random) -> Goal:
    """Asks for a reminder, whose button is on the invoice's page in another tab."""
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
