"""Restarts the NATS server of `orchard up` when it exits, and when a full disk has blocked it."""

import asyncio
import logging
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress

from nats.errors import Error as NatsError

from orchard.streams.connection import Connection, connect
from orchard.streams.errors import ServerFailed, StreamsError
from orchard.streams.last_sequences import (
    last_sequences,
    lost_ends,
    read_last_sequences,
    write_last_sequences,
)
from orchard.streams.server import EmbeddedServer, write_error
from orchard.streams.settings import NatsSettings

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0


class ServerSupervisor:
    """Supervises a running embedded server until cancelled."""

    def __init__(
        self,
        server: EmbeddedServer,
        settings: NatsSettings,
        announce: Callable[[str], None],
        started: Callable[[], None],
        pause: float,
    ) -> None:
        """Calls `started` after each start; `pause` is the delay in seconds before a restart."""
        self._server = server
        self._settings = settings
        self._announce = announce
        self._started = started
        self._pause = pause

    async def run(self) -> None:
        """Restarts the server when it exits, and stops it when only a restart frees it."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._start_again())
            tasks.create_task(self._unstick())

    async def _start_again(self) -> None:
        while True:
            code = await self._server.wait()
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            self._announce(f"nats ended ({how}), starting it again")
            told = ""
            while True:
                await asyncio.sleep(self._pause)
                try:
                    await self._server.start()
                    break
                except (ServerFailed, OSError) as error:
                    if str(error) != told:
                        told = str(error)
                        self._announce(f"nats does not start: {error}")
            self._started()

    async def _unstick(self) -> None:
        told = False
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                async with connect(self._settings, name="keeper", url=self._server.admin_url) as connection:
                    while not (stuck := await write_error(connection)):
                        told = False
                        await self._compare(connection)
                        await asyncio.sleep(LOOK_SECONDS)
            except (StreamsError, NatsError, TimeoutError, OSError) as error:
                log.debug("asking the NATS server how it is: %s", error)
                continue
            if not told:
                told = True
                self._announce(
                    f"nats can write no more ({stuck}): free some space; nothing that it confirmed is lost, "
                    "and work waits"
                )
            if shutil.disk_usage(self._server.store).free >= self._settings.reserve_bytes // 2:
                self._announce("there is space again: nats is started again, without which it stays stuck")
                with suppress(ServerFailed, ProcessLookupError):
                    os.kill(self._server.pid, signal.SIGTERM)
                told = False
                await asyncio.sleep(self._pause + LOOK_SECONDS)

    async def _compare(self, connection: Connection) -> None:
        """Reports once what a stream has lost since the last check or run."""
        seen, now = read_last_sequences(self._server.store), await last_sequences(connection)
        for sentence in lost_ends(seen, now):
            self._announce(f"{sentence}; requests that were lost are offered again, by `orchard resume` too")
        if now != seen:
            with suppress(OSError):  # a full disk: said elsewhere
                write_last_sequences(self._server.store, now)
