"""The table of campaigns: facts of each from the tables, and the filters, order and groups of an address."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate, groupby
from typing import Any
from urllib.parse import urlencode

import duckdb

from orchard.actions.campaign_status import CampaignView, State
from orchard.page.rollouts import BadFilter
from orchard.storage.reader import rows

BINS = 24
"""Points of a sparkline."""
FILTERS = ("name", "state", "model", "harness", "tag")
SORTS = ("newest", "name", "pass_rate", "cost", "tokens")
GROUPS = ("model", "harness", "state", "tags")

_PLANS = "select campaign, submitted_at, harnesses, models from campaigns where size is not null"
_PROGRESS = f"""
with bounds as (
    select campaign, epoch(min(started_at)) as began, epoch(max(time)) as ended from indexed.ended group by 1
)
select campaign, least(floor({BINS} * (epoch(time) - began) / nullif(ended - began, 0)), {BINS - 1})::int
       as bin, count(*) as rollouts
from indexed.ended join bounds using (campaign) where ended > began group by all
"""


@dataclass(frozen=True)
class CampaignFacts:
    """What the tables say of a campaign beside its view."""

    submitted_at: datetime | None = None
    harnesses: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    progress: tuple[int, ...] = ()
    """Outcomes up to the end of each of BINS equal times from the first start to the last outcome."""


def facts_of(tables: duckdb.DuckDBPyConnection) -> dict[str, CampaignFacts]:
    """Facts of every campaign."""
    ended: dict[str, list[int]] = {}
    for row in rows(tables, _PROGRESS):
        ended.setdefault(row["campaign"], [0] * BINS)[max(row["bin"], 0)] += row["rollouts"]
    return {
        (name := row["campaign"]): CampaignFacts(
            row["submitted_at"],
            tuple(row["harnesses"] or ()),
            tuple(row["models"] or ()),
            tuple(accumulate(ended.get(name, ()))),
        )
        for row in rows(tables, _PLANS)
    }


@dataclass(frozen=True)
class CampaignRow:
    view: CampaignView
    facts: CampaignFacts

    @property
    def models(self) -> str:
        return ", ".join(self.facts.models)

    @property
    def harnesses(self) -> str:
        return ", ".join(self.facts.harnesses)

    @property
    def tokens(self) -> int:
        return self.view.ended.tokens + self.view.live.tokens

    @property
    def cost(self) -> float | None:
        """Cost of all its model calls as far as it is known; None for known solutions."""
        return None if self.view.oracle else self.view.cost_usd


_ORDER: Mapping[str, Callable[[CampaignRow], Any]] = {
    "name": lambda row: row.view.name,
    "pass_rate": lambda row: row.view.score.value if row.view.score else -1.0,
    "cost": lambda row: -1.0 if row.cost is None else row.cost,
    "tokens": lambda row: row.tokens,
}
_GROUPED: Mapping[str, Callable[[CampaignRow], str]] = {
    "": lambda _: "",
    "model": lambda row: row.models,
    "harness": lambda row: row.harnesses,
    "state": lambda row: row.view.state,
    "tags": lambda row: ", ".join(row.view.tags),
}


@dataclass(frozen=True)
class CampaignQuery:
    """The view that an address asks for."""

    filters: Mapping[str, str] = field(default_factory=dict)
    sort: str = "newest"
    descending: bool = True
    group: str = ""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "CampaignQuery":
        """Parses the parameters of an address. Raises BadFilter."""
        for name, known in (("sort", SORTS), ("group", GROUPS), ("state", tuple(State))):
            if given.get(name) and given[name] not in known:
                raise BadFilter(f"{name} {given[name][:40]!r} is unknown: choose one of {', '.join(known)}")
        filters = {name: given[name].strip() for name in FILTERS if given.get(name, "").strip()}
        sort = given.get("sort") or "newest"
        return cls(filters, sort, given.get("order", "desc") != "asc", given.get("group", ""))

    def address(self, **changes: str | None) -> str:
        """Address of the view with changed parameters; None removes one."""
        known: dict[str, str | None] = {**self.filters, "group": self.group or None}
        if self.sort != "newest" or not self.descending:
            known |= {"sort": self.sort, "order": "desc" if self.descending else "asc"}
        left = {name: value for name, value in (known | changes).items() if value}
        return "/" + (f"?{urlencode(left)}" if left else "")

    def sorted_by(self, column: str) -> str:
        """Address of the view sorted by a column; the order is reversed if it is sorted by it already."""
        again = column == self.sort and self.descending
        return self.address(sort=column, order="asc" if again else "desc")

    def applied(self, found: Sequence[CampaignRow]) -> list[tuple[str, list[CampaignRow]]]:
        """Rows that match, by group. Those that run come first, unless a column is chosen to sort by."""
        shown = [row for row in found if self._matches(row)]
        if self.sort == "newest":
            shown = shown if self.descending else shown[::-1]
            shown.sort(key=lambda row: row.view.state not in (State.RUNNING, State.STUCK))
        else:
            shown.sort(key=_ORDER[self.sort], reverse=self.descending)
        group = _GROUPED[self.group]
        return [(name, list(some)) for name, some in groupby(sorted(shown, key=group), group)]

    def _matches(self, row: CampaignRow) -> bool:
        wanted = self.filters
        return (
            wanted.get("name", "") in row.view.name
            and wanted.get("state", row.view.state) == row.view.state
            and ("model" not in wanted or wanted["model"] in row.facts.models)
            and ("harness" not in wanted or wanted["harness"] in row.facts.harnesses)
            and ("tag" not in wanted or wanted["tag"] in row.view.tags)
        )


def rows_of(views: Sequence[CampaignView], facts: Mapping[str, CampaignFacts]) -> list[CampaignRow]:
    """Rows of the campaigns, the newest first."""
    found = [CampaignRow(view, facts.get(view.name, CampaignFacts())) for view in views]
    return sorted(found, key=lambda row: str(row.facts.submitted_at or "~"), reverse=True)


def choices(found: Sequence[CampaignRow]) -> dict[str, list[str]]:
    """Values of each filter that is chosen from a list."""
    return {
        "state": sorted({str(row.view.state) for row in found}),
        "model": sorted({model for row in found for model in row.facts.models}),
        "harness": sorted({harness for row in found for harness in row.facts.harnesses}),
        "tag": sorted({tag for row in found for tag in row.view.tags}),
    }
