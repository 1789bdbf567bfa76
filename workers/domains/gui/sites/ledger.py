"""The site `ledger`: a table of invoices with sorting, filters, pages, hover menus, dialogs, exports, and
details in other tabs."""

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

PAGE = 12
STATES = ("draft", "sent", "overdue", "paid", "archived")
ACTIONS = {"paid": "Mark as paid", "overdue": "Mark as overdue", "archived": "Archive"}
"""Maps a state to the menu entry that sets it."""
COLUMNS = {"number": "Number", "customer": "Customer", "amount": "Amount", "due": "Due", "state": "State"}
FORMATS = ("csv", "json")
Row = dict[str, Any]


class LedgerSite:
    screen: tuple[int, int] | None = None

    def __init__(self, seed: int) -> None:
        dice = random.Random(f"ledger-{seed}")
        self.title, self.host = vocabulary.house(dice, "Ledger")
        self.links: tuple[Link, ...] = (
            Link("table", "Invoices", "/"),
            *(Link(f"nav:{each}", each.capitalize(), f"/?state={each}") for each in STATES[:4]),
            Link("exports", "Exports", "/exports"),
        )
        customers = [
            f"{house} {dice.choice(('Ltd', 'Works', 'Partners', 'Foods'))}"
            for house in dice.sample(vocabulary.HOUSES, 8)
        ]
        contacts = vocabulary.people(dice, 8)
        first = dice.randrange(2000, 7000)
        amounts = dice.sample(range(50, 9900), 40)
        self.rows: dict[int, Row] = {
            first + at: {
                "number": first + at,
                "customer": dice.choice(customers),
                "amount": amounts[at],
                "due": f"2026-{dice.randrange(1, 13):02d}-{dice.randrange(1, 29):02d}",
                "state": dice.choice(STATES[:4]),
            }
            for at in range(40)
        }
        self.contacts = {
            number: contacts[customers.index(row["customer"])] for number, row in self.rows.items()
        }
        self.reminded: list[int] = []
        self.exports: list[dict[str, Any]] = []

    def records(self) -> Records:
        return {
            "states": {str(number): row["state"] for number, row in self.rows.items()},
            "reminded": list(self.reminded),
            "exports": [dict(each) for each in self.exports],
        }

    def get(self, path: str, query: Mapping[str, str]) -> SiteResponse:
        match path.strip("/").split("/"):
            case [""]:
                return self._table(query)
            case ["invoice", number] if missing_number(number) in self.rows:
                row = self.rows[int(number)]
                return self._page(
                    f"invoice:{number}", f"Invoice {number}", "invoice", row=row,
                    contact=self.contacts[int(number)],
                    reminded=int(number) in self.reminded,
                )  # fmt: skip
            case ["exports"]:
                return self._page("exports", "Exports", "exports", exports=self.exports)
        raise Missing(path)

    def post(self, path: str, form: Mapping[str, str]) -> SiteResponse:
        match path.strip("/").split("/"):
            case ["set"]:
                chosen = [missing_number(each) for each in form.get("rows", "").split(",") if each]
                if not chosen or not {*chosen} <= self.rows.keys() or form.get("state") not in ACTIONS:
                    raise Missing(path)
                self.set(chosen, form["state"])
                return Redirect("/")
            case ["remind", number] if missing_number(number) in self.rows:
                self.reminded.append(int(number))
                return Redirect(f"/invoice/{number}")
            case ["export"]:
                columns = [each for each in COLUMNS if form.get(f"column-{each}") == "yes"]
                state, kind = form.get("state", ""), form.get("format", "")
                if not columns or kind not in FORMATS or state not in ("", *STATES):
                    raise Missing(path)
                self.export(kind, state, columns)
                return Redirect("/exports")
        raise Missing(path)

    def set(self, numbers: list[int], state: str) -> None:
        for number in numbers:
            self.rows[number]["state"] = state

    def export(self, kind: str, state: str, columns: list[str]) -> None:
        """Exports the invoices of a state; an empty state means all."""
        rows = len(self.matching({"state": state}))
        self.exports.append({"format": kind, "state": state, "columns": columns, "rows": rows})

    def matching(self, query: Mapping[str, str]) -> list[Row]:
        wanted, state = clean(query.get("q", "")).lower(), query.get("state", "")
        found = [
            row
            for row in self.rows.values()
            if wanted in f"{row['customer']} {row['number']}".lower() and state in ("", row["state"])
        ]
        column = query.get("sort", "")
        column = column if column in COLUMNS else "number"
        return sorted(found, key=lambda row: (row[column], row["number"]), reverse=query.get("down") == "1")

    def _table(self, query: Mapping[str, str]) -> SitePage:
        found = self.matching(query)
        shown, page, pages = paged(found, query.get("page", ""), PAGE)
        chosen = {key: clean(query.get(key, "")) for key in ("q", "state", "sort", "down")}
        return self._page(
            f"table:{page}/{pages}", "Invoices", "table", rows=shown,
            count=len(found), page=page, pages=pages, query=chosen, columns=COLUMNS, actions=ACTIONS,
            formats=FORMATS, states=STATES,
        )  # fmt: skip

    def _page(self, name: str, title: str, template: str, **data: Any) -> SitePage:
        return SitePage(name=name, title=title, template=f"ledger/{template}.html", data=data)
