"""Messages between the stream checks of all processes, through the server and apart from the stream.

`damaged` is on disk: a process that finds that the stream has lost its end holds everybody, until the stream
is restored. `checked` is in the server's memory, so that a start of the server takes it away: then nobody
publishes until one process has compared the stream with the tables and left the mark again.
"""

from typing import Any, TypeVar

import msgspec
from nats.errors import NoRespondersError

from orchard.schemas.decoding import decode
from orchard.streams import names
from orchard.streams.connection import Connection
from orchard.streams.errors import StoreRefused
from orchard.streams.reading import MessageReply
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare_memory

T = TypeVar("T")

_ASK_SECONDS = 5.0
_ABSENT = frozenset({10037, 10059})
"""JetStream's codes for no such message, and for no such stream: one that the server never had, or had in
memory."""


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """A loss of events that a process has found."""

    reason: str
    restored: str
    """The stream's mark of its last restore (`names.RESTORED`) when the loss was found; another mark ends
    it."""


_DAMAGES = msgspec.json.Decoder(Damage)


async def ask(connection: Connection, api: str, body: dict[str, Any], form: type[T]) -> T:
    """Asks the JetStream API `api` (without `$JS.API.`) once. Raises NatsError, TimeoutError, DecodeError."""
    payload = msgspec.json.encode(body) if body else b""
    answer = await connection.nats.request(f"$JS.API.{api}", payload, timeout=_ASK_SECONDS)
    return msgspec.json.decode(answer.data, type=form)


async def payload_of(connection: Connection, stream: str, wanted: dict[str, Any]) -> bytes | None:
    """Reads the payload of one message, None when there is none; raises as `ask` does, and StoreRefused."""
    reply = await ask(connection, f"STREAM.MSG.GET.{stream}", wanted, MessageReply)
    if reply.message is not None:
        return reply.message.data
    if reply.error is None or reply.error.err_code in _ABSENT:
        return None
    raise StoreRefused(f"a message of {stream} cannot be read ({reply.error.description})")


async def read_damage(connection: Connection) -> Damage | None:
    """Reads the newest damage that any process has found; raises as `payload_of` does, and Unreadable."""
    data = await payload_of(connection, names.GUARD, {"last_by_subj": names.DAMAGED})
    return None if data is None else decode(_DAMAGES, data)


async def tell_damage(connection: Connection, damage: Damage) -> None:
    """Holds all processes; raises NatsError, TimeoutError, or StoreRefused when it is not stored."""
    await _store(connection, names.DAMAGED, msgspec.json.encode(damage))


async def is_checked(connection: Connection) -> bool:
    """Whether a process has checked the stream since the server was started; raises as `payload_of` does."""
    return await payload_of(connection, names.CHECKED, {"last_by_subj": names.CHECKED_SUBJECT}) is not None


async def tell_checked(connection: Connection, settings: NatsSettings) -> bool:
    """Lets all processes pass; raises as `tell_damage` does, and TopologyError.

    False where the start of the server took away the streams in its memory: they are declared again, which
    takes a moment, so look again before the next try.
    """
    try:
        await _store(connection, names.CHECKED_SUBJECT, connection.name.encode())
    except NoRespondersError:
        await declare_memory(connection, settings)
        return False
    return True


async def _store(connection: Connection, subject: str, payload: bytes) -> None:
    answer = await connection.nats.request(subject, payload, timeout=_ASK_SECONDS)
    refusal = msgspec.json.decode(answer.data, type=MessageReply).error
    if refusal is not None:
        raise StoreRefused(f"NATS did not store {subject} ({refusal.description})")
