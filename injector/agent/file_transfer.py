"""Copies file contents between a file and a connection in threads.

The bytes bypass the event loop, where scheduling each piece would cost more than moving it. A thread is held
only while bytes move; a client that neither sends nor reads waits in the loop.
"""

import asyncio
import os
import select
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import IO

from aiohttp import web

PIECE = 1 << 20
PATIENCE = 20
"""Milliseconds that a thread waits for the other end before it is released."""
GO_AHEAD = b"HTTP/1.1 100 Continue\r\n\r\n"


async def receive(request: web.Request, size: int, write: Callable[[memoryview], None]) -> None:
    """Send `100 Continue`, then pass `size` bytes of the body to `write`, in a thread.

    An OSError of `write` is raised after all bytes have come: what stayed in the connection would be taken
    for requests. Raises ConnectionError when the body is cut short.
    """
    left, failure = size, None
    buffer = memoryview(bytearray(min(size, PIECE)))

    def move(line: socket.socket) -> bool:
        nonlocal left, failure
        while left:
            count = line.recv_into(buffer[:left])
            if not count:
                raise ConnectionResetError("closed before all had come")
            left -= count
            if failure is None:
                try:
                    write(buffer[:count])
                except OSError as error:
                    failure = error
        return True

    async with _taken(request) as (line, transport):
        transport.write(GO_AHEAD)
        await _until_done(line, select.POLLIN, move)
    if failure is not None:
        raise failure


async def send(request: web.Request, reply: web.StreamResponse, source: IO[bytes], size: int) -> None:
    """Respond with the first `size` bytes of a file. Raises ConnectionError when not all can be sent."""
    reply.content_length = size
    await reply.prepare(request)
    await reply.write(b"")  # the head, which else waits for the first piece
    place = 0

    def move(line: socket.socket) -> bool:
        nonlocal place
        while place < size:
            count = os.sendfile(line.fileno(), source.fileno(), place, size - place)
            if not count:
                raise ConnectionResetError("the file became shorter")
            place += count
        return True

    async with _taken(request) as (line, transport):
        if transport.get_write_buffer_size():
            raise ConnectionResetError("the answer's head is not taken")
        await _until_done(line, select.POLLOUT, move)


@asynccontextmanager
async def _taken(request: web.Request) -> AsyncIterator[tuple[socket.socket, asyncio.Transport]]:
    """The request's connection, which the loop does not read meanwhile; any error aborts it."""
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("closed")
    transport.pause_reading()
    line = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
    try:
        yield line, transport
    except BaseException:
        transport.abort()
        raise
    transport.resume_reading()


async def _until_done(line: socket.socket, wanted: int, move: Callable[[socket.socket], bool]) -> None:
    """Call `move` in threads, whenever the line is ready, until it returns True; then close the line."""
    loop = asyncio.get_running_loop()
    watch, forget = {
        select.POLLIN: (loop.add_reader, loop.remove_reader),
        select.POLLOUT: (loop.add_writer, loop.remove_writer),
    }[wanted]
    poll = select.poll()
    poll.register(line, wanted)

    def moved() -> bool:
        while True:
            try:
                return move(line)
            except BlockingIOError:
                if not poll.poll(PATIENCE):
                    return False

    moving: asyncio.Future[bool] | None = None
    try:
        while True:
            ready = loop.create_future()
            watch(line, ready.set_result, None)
            try:
                await ready
            finally:
                forget(line)
            moving = loop.run_in_executor(None, moved)
            if await asyncio.shield(moving):
                return
    finally:
        if moving is None or moving.done():
            line.close()
        else:  # given up, but the thread has it to its end
            moving.add_done_callback(lambda _: line.close())
