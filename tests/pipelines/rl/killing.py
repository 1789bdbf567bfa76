"""A process that kills itself with SIGKILL before or after it publishes its first event of a type."""

import os
import signal
from collections.abc import Callable

from orchard.streams.publisher import Publisher


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at(place: str) -> None:
    """`place` is "before TYPE" or "after TYPE"."""
    publish: Callable[..., object] = Publisher.event

    async def event(self: Publisher, event_: object) -> object:
        kind = getattr(event_, "type", "")
        if place == f"before {kind}":
            die()
        found = await publish(self, event_)  # type: ignore[misc]
        if place == f"after {kind}":
            die()
        return found

    Publisher.event = event  # type: ignore[method-assign,assignment]
