"""When an endpoint rests, for how long, and who asks it again: pure functions of what was seen.

One refusal is no rest: a call tries again by itself. A rest stops the whole fleet, so it takes an endpoint
that says to wait for long, or one that refuses call after call while none of an earlier time is still under
way. An endpoint that is busy answers some and refuses others; that is what `concurrency` is for.
"""

from urllib.parse import urlsplit

import msgspec

from orchard.schemas.identity import digest
from orchard.schemas.rests import Rest
from orchard.workers.llm.settings import EndpointSettings

HELD_SECONDS = 10.0
"""That a call waits in its place for the end of a rest; for a longer one its rollout lets go of its
sandbox."""
IN_A_ROW = 2
"""Refusals without an answer in between, each of a call that set off after the one before."""
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 5.0
"""Seconds between two questions to one server that does not say how long to wait: doubled from the first up
to this. So its return is noticed within this time."""
LEAST_PAUSE = 1.25
"""The same with many servers, of which one is asked at a time: the fleet asks less than once a second."""
LONGEST_RELAPSE = 60.0
"""Seconds, where the question was answered and then the calls were refused again."""
LONGEST_ASKED = 3600.0
"""Seconds that an endpoint may ask to wait; then it is asked again, whatever it said."""
QUESTION_SECONDS = 30.0
"""For the answer to a question."""
GRACE_SECONDS = 3.0
"""That others leave to the prober of a rest before one of them takes its place."""


LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def rest_key(settings: EndpointSettings, host: str) -> str:
    """Names an endpoint for the whole fleet: by its servers and by the variable of its key, never by the key.
    What is served on the loopback of `host` is that host's alone."""
    urls = servers(settings)
    own = host if any(urlsplit(url).hostname in LOOPBACK for url in urls) else ""
    return digest([sorted(urls), settings.api_key_env or "", own])


def servers(settings: EndpointSettings) -> tuple[str, ...]:
    """The base URLs of an endpoint, each once."""
    return tuple(dict.fromkeys(url.rstrip("/") for url in (settings.base_url, *settings.replicas)))


class Row(msgspec.Struct, frozen=True):
    """Refusals that one process has met since the endpoint last answered it. Times are readings of its
    clock."""

    count: int = 0
    since: float = 0.0
    last: float = 0.0


def refused(row: Row, *, started: float, now: float) -> Row:
    """After a refusal of a call that set off at `started`. A burst is one refusal: calls that were under way
    together count once."""
    if row.count and started < row.last:
        return row
    return Row(row.count + 1, row.since if row.count else now, now)


def begins(row: Row, *, asked: float | None, spent: bool, earliest: float) -> bool:
    """Whether the endpoint is to rest. `asked` is the pause it wants, `spent` whether the call has no tries
    or time left, and `earliest` when the oldest of the calls under way set off (infinity without any)."""
    long_wait = asked is not None and asked >= HELD_SECONDS
    return long_wait or spent or (row.count >= IN_A_ROW and earliest >= row.since)


def begun(
    before: Rest | None, *, endpoint: str, model: str, reason: str, asked: float | None, prober: str
) -> Rest:
    """The record of a rest that begins now; `before` is the one that is there, of a rest that is over."""
    relapses = 0 if before is None else before.relapses + 1
    pause = min(FIRST_PAUSE * 2.0 ** min(2 * relapses, 16), LONGEST_RELAPSE)
    return Rest(
        endpoint=endpoint,
        model=model,
        reason=reason,
        seconds=max(pause, min(asked or 0.0, LONGEST_ASKED)),
        prober=prober,
        relapses=relapses,
    )


def prolonged(rest: Rest, *, reason: str, asked: float | None, servers: int = 1) -> Rest:
    """After a question that was not answered."""
    probes = rest.probes + 1
    longest = max(LONGEST_PAUSE / servers, LEAST_PAUSE)
    pause = min(FIRST_PAUSE * 2.0 ** min(probes, 16), longest)
    seconds = max(pause, min(asked or 0.0, LONGEST_ASKED))
    return msgspec.structs.replace(rest, reason=reason, probes=probes, seconds=seconds, asking=False)


def asks_in(rest: Rest, *, left: float, me: str, jitter: float) -> float:
    """Seconds until the process `me` asks, if nobody else has by then; `jitter` is uniform in [0, 1]."""
    return left if rest.prober == me else max(left, 0.0) + GRACE_SECONDS * (1.0 + jitter)


def is_held(*, age: float, left: float) -> bool:
    """Whether a call waits for the end of a rest of this age in its place."""
    return age < HELD_SECONDS and left <= HELD_SECONDS


def host_of(url: str) -> str:
    """Host and port, for a log: no path, no user."""
    return urlsplit(url).netloc.rpartition("@")[2]
