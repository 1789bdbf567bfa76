"""The client of the agent's unix socket: whole answers, connections used again, no half of anything."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from orchard.injector import unix_http
from orchard.injector.unix_http import ConnectionPool, HttpResponse, Sized

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nx-error-reason: none\r\n\r\nhello"


class Server:
    """Answers each request with the pieces given, one after the other; counts its connections."""

    def __init__(self, *pieces: bytes, then_close: bool = False) -> None:
        self._pieces, self._then_close = pieces, then_close
        self.connections = 0
        self.heads: list[bytes] = []
        self.gone = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                self.heads.append(await reader.readuntil(b"\r\n\r\n"))
                for piece in self._pieces:
                    writer.write(piece)
                    await writer.drain()
                if self._then_close:
                    break
        self.gone.set()
        writer.close()


@asynccontextmanager
async def asked(place: Path, server: Server) -> AsyncIterator[ConnectionPool]:
    path = str(place / "socket")
    async with await asyncio.start_unix_server(server.serve, path):
        made = ConnectionPool(path)
        yield made
        made.close()


async def ask(one: ConnectionPool, target: str = "/") -> HttpResponse:
    return await (await one.connection()).ask("GET", target, {"X-Request-ID": "7"}, b"")


@pytest.mark.parametrize("size", [1, 7, len(WHOLE)])
async def test_an_answer_comes_in_any_pieces_and_its_connection_is_used_again(
    tmp_path: Path, size: int
) -> None:
    server = Server(*(WHOLE[begin : begin + size] for begin in range(0, len(WHOLE), size)))
    async with asked(tmp_path, server) as one:
        for _ in range(3):
            answer = await ask(one, "/a?b=c")
            assert (answer.status, answer.body, answer.headers["X-Error-Reason"]) == (200, b"hello", "none")
    assert server.connections == 1
    assert (
        server.heads[0].startswith(b"GET /a?b=c HTTP/1.1\r\n") and b"X-Request-ID: 7\r\n" in server.heads[0]
    )


@pytest.mark.parametrize(
    "pieces",
    [
        (),
        (WHOLE[:-1],),
        (b"HTTP/1.1 200 OK\r\n\r\n",),
        (b"no answer\r\n\r\n",),
        (WHOLE + b"more",),
    ],
    ids=["nothing", "cut off", "no length", "no status", "too much"],
)
async def test_what_is_no_whole_answer_is_a_lost_connection(
    tmp_path: Path, pieces: tuple[bytes, ...]
) -> None:
    server = Server(*pieces, then_close=True)
    async with asked(tmp_path, server) as one:
        with pytest.raises(ConnectionError):
            await ask(one)


async def test_a_connection_that_the_server_ends_is_not_used_again(tmp_path: Path) -> None:
    server = Server(WHOLE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1), then_close=True)
    async with asked(tmp_path, server) as one:
        assert [(await ask(one)).status for _ in range(2)] == [200, 200]
    assert server.connections == 2


async def test_a_connection_that_was_idle_is_not_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unix_http, "IDLE_SECONDS", 0.0)
    server = Server(WHOLE)
    async with asked(tmp_path, server) as one:
        assert [(await ask(one)).status for _ in range(2)] == [200, 200]
    assert server.connections == 2


async def test_the_server_learns_that_nobody_waits(tmp_path: Path) -> None:
    server = Server()
    async with asked(tmp_path, server) as one:
        waiting = asyncio.ensure_future(ask(one))
        while not server.heads:
            await asyncio.sleep(0.001)
        waiting.cancel()
        async with asyncio.timeout(60):
            await server.gone.wait()


async def test_the_server_learns_that_no_body_will_come_though_it_has_just_asked_for_it(
    tmp_path: Path,
) -> None:
    server = Server()
    async with asked(tmp_path, server) as one:
        connection = await one.connection()
        putting = asyncio.create_task(connection.put("/", {}, Sized(_pieces(), 5)))
        async with asyncio.timeout(20):
            while not server.heads:
                await asyncio.sleep(0)
            connection.data_received(b"HTTP/1.1 100 Continue\r\n\r\n")
            putting.cancel()  # before it can see that
            with pytest.raises(asyncio.CancelledError):
                await putting
            await server.gone.wait()


async def _pieces() -> AsyncIterator[bytes]:
    yield b"hello"


async def test_without_a_server_nothing_was_sent(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await ask(ConnectionPool(str(tmp_path / "socket")))
