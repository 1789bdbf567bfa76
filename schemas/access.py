"""Who gives commands: users with a team and a role, and the audit trail of what they asked for."""

from datetime import datetime
from enum import StrEnum

import msgspec

NO_CAMPAIGN = "commands"
"""Campaign of the events about users and teams that concern none."""


class UserRole(StrEnum):
    """What a user may do; each role may do what the one before it may."""

    READ = "read"
    """Look at everything."""
    SUBMIT = "submit"
    """Submit campaigns, stop and resume one's own, and write notes."""
    OPERATE = "operate"
    """Stop and resume every campaign, and requeue dead letters."""

    def includes(self, needed: "UserRole") -> bool:
        order = list(UserRole)
        return order.index(self) >= order.index(needed)


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """An authenticated user."""

    user: str
    team: str = ""
    """Empty: none."""
    role: UserRole = UserRole.OPERATE


class CommandGiven(msgspec.Struct, frozen=True, kw_only=True):
    """A user gave a command that changes something; stored before the change begins."""

    user: str
    """Login name on one machine, else the user of the key or of the sign-in proxy."""
    team: str
    """Team of the user; empty: none."""
    role: UserRole
    """UserRole that the user had."""
    command: str
    """Name of the command, such as `pause` or `dead requeue`."""
    options: dict[str, str] = {}
    """What the command was given beside the campaign."""
    refused: str = ""
    """Why the user may not do this; empty: it was begun."""


class TeamHold(msgspec.Struct, frozen=True, kw_only=True):
    """A team has used up its money for a day, or may work again."""

    team: str
    reason: str
    """What was spent, and what may be."""
    until: datetime
    """End of the day in UTC."""
    lifted: bool = False
    """Whether the team may work again before that: its quota was raised."""
