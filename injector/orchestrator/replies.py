"""Middleware and helpers for all responses: compact JSON, a request id, errors as `{"detail": ...}`."""

import base64
import logging
import math
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from functools import partial
from typing import Any, NamedTuple

from aiohttp import hdrs, web

from orchard.injector import operations, wire
from orchard.injector.agent.logs import REQUEST_ID
from orchard.injector.agent.protocol import REASON_HEADER, REQUEST_ID_HEADER
from orchard.injector.errors import SandboxError, SandboxNotFound, SandboxUnavailable, error_for
from orchard.injector.operations import OPERATIONS
from orchard.injector.orchestrator import origins
from orchard.injector.orchestrator.drain import Drain
from orchard.injector.orchestrator.keys import AuthRefusal, Keys, caller
from orchard.injector.orchestrator.limits import OPEN, Excess, OverLimit, RequestAdmission
from orchard.injector.orchestrator.metrics import ServiceMetrics
from orchard.injector.orchestrator.ownership import Ownership
from orchard.injector.orchestrator.request_queue import RequestQueue
from orchard.injector.orchestrator.requests import Invalid

OPEN_PATHS = frozenset(one.path for one in OPERATIONS if one.open)
QUIET_ROUTES = frozenset({"/health", "/metrics"})
"""Routes requested every few seconds, which are logged only for debugging."""
KEPT_ALIVE = frozenset((one.method, one.path) for one in OPERATIONS if one.unlimited)
CREATIONS = frozenset((one.method, one.path) for one in (operations.CREATE, operations.FORK))
METHODS = frozenset({one.method for one in OPERATIONS} | {"HEAD", "PUT", "OPTIONS", "PATCH"})
CLIENT_GONE = 499
"""Status in logs and metrics for a client that disconnected before the response."""
RETRY_AFTER = 1.0

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
"""Valid name of a sandbox or job, which cannot mean another path."""

KEY_NAME = web.RequestKey("key_name", str)
"""Request key with the name of the API key."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

log = logging.getLogger(__name__)


def json_reply(document: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=wire.encode(document), content_type="application/json")


async def streamed(request: web.Request, pieces: AsyncIterator[bytes], media: str) -> web.StreamResponse:
    """Stream the pieces; on an error after the beginning, only an aborted connection can show it."""
    reply = web.StreamResponse(headers={"Content-Type": media})
    await reply.prepare(request)
    try:
        async for piece in pieces:
            await reply.write(piece)
    except SandboxError as error:
        log.warning("an answer is cut short: %s", error)
        if request.transport is not None:
            request.transport.abort()
        return reply
    await reply.write_eof()
    return reply


async def file_content(path: str, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the record `FileContent` as JSON, without holding the file in memory."""
    yield b'{"path":' + wire.encode(path) + b',"content":"'
    size, left = 0, b""
    async for piece in pieces:
        size += len(piece)
        whole = left + piece
        cut = len(whole) - len(whole) % 3
        left = whole[cut:]
        yield base64.b64encode(whole[:cut])
    yield base64.b64encode(left) + b'","size":%d}' % size


class AccessControl(NamedTuple):
    """What decides whether a request is admitted. Without `keys` every one is."""

    keys: Keys
    admission: RequestAdmission
    ownership: Ownership
    loopback: bool
    """Whether the service listens on loopback only."""
    hosts: Collection[str] = ()
    """Other names of the service (see `origins`)."""


def middleware(door: AccessControl, metrics: ServiceMetrics, drain: Drain) -> Any:
    """Make the middleware: request id, origin, key, limits, owner, errors, metrics and log for every
    handler."""
    turns = RequestQueue(door.admission)

    @web.middleware
    async def around(request: web.Request, handler: Handler) -> web.StreamResponse:
        REQUEST_ID.set(uuid.uuid4().hex)
        begun = time.perf_counter()
        status = CLIENT_GONE
        try:
            with metrics.in_flight(), drain.handling():
                who = entering(request)
                if isinstance(who, AuthRefusal):
                    reply: web.StreamResponse = json_reply({"detail": who.detail}, who.status)
                elif request.path in OPEN_PATHS:
                    reply = await _answered(request, handler)
                else:
                    request[KEY_NAME] = who
                    reply = await admitted(request, handler, who)
            status = reply.status
            if drain.begun and not reply.prepared:
                reply.force_close()
            return reply
        finally:
            _note(request, status, time.perf_counter() - begun, metrics)

    def entering(request: web.Request) -> str | AuthRefusal:
        strange = origins.refusal(request, loopback=door.loopback, hosts=door.hosts)
        if strange is not None:
            return AuthRefusal(*strange)
        return OPEN if request.path in OPEN_PATHS else caller(request, door.keys.accepted)

    async def owned(request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check the owner of the sandbox that a route names, directly or by a job."""
        name = request.match_info.get("id", request.match_info.get("job"))
        if name is not None:
            if not _NAME.fullmatch(name):
                raise SandboxNotFound(f"there is no sandbox `{name[:100]}`")
            await door.ownership.check(request[KEY_NAME], name.partition(".")[0])
        return await handler(request)

    async def admitted(request: web.Request, handler: Handler, who: str) -> web.StreamResponse:
        resource = request.match_info.route.resource
        pattern = "" if resource is None else resource.canonical
        counted = (request.method, pattern) not in KEPT_ALIVE
        with metrics.waiting(who):
            creates = (request.method, pattern) in CREATIONS
            excess = await turns.enter(who, counted=counted, creates=creates)
        if excess is not None:
            metrics.refused(who, excess.limit)
            return _too_much(excess)
        try:
            with metrics.asked_by(who):
                return await _answered(request, partial(owned, handler=handler))
        except OverLimit as error:
            metrics.refused(who, error.excess.limit)
            return _too_much(error.excess)
        finally:
            turns.leave(who)

    return around


def _too_much(excess: Excess) -> web.Response:
    reply = json_reply({"detail": excess.detail}, excess.status)
    reply.headers[REASON_HEADER] = excess.reason
    reply.headers["Retry-After"] = str(math.ceil(excess.retry_after))
    return reply


def _note(request: web.Request, status: int, seconds: float, metrics: ServiceMetrics) -> None:
    resource = request.match_info.route.resource
    route = "unmatched" if resource is None else resource.canonical
    method = request.method if request.method in METHODS else "other"  # a label has few values
    metrics.answered(method, route, status, seconds)
    level = logging.DEBUG if route in QUIET_ROUTES else logging.INFO
    if log.isEnabledFor(level):
        sandbox_id = (
            request.match_info.get("id") or request.match_info.get("job", "").partition(".")[0] or None
        )
        fields = {
            "method": request.method,
            "route": route,
            "status": status,
            "seconds": round(seconds, 6),
            "sandbox_id": sandbox_id,
            "key": request.get(KEY_NAME),
        }
        log.log(level, "request", extra={"fields": fields})


async def mark(_request: web.Request, reply: web.StreamResponse) -> None:
    """Add the request id, and a reason to every error: by it clients know the service's own word.

    A signal handler of the application, which covers streams and WebSockets too.
    """
    reply.headers[REQUEST_ID_HEADER] = REQUEST_ID.get() or uuid.uuid4().hex
    if reply.status >= 400:
        reply.headers.setdefault(REASON_HEADER, error_for(reply.status, "", None).reason)


async def _answered(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Invalid as error:
        detail = [{"loc": error.place, "msg": error.message, "type": error.kind}]
        return json_reply({"detail": detail}, 422)
    except SandboxError as error:
        reply = json_reply({"detail": error.detail}, error.status)
        reply.headers[REASON_HEADER] = error.reason
        if isinstance(error, SandboxUnavailable):
            reply.headers["Retry-After"] = str(math.ceil(error.retry_after or RETRY_AFTER))
        return reply
    except OverLimit:
        raise
    except web.HTTPException as error:
        reply = json_reply({"detail": error.reason}, error.status)
        for name in (hdrs.ALLOW, hdrs.CONNECTION):
            if name in error.headers:
                reply.headers[name] = error.headers[name]
        return reply
    except Exception:
        log.exception("internal error: %s %s", request.method, request.path)
        return json_reply({"detail": f"internal error; the log has it under {REQUEST_ID.get()}"}, 500)
