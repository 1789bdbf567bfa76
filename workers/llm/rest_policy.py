"""Decides when an endpoint rests, for how long, and which process probes it. Pure.

One refusal begins no rest: a call retries by itself. A rest stops the whole fleet, so it takes an endpoint
that asks for a long wait, or one that refuses call after call while no call from before is still under way.
An endpoint that is busy answers some calls and refuses others; `concurrency` handles that.
"""

from urllib.parse import urlsplit

import msgspec

from orchard.schemas.identity import digest
from orchard.schemas.rests import Rest
from orchard.workers.llm.settings import EndpointSettings

HELD_SECONDS = 10.0
"""Seconds that a call waits for the end of a rest; for a longer one its rollout lets its sandbox go."""
IN_A_ROW = 2
"""Refusals without an answer in between, each of a call that started after the one before."""
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 5.0
"""Most seconds between two probes of one server that does not say how long to wait: the pause doubles from
FIRST_PAUSE up to this, so its return is noticed within this time."""
LEAST_PAUSE = 1.25
"""Least seconds between two probes of an endpoint with many servers, of which one is probed at a time: the
fleet sends less than one a second."""
LONGEST_RELAPSE = 60.0
"""Most seconds of a rest that begins after a probe was answered and calls were refused again."""
LONGEST_ASKED = 3600.0
"""Most seconds that an endpoint may ask to wait; then it is probed in any case."""
PROBE_SECONDS = 30.0
GRACE_SECONDS = 3.0
"""Seconds that other processes leave to the prober of a rest before one of them takes over."""


LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def rest_key(settings: EndpointSettings, host: str) -> str:
    """Names an endpoint for the whole fleet: by its servers and by the variable of its key, never by the key.
    A server on the loopback of `host` is that host's alone."""
    urls = servers(settings)
    own = host if any(urlsplit(url).hostname in LOOPBACK for url in urls) else ""
    return digest([sorted(urls), settings.api_key_env or "", own])


def servers(settings: EndpointSettings) -> tuple[str, ...]:
    return tuple(dict.fromkeys(url.rstrip("/") for url in (settings.base_url, *settings.replicas)))


class RefusalStreak(msgspec.Struct, frozen=True):
    """Refusals that one process has met since the endpoint last answered it. Times are readings of its
    clock."""

    count: int = 0
    since: float = 0.0
    last: float = 0.0


def refused(streak: RefusalStreak, *, started: float, now: float) -> RefusalStreak:
    """Returns the streak after a refusal of a call that started at `started`. Calls that were under way
    together count once."""
    if streak.count and started < streak.last:
        return streak
    return RefusalStreak(streak.count + 1, streak.since if streak.count else now, now)


def begins(streak: RefusalStreak, *, asked: float | None, spent: bool, earliest: float) -> bool:
    """Whether a rest begins. `asked` is the pause that the endpoint wants, `spent` whether the call has no
    tries or time left, and `earliest` when the oldest of the calls under way started (infinity without
    any)."""
    long_wait = asked is not None and asked >= HELD_SECONDS
    return long_wait or spent or (streak.count >= IN_A_ROW and earliest >= streak.since)


def begun(
    before: Rest | None, *, endpoint: str, model: str, reason: str, asked: float | None, prober: str
) -> Rest:
    """Returns the record of a rest that begins now; `before` is the record of an earlier rest, which is
    over."""
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
    probes = rest.probes + 1
    longest = max(LONGEST_PAUSE / servers, LEAST_PAUSE)
    pause = min(FIRST_PAUSE * 2.0 ** min(probes, 16), longest)
    seconds = max(pause, min(asked or 0.0, LONGEST_ASKED))
    return msgspec.structs.replace(rest, reason=reason, probes=probes, seconds=seconds, asking=False)


def asks_in(rest: Rest, *, left: float, me: str, jitter: float) -> float:
    """Returns the seconds until the process `me` probes, if no other has by then; `jitter` is uniform in [0,
    1]."""
    return left if rest.prober == me else max(left, 0.0) + GRACE_SECONDS * (1.0 + jitter)


def is_held(*, age: float, left: float) -> bool:
    return age < HELD_SECONDS and left <= HELD_SECONDS


def host_of(url: str) -> str:
    """Returns host and port, for a log, without path and user."""
    return urlsplit(url).netloc.rpartition("@")[2]
