"""How much the event stream holds, and how much it may."""

import msgspec

from orchard.streams import names
from orchard.streams.connection import Connection
from orchard.streams.errors import TopologyError
from orchard.streams.reading import request
from orchard.streams.wholeness import Account, Info


class Capacity(msgspec.Struct, frozen=True):
    """Messages and bytes in the stream, and the bytes it can still take; `left` is None without a limit."""

    messages: int
    bytes: int
    left: int | None


async def event_capacity(connection: Connection) -> Capacity:
    """Of the event stream, by its own limit and its account's."""
    info = await request(connection, f"STREAM.INFO.{names.EVENTS}", {}, Info)
    if info.state is None:
        raise TopologyError(f"there is no stream {names.EVENTS}: declare the topology (`orchard up`)")
    account = await request(connection, "INFO", {}, Account)
    limits = [(info.config.max_bytes, info.state.bytes), (account.limits.max_storage, account.storage)]
    left = [max(limit - used, 0) for limit, used in limits if limit > 0]
    return Capacity(info.state.messages, info.state.bytes, min(left, default=None))
