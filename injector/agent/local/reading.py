"""Reads a host process's output from a pipe."""

import asyncio
import os


class PipeOutput:
    """A pipe whose first piece, and all its data once its writers have closed it, are futures."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._reader, self.writer = os.pipe2(os.O_CLOEXEC)
        self._data = b""
        self.first: asyncio.Future[bytes] = loop.create_future()
        self.all: asyncio.Future[bytes] = loop.create_future()
        loop.add_reader(self._reader, self._read)

    def _read(self) -> None:
        piece = os.read(self._reader, 65536)
        self._data += piece
        if not self.first.done():
            self.first.set_result(piece)
        if not piece:
            asyncio.get_running_loop().remove_reader(self._reader)
            self.all.set_result(self._data)

    def close_writer(self) -> None:
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def close(self) -> None:
        self.close_writer()
        asyncio.get_running_loop().remove_reader(self._reader)
        os.close(self._reader)
        self.all.cancel()
