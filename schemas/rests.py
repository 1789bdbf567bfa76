"""What the fleet knows of a model endpoint: whether it rests, and whether it refuses a campaign. Stored
records."""

from datetime import datetime
from typing import Annotated

import msgspec

from orchard.schemas.quantities import Unit

_Time = Annotated[float, Unit("s")]


class Rest(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint that nobody asks for a while. Times count by the server's clock."""

    endpoint: str
    """Its name where it was found; workers may name one server differently."""
    model: str
    """That was asked for."""
    reason: str
    """What it said last, without keys and URLs."""
    seconds: _Time
    """From when this record was stored until the endpoint is asked again."""
    prober: str
    """The process that asks it again, while it lives."""
    since: datetime | None = None
    """When the rest began; None: when this record was stored."""
    probes: int = 0
    """Questions that it has not answered since."""
    relapses: int = 0
    """Rests one after the other, without an answer to more than the question that ended each."""
    asking: bool = False
    """The prober asks it just now, and has `seconds` for that."""
    over: bool = False
    """It answers again."""


class CampaignRefused(msgspec.Struct, frozen=True, kw_only=True):
    """Refusals in a row that a model has ended rollouts of a campaign with."""

    campaign: str
    model: str
    endpoint: str
    reason: str
    """Of the newest."""
    count: int
    """The newest ones that are equal; 0 where a rollout has come to its end since."""
    unlike: int = 0
    """Those before them, whatever their reasons."""


class EndpointRested(msgspec.Struct, frozen=True, kw_only=True):
    """A model endpoint began to rest, or answers again."""

    endpoint: str
    resting: bool
    """Whether it rests from now on."""
    reason: str = ""
    """What it said."""
    seconds: _Time = 0.0
    """That it asked to wait; at the end those that it rested."""
