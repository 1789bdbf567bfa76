"""Handlers of the sandbox service's operations, in front of a Backend.

The backend handles the life cycle of sandboxes; everything else is forwarded to the sandbox's agent.
"""

from collections.abc import AsyncIterator, Callable, Collection
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from urllib.parse import urlencode

import msgspec
from aiohttp import web

from orchard.injector import operations
from orchard.injector.agent.bodies import query
from orchard.injector.agent.egress import Rule
from orchard.injector.agent.errors import RequestInvalid
from orchard.injector.agent.interfaces import quantity
from orchard.injector.agent.protocol import FRAME_LIMIT, KEY_HEADER, WAIT_TIMEOUT
from orchard.injector.agent.tunnel_requests import TunnelRequest
from orchard.injector.backend import Backend
from orchard.injector.errors import SandboxError, SandboxNotFound, SandboxUnavailable
from orchard.injector.operations import (
    HTML,
    JSON,
    KEY,
    OPERATIONS,
    RAW,
    ApiOperation,
)
from orchard.injector.orchestrator import deadlines, images, openapi
from orchard.injector.orchestrator.deadlines import arriving, arriving_content
from orchard.injector.orchestrator.drain import Drain
from orchard.injector.orchestrator.keys import Keys, offered_protocols
from orchard.injector.orchestrator.limits import RequestAdmission, ServiceLimits
from orchard.injector.orchestrator.metrics import MEDIA_TYPE, ServiceMetrics
from orchard.injector.orchestrator.ownership import Ownership, without_owner
from orchard.injector.orchestrator.relay import relay
from orchard.injector.orchestrator.replies import (
    KEY_NAME,
    AccessControl,
    Handler,
    file_content,
    json_reply,
    mark,
    middleware,
    streamed,
)
from orchard.injector.orchestrator.requests import JSON_BODY_LIMIT, Invalid, UploadBody, decoded
from orchard.injector.results import PassedJob
from orchard.schemas.sandboxes import (
    ENVIRONMENT_SIZE,
    Acknowledgement,
    CreateSandbox,
    ExecRequest,
    FileWritten,
    ForkSandbox,
    Job,
    JobQueued,
    SandboxCreatedReply,
    ServiceInfo,
)

SERVICE = "orchard-sandbox"
_FILES = "/sandboxes/{id}/files"


class Orchestrator:
    """Stateless handlers; whoever ends the process uses `drain`."""

    def __init__(
        self,
        backend: Backend,
        keys: Keys,
        limits: ServiceLimits | None = None,
        *,
        own_metrics_port: bool = False,
        loopback: bool = True,
        hosts: Collection[str] = (),
        body_grace: float = deadlines.GRACE_SECONDS,
    ) -> None:
        """With `own_metrics_port`, metrics are served by `metrics_application` only.

        `loopback` and `hosts`: see `origins.refusal`; `body_grace`: see `deadlines.GRACE_SECONDS`.
        """
        self._body_grace = body_grace
        self._backend = backend
        admission = RequestAdmission(limits or ServiceLimits(), keys=len(keys.accepted))
        self._keys = keys
        self._ownership = Ownership(backend, admission, keys)
        self._door = AccessControl(keys, admission, self._ownership, loopback, hosts)
        self._own_metrics_port = own_metrics_port
        self._metrics = ServiceMetrics(keys.figures())
        self._openapi = msgspec.json.encode(openapi.document())
        self._docs = openapi.page(openapi.document())
        self.drain = Drain()

    def application(self) -> web.Application:
        around = middleware(self._door, self._metrics, self.drain)
        app = web.Application(middlewares=[around], client_max_size=JSON_BODY_LIMIT)
        app[deadlines.GRACE] = self._body_grace
        app.on_response_prepare.append(mark)
        app.cleanup_ctx.append(self._backend_open)
        for one in OPERATIONS:
            if not (one is operations.METRICS and self._own_metrics_port):
                handler = getattr(self, f"_{one.name}", None) or self._passing_on(one)
                if one in images.OPERATIONS:
                    handler = images.handler(self._backend, self._keys, one)
                app.router.add_route(one.method, one.path, handler)
        return app

    def metrics_application(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/metrics", self._serve_metrics)
        return app

    async def _backend_open(self, _app: web.Application) -> AsyncIterator[None]:
        await self._backend.open()
        yield
        await self._backend.close()

    async def _service(self, _request: web.Request) -> web.Response:
        return json_reply(ServiceInfo(service=SERVICE, version=_version()))

    async def _health(self, _request: web.Request) -> web.Response:
        if self.drain.begun:
            raise SandboxUnavailable("this orchestrator is ending", reason="draining")
        return json_reply(await self._backend.health())

    async def _serve_metrics(self, _request: web.Request) -> web.Response:
        exposition = await self._metrics.exposition(self._backend)
        return web.Response(body=exposition, headers={"Content-Type": MEDIA_TYPE})

    async def _serve_openapi(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._openapi, content_type="application/json")

    async def _serve_docs(self, _request: web.Request) -> web.Response:
        return web.Response(text=self._docs, content_type=HTML)

    async def _resources(self, request: web.Request) -> web.Response:
        found = await self._backend.resources()
        if seen := self._ownership.seen_by(request[KEY_NAME]):
            own = {info.pod_name for info in await self._backend.list(seen)}
            pods = [pod for pod in found.sandbox_pods if pod.name in own]
            found = msgspec.structs.replace(found, sandbox_pods=pods)
        return json_reply(found)

    async def _create(self, request: web.Request) -> web.Response:
        wanted = await decoded(request, CreateSandbox)
        _check_quantities(cpu=wanted.cpu, memory=wanted.memory)
        if sum(len(word.encode()) for pair in wanted.env.items() for word in pair) > ENVIRONMENT_SIZE:
            raise Invalid(["body", "env"], f"names and values have more than {ENVIRONMENT_SIZE} bytes")
        _check_egress(wanted)
        key = self._ownership.idempotency(request[KEY_NAME], request.headers.get(KEY_HEADER))
        async with self._ownership.of(request[KEY_NAME], 1, key, wanted.labels) as labels:
            made = await self._backend.create(msgspec.structs.replace(wanted, labels=labels), key)
        return json_reply(
            SandboxCreatedReply(
                sandbox_id=made.sandbox_id,
                namespace=made.namespace,
                image=made.image,
                block_network=made.block_network,
                cpu=made.cpu,
                memory=made.memory,
                timeout=wanted.timeout,
            )
        )

    async def _list(self, request: web.Request) -> web.Response:
        labels = dict(_label(text) for text in request.query.getall("label", []))
        return json_reply(await self._backend.list({**labels, **self._ownership.seen_by(request[KEY_NAME])}))

    async def _get(self, request: web.Request) -> web.Response:
        return json_reply(await self._backend.get(request.match_info["id"]))

    async def _wait(self, request: web.Request) -> web.Response:
        return json_reply(
            await self._backend.wait(request.match_info["id"], _timeout(request.query.get("timeout")))
        )

    async def _delete(self, request: web.Request) -> web.Response:
        sandbox_id = request.match_info["id"]
        await self._backend.delete(sandbox_id)
        return json_reply(Acknowledgement(status="deleted", sandbox_id=sandbox_id))

    async def _exec(self, request: web.Request) -> web.Response:
        wanted = await decoded(request, ExecRequest)
        if not wanted.command:
            raise Invalid(["body", "command"], "the command is empty")
        for name, value in wanted.env.items():
            if not name or "=" in name or "\0" in name + value:
                raise Invalid(
                    ["body", "env", name],
                    "a name must not be empty or have `=`, and neither name nor value a zero byte",
                )
        kind: type[PassedJob | JobQueued] = PassedJob if wanted.wait else JobQueued
        job = await self._asked(request, operations.EXEC, wanted, kind)
        if isinstance(job, Job):
            self._metrics.executed(job)
        return json_reply(job)

    async def _terminal(self, request: web.Request) -> web.WebSocketResponse:
        return await self._relayed(request, operations.TERMINAL.path)

    async def _tunnel(self, request: web.Request) -> web.WebSocketResponse:
        asked = _asked_for(request, operations.TUNNEL)
        try:
            TunnelRequest.of(asked)
        except RequestInvalid as error:
            raise Invalid(["query"], error.detail) from error
        return await self._relayed(request, f"{operations.TUNNEL.path}?{urlencode(asked)}")

    async def _relayed(self, request: web.Request, path: str) -> web.WebSocketResponse:
        """Relay a WebSocket to the agent's at `path`."""
        offered = offered_protocols(request)
        line = web.WebSocketResponse(protocols=offered, max_msg_size=FRAME_LIMIT, compress=False)
        if not line.can_prepare(request).ok:
            raise web.HTTPBadRequest(reason="this route is a WebSocket: send an upgrade")
        await self._asked(request, operations.HEARTBEAT)  # a refused WebSocket cannot say why; this can
        held = await self._backend.agent(request.match_info["id"]).line(path)
        try:
            await line.prepare(request)
            await relay(line, held)
        finally:
            await held.close()
        return line

    async def _write(self, request: web.Request) -> web.Response:
        agent = self._backend.agent(request.match_info["id"])
        asked = _asked_for(request, operations.WRITE)
        if "path" in asked:
            content = await arriving_content(request)
            return json_reply(await agent.call(FileWritten, "PUT", _FILES, params=asked, body=content))
        upload = UploadBody(request)
        await upload.begin()
        asked["path"] = upload.record.path
        if upload.record.mode is not None:
            asked["mode"] = upload.record.mode
        try:
            written = await agent.call(FileWritten, "PUT", _FILES, params=asked, body=upload.content())
        except SandboxError as error:
            raise upload.refused or error from None
        return json_reply(written)

    async def _read(self, request: web.Request) -> web.StreamResponse:
        asked = _asked_for(request, operations.READ)
        async with self._backend.agent(request.match_info["id"]).stream(_FILES, asked) as pieces:
            if RAW in request.headers.get("Accept", ""):
                return await streamed(request, pieces, RAW)
            return await streamed(request, file_content(asked["path"], pieces), JSON)

    async def _fork(self, request: web.Request) -> web.Response:
        wanted = await decoded(request, ForkSandbox)
        _check_quantities(cpu=wanted.cpu, memory=wanted.memory)
        ids = wanted.sandbox_ids
        if ids is not None and not len(ids) == len(set(ids)) == wanted.count:
            raise Invalid(["body", "sandbox_ids"], "as many different ids are needed as `count` says")
        origin, key, labels = request.match_info["id"], request.headers.get(KEY_HEADER), wanted.labels
        if key is not None:  # a key is known of its origin alone
            key = f"fork:{origin}:{wanted.count}:{key}"
        if labels is None and self._ownership.matters(request[KEY_NAME]):
            labels = without_owner((await self._backend.get(origin)).labels)
        async with self._ownership.of(request[KEY_NAME], wanted.count, key, labels) as own:
            wanted = msgspec.structs.replace(wanted, labels=own)
            return json_reply(await self._asked(request, operations.FORK, wanted))

    def _passing_on(self, operation: ApiOperation) -> Handler:
        kind = PassedJob if operation.reply is Job else operation.reply

        async def handle(request: web.Request) -> web.StreamResponse:
            if operation.reply is None:
                sandbox_id, path = _at(request, operation)
                agent = self._backend.agent(sandbox_id)
                async with agent.stream(path, _asked_for(request, operation)) as pieces:
                    return await streamed(request, pieces, operation.reply_media or RAW)
            body: Any = arriving(request) if operation.request_media else None
            if operation.request is not None:
                body = await decoded(request, operation.request)
            return json_reply(await self._asked(request, operation, body, kind))

        return handle

    async def _asked(
        self, request: web.Request, operation: ApiOperation, body: Any = None, kind: Any = None
    ) -> Any:
        """Forward to the sandbox's agent; decodes the response as `kind`, or as the operation's record."""
        sandbox_id, path = _at(request, operation)
        return await self._backend.agent(sandbox_id).call(
            kind or operation.reply,
            operation.method,
            path,
            body=body,
            params=_asked_for(request, operation),
            key=request.headers.get(KEY_HEADER) if KEY in operation.parameters else None,
        )


def _at(request: web.Request, operation: ApiOperation) -> tuple[str, str]:
    """Return the id of the request's sandbox, and the agent's path. Raises SandboxNotFound."""
    job_id = request.match_info.get("job")
    if job_id is None:
        return request.match_info.get("id", ""), operation.path
    sandbox_id, _, number = job_id.partition(".")
    if not number.isalnum():
        raise SandboxNotFound(f"there is no job {job_id}")
    return sandbox_id, operation.path.replace("{job}", f"{{id}}.{number}")


def _asked_for(request: web.Request, operation: ApiOperation) -> dict[str, str]:
    """Validate the query and return the agent's parameters. Raises Invalid."""
    found: dict[str, str] = {}
    said = query(request)
    for one in operation.parameters:
        text = said.get(one.name) if one.place == "query" else None
        if text == "" and one.name == "path":
            text = None  # it names nothing; as a relative path it would be the working directory
        if text is not None:
            found[one.name] = str(_CHECKED.get(one.name, str)(text))
        elif one.required:
            raise Invalid(["query", one.name], f"the query needs `{one.name}`", "missing")
    return found


def _timeout(text: str | None) -> float:
    if text is None:
        return WAIT_TIMEOUT
    try:
        seconds = msgspec.convert(text, float, strict=False)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # the last: bytes that are no UTF-8
        raise Invalid(["query", "timeout"], f"`{text[:40]}` is not a number of seconds") from error
    if not 0 <= seconds < float("inf"):
        raise Invalid(["query", "timeout"], f"the timeout is {seconds:g}: it must be zero or more seconds")
    return seconds


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise Invalid(["query", "limit"], f"`{text[:40]}` is not a number of bytes")
    return int(text)


_CHECKED: dict[str, Callable[[str], Any]] = {"timeout": _timeout, "limit": _limit}


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise Invalid(["query", "label"], f"the label filter `{text[:80]}` has no `=`: write `name=value`")
    return name, value


def _check_quantities(**texts: str | None) -> None:
    for name, text in texts.items():
        try:
            number = 1.0 if text is None else quantity(text)
        except ValueError as error:
            raise Invalid(["body", name], str(error)) from error
        if number <= 0:
            raise Invalid(["body", name], f"`{text}` is not more than zero")


def _check_egress(wanted: CreateSandbox) -> None:
    for number, text in enumerate(wanted.egress):
        try:
            Rule.of(text)
        except RequestInvalid as error:
            raise Invalid(["body", "egress", number], error.detail) from error
    if wanted.egress and not wanted.block_network:
        raise Invalid(
            ["body", "egress"],
            "it has exceptions from a blocked network, and block_network is false: make it true, or leave"
            " egress out",
        )


def _version() -> str:
    try:
        return version("orchard-pipeline")
    except PackageNotFoundError:  # run from a source tree
        return "0"
