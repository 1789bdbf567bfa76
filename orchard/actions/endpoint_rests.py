"""Describes resting model endpoints in sentences."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from orchard.actions.abort_reasons import REMEDIES
from orchard.schemas.outcomes import AbortCause
from orchard.streams.connection import Connection
from orchard.streams.endpoints import EndpointBook, StoredRest
from orchard.streams.errors import TopologyError

MOMENT_SECONDS = 60.0
"""Rests shorter than this are shown without their end: they may be prolonged at any time."""

THROTTLED = "raise its rate limit or quota, or lower `concurrency`, if this does not pass"


async def rest_sentences(connection: Connection) -> Sequence[str]:
    """A sentence for each resting endpoint; none if a process of an older version has declared the
    streams."""
    try:
        stored = await EndpointBook(connection).rests()
    except TopologyError:
        return ()
    now = datetime.now().astimezone()
    resting = sorted((one for one in stored.values() if not one.rest.over), key=lambda one: one.rest.endpoint)
    return tuple(rest_sentence(one, now) for one in resting)


def rest_sentence(stored: StoredRest, now: datetime) -> str:
    """Sentence with the endpoint, the end of its rest, and the reason; `now` is in the reader's time zone."""
    rest = stored.rest
    if stored.left > MOMENT_SECONDS and not rest.asking:
        when = f"until {now + timedelta(seconds=stored.left):%H:%M}"
    else:
        when = f"since {now - timedelta(seconds=stored.age):%H:%M}, and is asked again every few seconds"
    remedy = THROTTLED if rest.reason.startswith("answered 429") else REMEDIES[AbortCause.LLM_UNAVAILABLE]
    return f"endpoint {rest.endpoint} rests {when}: {rest.reason}: {remedy}; its rollouts then resume"
