"""Names of work queues."""

import msgspec

from orchard.schemas.identity import check_name

_TEAM = ":"
"""Separates the team from the priority, as no name contains it: so a subject has as many tokens with a team
as without one."""


class Queue(msgspec.Struct, kw_only=True, frozen=True):
    """A work queue: a kind of request in a domain at a priority, of one team, with a consumer of its own."""

    kind: str = "rollout"
    domain: str = "swe"
    priority: str = "normal"
    team: str = ""
    """Team whose requests it has; empty: those of no team."""

    def __post_init__(self) -> None:
        check_name(self.kind, "queue kind")
        check_name(self.domain, "queue domain")
        check_name(self.priority, "queue priority")
        if self.team:
            check_name(self.team, "team")

    @property
    def path(self) -> str:
        """Tokens that its subjects share: `rollout.swe.normal`, of a team `rollout.swe.normal:TEAM`."""
        return f"{self.kind}.{self.domain}.{self.priority}{self.team and _TEAM + self.team}"

    @property
    def subject(self) -> str:
        """Prefix of the subjects that requests are published on and claimed from."""
        return f"orchard.work.{self.path}"

    @property
    def due_subject(self) -> str:
        """Prefix of the subjects on which the server puts delayed requests when their time has come."""
        return f"orchard.due.{self.path}"

    @property
    def later_subject(self) -> str:
        """Prefix of the subjects on which delayed requests wait."""
        return f"orchard.later.{self.path}"

    @property
    def filters(self) -> list[str]:
        """Subjects that its consumer claims; the prefix itself is where versions before decision 0012
        published."""
        return [self.subject, f"{self.subject}.>"]

    @property
    def consumer(self) -> str:
        """Name of the durable pull consumer; KEDA uses it too."""
        return self.path.replace(".", "-")

    @classmethod
    def of_subject(cls, subject: str) -> "Queue":
        """Parses the queue from a subject of any of the three forms; raises ValueError for another
        subject."""
        tokens = subject.split(".")
        if len(tokens) < 5 or tokens[0] != "orchard" or tokens[1] not in ("work", "due", "later"):
            raise ValueError(f"{subject!r} is not the subject of a queue")
        priority, _, team = tokens[4].partition(_TEAM)
        return cls(kind=tokens[2], domain=tokens[3], priority=priority, team=team)
