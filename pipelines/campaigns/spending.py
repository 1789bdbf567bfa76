"""Pauses campaigns whose model calls have cost as much as they may, or an unknown amount."""

import asyncio
import logging

import duckdb
import msgspec

from orchard.schemas.campaigns import CampaignRecord, CampaignState
from orchard.schemas.events import CampaignStateChanged, payload
from orchard.schemas.subjects import event_subject
from orchard.storage.errors import StorageError
from orchard.storage.spending import Spent, dollars, spent_in_tables, with_later
from orchard.streams import names
from orchard.streams.campaigns import CampaignBook, CampaignEntry, state_changed
from orchard.streams.connection import Connection
from orchard.streams.errors import CampaignConflict
from orchard.streams.publisher import Publisher
from orchard.streams.reading import last_message

log = logging.getLogger("orchard.spending")

LOOK_SECONDS = 2.0
"""Between two looks at the log."""
SOURCE = "orchard/steward"


_OVER = "and its cap is"
_NOT_KEPT = "cannot be kept"
"""Words by which the reasons of `pause_reason` are told from each other and from those of others."""


def pause_reason(record: CampaignRecord, spent: Spent) -> str:
    """Say why the campaign must be paused, as a clause; empty where it may run."""
    cap = record.max_cost_usd
    if cap is None:
        return ""
    if spent.usd is not None and spent.usd >= cap:
        return f"its model calls have cost {dollars(spent.usd)} {_OVER} {dollars(cap)}"
    if spent.unpriced > (record.unpriced or 0):
        return (
            f"{spent.unpriced:,} of its model calls have no known cost, as their endpoint did not say their "
            f"tokens or a worker knows no price, so its cap of {dollars(cap)} {_NOT_KEPT}"
        )
    return ""


def how_to_go_on(name: str, reason: str) -> str:
    """Say how a campaign continues that was paused for this reason."""
    if _OVER in reason:
        return f"`orchard resume {name} --max-cost USD` continues it with a higher cap"
    if _NOT_KEPT in reason:
        return (
            "add [endpoints.NAME.prices.MODEL] where the workers run and start them again, or have the "
            f"endpoint tell its usage; then `orchard resume {name}` continues it and no longer asks for the "
            "cost of these calls; `--max-cost 0` removes the cap"
        )
    return f"`orchard resume {name}` continues it once that is mended"


class CostWatch:
    """Pauses running campaigns whose cap is reached or cannot be kept. Any number of these may run: the
    pause is one compare-and-set, and whoever reads it in the bucket publishes its event."""

    def __init__(self, connection: Connection, store_url: str) -> None:
        self._connection = connection
        self._publisher = Publisher(connection)
        self._book = CampaignBook(connection)
        self._store_url = store_url
        self._capped: dict[str, CampaignEntry] = {}
        self._spent: dict[str, Spent] = {}
        """Cost of each running campaign. A call whose event is in the log twice counts twice here, and
        once in the tables."""
        self._revision = 0
        """Revision of the bucket up to which it was read."""
        self._lost = asyncio.Event()
        connection.on_loss(self._lost.set)

    async def run(self, pause: float = LOOK_SECONDS) -> None:
        while True:
            await self.look()
            await asyncio.sleep(pause)

    async def look(self) -> None:
        """Read new entries of bucket and log, and pause the campaigns that have reached their cap."""
        if self._lost.is_set():
            # A server that comes back may have lost its newest messages, and give their sequences to others.
            self._lost.clear()
            self._capped, self._spent, self._revision = {}, {}, 0
        await self._read_book()
        spent = self._spent
        if new := self._capped.keys() - spent.keys():
            spent |= await self._in_tables(sorted(new))
        for name, entry in self._capped.items():
            spent[name] = await with_later(self._connection, name, spent[name])
            if not pause_reason(entry.record, spent[name]):
                continue
            known = await self._in_tables([name])
            spent[name] = await with_later(self._connection, name, known[name])
            if reason := pause_reason(entry.record, spent[name]):
                await self._pause(entry, reason)

    async def _in_tables(self, campaigns: list[str]) -> dict[str, Spent]:
        """Cost by the tables; empty where they cannot be read: the stream has it all, and a cap must hold."""
        try:
            return await asyncio.to_thread(spent_in_tables, self._store_url, campaigns)
        except (StorageError, duckdb.Error) as error:
            log.warning("what campaigns have cost is read from the stream alone: %s", error)
            return {name: Spent() for name in campaigns}

    async def _read_book(self) -> None:
        changed, self._revision = await self._book.changed(self._revision)
        for name, entry in changed.items():
            record = entry.record
            if record.state is CampaignState.RUNNING and record.max_cost_usd is not None:
                self._capped[name] = entry
                continue
            self._capped.pop(name, None)
            self._spent.pop(name, None)
            if record.state is CampaignState.PAUSED and record.reason:
                await self._tell(entry)

    async def _pause(self, entry: CampaignEntry, reason: str) -> None:
        moved = msgspec.structs.replace(entry.record, state=CampaignState.PAUSED, resumed=None, reason=reason)
        try:
            await self._book.update(entry.name, moved, entry.revision)
        except CampaignConflict:
            return  # the next look reads what it is now
        log.warning("campaign %s is paused: %s", entry.name, reason)

    async def _tell(self, entry: CampaignEntry) -> None:
        """Publish a pause, unless the log has it: who paused the campaign may have died before it did."""
        event = state_changed(entry, CampaignState.RUNNING, SOURCE)
        newest = await last_message(self._connection, names.EVENTS, event_subject(event))
        told = newest.as_event.event if newest else None
        data = payload(told) if told else None
        if not isinstance(data, CampaignStateChanged) or data.revision < entry.revision:
            await self._publisher.event(event)
