"""Errors of requests that are refused before the backend is called."""

from collections.abc import Sequence

from orchard.injector.orchestrator.limits import Excess


class Invalid(Exception):
    """A request that does not fit its schema; `place` is where, `kind` a word for programs."""

    def __init__(self, place: Sequence[str | int], message: str, kind: str = "value_error") -> None:
        super().__init__(message)
        self.place = list(place)
        self.message = message
        self.kind = kind


class OverLimit(Exception):
    """A request that exceeds a limit of its key."""

    def __init__(self, excess: Excess) -> None:
        super().__init__(excess.detail)
        self.excess = excess
