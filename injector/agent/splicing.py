"""Joins a TCP connection to one stream of a line and copies both ways."""

import asyncio
import socket
import struct
from contextlib import suppress
from typing import Any, cast

from orchard.injector.agent.multiplexing import PIECE, Stream

BUFFER = 128 * 1024
"""Bytes that the kernel buffers in each direction: what a task does not read takes the machine's memory."""


class Splice(asyncio.BufferedProtocol):
    """The connection's protocol. Bytes that come before there is a connection wait for it.

    A lost stream resets the connection, and a reset connection the stream, so that nobody takes a part for
    the whole. `done` is set when both are gone.
    """

    def __init__(self, stream: Stream, scratch: memoryview) -> None:
        """`scratch` has PIECE bytes and is shared by all splices of an event loop: no byte stays there."""
        self._stream = stream
        self._scratch = scratch
        self._transport: asyncio.Transport | None = None
        self._early = bytearray()
        self._unconsumed = 0
        self._full = self._paused = False
        self._ended = False
        self._failed = False
        self.done = asyncio.Event()
        stream.receiver = self

    @property
    def moved(self) -> int:
        return self._stream.moved

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._failed:
            self._abort()
            return
        self._transport.set_write_buffer_limits(high=PIECE)
        self._pause_unless_wanted()
        early, self._early = self._early, bytearray()
        if early:
            self._write(memoryview(early))
        if self._ended:
            self._end(self._transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Return room for as much as the other end accepts; reading is paused while that is nothing."""
        return self._scratch[: max(1, self._stream.allowed)]

    def buffer_updated(self, nbytes: int) -> None:
        self._stream.send(self._scratch[:nbytes])
        self._pause_unless_wanted()

    def eof_received(self) -> bool:
        """End the stream's direction; the connection's other direction stays open until the stream ends
        too."""
        self._stream.end()
        self._close_when_both_ended()
        return True

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        count, self._unconsumed = self._unconsumed, 0
        self._stream.consumed(count)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        self._failed = True
        self._stream.reset()
        self.done.set()

    def received(self, data: memoryview) -> None:
        if self._transport is None:
            self._early += data
        else:
            self._write(data)

    def ended(self) -> None:
        self._ended = True
        if self._transport is not None and not self._transport.is_closing():
            self._end(self._transport)
            self._close_when_both_ended()

    def lost(self) -> None:
        self._failed = True
        if self._transport is None:
            self.done.set()
        else:
            self._abort()

    def room(self) -> None:
        if self._paused and self._transport is not None and self._stream.wanted:
            self._paused = False
            self._transport.resume_reading()

    def give_up(self) -> None:
        self._stream.reset()
        self.lost()

    def _pause_unless_wanted(self) -> None:
        if not self._paused and not self._stream.wanted and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _write(self, data: memoryview) -> None:
        assert self._transport is not None
        self._transport.write(data)
        if self._full:
            self._unconsumed += len(data)
        else:
            self._stream.consumed(len(data))

    def _end(self, transport: asyncio.Transport) -> None:
        with suppress(OSError):  # it was reset, which it is about to say
            transport.write_eof()

    def _close_when_both_ended(self) -> None:
        if self._stream.over and self._transport is not None:
            closing_resets(self._transport.get_extra_info("socket"), False)
            self._transport.close()

    def _abort(self) -> None:
        assert self._transport is not None
        closing_resets(self._transport.get_extra_info("socket"), True)
        self._transport.abort()


def prepared(connection: socket.socket) -> socket.socket:
    """Return the connection, non-blocking and with buffers of BUFFER bytes.

    Until both ends have ended, whatever closes it, the death of this process too, resets it: nothing that was
    cut off is taken for whole.
    """
    connection.setblocking(False)
    closing_resets(connection, True)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
    return connection


def closing_resets(connection: Any, whether: bool) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", whether, 0))
