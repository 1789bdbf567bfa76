"""Tasks on the site `calendar`."""

import random

from orchard.schemas.gui import ExpectedAnswer
from orchard.workers.domains.gui.sites.calendar import FIRST, LAST, CalendarSite
from orchard.workers.domains.gui.sites.solving import (
    Goal,
    Maker,
    NoGoal,
    Scene,
    SolutionStep,
    click,
    done,
    fill,
    pick,
    scene,
)

_TITLES = ("Kickoff", "Interview", "Quarterly review", "Customer visit", "Book club", "Code review")


def _to_week(room: str, day: int) -> tuple[Scene, ...]:
    """Leads from any page to a room's week, without steps on that page."""
    week = day // 5 + 1
    return (
        scene(f"week:{week}:*", click(f"room:{room}")),
        scene("*", click(f"week:{week}")),
    )


def _booking(room: str, day: int, start: int, hours: int, title: str, people: int) -> tuple[Scene, ...]:
    def booked() -> SolutionStep:
        return done("It is booked.")

    entry = {"room": room, "start": start, "title": title}
    missing = click(
        f"week:{day // 5 + 1}",
        unless=lambda view: any(entry.items() <= each.items() for each in view.records.get("bookings", [])),
    )
    return (
        scene("mine", missing, booked()),
        scene(
            f"book:{room}:{day}:{start}", fill("title", title), pick(f"hours:{hours}"),
            fill("people", str(people)), click("book"),
        ),
        scene(f"week:{day // 5 + 1}:{room}", click(f"slot:{room}:{day}:{start}")),
        *_to_week(room, day),
    )  # fmt: skip


def book(calendar: CalendarSite, dice: random.Random) -> Goal:
    hours = dice.randrange(1, calendar.longest + 1)
    slots = [
        (room, day, start)
        for room in calendar.rooms
        for day in range(len(calendar.days))
        for start in calendar.free(room, day, hours)
    ]
    if not slots:
        raise NoGoal
    room, day, start = dice.choice(slots)
    title, people = dice.choice(_TITLES), dice.randrange(2, calendar.rooms[room] + 1)
    calendar.book(room, day, start, hours, title, people)
    return Goal(
        statement=(
            f"Book the room {room} on {calendar.days[day]} from {start}:00 to {start + hours}:00 for "
            f'{people} people, with the title "{title}".'
        ),
        records=calendar.records(),
        scenes=_booking(room, day, start, hours, title, people),
    )


def earliest(calendar: CalendarSite, dice: random.Random) -> Goal:
    """Asks for the earliest free time of a given length."""
    room, day = dice.choice(sorted(calendar.rooms)), dice.randrange(len(calendar.days))
    hours = calendar.longest
    free = calendar.free(room, day, hours)
    if not free:
        raise NoGoal
    title, people = dice.choice(_TITLES), dice.randrange(2, calendar.rooms[room] + 1)
    calendar.book(room, day, free[0], hours, title, people)
    return Goal(
        statement=(
            f"Book the room {room} on {calendar.days[day]} at the earliest time at which it is free for "
            f'{hours} hours, for {people} people, with the title "{title}".'
        ),
        records=calendar.records(),
        scenes=_booking(room, day, free[0], hours, title, people),
    )


def cancel(calendar: CalendarSite, dice: random.Random) -> Goal:
    index = dice.randrange(len(calendar.mine))
    title = calendar.mine[index]["title"]
    del calendar.mine[index]
    return Goal(
        statement=f'Cancel my booking "{title}".',
        records=calendar.records(),
        scenes=(
            scene(
                "mine",
                click(
                    f"cancel:{title}",
                    unless=lambda view: all(
                        each["title"] != title for each in view.records.get("bookings", [])
                    ),
                ),
                done("It is cancelled."),
            ),
            scene("*", click("mine")),
        ),
    )


def holder(calendar: CalendarSite, dice: random.Random) -> Goal:
    (room, day, hour), who = dice.choice(sorted(calendar.others.items()))
    others = tuple(sorted({*calendar.others.values()} - {who}))
    return Goal(
        statement=(
            f"Who has booked the room {room} on {calendar.days[day]} at {hour}:00? "
            "Answer with the name alone."
        ),
        records=calendar.records(),
        answer=ExpectedAnswer(value=who, others=others),
        scenes=(scene(f"week:{day // 5 + 1}:{room}", done(who)), *_to_week(room, day)),
    )


def free_hours(calendar: CalendarSite, dice: random.Random) -> Goal:
    room, day = dice.choice(sorted(calendar.rooms)), dice.randrange(len(calendar.days))
    count = len(calendar.free(room, day, 1))
    return Goal(
        statement=(
            f"How many hours of {calendar.days[day]} are free in the room {room}, between {FIRST}:00 and "
            f"{LAST}:00? Answer with the number alone."
        ),
        records=calendar.records(),
        answer=ExpectedAnswer(value=str(count), others=(str(count + 1), str(count + 2))),
        scenes=(scene(f"week:{day // 5 + 1}:{room}", done(str(count))), *_to_week(room, day)),
    )


MAKERS: dict[str, Maker] = {
    "book": book,
    "earliest": earliest,
    "cancel": cancel,
    "holder": holder,
    "free_hours": free_hours,
}
