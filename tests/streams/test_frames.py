"""What readers listen to: every message once and in order, however the socket has cut the bytes."""

import pytest

from orchard.streams.client import Frame, TolerantClient

HEADERS = b"NATS/1.0\r\nNats-Msg-Id: x\r\n\r\n"
BODY = b"\r\nMSG not.a.line 1 2\r\nPING\r\n"
WIRE = b"".join(
    [
        b"PING\r\n",
        b"MSG a.b 1 %d\r\n%b\r\n" % (len(BODY), BODY),
        b"+OK\r\n",
        b"HMSG a.c 1 reply.to %d %d\r\n%b%b\r\n" % (len(HEADERS), len(HEADERS + BODY), HEADERS, BODY),
        b"MSG a.d 1 reply.to 0\r\n\r\n",
        b"MSG nobody 2 3\r\nabc\r\n",
        b"PING\r\n",
        b"HMSG a.e 1 %d %d\r\n%b\r\n" % (len(HEADERS), len(HEADERS), HEADERS),
    ]
)
EXPECTED = [
    "ping",
    Frame(b"a.b", b"", b"", BODY),
    Frame(b"a.c", b"reply.to", HEADERS, BODY),
    Frame(b"a.d", b"reply.to", b"", b""),
    "ping",
    Frame(b"a.e", b"", HEADERS, b""),
]


class Client(TolerantClient):
    """Not connected: its bytes come from the test."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[object] = []
        self.listeners[1] = self.seen.append

    async def _process_ping(self) -> None:
        self.seen.append("ping")


@pytest.mark.parametrize("size", range(1, len(WIRE) + 1))
async def test_frames_do_not_depend_on_how_the_bytes_arrive(size: int) -> None:
    client = Client()
    for start in range(0, len(WIRE), size):
        await client._ps.parse(WIRE[start : start + size])
    assert client.seen == EXPECTED
