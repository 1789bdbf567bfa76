"""The site `desk`: a help desk with a login, a queue of tickets with filters and pages, and forms."""

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
    paged,
)

PAGE = 7
STATES = ("open", "waiting", "resolved")
PRIORITIES = ("low", "normal", "high")
TOPICS = ("Hardware", "Software", "Network", "Access")
_THINGS = (
    "Printer", "Laptop", "Badge reader", "Mail client", "Spreadsheet", "VPN", "Projector", "Phone",
    "Keyboard",
    "Calendar app", "Wiki", "Backup", "Scanner", "Monitor", "Docking station",
)  # fmt: skip
_TROUBLES = (
    "does not start",
    "is slow",
    "asks for a password",
    "shows an error",
    "is lost",
    "needs an update",
)


class DeskSite:
    screen: tuple[int, int] | None = None

    def __init__(self, seed: int) -> None:
        dice = random.Random(f"desk-{seed}")
        self.title, self.host = vocabulary.house(dice, "Desk")
        agents = vocabulary.people(dice, 5)
        self.agents = agents
        self.user = agents[0].split()[0].lower()
        self.password = f"{dice.choice(vocabulary.TOWNS).lower().replace(' ', '-')}-{dice.randrange(10, 99)}"
        self.links: tuple[Link, ...] = (
            Link("queue", "Queue", "/queue"),
            Link("new", "New ticket", "/new"),
            Link("leave", "Sign out", "/leave"),
        )
        first = dice.randrange(1000, 8000)
        whats = dice.sample([(thing, trouble) for thing in _THINGS for trouble in _TROUBLES], 20)
        asking = vocabulary.people(dice, 12)
        self.tickets: dict[int, dict[str, Any]] = {
            first + at: {
                "subject": f"{thing} {trouble}",
                "by": dice.choice(asking),
                "topic": dice.choice(TOPICS),
                "state": dice.choice(STATES),
                "priority": dice.choice(PRIORITIES),
                "agent": dice.choice((*agents, "nobody")),
                "replies": [],
            }
            for at, (thing, trouble) in enumerate(whats)
        }
        self.signed_in = False

    def records(self) -> Records:
        return {
            "tickets": {
                str(number): {**each, "replies": list(each["replies"])}
                for number, each in self.tickets.items()
            }
        }

    def get(self, path: str, query: Mapping[str, str]) -> SiteResponse:
        parts = path.strip("/").split("/")
        if parts == ["leave"]:
            self.signed_in = False
            return Redirect("/")
        if not self.signed_in:
            return self._page("login", "Sign in", "login", user="", problems_=[])
        match parts:
            case [""]:
                return Redirect("/queue")
            case ["queue"]:
                return self._queue(query)
            case ["ticket", number]:
                return self._ticket(missing_number(number))
            case ["new"]:
                return self._new({}, [])
        raise Missing(path)

    def post(self, path: str, form: Mapping[str, str]) -> SiteResponse:
        parts = path.strip("/").split("/")
        if parts == ["login"]:
            user = clean(form.get("user", ""))
            if (user, form.get("password", "")) != (self.user, self.password):
                return self._page(
                    "login", "Sign in", "login", user=user, problems_=["Name or password is wrong."]
                )
            self.signed_in = True
            return Redirect("/queue")
        if not self.signed_in:
            return Redirect("/")
        match parts:
            case ["ticket", number] if missing_number(number) in self.tickets:
                given = {key: form.get(key, "") for key in ("state", "priority", "agent")}
                self.change(int(number), **given, reply=clean(form.get("reply", "")))
                return Redirect(f"/ticket/{number}")
            case ["new"]:
                fields = {key: clean(form.get(key, "")) for key in ("subject", "by", "topic", "priority")}
                if problems := [f"Please fill in: {key}." for key, value in fields.items() if not value]:
                    return self._new(form, problems)
                if fields["topic"] not in TOPICS or fields["priority"] not in PRIORITIES:
                    raise Missing(path)
                return Redirect(f"/ticket/{self.open(**fields)}")
        raise Missing(path)

    def change(
        self, number: int, *, state: str = "", priority: str = "", agent: str = "", reply: str = ""
    ) -> None:
        """Changes a ticket; an empty or unknown choice leaves the field as it is."""
        ticket = self.tickets[number]
        ticket["state"] = state if state in STATES else ticket["state"]
        ticket["priority"] = priority if priority in PRIORITIES else ticket["priority"]
        ticket["agent"] = agent if agent in (*self.agents, "nobody") else ticket["agent"]
        if reply:
            ticket["replies"].append(reply)

    def open(self, *, subject: str, by: str, topic: str, priority: str) -> int:
        number = max(self.tickets) + 1
        self.tickets[number] = {
            "subject": subject, "by": by, "topic": topic, "state": "open", "priority": priority,
            "agent": "nobody", "replies": [],
        }  # fmt: skip
        return number

    def matching(self, query: Mapping[str, str]) -> list[int]:
        """Lists the numbers of tickets that pass the filters, oldest first."""
        wanted = clean(query.get("q", "")).lower()
        return [
            number
            for number, each in self.tickets.items()
            if all(query.get(key, "") in ("", each[key]) for key in ("state", "priority", "topic"))
            and (wanted in each["subject"].lower() or wanted == str(number))
        ]

    def _queue(self, query: Mapping[str, str]) -> SitePage:
        found = self.matching(query)
        shown, page, pages = paged(found, query.get("page", ""), PAGE)
        chosen = {key: clean(query.get(key, "")) for key in ("q", "state", "priority", "topic")}
        return self._page(
            f"queue:{page}/{pages}", "Queue", "queue", count=len(found), page=page, pages=pages, query=chosen,
            tickets=[(number, self.tickets[number]) for number in shown],
        )  # fmt: skip

    def _ticket(self, number: int) -> SitePage:
        if number not in self.tickets:
            raise Missing(str(number))
        ticket = self.tickets[number]
        return self._page(f"ticket:{number}", f"Ticket {number}", "ticket", number=number, ticket=ticket)

    def _new(self, form: Mapping[str, str], problems: list[str]) -> SitePage:
        return self._page("new", "New ticket", "new", form=form, problems_=problems)

    def _page(self, name: str, title: str, template: str, **data: Any) -> SitePage:
        choices = {
            "states": STATES,
            "priorities": PRIORITIES,
            "topics": TOPICS,
            "agents": (*self.agents, "nobody"),
        }
        return SitePage(name=name, title=title, template=f"desk/{template}.html", data={**choices, **data})
