"""Finds free ports and listening sockets of this machine."""

import asyncio
import os
import socket
from pathlib import Path

from orchard.streams.loopback import loopback


def free_port() -> int:
    """Returns a loopback port that is free now."""
    with _listening(0) as probe:
        port: int = probe.getsockname()[1]
        return port


def listening(wanted: int) -> socket.socket:
    """Returns a socket that listens on the wanted loopback port or, if it is taken, on a free one."""
    try:
        return _listening(wanted)
    except OSError:
        return _listening(0)


def _listening(port: int) -> socket.socket:
    address = loopback()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family)


async def accepts(address: int | Path) -> bool:
    """Whether something listens on a loopback port or a socket file."""
    try:
        if isinstance(address, int):
            _, writer = await asyncio.open_connection(loopback(), address)
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
