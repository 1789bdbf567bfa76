"""Who may ask: keys by header, or in two other places for WebSockets, which browsers open without headers."""

import hmac
from collections.abc import Mapping
from typing import NamedTuple

from aiohttp import hdrs, web

from orchard.injector.orchestrator.limits import OPEN

KEY_HEADER = "X-API-Key"
KEY_QUERY = "api_key"
KEY_PROTOCOL = "api_key."
"""A subprotocol of this followed by the key; the answer repeats it."""


class Refusal(NamedTuple):
    """Why not: an HTTP status and a sentence."""

    status: int
    detail: str


def caller(request: web.Request, accepted: Mapping[str, bytes]) -> str | Refusal:
    """The name of the key that the request has, of the `accepted` ones by name; OPEN where there are none."""
    if not accepted:
        return OPEN
    given = _given(request)
    if given is None:
        return Refusal(401, f"the header {KEY_HEADER} is missing")
    # Compared with all of them, so that the time taken tells nothing.
    sent = given.encode("utf-8", "surrogateescape")
    names = [name for name, key in accepted.items() if hmac.compare_digest(sent, key)]
    return names[0] if names else Refusal(403, "this key is not accepted")


def offered_protocols(request: web.Request) -> list[str]:
    """The subprotocols that carry a key."""
    offered = request.headers.getall(hdrs.SEC_WEBSOCKET_PROTOCOL, [])
    names = [name.strip() for line in offered for name in line.split(",")]
    return [name for name in names if name.startswith(KEY_PROTOCOL)]


def _given(request: web.Request) -> str | None:
    given = request.headers.get(KEY_HEADER)
    if given is not None or request.headers.get(hdrs.UPGRADE, "").lower() != "websocket":
        return given
    protocols = offered_protocols(request)
    return request.query.get(KEY_QUERY) or (protocols[0].removeprefix(KEY_PROTOCOL) if protocols else None)
