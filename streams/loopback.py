"""Finds the loopback address of this machine, which may have only one of IPv4 and IPv6."""

import socket
from functools import cache

from orchard.streams.errors import StreamsError

_SECONDS = 5.0


@cache
def loopback() -> str:
    """Address `127.0.0.1`, or `::1` where there is no other. Raises StreamsError without either."""
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            with (
                socket.create_server((address, 0), family=family) as server,
                socket.create_connection(server.getsockname()[:2], timeout=_SECONDS),
            ):  # an interface that is down can be bound to
                return address
        except OSError:
            continue
    raise StreamsError("this machine has no loopback address: `ip link set lo up` gives it one")


def url_host() -> str:
    """Loopback address as URLs have it."""
    address = loopback()
    return f"[{address}]" if ":" in address else address
