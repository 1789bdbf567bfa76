"""Handlers of a front: a creation goes where the most room is, every later request where its id says.

Ids begin with the name of their service, so a front needs no store and any number may run. Bodies
pass through; keys, limits and errors are the services' own.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import aiohttp
import msgspec
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from orchard.injector import wire
from orchard.injector.agent.protocol import FRAME_LIMIT, KEY_HEADER, REASON_HEADER
from orchard.injector.errors import (
    SandboxError,
    SandboxUnavailable,
    SandboxUnsupported,
    error_for,
    is_own_error,
    is_own_refusal,
)
from orchard.injector.front.upstreams import LOOK_TIMEOUT, FrontSettings, Upstream, Upstreams
from orchard.injector.operations import API_KEY_HEADER
from orchard.injector.orchestrator.keys import offered_protocols
from orchard.injector.orchestrator.origins import refusal
from orchard.injector.orchestrator.relay import relay
from orchard.injector.resources import resources
from orchard.schemas.sandboxes import CreateSandbox, ForkSandbox, Health, Resources, SandboxInfo

HOP_BY_HOP = frozenset(
    {
        "connection",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
BODY_LIMIT = 1 << 20
TERMINALS = ("/sandboxes/{id}/exec/pty", "/sandboxes/{id}/tunnel")
PASSED_REFUSALS = frozenset({401, 403, 429, 503})
"""Statuses by which a service refuses to say whether it has a sandbox, and which clients understand."""

T = TypeVar("T")
log = logging.getLogger(__name__)


class Front:
    def __init__(
        self, settings: FrontSettings, key: str | None, *, loopback: bool = True, hosts: Collection[str] = ()
    ) -> None:
        """`key`: see `Upstreams`; `loopback` and `hosts`: see `origins.refusal`."""
        self._settings = settings
        self._key = key
        self._loopback = loopback
        self._hosts = hosts

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._errors], client_max_size=BODY_LIMIT)
        app.cleanup_ctx.append(self._following)
        app.router.add_get("/health", self._health)
        app.router.add_get("/resources", self._resources)
        app.router.add_post("/sandboxes", self._create)
        app.router.add_get("/sandboxes", self._list)
        app.router.add_post("/sandboxes/{id}/fork", self._fork)
        for path in TERMINALS:
            app.router.add_get(path, self._terminal)
        for path in ("/sandboxes/{id}", "/sandboxes/{id}/{rest:.*}", "/jobs/{id}", "/jobs/{id}/{rest:.*}"):
            app.router.add_route("*", path, self._pass)
        app.router.add_route("*", "/{rest:.*}", self._elsewhere)
        return app

    async def _following(self, _: web.Application) -> AsyncIterator[None]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, auto_decompress=False
        ) as self._session:
            self._upstreams = Upstreams(self._settings, self._session, self._key)
            await self._upstreams.look()
            following = asyncio.get_running_loop().create_task(self._upstreams.follow())
            yield
            following.cancel()
            await asyncio.wait([following])

    @web.middleware
    async def _errors(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if (strange := refusal(request, loopback=self._loopback, hosts=self._hosts)) is not None:
            return _error(*strange, "not_permitted")
        try:
            answer: web.StreamResponse = await handler(request)
        except _Refused as refused:
            return refused.reply
        except SandboxError as error:
            return _error(error.status, error.detail, error.reason)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            return _error(422, str(error), "request_invalid")
        except web.HTTPException as error:
            return _error(error.status, error.reason, error_for(error.status, "", None).reason)
        return answer

    async def _health(self, _: web.Request) -> web.Response:
        down = [one.name for one in self._upstreams.all if one.room is None]
        if len(down) == len(self._upstreams.all):
            raise _down(self._upstreams.all)
        return _json(Health(status="healthy", detail=f"without {', '.join(down)}" if down else ""))

    async def _resources(self, request: web.Request) -> web.Response:
        found = await self._everywhere(request, Resources)
        nodes = [node for each in found for node in each.nodes]
        return _json(resources(nodes, [pod for each in found for pod in each.sandbox_pods]))

    async def _list(self, request: web.Request) -> web.Response:
        return _json(
            [info for each in await self._everywhere(request, list[dict[str, Any]]) for info in each]
        )

    async def _create(self, request: web.Request) -> web.StreamResponse:
        try:
            document = await _document(request)
            wanted = msgspec.convert(document, CreateSandbox, strict=False)
            key = _key(request)
            choice = self._upstreams.by_room(wanted.cpu, wanted.memory, key)
        except (msgspec.DecodeError, ValueError):  # any service says what is wrong with it
            return await self._elsewhere(request)
        if wanted.sandbox_id:
            return await self._once(request, self._upstreams.of(wanted.sandbox_id), await request.read())
        if key is not None:
            choice = await self._with_it_first(request, choice, key)
        for upstream in choice:
            sandbox_id = upstream.new_id(key)
            if key is not None:
                upstream.sends(sandbox_id, asyncio.get_running_loop().time())
            try:
                body = wire.encode({**document, "sandbox_id": sandbox_id})
                reply = await self._forward(request, upstream, data=body)
            except _NotReached:
                upstream.was_not_reached(sandbox_id)
                upstream.room = None
                continue
            if reply.status == 200:
                upstream.took(wanted.cpu, wanted.memory)
            return reply
        raise _down(self._upstreams.all)

    async def _with_it_first(self, request: web.Request, choice: list[Upstream], key: str) -> list[Upstream]:
        """Put the service first that has the sandbox of this key already: it repeats its answer.

        Raises SandboxUnavailable if none says so and one that may have it says neither: then the client asks
        again (decision 152).
        """
        everyone = self._upstreams.all
        there = await asyncio.gather(
            *(self._has(request, one, key) for one in everyone), return_exceptions=True
        )
        for upstream, has in zip(everyone, there, strict=True):
            if has is True:
                return [upstream, *(one for one in choice if one is not upstream)]
        for has in there:
            if isinstance(has, BaseException):
                raise has
        return choice

    async def _has(self, request: web.Request, upstream: Upstream, key: str) -> bool:
        """Whether a service has the sandbox of a key. Raises what there is to say if that is not known."""
        sandbox_id = upstream.new_id(key)
        sent = upstream.may_have(sandbox_id)
        if upstream.room is None and not sent:
            return False
        try:
            async with (
                asyncio.timeout(LOOK_TIMEOUT),
                self._asked(request, upstream, "GET", f"/sandboxes/{sandbox_id}") as reply,
            ):
                content = await reply.read()
        except _NotReached as error:
            if sent:
                raise _down([upstream]) from error
            return False
        except (TimeoutError, aiohttp.ClientError) as error:
            raise _down([upstream]) from error
        if reply.status == 200 and _decoded(content, SandboxInfo) is not None:
            return True
        if is_own_error(reply.headers, content):
            if reply.status == 404:
                return False
            if reply.status in PASSED_REFUSALS:
                raise _Refused(reply.status, content, reply.headers)
        raise SandboxUnavailable(
            f"{upstream.name} at {upstream.url} does not say whether it has the sandbox of this idempotency "
            f"key: it answered {reply.status}",
            reason="upstream_unclear",
        )

    async def _fork(self, request: web.Request) -> web.StreamResponse:
        upstream = self._of(request)
        document = await _document(request)
        wanted = msgspec.convert(document, ForkSandbox, strict=False)
        key = _key(request)
        given = wanted.sandbox_ids or []
        ids = [one if upstream.owns(one) else f"{upstream.name}-{one}" for one in given] or [
            upstream.new_id(None if key is None else f"{key} {number}") for number in range(wanted.count)
        ]
        return await self._once(request, upstream, wire.encode({**document, "sandbox_ids": ids}))

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        return await self._once(
            request, self._of(request), request.content if request.can_read_body else None
        )

    async def _terminal(self, request: web.Request) -> web.StreamResponse:
        upstream = self._of(request)
        line = web.WebSocketResponse(
            protocols=offered_protocols(request), max_msg_size=FRAME_LIMIT, compress=False
        )
        if not line.can_prepare(request).ok:
            return await self._once(request, upstream, None)
        headers = {
            name: value for name, value in _passed(request.headers).items() if "websocket" not in name.lower()
        }
        try:
            held = await self._session.ws_connect(
                URL(f"{upstream.url}{request.raw_path}", encoded=True),
                headers=headers,
                protocols=offered_protocols(request),
                ssl=upstream.tls,
                max_msg_size=FRAME_LIMIT,
            )
        except aiohttp.WSServerHandshakeError as refused:
            said = {} if refused.headers is None else refused.headers
            if not is_own_refusal(said):
                raise _down([upstream]) from refused
            reason = said.get(REASON_HEADER, SandboxError.default_reason)
            detail = f"{upstream.name} does not open this WebSocket: {reason}"
            return _error(refused.status, detail, reason)
        except (aiohttp.ClientError, OSError) as error:
            raise _down([upstream]) from error
        try:
            await line.prepare(request)
            await relay(line, held)
        finally:
            await held.close()
        return line

    async def _elsewhere(self, request: web.Request) -> web.StreamResponse:
        if request.path.startswith("/images"):
            raise SandboxUnsupported(
                "images are those of each service: ask "
                + ", ".join(f"{one.name} at {one.url}" for one in self._upstreams.all)
            )
        if not self._upstreams.up:
            raise _down(self._upstreams.all)
        return await self._once(request, self._upstreams.up[0], await request.read() or None)

    def _of(self, request: web.Request) -> Upstream:
        """Return the service of the request's sandbox or job, whose id begins with the sandbox's."""
        return self._upstreams.of(request.match_info["id"].partition(".")[0])

    async def _everywhere(self, request: web.Request, kind: type[T]) -> list[T]:
        """Ask all services that are up; one that does not answer now, or in whose place something else does,
        is left out. Raises the error of one that refuses."""
        found = []
        for upstream in self._upstreams.up:
            with suppress(_NotReached):
                async with self._asked(request, upstream, "GET", request.raw_path) as reply:
                    content = await reply.read()
                if reply.status != 200 and is_own_error(reply.headers, content):
                    raise _Refused(reply.status, content, reply.headers)
                answer = _decoded(content, kind) if reply.status == 200 else None
                if answer is None:
                    log.warning(
                        "%s is left out: an answer %d is not the service's", upstream.name, reply.status
                    )
                else:
                    found.append(answer)
        if not found:
            raise _down(self._upstreams.all)
        return found

    async def _once(self, request: web.Request, upstream: Upstream, data: Any) -> web.StreamResponse:
        try:
            return await self._forward(request, upstream, data=data)
        except _NotReached as error:
            raise _down([upstream]) from error

    async def _forward(self, request: web.Request, upstream: Upstream, *, data: Any) -> web.StreamResponse:
        """Send the request on and its answer back. Raises _NotReached if nothing was sent."""
        async with self._asked(request, upstream, request.method, request.raw_path, data) as reply:
            answer = web.StreamResponse(status=reply.status, headers=_passed(reply.headers))
            await answer.prepare(request)
            try:
                async for piece in reply.content.iter_any():
                    await answer.write(piece)
            except aiohttp.ClientError:
                if request.transport is not None:
                    request.transport.abort()  # a part must not be taken for the whole
                return answer
            await answer.write_eof()
            return answer

    @asynccontextmanager
    async def _asked(
        self, request: web.Request, upstream: Upstream, method: str, path: str, data: Any = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = _passed(request.headers)
        if not isinstance(data, aiohttp.StreamReader):
            headers.popall("Content-Length", None)
        try:
            sent = await self._session.request(
                method,
                URL(f"{upstream.url}{path}", encoded=True),
                headers=headers,
                data=data,
                ssl=upstream.tls,
                allow_redirects=False,
            )
        except aiohttp.ClientConnectorError as error:
            raise _NotReached from error
        except (aiohttp.ClientError, OSError) as error:
            raise _down([upstream]) from error
        async with sent:
            yield sent


class _NotReached(Exception):
    """No connection was made, so nothing was sent."""


class _Refused(Exception):
    def __init__(self, status: int, content: bytes, headers: Mapping[str, str]) -> None:
        self.reply = web.Response(status=status, body=content, headers=_passed(headers))


def _down(upstreams: Iterable[Upstream]) -> SandboxUnavailable:
    named = ", ".join(f"{one.name} at {one.url}" for one in upstreams)
    return SandboxUnavailable(
        f"no answer from {named}: see that its orchestrator runs", reason="upstream_down"
    )


def _key(request: web.Request) -> str | None:
    """Return the idempotency key, qualified by the API key: another's equal one is another sandbox."""
    given = request.headers.get(KEY_HEADER)
    return None if given is None else f"{request.headers.get(API_KEY_HEADER, '')} {given}"


def _passed(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Return the headers without those of one connection."""
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in HOP_BY_HOP)


async def _document(request: web.Request) -> dict[str, Any]:
    raw = await request.read()
    return msgspec.json.decode(raw or b"{}", type=dict[str, Any])


def _decoded(content: bytes, kind: type[T]) -> T | None:
    """Decode a service's answer; None if it is something else's."""
    try:
        return wire.decode(content, kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _json(document: Any) -> web.Response:
    return web.Response(body=wire.encode(document), content_type="application/json")


def _error(status: int, detail: str, reason: str) -> web.Response:
    said = wire.encode({"detail": detail})
    return web.Response(
        status=status, body=said, content_type="application/json", headers={REASON_HEADER: reason}
    )
