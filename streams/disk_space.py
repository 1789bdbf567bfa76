"""Room that is left: on the embedded server's disk, and in the event stream by its limits."""

import shutil
from contextlib import suppress
from pathlib import Path

import msgspec

from orchard.streams.connection import Connection
from orchard.streams.event_streams import stream_infos
from orchard.streams.reading import request
from orchard.streams.settings import NatsSettings
from orchard.streams.stream_state import AccountUsage


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
    """Messages and bytes in the event streams, and the bytes that the fullest can still take; `left` is None
    without a limit."""

    messages: int
    bytes: int
    left: int | None


async def event_capacity(connection: Connection) -> Capacity:
    """Measures the event streams against their own limits and their account's; raises TopologyError without
    them."""
    held = await stream_infos(connection)
    account = await request(connection, "INFO", {}, AccountUsage)
    limits = [(account.limits.max_storage, account.storage)]
    limits += [(config.max_bytes, state.bytes) for config, state in held]
    left = [max(limit - used, 0) for limit, used in limits if limit > 0]
    return Capacity(
        sum(state.messages for _, state in held),
        sum(state.bytes for _, state in held),
        min(left, default=None),
    )
