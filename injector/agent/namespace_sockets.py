"""Makes sockets in the network of a sandbox for the agent; nothing inside can see or take them."""

import asyncio
import errno
import os
import socket
import threading

from orchard.injector.agent import kernel
from orchard.injector.agent.spawning import Entrance


async def inside(entrance: Entrance, family: socket.AddressFamily) -> socket.socket:
    """Return a non-blocking TCP socket in the sandbox's network. Raises OSError.

    A socket belongs to the namespace it was made in, so a short-lived thread enters it to make one.
    """
    if entrance.pidfd is None:
        return socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    loop = asyncio.get_running_loop()
    made: asyncio.Future[socket.socket] = loop.create_future()
    target = os.dup(
        entrance.pidfd
    )  # the sandbox may be gone, and its number another's, before the thread runs

    def hand_over(result: socket.socket | OSError) -> None:
        if isinstance(result, OSError):
            if not made.cancelled():
                made.set_exception(result)
        elif made.cancelled():
            result.close()
        else:
            made.set_result(result)

    def make() -> None:
        result: socket.socket | OSError
        try:
            kernel.setns(target, kernel.CLONE_NEWNET)
            result = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError as error:
            result = error
        finally:
            os.close(target)
        loop.call_soon_threadsafe(hand_over, result)

    try:
        threading.Thread(target=make, name="namespace", daemon=True).start()
    except RuntimeError as error:
        os.close(target)
        raise OSError(errno.EAGAIN, "no thread can be started") from error
    return await made
