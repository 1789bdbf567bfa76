"""Stored records of model endpoints: those that rest, and campaigns that they refuse."""

from datetime import datetime
from typing import Annotated

import msgspec

from orchard.schemas.quantities import Unit

_Time = Annotated[float, Unit("s")]


class Rest(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint that nobody asks for some time. Times count by the server's clock."""

    endpoint: str
    """Name of the endpoint where the fault was found; workers may name one server differently."""
    model: str
    """Name of the model that was asked for."""
    reason: str
    """Last answer of the endpoint, without keys and URLs."""
    seconds: _Time
    """Seconds from the storing of this record until the endpoint is asked again."""
    prober: str
    """Process that asks the endpoint again, while it lives."""
    since: datetime | None = None
    """Time when the rest began; None: when this record was stored."""
    probes: int = 0
    """Number of questions that the endpoint has not answered since."""
    relapses: int = 0
    """Number of consecutive rests in which the endpoint answered no more than the question that ended
    each."""
    asking: bool = False
    """Whether the prober asks it now, and has `seconds` for that."""
    over: bool = False
    """Whether the endpoint answers again, so that the rest is over."""


class CampaignRefused(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive rollouts of a campaign that ended because a model refused them."""

    campaign: str
    model: str
    endpoint: str
    reason: str
    """Reason of the newest refusal."""
    count: int
    """Number of the newest refusals that are equal; 0 once a rollout has come to its end."""
    unlike: int = 0
    """Number of the refusals before these, whatever their reasons."""


class EndpointRested(msgspec.Struct, frozen=True, kw_only=True):
    """A model endpoint began to rest, or answers again."""

    endpoint: str
    resting: bool
    """Whether the endpoint rests from now on."""
    reason: str = ""
    """Answer of the endpoint that led to the rest."""
    seconds: _Time = 0.0
    """Seconds that the endpoint asked to wait; at the end the seconds that it rested."""
