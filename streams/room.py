"""Whether the embedded server has room for new work: what its disk has free, what its limit leaves."""

import shutil
from contextlib import suppress
from pathlib import Path

from orchard.streams.settings import NatsSettings


def no_room(free: int, used: int, settings: NatsSettings, where: Path) -> str:
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


def disk_is_full(store: Path, settings: NatsSettings) -> str:
    """`no_room` of a server's store directory as it is now."""
    try:
        free = shutil.disk_usage(store).free
    except FileNotFoundError:
        return ""
    used = 0
    if settings.max_file_store is not None:
        for block in store.glob("jetstream/*/streams/*/msgs/*.blk"):
            with suppress(FileNotFoundError):  # the server removes blocks that are empty
                used += block.stat().st_size
    return no_room(free, used, settings, store)
