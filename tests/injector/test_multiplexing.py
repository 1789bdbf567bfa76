"""Many streams over one line, without any network: what arrives, what is refused, what waits."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
from aiohttp import WSMessage, WSMsgType

from orchard.injector.agent import multiplexing
from orchard.injector.agent.multiplexing import (
    CREDIT,
    CREDIT_SIZE,
    DATA,
    END,
    HEADER,
    OPEN,
    PIECE,
    RESET,
    STREAMS,
    WINDOW,
    Multiplexer,
    ProtocolError,
    Stream,
)


class Pipe:
    """One end of a line in memory; the other end's `sent` is what this one receives."""

    def __init__(self) -> None:
        self.sent: asyncio.Queue[bytes] = asyncio.Queue(4)
        self.other: Pipe = self

    async def send_bytes(self, data: bytes) -> None:
        await self.sent.put(data)

    async def __aiter__(self) -> AsyncIterator[WSMessage]:
        while data := await self.other.sent.get():
            yield WSMessage(WSMsgType.BINARY, data, None)


class End:
    """Sends `outgoing` in pieces of any size, and keeps what comes, which it reads when it likes."""

    def __init__(self, stream: Stream, outgoing: bytes, chance: random.Random) -> None:
        self.stream = stream
        self.outgoing = memoryview(outgoing)
        self.chance = chance
        self.incoming = bytearray()
        self.unread = self.most_unread = 0
        self.ending = asyncio.Event()
        stream.receiver = self
        self.room()

    def received(self, data: memoryview) -> None:
        self.incoming += data
        self.unread += len(data)
        self.most_unread = max(self.most_unread, self.unread)
        asyncio.get_running_loop().call_later(self.chance.random() * 0.002, self.read, len(data))

    def read(self, count: int) -> None:
        self.unread -= count
        self.stream.consumed(count)

    def room(self) -> None:
        while self.stream.wanted and self.outgoing:
            size = self.chance.randint(1, self.stream.allowed)
            self.stream.send(self.outgoing[:size])
            self.outgoing = self.outgoing[size:]
        if not self.outgoing:
            self.stream.end()

    def ended(self) -> None:
        self.ending.set()

    def lost(self) -> None:
        raise AssertionError("nobody resets here")


class Silent:
    """Reads nothing, sends nothing, notes what happens."""

    def __init__(self) -> None:
        self.happened: list[str] = []

    def received(self, data: memoryview) -> None:
        self.happened.append(f"{len(data)} bytes")

    def ended(self) -> None:
        self.happened.append("ended")

    def lost(self) -> None:
        self.happened.append("lost")

    def room(self) -> None:
        self.happened.append("room")


@pytest.mark.parametrize("seed", range(3))
async def test_every_stream_gets_all_of_its_own_bytes_in_order(seed: int) -> None:
    chance = random.Random(seed)
    here, there = Pipe(), Pipe()
    here.other, there.other = there, here
    contents = [chance.randbytes(chance.choice([0, 1, 1000, 3 * WINDOW])) for _ in range(40)]
    answers = [chance.randbytes(chance.choice([0, 1, 1000, 3 * WINDOW])) for _ in range(40)]
    theirs: list[End] = []

    def opened(stream: Stream) -> None:
        theirs.append(End(stream, answers[stream.number - 1], chance))

    ends = Multiplexer(here), Multiplexer(there, opened)  # type: ignore[arg-type]
    running = [asyncio.ensure_future(end.run()) for end in ends]
    ours = []
    for content in contents:
        stream = ends[0].open()
        assert stream is not None
        ours.append(End(stream, content, chance))
    for end in ours:
        await end.ending.wait()
    for end in theirs:
        await end.ending.wait()
    await here.send_bytes(b"")
    await asyncio.gather(running[1])
    running[0].cancel()
    assert [bytes(end.incoming) for end in ours] == answers
    assert [bytes(end.incoming) for end in theirs] == contents
    assert max(end.most_unread for end in [*ours, *theirs]) <= WINDOW
    assert all(end.stream.over for end in [*ours, *theirs])


def accepting() -> tuple[Multiplexer, list[Silent]]:
    """An end that nobody runs, told of streams."""
    receivers: list[Silent] = []

    def opened(stream: Stream) -> None:
        stream.receiver = Silent()
        receivers.append(stream.receiver)

    return Multiplexer(Pipe(), opened), receivers  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "frames",
    [
        [HEADER.pack(OPEN, 1), HEADER.pack(END, 1), HEADER.pack(END, 1)],
        [HEADER.pack(OPEN, 1), HEADER.pack(END, 1), HEADER.pack(DATA, 1) + b"x"],
        [HEADER.pack(OPEN, 1), *[HEADER.pack(DATA, 1) + bytes(PIECE)] * (WINDOW // PIECE + 1)],
        [HEADER.pack(OPEN, 1), HEADER.pack(CREDIT, 1) + CREDIT_SIZE.pack(1)],
        [HEADER.pack(OPEN, 2**32 - 1)],
        [HEADER.pack(END, 0)],
    ],
    ids=["ends twice", "goes on after its end", "too much", "too much room", "out of order", "of no stream"],
)
async def test_what_breaks_the_rules_is_refused_with_its_last_frame(frames: list[bytes]) -> None:
    line, _ = accepting()
    for frame in frames[:-1]:
        line.take(frame)
    with pytest.raises(ProtocolError):
        line.take(frames[-1])


async def test_nothing_happens_on_a_stream_that_is_over() -> None:
    line, (*receivers,) = accepting()
    line.take(HEADER.pack(OPEN, 1))
    line.take(HEADER.pack(RESET, 1))
    for late in (HEADER.pack(DATA, 1) + b"x", HEADER.pack(END, 1), HEADER.pack(RESET, 1)):
        line.take(late)
    line, receivers = accepting()
    line.take(HEADER.pack(OPEN, 1))
    line.take(HEADER.pack(RESET, 1))
    line.take(HEADER.pack(DATA, 1) + b"x")
    assert receivers[0].happened == ["lost"]


async def test_a_peer_that_sends_and_never_reads_is_given_up_before_it_fills_the_memory() -> None:
    """Each stream beyond STREAMS is refused by a frame that is never taken."""
    line, receivers = accepting()
    with pytest.raises(ProtocolError, match="does not read"):
        for number in range(1, 2 * multiplexing.MOST_WAITING):
            line.take(HEADER.pack(OPEN, number))
    assert len(receivers) == STREAMS


async def test_a_line_that_takes_nothing_stops_all_senders_soon() -> None:
    line = Multiplexer(Pipe())  # type: ignore[arg-type]
    sent = 0
    streams = []
    while (stream := line.open()) is not None:
        stream.receiver = Silent()
        streams.append(stream)
        while stream.wanted:
            stream.send(bytes(stream.allowed))
            sent += PIECE
    assert len(streams) == STREAMS
    assert sent <= multiplexing.CONGESTED + PIECE
