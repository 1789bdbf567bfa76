"""Holds teams whose calls of models and judges have cost as much in one UTC day as they may: their rollouts
wait for the next day, running ones end."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime, time, timedelta
from functools import reduce

import duckdb

from orchard.schemas.access import NO_CAMPAIGN, TeamHold
from orchard.schemas.events import make_event, payload
from orchard.schemas.judging import JudgeCalled
from orchard.schemas.llm_calls import LLMCall
from orchard.schemas.positions import START, Position
from orchard.schemas.subjects import EVENTS_PREFIX
from orchard.storage.errors import StorageError
from orchard.storage.spending import dollars, team_costs
from orchard.streams.campaigns import CampaignBook
from orchard.streams.connection import Connection
from orchard.streams.event_streams import events_after
from orchard.streams.publisher import Publisher
from orchard.streams.settings import TeamSettings
from orchard.streams.team_holds import TeamHolds, hold_key

log = logging.getLogger("orchard.teams")

LOOK_SECONDS = 5.0
SOURCE = "orchard/steward"
_CALLS = ("llm.called", "judge.called")
"""Types of events that cost a team money."""


class TeamQuotas:
    """Compares what teams spend with their quotas. Any number of these may run. A call without a known cost
    counts as nothing."""

    def __init__(self, connection: Connection, store_url: str, teams: Mapping[str, TeamSettings]) -> None:
        self._connection = connection
        self._store_url = store_url
        self._quotas = {name: team.usd_per_day for name, team in teams.items()}
        self._holds = TeamHolds(connection)
        self._book = CampaignBook(connection)
        self._publisher = Publisher(connection)
        self._teams: dict[str, str] = {}
        """Team of each campaign that has one."""
        self._revision = 0
        self._midnight = datetime.min.replace(tzinfo=UTC)
        self._spent: defaultdict[str, float] = defaultdict(float)
        """Cost of each team's calls since `_midnight`, up to the events `_positions`."""
        self._positions = dict.fromkeys(_CALLS, START)
        """Position up to which calls of each type were read."""
        self._lost = asyncio.Event()
        connection.on_loss(self._lost.set)

    async def run(self, pause: float = LOOK_SECONDS) -> None:
        """Looks again and again until cancelled; raises StreamsError."""
        while any(quota is not None for quota in self._quotas.values()):
            await self.look(datetime.now(UTC))
            await asyncio.sleep(pause)

    async def look(self, now: datetime) -> None:
        """Holds the teams that have used up their money of this day, and lifts the hold of others."""
        midnight = datetime.combine(now.astimezone(UTC).date(), time(), UTC)
        if self._lost.is_set():  # the stream may give the sequences of its newest events to others
            self._lost.clear()
            self._midnight, self._revision = datetime.min.replace(tzinfo=UTC), 0
        if midnight != self._midnight:
            await self._begin(midnight)
        changed, self._revision = await self._book.changed(self._revision)
        self._teams |= {name: entry.record.team for name, entry in changed.items() if entry.record.team}
        await self._add_later()
        for team, quota in self._quotas.items():
            spent = self._spent[team]
            over = quota is not None and spent >= quota
            reason = f"team {team} has spent {dollars(spent)} of {dollars(quota or 0.0)} of this day"
            until = midnight + timedelta(days=1)
            hold = TeamHold(team=team, reason=reason, until=until, lifted=not over)
            if await self._holds.put(hold):
                log.warning("%s: its rollouts %s", reason, "wait for the next day" if over else "go on")
                event = make_event(
                    hold,
                    id=f"{hold_key(team)}.{self._position}.{until:%Y-%m-%d}.{hold.lifted}",
                    source=SOURCE,
                    campaign=NO_CAMPAIGN,
                )
                await self._publisher.event(event)

    async def _begin(self, midnight: datetime) -> None:
        """Counts the day anew. Without readable tables the stream has it all."""
        try:
            spent, position = await asyncio.to_thread(team_costs, self._store_url, midnight)
        except (StorageError, duckdb.Error) as error:
            log.warning("what teams have spent is read from the stream alone: %s", error)
            spent, position = {}, START
        self._midnight, self._spent = midnight, defaultdict(float, spent)
        self._positions = dict.fromkeys(_CALLS, position)

    @property
    def _position(self) -> Position:
        """Newest event that was counted."""
        return reduce(Position.joined, self._positions.values())

    async def _add_later(self) -> None:
        for kind in _CALLS:
            await self._add_calls(kind)

    async def _add_calls(self, kind: str) -> None:
        pattern = f"{EVENTS_PREFIX}.*.*.{kind}"
        async for batch in events_after(self._connection, self._positions[kind], pattern):
            for message in batch:
                self._positions[kind] = self._positions[kind].with_last(message.sequence)
                event = message.as_event.event
                team = self._teams.get(event.campaign) if event else None
                call = payload(event) if event and team and event.time >= self._midnight else None
                if team and isinstance(call, LLMCall | JudgeCalled):
                    self._spent[team] += call.cost_usd or 0.0
