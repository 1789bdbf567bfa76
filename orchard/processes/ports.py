"""Ports and sockets of this machine."""

import asyncio
import os
import socket
from pathlib import Path


def free_port() -> int:
    """A port of loopback that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def listening(wanted: int) -> socket.socket:
    """A socket that listens on the wanted port of loopback, or on any where that is taken."""
    try:
        return socket.create_server(("127.0.0.1", wanted))
    except OSError:
        return socket.create_server(("127.0.0.1", 0))


async def accepts(address: int | Path) -> bool:
    """Whether somebody listens on a port of loopback, or on a socket file."""
    try:
        if isinstance(address, int):
            _, writer = await asyncio.open_connection("127.0.0.1", address)
        else:
            directory = os.open(address.parent, os.O_PATH | os.O_DIRECTORY)
            try:  # by its directory, because a socket's path may have only 107 bytes
                path = f"/proc/self/fd/{directory}/{address.name}"
                _, writer = await asyncio.open_unix_connection(path)
            finally:
                os.close(directory)
    except OSError:
        return False
    writer.close()
    return True
