"""TCP keepalive, which detects a vanished peer of an idle connection."""

import socket

LIMITS = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
"""Seconds of silence before the first probe, seconds between probes, number of probes."""


def keep_alive(line: socket.socket | None) -> None:
    """Enable keepalive on a TCP connection; does nothing for other sockets.

    A terminal may be silent for days, and its reader may pause, so neither silence nor a missing WebSocket
    pong means that the peer is gone.
    """
    if line is None or line.family not in (socket.AF_INET, socket.AF_INET6):
        return
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in LIMITS:
        line.setsockopt(socket.IPPROTO_TCP, option, value)
