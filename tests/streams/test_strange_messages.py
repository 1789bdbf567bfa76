"""Messages that a server takes and a client library does not expect: no subject or header ends reading."""

import asyncio
from urllib.parse import urlsplit

import msgspec

from orchard.streams.connection import Connection
from orchard.streams.names import EVENTS
from orchard.streams.reading import message_at
from orchard.streams.replay import replay
from orchard.streams.server import EmbeddedServer

STRANGE = [
    (b"orchard.events.\xff\xfe.00.x", None, b"{}"),
    (b"orchard.events.a\x00b.00.x", None, b"{}"),
    (b"orchard.events.vertical\x0btab.00.x", None, b"{}"),
    (b"orchard.events.form\x0cfeed.00.x", None, b""),
    (b"orchard.events.a.00.b", b"NATS/1.0\r\nno colon\r\n\r\n", b"{}"),
    (b"orchard.events.a.00.c", b"NATS/1.0\r\nBad: \xff\r\n \xe2: x\r\n: empty\r\n\r\n", b"{}"),
    (b"orchard.events.a.00.d", b"XXXX/9.9 abc\r\n\r\n", b"{}"),
    (b"orchard.events.a.00.e", b"NATS/1.0 \xff\xfe\r\n\r\n", b""),
    (b"orchard.events.a.00.f", b"NATS/1.0 503\r\n\r\n", b""),
    (b"orchard.events.a.00.g", b"NATS/1.0\r\nStatus: 409\r\n\r\n", b""),
]
"""Subject, header block and body."""


async def test_every_strange_message_is_read_once_and_in_order(
    connection: Connection, server: EmbeddedServer
) -> None:
    await _publish(server.url, STRANGE)
    read = [(stored.sequence, stored.raw) async for stored in replay(connection)]
    assert read == [(number, body) for number, (_, _, body) in enumerate(STRANGE, 1)]
    for number, (_, _, body) in enumerate(STRANGE, 1):
        found = await message_at(connection, EVENTS, number)
        assert found is not None
        assert found.data == body


async def _publish(url: str, messages: list[tuple[bytes, bytes | None, bytes]]) -> None:
    """Over a bare socket, since the library refuses to send most of this; returns when the server has all."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    login = {"user": place.username, "pass": place.password} if place.username else {}
    options = {"verbose": False, "headers": True, **login}
    writer.write(b"CONNECT " + msgspec.json.encode(options) + b"\r\n")
    for subject, headers, body in messages:
        if headers is None:
            writer.write(b"PUB %b %d\r\n%b\r\n" % (subject, len(body), body))
        else:
            size = len(headers) + len(body)
            writer.write(b"HPUB %b %d %d\r\n%b%b\r\n" % (subject, len(headers), size, headers, body))
    writer.write(b"PING\r\n")
    while (line := await reader.readline()) != b"PONG\r\n":
        assert line.startswith(b"INFO"), line
    writer.close()
