"""What readers listen to: every message once and in order, however the socket has cut the bytes."""

import importlib.util
import re
from functools import cache
from itertools import pairwise
from types import ModuleType
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

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


async def test_frames_do_not_depend_on_how_the_bytes_arrive() -> None:
    for size in range(1, len(WIRE) + 1):
        client = Client()
        for start in range(0, len(WIRE), size):
            await client._ps.parse(WIRE[start : start + size])
        assert client.seen == EXPECTED, size


@cache
def nats_parser() -> ModuleType:
    """A copy of nats-py's parser, as it was before ours changed its patterns, but for one thing: there the
    words of a line may stand on several lines, so `MSG a 1` waits for a number on the next one."""
    spec = importlib.util.find_spec("nats.protocol.parser")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("MSG_RE", "HMSG_RE"):
        words = getattr(module, name).pattern.replace(rb"[^\s]", rb"\S")
        setattr(module, name, re.compile(words.replace(rb"\s", rb"[^\S\r\n]")))
    return module


class Recorder:
    """The client that nats-py's parser calls."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None
    ) -> None:
        self.seen.append((sid, Frame(subject, reply, headers or b"", data)))

    async def _process_ping(self) -> None:
        self.seen.append("ping")

    async def _process_pong(self) -> None:
        self.seen.append("pong")

    async def _process_err(self, text: str) -> None:
        self.seen.append(text)

    async def _process_info(self, info: dict[str, Any]) -> None:
        self.seen.append(info)


class Ours(Recorder, TolerantClient):
    """Subscription 1 listens, the others are nats-py's."""

    def __init__(self) -> None:
        TolerantClient.__init__(self)
        Recorder.__init__(self)
        self.listeners[1] = lambda frame: self.seen.append((1, frame))


TOKEN = st.binary(min_size=1, max_size=12).map(lambda raw: raw.translate(None, b" \t\r\n\v\f") or b"a")
BODIES = st.binary(max_size=40) | st.sampled_from([b"", BODY, b"x" * 70_000])
BLOCKS = st.sampled_from(
    [
        HEADERS,
        b"NATS/1.0 503\r\n\r\n",
        b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 7\r\n\r\n",
        b"\xff",
    ]
)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """A message, with any blanks between its words."""
    space = draw(st.sampled_from([b" ", b" ", b"\t", b"  "]))
    block, body = draw(st.none() | BLOCKS), draw(BODIES)
    words = [b"MSG" if block is None else b"HMSG", draw(TOKEN), draw(st.sampled_from([b"1", b"2", b"10"]))]
    words += draw(st.lists(TOKEN | st.just(b"7"), max_size=1))
    words += [] if block is None else [b"%d" % len(block)]
    words += [b"%d" % len((block or b"") + body)]
    return space.join(words) + b"\r\n" + (block or b"") + body + b"\r\n"


CONTROL = st.sampled_from([b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'Stale'\r\n", b'INFO {"a":1}\r\n'])
BROKEN = st.binary(max_size=10).map(lambda raw: raw + b"\r\n") | st.sampled_from(
    [
        b"MSG a 1\r\n",
        b"MSG a 1 -5\r\n",
        b"MSG a 1 +5\r\nabcde\r\n",
        b"MSG a x 5\r\nabcde\r\n",
        b"MSG  1 5\r\nabcde\r\n",
        b"MSG a 1 1_0\r\n0123456789\r\n",
        b"HMSG a 1 5 3\r\nabc\r\n",
    ]
)
WHOLE = messages() | messages() | CONTROL


async def parsed(parser: Any, seen: list[object], parts: list[bytes]) -> list[object]:
    """What a parser makes of the bytes, and the kind of error at which it stops."""
    try:
        for part in parts:
            await parser.parse(part)
    except Exception as error:
        seen.append(type(error).__name__)
    return seen


@given(
    frames=st.lists(WHOLE | BROKEN, max_size=6) | st.lists(WHOLE, max_size=8),
    cuts=st.lists(st.integers(0, 400), max_size=10),
)
async def test_the_same_bytes_mean_the_same_as_to_nats_py(frames: list[bytes], cuts: list[int]) -> None:
    wire = b"".join(frames)
    places = [0, *sorted(cuts), len(wire)]
    parts = [wire[start:end] for start, end in pairwise(places)]
    theirs, ours = Recorder(), Ours()

    expected = await parsed(nats_parser().Parser(theirs), theirs.seen, parts)

    assert await parsed(ours._ps, ours.seen, parts) == expected
