"""Access of a command to the pipeline: configuration, connection, blobs, tables, sandboxes."""

import asyncio
import math
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from orchard.configuration.access import AccessError, caller
from orchard.configuration.config import Config, ConfigError
from orchard.configuration.run_files import UNSAFE_HOST, RunFiles, UpRecord, running
from orchard.schemas.access import Principal, UserRole
from orchard.storage.durable import sync_file_system
from orchard.streams.connection import Connection, connect
from orchard.streams.disk_space import disk_shortage
from orchard.streams.event_streams import log_end
from orchard.streams.server import embedded
from orchard.streams.stream_check import SETTLE_SECONDS, StreamGuard, guarded
from orchard.streams.stream_state import ExpectedStream
from orchard.workers.llm.settings import EndpointSettings

if TYPE_CHECKING:
    from orchard.injector.client import AsyncSandboxClient
    from orchard.storage.blobs import BlobStore

COMMIT_WAIT_SECONDS = 60.0
"""Seconds that a command waits for tables that it needs."""
WAITING_SECONDS = 10.0
"""Seconds that a command waits for tables that it only reports on."""


class Session:
    """Gives a command access to its pipeline."""

    def __init__(self, config: Config, acting: Principal | None = None, via: str = "cli") -> None:
        """`acting` is the user whose command it is, None: whoever runs this process; `via` is the front door
        that the command came through."""
        self.config = config
        self.via = via
        self._acting = acting

    @property
    def principal(self) -> Principal:
        """The user whose command it is. Raises ConfigError if that is not known."""
        if self._acting is None:
            try:
                self._acting = caller(self.config.access, self.config.teams)
            except AccessError as error:
                raise ConfigError(str(error)) from error
        return self._acting

    @property
    def directory(self) -> Path:
        """Folder of this machine's files: server, sandboxes, caches, logs."""
        return self.config.directory

    @property
    def blobs(self) -> "BlobStore":
        # It brings pyarrow, a third of a second, which a command without tables need not wait for.
        from orchard.storage.blobs import BlobStore

        return BlobStore(self.config.store)

    def up(self) -> UpRecord | None:
        """Record of the running `orchard up` on this store, if any."""
        return running(self.directory)

    def endpoints(self) -> dict[str, EndpointSettings]:
        """Configured endpoints, and the oracle of the running pipeline."""
        record = self.up()
        own = {"oracle": EndpointSettings(base_url=record.oracle_url)} if record and record.oracle_url else {}
        return {**own, **self.config.endpoints}

    def nats_url(self) -> str:
        """Address of the configured server, else of the running embedded one. Raises ConfigError without
        either."""
        if self.config.nats.url:
            return self.config.nats.url
        if record := self.up():
            return record.nats_url
        raise ConfigError(
            f"nothing runs on store {self.config.store}: start `orchard up` in another terminal, "
            "or pass --nats nats://HOST:PORT"
        )

    @asynccontextmanager
    async def connection(self, name: str, *, hold: bool = False) -> AsyncIterator[Connection]:
        """Opens a connection to the pipeline's NATS server, for publishers.

        Raises NotAllowed for a user who may only read, and StreamHeld when the stream is behind the tables;
        with `hold` waits instead, before each publish and claim, until it is restored.
        """
        async with self.reading_connection(name) as connection, self.guard(connection, hold=hold):
            await self._check_role(connection, name)
            yield connection

    async def _check_role(self, connection: Connection, name: str) -> None:
        """Raises NotAllowed for a user who may only read, and puts that into the log."""
        if not self.principal.role.includes(UserRole.SUBMIT):
            from orchard.actions.audit import begin  # which needs this module

            await begin(self, connection, name, UserRole.SUBMIT)

    @asynccontextmanager
    async def reading_connection(self, name: str) -> AsyncIterator[Connection]:
        """Opens a connection without a stream check, for commands that publish no events or restore them."""
        async with connect(self.config.nats, name=name, url=self.nats_url()) as connection:
            yield connection

    def guard(
        self, connection: Connection, *, hold: bool, settle: float = SETTLE_SECONDS
    ) -> AbstractAsyncContextManager[None]:
        """Delays publishing while the stream lacks events that the tables have; `settle` as for `guarded`."""
        watch = StreamGuard(connection, self.config.nats, self._look(), room=self.room, settle=settle)
        return guarded(watch, connection, hold=hold)

    async def held(self, connection: Connection) -> str:
        """Reason why nothing is published or claimed; empty without one."""
        guard = StreamGuard(
            connection,
            self.config.nats,
            self._look(),
            room=self.room,
            settle=math.inf,
            on_change=lambda _: None,
        )
        await guard.check()
        return connection.held or connection.waiting or connection.full

    def _look(self) -> Callable[[], Awaitable[ExpectedStream]]:
        """What the stream must have, by the tables."""
        from orchard.actions.expected_stream import expected  # as for `blobs`

        return partial(expected, self.config.store, self.config.archive)

    async def room(self) -> str:
        """Reason why the embedded server has no disk space for new work; empty if it has, or is on another
        machine."""
        if self.config.nats.url and not self.up():
            return ""
        return await asyncio.to_thread(disk_shortage, self.directory / "nats", self.config.nats)

    @asynccontextmanager
    async def connection_or_server(
        self, name: str, *, guard: bool = True, bulk: bool = False
    ) -> AsyncIterator[Connection]:
        """Opens a connection; if no pipeline runs, starts the store's own server during the block. Without
        `guard` it is for reading and restoring. With `bulk` that server syncs once a second, and all is
        synced when the block ends (decision 132). Raises as `connection` does."""
        async with AsyncExitStack() as stack:
            settle = SETTLE_SECONDS
            if self.config.nats.url or self.up():
                connection = await stack.enter_async_context(self.reading_connection(name))
            else:
                settle = 0.0  # nobody else can be on it
                always = self.config.nats.sync_interval == "always"
                sync = "1s" if bulk and always else self.config.nats.sync_interval
                server = embedded(
                    self.directory, msgspec.structs.replace(self.config.nats, sync_interval=sync)
                )
                await stack.enter_async_context(server)
                if bulk:  # while it still runs: what it has confirmed, it has written
                    stack.push_async_callback(asyncio.to_thread, sync_file_system, server.store)
                connection = await stack.enter_async_context(
                    connect(self.config.nats, name=name, url=server.url)
                )
            if guard:
                await stack.enter_async_context(self.guard(connection, hold=False, settle=settle))
                await self._check_role(connection, name)
            yield connection

    async def committed(self, connection: Connection) -> None:
        """Waits until the tables have all events of the stream. Raises ConfigError without a writer."""
        if waiting := await self.waiting(connection, COMMIT_WAIT_SECONDS):
            raise ConfigError(waiting)

    async def waiting(self, connection: Connection, patience: float = WAITING_SECONDS) -> str:
        """Names the events that the tables lack, and the command to run; empty when they have all. Waits
        `patience` seconds, if a writer may run."""
        from orchard.storage.reader import position  # as for `blobs`

        last = await log_end(connection)
        served = bool(self.config.nats.url or self.up())
        deadline = time.monotonic() + patience * served
        while not (written := await asyncio.to_thread(position, self.config.store)).reaches(last):
            if time.monotonic() >= deadline:
                where = f"the stream at {self.nats_url()}" if served else f"{self.directory / 'nats'}"
                run = "`orchard up`, or `orchard writer`" if served else "`orchard up`"
                behind = last.joined(written).events - written.events
                return (
                    f"{behind} events wait in {where}, from where a writer brings them into the tables of "
                    f"{self.config.store}: start {run}"
                )
            await asyncio.sleep(0.1)
        return ""

    @asynccontextmanager
    async def sandboxes(self) -> "AsyncIterator[AsyncSandboxClient]":
        """Opens a client of the pipeline's sandbox service."""
        from orchard.injector.client import AsyncSandboxClient  # a third of a second that most need not wait

        settings = self.config.sandbox
        url, key = settings.url, os.environ.get(settings.api_key_env)
        if url in (None, UNSAFE_HOST):
            record = self.up()
            if record is None:
                raise ConfigError(
                    f"no sandbox service runs on store {self.config.store}: start `orchard up` in another "
                    "terminal, or pass --sandbox http://HOST:PORT"
                )
            url = record.sandbox_url
            key = await asyncio.to_thread(RunFiles(self.directory).key.read_text)
        client = AsyncSandboxClient(base_url=url, api_key=key, tls_ca=settings.tls_ca)
        try:
            yield client
        finally:
            await client.close()
