"""Directory archives: the event loop has the connection, a thread has the disk.

A socket pair between them bounds how far either gets ahead of the other.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from orchard.injector.agent import directories
from orchard.injector.agent.files import CHUNK, opened_directory

_GONE = (BrokenPipeError, ConnectionResetError)


@asynccontextmanager
async def packed(root: int, path: str) -> AsyncIterator[AsyncIterator[bytes]]:
    """Yield the directory at `path` as a tar archive, in pieces.

    Raises NotFound and RequestInvalid at once; when the directory cannot be read to its end, the iterator
    raises OSError. Leaving the block early ends the thread.
    """
    opened = opened_directory(root, path)
    directory = await asyncio.to_thread(opened.__enter__)
    try:
        await asyncio.to_thread(directories.insist_packable, directory)
    except BaseException:
        opened.__exit__(None, None, None)
        raise
    ours, theirs = socket.socketpair()
    ours.setblocking(False)

    def pack() -> None:
        with theirs, theirs.makefile("wb", buffering=CHUNK) as target:  # raw, a signal could cut a write
            directories.pack(directory, target)

    packing = asyncio.create_task(asyncio.to_thread(pack))

    async def pieces() -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        while piece := await loop.sock_recv(ours, CHUNK):
            yield piece
        await packing

    try:
        yield pieces()
    finally:
        ours.close()
        with suppress(*_GONE):
            await packing
        opened.__exit__(None, None, None)


async def unpack(root: int, path: str, content: AsyncIterator[bytes]) -> directories.Unpacked:
    """Unpack a tar archive that comes in pieces below `path`; raises as `directories.unpack` does."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)

    def take() -> directories.Unpacked:
        with theirs, theirs.makefile("rb", buffering=0) as source:
            done = directories.unpack(root, path, source)
            while source.read(CHUNK):  # what comes after the end of an archive is padding
                pass
            return done

    taking = asyncio.create_task(asyncio.to_thread(take))
    loop = asyncio.get_running_loop()
    try:
        with suppress(*_GONE):  # refused before its end, and the thread says why
            async for piece in content:
                await loop.sock_sendall(ours, piece)
    finally:
        ours.close()
        done = await taking
    return done
