"""How much the event stream holds, and how much it may."""

import msgspec

from orchard.streams import names
from orchard.streams.connection import Connection
from orchard.streams.reading import request


class _State(msgspec.Struct):
    messages: int
    bytes: int


class _Config(msgspec.Struct):
    max_bytes: int = -1


class _Stream(msgspec.Struct):
    state: _State
    config: _Config


class _Limits(msgspec.Struct, frozen=True):
    max_storage: int = -1


class _Account(msgspec.Struct):
    storage: int = 0
    limits: _Limits = _Limits()


class Capacity(msgspec.Struct, frozen=True):
    """Messages and bytes in the stream, and the bytes it can still take; `left` is None without a limit."""

    messages: int
    bytes: int
    left: int | None


async def event_capacity(connection: Connection) -> Capacity:
    """Of the event stream, by its own limit and its account's."""
    stream = await request(connection, f"STREAM.INFO.{names.EVENTS}", {}, _Stream)
    account = await request(connection, "INFO", {}, _Account)
    limits = [(stream.config.max_bytes, stream.state.bytes), (account.limits.max_storage, account.storage)]
    left = [max(limit - used, 0) for limit, used in limits if limit > 0]
    return Capacity(stream.state.messages, stream.state.bytes, min(left, default=None))
