"""What a command needs of the pipeline: configuration, connection, blobs, tables, sandboxes."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from orchard.config import Config, ConfigError
from orchard.injector.client import AsyncSandboxClient
from orchard.storage.blobs import BlobStore
from orchard.storage.reader import position
from orchard.streams import names
from orchard.streams.connection import Connection, connect
from orchard.streams.reading import bounds
from orchard.streams.server import EmbeddedServer
from orchard.up import UNSAFE_HOST, RunFiles, UpRecord, running
from orchard.workers.llm.settings import EndpointSettings

COMMIT_WAIT_SECONDS = 60.0


class Session:
    """One command's view of the pipeline it works on."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @property
    def directory(self) -> Path:
        """What belongs to this machine: server, sandboxes, caches, logs."""
        return self.config.directory

    @property
    def blobs(self) -> BlobStore:
        """The blob store beside the tables."""
        return BlobStore(self.config.store)

    def up(self) -> UpRecord | None:
        """What `orchard up` runs on this store, if anything."""
        return running(self.directory)

    def endpoints(self) -> dict[str, EndpointSettings]:
        """The configured endpoints, and the oracle of the pipeline that runs here."""
        record = self.up()
        own = {"oracle": EndpointSettings(base_url=record.oracle_url)} if record and record.oracle_url else {}
        return {**own, **self.config.endpoints}

    def nats_url(self) -> str:
        """The configured server, else the embedded one that runs; ConfigError when there is neither."""
        if self.config.nats.url:
            return self.config.nats.url
        if record := self.up():
            return record.nats_url
        raise ConfigError(
            f"nothing runs on store {self.config.store}: start `orchard up` in another terminal, "
            "or pass --nats nats://HOST:PORT"
        )

    @asynccontextmanager
    async def connection(self, name: str) -> AsyncIterator[Connection]:
        """An open connection to the pipeline's NATS server."""
        async with connect(self.config.nats, name=name, url=self.nats_url()) as connection:
            yield connection

    @asynccontextmanager
    async def connection_or_server(self, name: str) -> AsyncIterator[Connection]:
        """As `connection`; where nothing runs, over the store's own server, started meanwhile."""
        if self.config.nats.url or self.up():
            async with self.connection(name) as connection:
                yield connection
        else:
            async with (
                EmbeddedServer(self.directory / "nats") as server,
                connect(self.config.nats, name=name, url=server.url) as connection,
            ):
                yield connection

    async def committed(self, connection: Connection) -> None:
        """Wait until all that the stream holds now is in the tables; ConfigError without a writer."""
        last = (await bounds(connection, names.EVENTS)).last
        deadline = time.monotonic() + COMMIT_WAIT_SECONDS
        while await asyncio.to_thread(position, self.config.store) < last:
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"the tables of {self.config.store} are {COMMIT_WAIT_SECONDS:g} s behind the stream: "
                    "start `orchard up`, or `orchard writer`"
                )
            await asyncio.sleep(0.1)

    @asynccontextmanager
    async def sandboxes(self) -> AsyncIterator[AsyncSandboxClient]:
        """A client of the pipeline's sandbox service."""
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
        client = AsyncSandboxClient(base_url=url, api_key=key)
        try:
            yield client
        finally:
            await client.close()
