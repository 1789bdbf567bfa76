"""Heartbeats for open claims from a thread of its own, with a connection and an event loop of its own.

Leases stay alive as long as the process does, even when its main loop is blocked by a computation; and they
end when it dies, because the thread dies with it. Only one call into C that keeps the
interpreter's lock for longer than a lease could stop them: such work belongs into a subprocess.
"""

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable

from orchard.streams.connection import Connection, ConnectionLost, connect
from orchard.streams.errors import StreamsError
from orchard.streams.pull import PROGRESS
from orchard.streams.replies import status_of
from orchard.streams.settings import NatsSettings
from orchard.streams.tasks import waited

log = logging.getLogger(__name__)

_ANSWER = 5.0


class Lease:
    """An open delivery: its acknowledgement subject, and when the server last confirmed a heartbeat."""

    def __init__(self, reply: str, on_lost: Callable[[], None]) -> None:
        self.reply = reply
        self.on_lost = on_lost
        self.confirmed = time.monotonic()
        self.lost = False


class Heartbeats:
    """Keeps leases alive from `start` to `stop`. `add` and `remove` may be called from any thread."""

    def __init__(self, settings: NatsSettings, url: str, name: str) -> None:
        self._settings = settings
        self._url = url
        self._name = f"{name} heartbeats"
        self._leases: dict[str, Lease] = {}
        self._started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self.failure: BaseException | None = None

    async def start(self) -> None:
        """Starts the thread and waits for its connection; raises as `connect` does."""
        self._thread.start()
        await asyncio.wrap_future(self._started)

    async def stop(self) -> None:
        """Stops the thread. Leases that are open end by themselves after ack_wait."""
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        await asyncio.to_thread(self._thread.join)

    def add(self, lease: Lease) -> None:
        """Keeps this lease alive from now on."""
        self._leases[lease.reply] = lease

    def remove(self, lease: Lease) -> None:
        """Lets this lease end by itself."""
        self._leases.pop(lease.reply, None)

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self.failure = error
            if not self._started.done():
                self._started.set_exception(error)
                return
            log.exception("the heartbeat thread failed: every open claim counts as lost")
            for lease in list(self._leases.values()):
                self._give_up(lease)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with connect(self._settings, name=self._name, url=self._url) as connection:
            self._started.set_result(None)
            while not self._stop.is_set():
                leases = list(self._leases.values())
                alive = await asyncio.gather(*(self._beat(connection, lease) for lease in leases))
                # A heartbeat that was not confirmed is repeated sooner: a lease lives for several intervals.
                pause = self._settings.heartbeat / (1 if all(alive) else 4)
                try:
                    await waited(self._stop.wait(), pause)
                except TimeoutError:
                    continue

    async def _beat(self, connection: Connection, lease: Lease) -> bool:
        """Sends one heartbeat; whether the server confirmed it, or nobody needs it any more."""
        sent = time.monotonic()
        try:
            answer = await connection.ask(
                lease.reply, PROGRESS, timeout=min(_ANSWER, self._settings.heartbeat)
            )
            confirmed = status_of(answer) != "503"
        except (ConnectionLost, TimeoutError) as error:
            log.debug("heartbeat: %s", error)
            confirmed = False
        if confirmed:
            lease.confirmed = sent
        elif time.monotonic() - lease.confirmed > self._settings.ack_wait:
            self._give_up(lease)
        return confirmed or lease.lost

    def _give_up(self, lease: Lease) -> None:
        if not lease.lost and lease.reply in self._leases:
            lease.lost = True
            lease.on_lost()


def check_alive(heartbeats: Heartbeats) -> None:
    """Raises StreamsError when the thread has failed: claiming on without heartbeats would waste attempts."""
    if heartbeats.failure is not None:
        raise StreamsError(f"the heartbeat thread failed ({heartbeats.failure}): restart this process")
