"""Room that is left: on the embedded server's disk, and in the event stream by its limits."""

import shutil
from contextlib import suppress
from pathlib import Path

import msgspec

from orchard.streams import names
from orchard.streams.connection import Connection
from orchard.streams.errors import TopologyError
from orchard.streams.reading import request
from orchard.streams.settings import NatsSettings
from orchard.streams.stream_state import AccountUsage, StreamInfo


def shortage(free: int, used: int, settings: NatsSettings, where: Path) -> str:
    """Why nothing new is claimed, as a sentence; empty when there is room.

    `free` are bytes of the disk, `used` those that the server stores in the directory `where`.
    """
    if free < settings.reserve_bytes:
        return (
            f"the disk of {where} has {free} bytes free, less than the {settings.reserve_bytes} of "
            "nats.reserve_bytes, so nothing new is claimed: free some space"
        )
    limit = settings.max_file_store
    if limit is not None and used > limit * settings.full_share:
        return (
            f"the NATS server stores {used} of at most {limit} bytes, so nothing new is claimed: raise "
            "nats.max_file_store and restart, or make room with `orchard log archive`"
        )
    return ""


def disk_shortage(store: Path, settings: NatsSettings) -> str:
    """`shortage` of a server's store directory, measured now."""
    try:
        free = shutil.disk_usage(store).free
    except FileNotFoundError:
        return ""
    used = 0
    if settings.max_file_store is not None:
        for block in store.glob("jetstream/*/streams/*/msgs/*.blk"):
            with suppress(FileNotFoundError):  # the server removes blocks that are empty
                used += block.stat().st_size
    return shortage(free, used, settings, store)


class Capacity(msgspec.Struct, frozen=True):
    """Messages and bytes in the stream, and the bytes it can still take; `left` is None without a limit."""

    messages: int
    bytes: int
    left: int | None


async def event_capacity(connection: Connection) -> Capacity:
    """Measures the event stream against its own limit and its account's; raises TopologyError without it."""
    info = await request(connection, f"STREAM.INFO.{names.EVENTS}", {}, StreamInfo)
    if info.state is None:
        raise TopologyError(f"there is no stream {names.EVENTS}: declare the topology (`orchard up`)")
    account = await request(connection, "INFO", {}, AccountUsage)
    limits = [(info.config.max_bytes, info.state.bytes), (account.limits.max_storage, account.storage)]
    left = [max(limit - used, 0) for limit, used in limits if limit > 0]
    return Capacity(info.state.messages, info.state.bytes, min(left, default=None))
