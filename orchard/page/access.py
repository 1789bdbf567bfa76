"""Access control of the page: host names, origins, the token, and security headers.

A browser that a stranger's page controls can send requests here, and a name of the stranger's can be made to
point here (DNS rebinding). So the Host header must name this machine. Requests that change something must
come from a page of this server, and need the token. Off loopback everything needs it.
"""

import hmac
import time
from collections.abc import Awaitable, Callable, Collection
from urllib.parse import urlencode

from aiohttp import web
from aiohttp.typedefs import Middleware

from orchard.configuration.access import AccessSettings, People, login_name
from orchard.injector.orchestrator.origins import refusal
from orchard.page.base_path import base_of, local_path
from orchard.schemas.access import Principal, UserRole

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
"""Allows no inline script or style, so markup that is escaped wrongly has no effect."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",  # with `no-referrer` browsers send `Origin: null` for the forms
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_SAFE = ("GET", "HEAD")
_YEAR = 365 * 86400

_ALONE = AccessSettings()

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


_PRINCIPAL = web.RequestKey("principal", Principal)


class Access:
    """Middleware that checks every request; `token` is the page's secret, and `private` asks for it on
    loopback too. With `people`, who lists users and their keys, it asks for a key or a sign-in proxy's header
    as well."""

    def __init__(
        self,
        token: str,
        *,
        loopback: bool,
        private: bool,
        hosts: Collection[str],
        settings: AccessSettings = _ALONE,
        people: People | None = None,
    ) -> None:
        self._token, self._loopback, self._hosts = token, loopback, hosts
        self._settings, self._people = settings, people
        self._for_all = private or not loopback or people is not None

    def middleware(self) -> Middleware:
        @web.middleware
        async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
            began = time.perf_counter()
            try:
                reply = await self._answer(request, handler)
            except web.HTTPException as error:
                reply = error
            if not reply.prepared:
                reply.headers.update(HEADERS)
                reply.headers.setdefault("Cache-Control", "no-store")
                reply.headers["Server-Timing"] = f"page;dur={1000 * (time.perf_counter() - began):.1f}"
                reply.headers["Server"] = "orchard"
            if isinstance(reply, web.HTTPException):
                raise reply
            return reply

        return check

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        refused = refusal(request, loopback=self._loopback, hosts=self._hosts)
        if refused:
            return web.Response(status=refused[0], text=refused[1].replace("service", "page") + "\n")
        given = request.query.get("token")
        if given is not None and request.method in _SAFE:
            if self._with_token(given) is None:
                return web.Response(
                    status=403,
                    text="the token is not this page's: open the address that `orchard ui` printed last\n",
                )
            return self._admitted(request, given)
        changes = request.method not in _SAFE
        principal = self._principal(request)
        if (self._for_all or changes) and principal is None:
            return web.Response(
                status=403,
                text="the request has no token: open the address with it that `orchard ui` printed\n",
            )
        if changes and principal is not None and not principal.role.includes(UserRole.SUBMIT):
            return web.Response(
                status=403, text=f"{principal.user} has the role `read`: ask an operator for another\n"
            )
        if principal is not None:
            request[_PRINCIPAL] = principal
        if changes and not request.headers.get("Origin"):
            return web.Response(
                status=403, text="the request has no Origin header: make changes by the page's own forms\n"
            )
        return await handler(request)

    def may_change(self, request: web.Request) -> bool:
        """Whether it is known who sent the request, and that user's role permits more than looking."""
        principal = self._principal(request)
        return principal is not None and principal.role.includes(UserRole.SUBMIT)

    def acting(self, request: web.Request) -> Principal:
        """User whose change `middleware` has admitted."""
        return request[_PRINCIPAL]

    def _principal(self, request: web.Request) -> Principal | None:
        """User by the cookie, else by the header of the sign-in proxy. A client cannot forge that: it counts
        only in requests from the proxy's own address."""
        found = self._with_token(request.cookies.get(self._cookie(request), ""))
        if found is None and self._people is not None and self._settings.from_proxy(request.remote):
            names = request.headers.getall(self._settings.user_header, [])
            found = self._people.named(names[0]) if len(names) == 1 else None
        return found

    def _with_token(self, given: str) -> Principal | None:
        """User with this key; who has the page's own token is who started it."""
        if hmac.compare_digest(given.encode(), self._token.encode()):
            return Principal(user=login_name(), team=self._settings.team)
        return None if self._people is None else self._people.with_key(given)

    def _admitted(self, request: web.Request, token: str) -> web.Response:
        """Redirects to the address without the token, which is kept in a cookie: so nobody shares it by
        mistake."""
        left = urlencode([(name, value) for name, value in request.query.items() if name != "token"])
        path = "/" + local_path(request).lstrip("/\\")
        reply = web.Response(status=303, headers={"Location": path + (f"?{left}" if left else "")})
        reply.set_cookie(
            self._cookie(request),
            token,
            httponly=True,
            samesite="Strict",
            max_age=_YEAR,
            path=base_of(request) + "/",
        )
        return reply

    def _cookie(self, request: web.Request) -> str:
        """Name of the cookie, one for each port: each store has a page of its own."""
        return f"orchard-page-{request.host.rpartition(':')[2]}" if ":" in request.host else "orchard-page"
