"""Finds the loopback address of this machine, which may have only one of IPv4 and IPv6."""

import socket
from functools import cache

from orchard.streams.errors import StreamsError


@cache
def loopback() -> str:
    """Address `127.0.0.1`, or `::1` where there is no other. Raises StreamsError without either."""
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            with socket.socket(family) as probe:
                probe.bind((address, 0))
                return address
        except OSError:
            continue
    raise StreamsError("this machine has no loopback address: `ip link set lo up` gives it one")


def url_host() -> str:
    """Loopback address as URLs have it."""
    address = loopback()
    return f"[{address}]" if ":" in address else address
