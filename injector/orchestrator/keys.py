"""Authenticates requests by key: a header, or for WebSockets, which browsers open without headers, two
other places."""

import hmac
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from aiohttp import hdrs, web

from orchard.injector.operations import API_KEY_HEADER, TERMINAL
from orchard.injector.orchestrator.limits import OPEN, name_of

KEY_QUERY = "api_key"
KEY_PROTOCOL = "api_key."
"""Prefix of a subprotocol that carries the key; the response repeats it."""


class Keys:
    """The accepted keys by name, and which of them are administrators'.

    With a single key, or none, sandboxes need not be separated.
    """

    def __init__(self, keys: Sequence[str], admins: Sequence[str] = ()) -> None:
        self.accepted = {name_of(key): key.encode() for key in (*keys, *admins)}
        self._admins = {name_of(key) for key in admins}

    def owns(self, name: str) -> bool:
        """Whether the key of this name sees and changes only what is its own."""
        return len(self.accepted) > 1 and name not in self._admins

    def figures(self) -> dict[str, str]:
        """Names of the keys in public metrics, where digests could be used to guess keys."""
        return {OPEN: OPEN} | {name: f"key-{number}" for number, name in enumerate(self.accepted, start=1)}


class AuthRefusal(NamedTuple):
    status: int
    detail: str


def caller(request: web.Request, accepted: Mapping[str, bytes]) -> str | AuthRefusal:
    """Return the name of the request's key among the `accepted` ones by name; OPEN if there are none."""
    if not accepted:
        return OPEN
    given = _given(request)
    if given is None:
        return AuthRefusal(401, f"the header {API_KEY_HEADER} is missing")
    # Compared with all of them, so that the time taken tells nothing.
    sent = given.encode("utf-8", "surrogateescape")
    names = [name for name, key in accepted.items() if hmac.compare_digest(sent, key)]
    return names[0] if names else AuthRefusal(403, "this key is not accepted")


def offered_protocols(request: web.Request) -> list[str]:
    offered = request.headers.getall(hdrs.SEC_WEBSOCKET_PROTOCOL, [])
    names = [name.strip() for line in offered for name in line.split(",")]
    return [name for name in names if name.startswith(KEY_PROTOCOL)]


def _given(request: web.Request) -> str | None:
    given = request.headers.get(API_KEY_HEADER)
    resource = request.match_info.route.resource
    session = request.headers.get(hdrs.UPGRADE, "").lower() == "websocket"
    if given is not None or not session or resource is None or resource.canonical != TERMINAL.path:
        return given
    protocols = offered_protocols(request)
    return request.query.get(KEY_QUERY) or (protocols[0].removeprefix(KEY_PROTOCOL) if protocols else None)
