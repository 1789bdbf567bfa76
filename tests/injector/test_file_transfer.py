"""Contents of files through the agent's unix socket: whole or not at all, and never taken for requests."""

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from orchard.injector.agent import file_transfer
from orchard.injector.unix_http import ConnectionPool, Sized

SMUGGLED = b"POST /trespass HTTP/1.1\r\nHost: agent\r\nContent-Length: 0\r\n\r\n"


class Taker:
    """Takes contents into memory, until the disk is full; counts what nobody may ask for."""

    def __init__(self, room: int = 1 << 30) -> None:
        self.room = room
        self.taken = bytearray()
        self.trespasses = 0
        self.given_up = asyncio.Event()

    async def put(self, request: web.Request) -> web.Response:
        if "refused" in request.query:
            return web.Response(status=422, text="refused")
        try:
            await file_transfer.receive(request, int(request.query["size"]), self._write)
        except ConnectionError:
            self.given_up.set()
            raise
        except OSError as error:
            return web.Response(status=500, text=errno.errorcode[error.errno or 0])
        return web.Response(text=str(len(self.taken)))

    async def trespass(self, _request: web.Request) -> web.Response:
        self.trespasses += 1
        return web.Response()

    def _write(self, piece: memoryview) -> None:
        if len(self.taken) + len(piece) > self.room:
            raise OSError(errno.ENOSPC, "no room")
        self.taken += piece


@asynccontextmanager
async def asked(place: Path, taker: Taker) -> AsyncIterator[ConnectionPool]:
    app = web.Application()
    app.add_routes([web.put("/", taker.put), web.post("/trespass", taker.trespass)])
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    path = str(place / "socket")
    await web.UnixSite(runner, path).start()
    exchange = ConnectionPool(path)
    yield exchange
    exchange.close()
    await runner.cleanup()


async def several(piece: bytes, times: int) -> AsyncIterator[bytes]:
    for _ in range(times):
        yield piece
        await asyncio.sleep(0)


async def test_it_comes_as_it_was_and_the_connection_is_used_again(tmp_path: Path) -> None:
    taker, piece = Taker(), bytes(range(256)) * 1000
    async with asked(tmp_path, taker) as exchange:
        first = await exchange.connection()
        size = len(piece) * 20
        answer = await first.put(f"/?size={size}", {}, Sized(several(piece, 20), size))
        assert (answer.status, answer.body) == (200, str(size).encode())
        assert taker.taken == piece * 20
        assert await exchange.connection() is first


async def test_what_is_refused_is_not_sent(tmp_path: Path) -> None:
    async with asked(tmp_path, Taker()) as exchange:
        first, body = await exchange.connection(), several(b"x", 3)
        answer = await first.put("/?refused=1", {}, Sized(body, 3))
        assert (answer.status, answer.body) == (422, b"refused")
        assert await anext(body) == b"x"
        assert await exchange.connection() is first


async def test_after_a_write_that_failed_the_rest_is_no_request(tmp_path: Path) -> None:
    taker = Taker(room=len(SMUGGLED) * 500)
    async with asked(tmp_path, taker) as exchange:
        first, size = await exchange.connection(), len(SMUGGLED) * 50_000
        answer = await first.put(f"/?size={size}", {}, Sized(several(SMUGGLED * 1000, 50), size))
        assert (answer.status, answer.body) == (500, b"ENOSPC")
        assert (await first.ask("GET", "/nothing", {}, b"")).status == 404
        assert taker.trespasses == 0


async def test_more_than_was_said_is_not_sent(tmp_path: Path) -> None:
    taker = Taker()
    async with asked(tmp_path, taker) as exchange:
        first = await exchange.connection()
        with pytest.raises(ConnectionError):
            await first.put("/?size=5", {}, Sized(several(b"four", 2), 5))
        await taker.given_up.wait()
        assert taker.taken == b"four"


async def test_whoever_stops_sending_is_a_broken_connection_there(tmp_path: Path) -> None:
    taker = Taker()

    async def stopping() -> AsyncIterator[bytes]:
        yield b"some"
        raise LookupError("the client is gone")

    async with asked(tmp_path, taker) as exchange:
        with pytest.raises(LookupError):
            await (await exchange.connection()).put("/?size=9", {}, Sized(stopping(), 9))
        await taker.given_up.wait()
