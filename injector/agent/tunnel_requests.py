"""Parses a tunnel request."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from orchard.injector.agent.errors import RequestInvalid

FORWARD, REVERSE = "forward", "reverse"
IDLE_SECONDS = 3600.0
LONGEST_IDLE = 7 * 24 * 3600.0
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, kw_only=True)
class TunnelRequest:
    direction: str
    port: int
    """Port inside; 0, for a reverse tunnel, chooses a free one."""
    name: str
    """A new tunnel replaces the one of the same name, whose client may have vanished unnoticed."""
    idle_seconds: float

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "TunnelRequest":
        direction, name = query.get("direction", FORWARD), query.get("name", "")
        if direction not in (FORWARD, REVERSE):
            raise RequestInvalid(
                f"the direction `{direction[:40]}` is unknown: use `{FORWARD}` or `{REVERSE}`"
            )
        if name and not _NAME.fullmatch(name):
            raise RequestInvalid(
                f"`{name[:100]}` cannot be the name of a tunnel: use up to 64 letters,"
                " digits, dashes, underscores"
            )
        try:
            port, idle = int(query.get("port", "")), float(query.get("idle_seconds", IDLE_SECONDS))
        except ValueError as error:
            raise RequestInvalid(f"`port` and `idle_seconds` must be numbers: {error}") from error
        if not (0 if direction == REVERSE else 1) <= port < 1 << 16:
            raise RequestInvalid(f"the port is {port}: it must be a number from 1 to 65535")
        if not 0 < idle <= LONGEST_IDLE:
            raise RequestInvalid(
                f"`idle_seconds` is {idle:g}: it must be more than 0 and at most {LONGEST_IDLE:g}"
            )
        return cls(direction=direction, port=port, name=name, idle_seconds=idle)
