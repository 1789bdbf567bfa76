"""The oracle's window: shows the page of an attempt to the program that solves its task, and to nobody else.

The worker that runs the attempt answers on an abstract socket, whose name follows from the rollout's seed,
which every request to the model carries. The pages, screenshots and sandbox hold no trace of it, and the
kernel removes it with its process. Attempts work the same without it, but the oracle cannot solve them.
"""

import asyncio
import errno
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

import msgspec

from orchard.workers.domains.gui.sites.engine import OpenSite
from orchard.workers.domains.gui.sites.solving import View

SURVEY = files(__package__ or "").joinpath("static", "survey.js").read_text("utf-8")
"""A JavaScript expression for the active page's main frame; its value is a View without records."""
_LIMIT = 4 * 1024 * 1024
_SECONDS = 20.0

Evaluate = Callable[[str], Awaitable[Any]]
"""Evaluates an expression in the active page."""


@asynccontextmanager
async def window(seed: int, site: OpenSite, evaluate: Evaluate) -> AsyncIterator[None]:
    """Lets the oracle see an attempt while the block lasts. Of two attempts with one seed, the first is
    seen."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if _own(writer.get_extra_info("socket")):
                seen = await evaluate(SURVEY)
                writer.write(msgspec.json.encode({**seen, "records": site.records(), "site": site.site}))
                await writer.drain()
        except Exception as error:  # a page that is gone: the oracle is told, the attempt is not touched
            writer.write(msgspec.json.encode({"error": f"{type(error).__name__}: {error}"[:500]}))
        finally:
            writer.close()

    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.bind(_name(seed))
    except OSError as error:
        listening.close()
        if error.errno != errno.EADDRINUSE:
            raise
        yield
        return
    server = await asyncio.start_unix_server(answer, sock=listening)
    try:
        yield
    finally:
        server.close()


async def look(seed: int) -> View:
    """Returns what the attempt with that seed shows now. Raises LookupError if this machine runs no such
    attempt, or it has no page."""
    try:
        async with asyncio.timeout(_SECONDS):
            calling = socket.socket(socket.AF_UNIX)
            calling.setblocking(False)
            try:
                await asyncio.get_running_loop().sock_connect(calling, _name(seed))
            except OSError:
                calling.close()
                raise
            reader, writer = await asyncio.open_unix_connection(sock=calling)
            try:
                raw = await reader.read(_LIMIT)
                while more := await reader.read(_LIMIT):
                    raw += more
            finally:
                writer.close()
        return msgspec.json.decode(raw, type=View)
    except (OSError, TimeoutError, msgspec.MsgspecError) as error:
        raise LookupError(f"there is no page of an attempt with seed {seed}: {error}") from error


def _name(seed: int) -> str:
    """The socket's name. uvloop refuses such a name as a path, so the sockets are made in this module."""
    return f"\0orchard-site-{os.getuid()}-{seed}"


def _own(peer: socket.socket) -> bool:
    """Whether the peer is a process of this user."""
    given = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", given)[1] == os.getuid())
