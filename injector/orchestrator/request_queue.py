"""Queues requests that a full key or replica cannot handle yet, in place of refusing them."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from itertools import chain

from orchard.injector.orchestrator.limits import REQUESTS, RETRY_CONCURRENT, Excess, RequestAdmission

_Turn = asyncio.Future[Excess | None]


class RequestQueue:
    """Admits requests: those of a key in order of arrival, keys in rotation.

    Of a key, requests for existing sandboxes go before those that create more: behind a crowd of creations,
    commands of the first ones would run out of time.
    """

    def __init__(self, admission: RequestAdmission, clock: Callable[[], float] = time.monotonic) -> None:
        self._admission = admission
        self._clock = clock
        self._lines: OrderedDict[str, tuple[dict[_Turn, None], dict[_Turn, None]]] = OrderedDict()
        """Waiting requests by key, creations second; never empty. The key whose turn is next comes first."""

    def waiting(self, name: str) -> int:
        return sum(map(len, self._lines.get(name, ())))

    async def enter(self, name: str, *, counted: bool = True, creates: bool = False) -> Excess | None:
        """Wait until the request may be handled, to be ended by `leave`; returns why if it is refused.

        May be cancelled. A request that is not `counted` never waits.
        """
        most = self._admission.of(name).waiting_requests
        if not self.waiting(name) or not counted:
            excess = self._admission.enter(name, self._clock(), counted=counted)
            if excess is None or not excess.passing or not most:
                return excess
        elif self.waiting(name) >= most:
            detail = f"this key has {most} requests that wait, as many as it may"
            return Excess(REQUESTS, detail, RETRY_CONCURRENT)
        turn: _Turn = asyncio.get_running_loop().create_future()
        self._lines.setdefault(name, ({}, {}))[creates][turn] = None
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._forget(name, turn)
            elif turn.result() is None:
                self.leave(name)
            raise

    def leave(self, name: str) -> None:
        """End a request of this key, and admit others."""
        self._admission.leave(name)
        blocked = 0
        while blocked < len(self._lines):
            key = next(iter(self._lines))
            self._lines.move_to_end(key)
            blocked = 0 if self._next(key) else blocked + 1

    def _next(self, name: str) -> bool:
        """Admit or refuse the first waiting request of this key; returns whether it still waits."""
        turn = next(chain(*self._lines[name]))
        if not turn.cancelled():
            excess = self._admission.enter(name, self._clock())
            if excess is not None and excess.passing:
                return False
            turn.set_result(excess)
        self._forget(name, turn)
        return True

    def _forget(self, name: str, turn: _Turn) -> None:
        for line in self._lines.get(name, ()):
            line.pop(turn, None)
        if not self.waiting(name):
            self._lines.pop(name, None)
