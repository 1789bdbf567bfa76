"""What teams run and wait for, and which of their quotas is used up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from nats.js.api import ConsumerInfo

from orchard.actions.reporter import plural
from orchard.schemas.access import TeamHold
from orchard.schemas.queues import Queue
from orchard.streams.connection import Connection
from orchard.streams.errors import TopologyError
from orchard.streams.settings import TeamSettings
from orchard.streams.team_holds import TeamHolds
from orchard.streams.topology import filters_of


@dataclass(frozen=True)
class TeamView:
    """The rollouts of one team, of all campaigns together."""

    name: str
    running: int = 0
    waiting: int = 0
    slots: int | None = None
    """Quota of slots in each domain and priority; None: no limit."""
    full: bool = False
    """Whether some of them wait because the quota of slots is used up."""
    held: str = ""
    """Why none begins before the next day; empty: they may."""
    until: datetime | None = None
    """End of that day."""

    @property
    def sentence(self) -> str:
        """What holds them back, as advice; empty where nothing does."""
        if self.held and self.until:
            return (
                f"{self.held}: its rollouts wait until {self.until:%Y-%m-%d %H:%M} UTC, or until "
                f"teams.{self.name}.usd_per_day is raised"
            )
        if self.full and self.slots:
            return (
                f"team {self.name} uses its quota of {plural(self.slots, 'slot')}, so its other rollouts "
                f"wait: raise teams.{self.name}.slots if they should not"
            )
        return ""


async def team_views(
    connection: Connection, queues: Sequence[ConsumerInfo], teams: Mapping[str, TeamSettings]
) -> Sequence[TeamView]:
    """A view of each configured team; `queues` are the consumers of WORK."""
    if not teams:
        return ()
    try:
        holds = await TeamHolds(connection).all()
    except TopologyError:
        holds = {}  # a process of an older version has declared the streams
    of_team: dict[str, list[ConsumerInfo]] = {name: [] for name in teams}
    for info in queues:
        if (queue := queue_of(info)) is not None and queue.team:
            of_team.setdefault(queue.team, []).append(info)
    return tuple(
        _view(name, infos, teams.get(name, TeamSettings()), holds.get(name))
        for name, infos in of_team.items()
    )


def _view(
    name: str, infos: Sequence[ConsumerInfo], settings: TeamSettings, hold: TeamHold | None
) -> TeamView:
    slots = settings.slots
    return TeamView(
        name=name,
        running=sum(info.num_ack_pending or 0 for info in infos),
        waiting=sum(info.num_pending or 0 for info in infos),
        slots=slots,
        full=slots is not None
        and any(info.num_pending and (info.num_ack_pending or 0) >= slots for info in infos),
        held=hold.reason if hold else "",
        until=hold.until if hold else None,
    )


def queue_of(info: ConsumerInfo) -> Queue | None:
    """The queue that a consumer of WORK serves; None for another program's consumer."""
    try:
        return Queue.of_subject(next(iter(filters_of(info.config)), ""))
    except ValueError:
        return None
