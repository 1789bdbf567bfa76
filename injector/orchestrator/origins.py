"""Refuses requests that a browser sends for a foreign page, by their Origin or Host.

A page may send simple requests to any address, and open WebSockets to it, loopback included; and a name that
its owner points here (DNS rebinding) makes the responses readable too. Programs send no Origin, and on
loopback they use the right Host.
"""

import ipaddress
import re
from collections.abc import Collection
from functools import lru_cache

from aiohttp import hdrs, web

MISDIRECTED = 421
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:/@\s]+)(:\d*)?", re.ASCII)


@lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    """Whether a name or address, without a port, is this machine's own."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def refusal(request: web.Request, *, loopback: bool, hosts: Collection[str]) -> tuple[int, str] | None:
    """Return why a request is refused, as an HTTP status and a sentence, or None.

    `loopback`: the service listens on loopback only. `hosts` are other names of the service, as a proxy sends
    them, with or without a port.
    """
    host = request.headers.get(hdrs.HOST, "")
    if loopback and not is_loopback(_name(host)) and not {host, _name(host)} & {*hosts}:
        detail = f"this service is not `{_name(host)[:100]}`: ask localhost, or start it with --allowed-host"
        return MISDIRECTED, detail
    for origin in request.headers.getall(hdrs.ORIGIN, []):
        asked_by = origin.partition("://")[2]
        if asked_by != host and not {asked_by, _name(asked_by)} & {*hosts}:
            return 403, "a page of another origin asks: start the service with --allowed-host for its host"
    return None


def _name(host: str) -> str:
    """Strip the port and the brackets of an IPv6 address; returns anything else as it is."""
    parts = _HOST.fullmatch(host.lower())
    return parts[1].strip("[]") if parts else host
