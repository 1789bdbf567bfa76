"""The audit trail: each command that changes something is an event before it begins, refused ones too."""

from collections.abc import Mapping
from uuid import uuid4

from orchard.actions.session import Session
from orchard.configuration.config import ConfigError
from orchard.schemas.access import NO_CAMPAIGN, CommandGiven, UserRole
from orchard.schemas.events import make_event
from orchard.schemas.identity import NAME
from orchard.streams.campaigns import CampaignBook
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher


class NotAllowed(ConfigError):
    """The user's role does not include the command."""


async def begin(
    session: Session,
    connection: Connection,
    command: str,
    needed: UserRole,
    campaign: str = NO_CAMPAIGN,
    options: Mapping[str, str] | None = None,
) -> None:
    """Puts the user's command into the log. Raises NotAllowed, after putting that into the log too, if the
    user has not the `needed` role.

    Who may submit may also give commands about campaigns that they have submitted.
    """
    if not NAME.fullmatch(campaign):
        raise ConfigError(f"there is no campaign {campaign[:80]!r}: `orchard status` lists them")
    user = session.principal
    allowed = user.role.includes(needed)
    if not allowed and user.role.includes(UserRole.SUBMIT) and campaign != NO_CAMPAIGN:
        known = await CampaignBook(connection).get(campaign)
        allowed = known is not None and known[0].submitter == user.user
    refused = "" if allowed else f"{user.user} has the role `{user.role}`, and {command} needs `{needed}`"
    given = CommandGiven(
        user=user.user,
        team=user.team,
        role=user.role,
        command=command,
        options=dict(options or {}),
        refused=refused,
    )
    event = make_event(given, id=f"command.{uuid4().hex}", source=f"orchard/{session.via}", campaign=campaign)
    await Publisher(connection).event(event)
    if refused:
        raise NotAllowed(f"{refused}: ask an operator")
