"""The site `calendar`: meeting rooms, weeks, bookings, and the rules that bookings must keep."""

import random
from collections.abc import Mapping
from typing import Any

from orchard.schemas.gui import Records
from orchard.workers.domains.gui.sites import vocabulary
from orchard.workers.domains.gui.sites.pages import (
    Link,
    Missing,
    Redirect,
    SitePage,
    SiteResponse,
    clean,
    missing_number,
)

FIRST, LAST = 8, 18
LUNCH = 12
LONGEST = 3
"""A booking's maximum length in hours."""
WEEKS = 2
_ROOMS = ("Aspen", "Basalt", "Coral", "Delta", "Ebony", "Flint", "Granite", "Heron")
_MONTHS = ("March", "April", "May", "June", "September", "October")
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
_TITLES = (
    "Budget review", "Design critique", "Team lunch", "Hiring panel", "Roadmap", "Retrospective",
    "Vendor call",
    "Training", "Board prep", "Sales sync", "Security review", "Workshop", "Onboarding", "Planning", "Demo",
)  # fmt: skip


class CalendarSite:
    screen: tuple[int, int] | None = None

    def __init__(self, seed: int) -> None:
        dice = random.Random(f"calendar-{seed}")
        self.title, self.host = vocabulary.house(dice, "Rooms")
        month, monday = dice.choice(_MONTHS), dice.randrange(1, 9)
        self.days = [
            f"{weekday} {monday + 7 * week + at} {month}"
            for week in range(WEEKS)
            for at, weekday in enumerate(_WEEKDAYS)
        ]
        sizes = sorted(dice.sample((4, 6, 8, 10, 12, 16, 20, 30), 4))
        self.rooms = dict(zip(sorted(dice.sample(_ROOMS, 4)), dice.sample(sizes, 4), strict=True))
        """Maps a room to its seats; all differ."""
        self.longest = dice.choice((2, LONGEST))
        self.links: tuple[Link, ...] = (
            *(Link(f"week:{week}", f"Week {week}", f"/week/{week}") for week in range(1, WEEKS + 1)),
            Link("mine", "My bookings", "/mine"),
            Link("rules", "Rules", "/rules"),
        )
        self.others = self._taken(dice)
        """Maps (room, day, hour) to the other person who booked it."""
        self.mine: list[dict[str, Any]] = []
        titles = dice.sample(_TITLES, 3)
        for title in titles:
            room, day, start = dice.choice(self._free(1))
            self._book(room, day, start, 1, title, 2)

    def records(self) -> Records:
        return {
            "bookings": sorted((dict(each) for each in self.mine), key=lambda each: str(sorted(each.items())))
        }

    def holder(self, room: str, day: int, hour: int) -> str:
        """Returns the text shown for whoever has booked the room, or an empty string."""
        for each in self.mine:
            if (each["room"], each["day"]) == (room, self.days[day]) and each["start"] <= hour < each[
                "start"
            ] + each["hours"]:
                return f"You: {each['title']}"
        return self.others.get((room, day, hour), "")

    def problems(self, room: str, day: int, start: int, hours: int, title: str, people: int) -> list[str]:
        """Lists the rules that a booking would break, a sentence each."""
        found = []
        times = range(start, start + hours)
        if not title:
            found.append("A booking needs a title.")
        if not 1 <= hours <= self.longest:
            found.append(f"A booking takes 1 to {self.longest} hours.")
        if start < FIRST or start + hours > LAST:
            found.append(f"Rooms can be booked from {FIRST}:00 to {LAST}:00.")
        if LUNCH in times:
            found.append(f"Rooms are closed for lunch from {LUNCH}:00 to {LUNCH + 1}:00.")
        if not 1 <= people <= self.rooms[room]:
            found.append(f"{room} has {self.rooms[room]} seats.")
        if any(self.holder(room, day, hour) for hour in times):
            found.append(f"{room} is taken then.")
        return found

    def free(self, room: str, day: int, hours: int) -> list[int]:
        """Lists the hours at which a booking of this length can begin."""
        return [start for start in range(FIRST, LAST) if not self.problems(room, day, start, hours, "x", 1)]

    def book(self, room: str, day: int, start: int, hours: int, title: str, people: int) -> None:
        assert not self.problems(room, day, start, hours, title, people)
        self._book(room, day, start, hours, title, people)

    def get(self, path: str, query: Mapping[str, str]) -> SiteResponse:
        match path.strip("/").split("/"):
            case [""]:
                return Redirect("/week/1")
            case ["week", week] if 1 <= missing_number(week) <= WEEKS:
                return self._week(int(week), query.get("room", ""))
            case ["book", room, day, start] if room in self.rooms and missing_number(day) < len(self.days):
                return self._form(room, int(day), missing_number(start), {}, [])
            case ["mine"]:
                return self._page("mine", "My bookings", "mine", bookings=list(enumerate(self.mine)))
            case ["rules"]:
                return self._page("rules", "Rules", "rules", longest=self.longest)
        raise Missing(path)

    def post(self, path: str, form: Mapping[str, str]) -> SiteResponse:
        match path.strip("/").split("/"):
            case ["book", room, day, start] if room in self.rooms and missing_number(day) < len(self.days):
                title, at = clean(form.get("title", "")), missing_number(start)
                hours, people = _number(form.get("hours", "")), _number(form.get("people", ""))
                if problems := self.problems(room, int(day), at, hours, title, people):
                    return self._form(room, int(day), at, form, problems)
                self._book(room, int(day), at, hours, title, people)
                return Redirect("/mine")
            case ["cancel", index] if missing_number(index) < len(self.mine):
                del self.mine[int(index)]
                return Redirect("/mine")
        raise Missing(path)

    def _book(self, room: str, day: int, start: int, hours: int, title: str, people: int) -> None:
        self.mine.append(
            {
                "room": room,
                "day": self.days[day],
                "start": start,
                "hours": hours,
                "title": title,
                "people": people,
            }
        )

    def _taken(self, dice: random.Random) -> dict[tuple[str, int, int], str]:
        names = vocabulary.people(dice, 8)
        return {
            (room, day, hour): dice.choice(names)
            for room in self.rooms
            for day in range(len(self.days))
            for hour in range(FIRST, LAST)
            if hour != LUNCH and dice.random() < 0.4
        }

    def _free(self, hours: int) -> list[tuple[str, int, int]]:
        return [
            (room, day, start)
            for room in self.rooms
            for day in range(len(self.days))
            for start in self.free(room, day, hours)
        ]

    def _week(self, week: int, room: str) -> SitePage:
        chosen = room if room in self.rooms else next(iter(self.rooms))
        days = list(enumerate(self.days))[5 * (week - 1) : 5 * week]
        hours = [
            (hour, [(day, "closed" if hour == LUNCH else self.holder(chosen, day, hour)) for day, _ in days])
            for hour in range(FIRST, LAST)
        ]
        return self._page(
            f"week:{week}:{chosen}", f"Week {week}", "week", week=week, room=chosen, days=days, hours=hours
        )

    def _form(
        self, room: str, day: int, start: int, form: Mapping[str, str], problems: list[str]
    ) -> SitePage:
        return self._page(
            f"book:{room}:{day}:{start}", "Book a room", "book", room=room, day=day, label=self.days[day],
            start=start, form=form, problems_=problems, longest=LONGEST,
        )  # fmt: skip

    def _page(self, name: str, title: str, template: str, **data: Any) -> SitePage:
        return SitePage(
            name=name, title=title, template=f"calendar/{template}.html", data={"rooms": self.rooms, **data}
        )


def _number(text: str) -> int:
    """Parses up to three digits; 0 for anything else."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 4 else 0
