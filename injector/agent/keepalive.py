"""Noticing that the other end of a quiet connection has vanished."""

import socket

LIMITS = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
"""Seconds of silence before the kernel asks, seconds between its questions, questions."""


def keep_alive(line: socket.socket | None) -> None:
    """Let the kernel probe the peer of a TCP connection; other sockets need nothing.

    A terminal may be silent for days, and its reader may pause, so neither silence nor a missing answer to a
    WebSocket ping says that anybody is gone.
    """
    if line is None or line.family not in (socket.AF_INET, socket.AF_INET6):
        return
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in LIMITS:
        line.setsockopt(socket.IPPROTO_TCP, option, value)
