"""Lets the page stand below a path of its own behind a proxy, such as https://host/orchard/.

Handlers and templates know addresses from `/` on; here those of each response get the path in front. A proxy
that passes requests on with the path needs `orchard ui --base-path`, or `[up] page_base_path`; one that
removes it may name it in the header X-Forwarded-Prefix instead.
"""

import re
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from orchard.schemas.addresses import BASE_PATH

_BASE = web.RequestKey("base", str)
_ADDRESS = re.compile(rb'((?:href|src|action)=")/')
"""An address in HTML; the texts of others have no quotation mark, because templates escape it."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def base_of(request: web.Request) -> str:
    """Path in front of the page's addresses in this request."""
    found: str = request.get(_BASE, "")
    return found


def local_path(request: web.Request) -> str:
    """Path of the request as handlers know it."""
    return request.path.removeprefix(base_of(request)) or "/"


def below(base: str) -> Middleware:
    """Middleware that puts the base path, or that of the proxy's header, before addresses."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        told = request.headers.get("X-Forwarded-Prefix", "").rstrip("/")
        request[_BASE] = path = base or (told if BASE_PATH.fullmatch(told) else "")
        try:
            reply = await handler(request)
        except web.HTTPException as error:
            _move(error, path)
            raise
        _move(reply, path)
        return reply

    return answer


def _move(reply: web.StreamResponse, path: str) -> None:
    if path and reply.headers.get("Location", "").startswith("/"):
        reply.headers["Location"] = path + reply.headers["Location"]
    if path and isinstance(reply, web.Response) and reply.content_type == "text/html":
        assert isinstance(reply.body, bytes)
        reply.body = _ADDRESS.sub(rb"\1" + path.encode() + b"/", reply.body)
