"""Chooses the server of an endpoint for a session: rendezvous hashing over those that work."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

FIRST_REST = 2.0
LONGEST_REST = 60.0


@dataclass
class Replica:
    url: str
    failures: int = 0
    """Failures since the last answer."""
    rests_until: float = 0.0
    """Clock reading, in seconds, until which other working servers are preferred."""

    def answered(self) -> None:
        """Counts refusals as answers, too."""
        self.failures, self.rests_until = 0, 0.0

    def failed(self, now: float) -> None:
        """Reports that it could not be reached, or failed: it rests, each time for longer."""
        self.failures += 1
        self.rests_until = now + min(FIRST_REST * 2 ** min(self.failures - 1, 16), LONGEST_REST)


def choose(replicas: Sequence[Replica], session: str, now: float) -> Replica:
    """Returns the replica of a session: the same one as long as it works.

    One that has rested gets a single call to show that it is back, and only then its sessions. If all rest,
    the session's own is asked.
    """
    order = sorted(replicas, key=lambda replica: _weight(replica.url, session), reverse=True)
    for replica in order:
        if replica.rests_until <= now:
            if replica.failures:
                replica.rests_until = now + FIRST_REST  # others wait for what becomes of this call
            return replica
    return order[0]


def _weight(url: str, session: str) -> bytes:
    return hashlib.sha256(f"{url}\n{session}".encode()).digest()
