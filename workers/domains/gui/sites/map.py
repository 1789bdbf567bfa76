"""The site `map`: a route planner with places, pins that are dragged onto them, modes of travel, and a tour
whose stops can be reordered."""

import math
import random
from collections.abc import Mapping
from typing import Any

from orchard.schemas.gui import Records
from orchard.workers.domains.gui.sites import vocabulary
from orchard.workers.domains.gui.sites.pages import Link, Missing, Redirect, SitePage, SiteResponse

WIDTH, HEIGHT = 620, 470
NEAR = 34
"""A pin lands on a place within this many pixels."""
MODES = {"walk": 12, "bike": 4, "bus": 2}
"""Maps a mode of travel to its minutes for each 100 pixels."""
WAIT = {"walk": 0, "bike": 0, "bus": 6}
"""Maps a mode of travel to the minutes before it starts."""
_KINDS = ("Station", "Museum", "Market", "Park", "Library", "Harbour", "Castle", "School", "Mill", "Theatre")


class MapSite:
    screen: tuple[int, int] | None = None

    def __init__(self, seed: int) -> None:
        dice = random.Random(f"map-{seed}")
        self.title, self.host = vocabulary.house(dice, "Maps")
        self.links: tuple[Link, ...] = (
            Link("plan", "Plan a route", "/"),
            Link("tour", "My tour", "/tour"),
            Link("saved", "Saved routes", "/saved"),
        )
        towns = dice.sample(vocabulary.HOUSES, 9)
        names = [f"{town} {kind}" for town, kind in zip(towns, dice.sample(_KINDS, 9), strict=True)]
        cells = dice.sample([(column, row) for column in range(4) for row in range(4)], 9)
        self.places = {
            name: (column * 145 + dice.randrange(60, 110), row * 108 + dice.randrange(40, 85))
            for name, (column, row) in zip(names, cells, strict=True)
        }
        """Maps a place to its pixel coordinates on the map."""
        self.river = [
            (0, dice.randrange(100, 380)),
            (WIDTH // 2, dice.randrange(60, 420)),
            (WIDTH, dice.randrange(100, 380)),
        ]
        self.tour = dice.sample(names, 5)
        self.saved: list[dict[str, Any]] = []

    def records(self) -> Records:
        return {"saved": [dict(each) for each in self.saved], "tour": list(self.tour)}

    def minutes(self, start: str, end: str, mode: str) -> int:
        return WAIT[mode] + round(math.dist(self.places[start], self.places[end]) / 100 * MODES[mode])

    def get(self, path: str, query: Mapping[str, str]) -> SiteResponse:
        match path.strip("/"):
            case "":
                return self._plan(query)
            case "tour":
                return self._page("tour", "My tour", "tour", tour=self.tour)
            case "saved":
                return self._page("saved", "Saved routes", "saved", saved=self.saved)
        raise Missing(path)

    def post(self, path: str, form: Mapping[str, str]) -> SiteResponse:
        match path.strip("/"):
            case "save":
                start, end, mode = form.get("start", ""), form.get("end", ""), form.get("mode", "")
                if start == end or not {start, end} <= self.places.keys() or mode not in MODES:
                    raise Missing(path)
                self.saved.append({"start": start, "end": end, "mode": mode})
                return Redirect("/saved")
            case "tour":
                order = form.get("order", "").split("|")
                if sorted(order) != sorted(self.tour):
                    raise Missing(path)
                self.tour = order
                return Redirect("/tour")
        raise Missing(path)

    def _plan(self, query: Mapping[str, str]) -> SitePage:
        start, end = (query.get(key, "") if query.get(key) in self.places else "" for key in ("start", "end"))
        mode = query.get("mode", "")
        found = self.minutes(start, end, mode) if start and end and start != end and mode in MODES else None
        name = f"route:{start}:{end}:{mode}" if found is not None else "plan"
        return self._page(
            name, "Plan a route", "plan", places=self.places, start=start, end=end, mode=mode, found=found,
            river=self.river, width=WIDTH, height=HEIGHT, near=NEAR, modes=tuple(MODES),
        )  # fmt: skip

    def _page(self, name: str, title: str, template: str, **data: Any) -> SitePage:
        return SitePage(name=name, title=title, template=f"map/{template}.html", data=data)
