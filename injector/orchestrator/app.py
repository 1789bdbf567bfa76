"""The routes of the sandbox service in front of a Backend."""

import base64
from collections.abc import AsyncIterator, Collection
from importlib.metadata import PackageNotFoundError, version

import msgspec
from aiohttp import web

from orchard.injector.agent.machine import quantity
from orchard.injector.backend import Backend
from orchard.injector.errors import SandboxUnavailable
from orchard.injector.orchestrator import deadlines, openapi
from orchard.injector.orchestrator.deadlines import arriving
from orchard.injector.orchestrator.drain import Drain
from orchard.injector.orchestrator.keys import Keys, offered_protocols
from orchard.injector.orchestrator.limits import Admission, Limits
from orchard.injector.orchestrator.metrics import MEDIA_TYPE, Metrics
from orchard.injector.orchestrator.ownership import Ownership, without_owner
from orchard.injector.orchestrator.refusals import Invalid
from orchard.injector.orchestrator.relay import relay
from orchard.injector.orchestrator.replies import (
    JSON_BODY_LIMIT,
    KEY_NAME,
    Door,
    add_request_id,
    decoded,
    file_content,
    json_reply,
    middleware,
    streamed,
)
from orchard.injector.orchestrator.routes import JSON, RAW, ROUTES, TAR
from orchard.schemas.sandboxes import (
    Acknowledgement,
    ApplyPatch,
    CreateSandbox,
    ExecRequest,
    ForkSandbox,
    Job,
    SandboxCreatedReply,
    ServiceInfo,
    SnapshotRequest,
    UploadFile,
)

KEY_HEADER = "Idempotency-Key"
WAIT_DEFAULT = 300.0
"""Seconds of a wait that names no timeout."""
FRAME_LIMIT = 16 * 1024 * 1024
"""Bytes of one frame of a terminal session."""
SERVICE = "orchard-sandbox"


class Orchestrator:
    """Handlers without a memory of their own. `drain` is for whoever ends the process."""

    def __init__(
        self,
        backend: Backend,
        keys: Keys,
        limits: Limits | None = None,
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
        admission = Admission(limits or Limits(), keys=len(keys.accepted))
        self._ownership = Ownership(backend, admission, keys)
        self._door = Door(keys, admission, self._ownership, loopback, hosts)
        self._own_metrics_port = own_metrics_port
        self._metrics = Metrics(keys.figures())
        self._openapi = msgspec.json.encode(openapi.document())
        self.drain = Drain()

    def application(self) -> web.Application:
        """The aiohttp application; it opens and closes the backend."""
        around = middleware(self._door, self._metrics, self.drain)
        app = web.Application(middlewares=[around], client_max_size=JSON_BODY_LIMIT)
        app[deadlines.GRACE] = self._body_grace
        app.on_response_prepare.append(add_request_id)
        app.cleanup_ctx.append(self._backend_open)
        for route in ROUTES:
            if not (route.name == "serve_metrics" and self._own_metrics_port):
                app.router.add_route(route.method, route.path, getattr(self, f"_{route.name}"))
        return app

    def metrics_application(self) -> web.Application:
        """Only `/metrics`, for a port that the world does not see."""
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

    async def _resources(self, request: web.Request) -> web.Response:
        found = await self._backend.resources()
        if seen := self._ownership.seen_by(request[KEY_NAME]):
            own = {info.pod_name for info in await self._backend.list(seen)}
            pods = [pod for pod in found.sandbox_pods if pod.name in own]
            found = msgspec.structs.replace(found, sandbox_pods=pods)
        return json_reply(found)

    async def _create(self, request: web.Request) -> web.Response:
        wanted = await decoded(request, CreateSandbox)
        for name, text in (("cpu", wanted.cpu), ("memory", wanted.memory)):
            _check_quantity(name, text)
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
        labels: dict[str, str] = {}
        for label in request.query.getall("label", []):
            name, equals, value = label.partition("=")
            if not equals:
                raise Invalid(["query", "label"], "a label filter is `name=value`")
            labels[name] = value
        return json_reply(await self._backend.list({**labels, **self._ownership.seen_by(request[KEY_NAME])}))

    async def _get(self, request: web.Request) -> web.Response:
        return json_reply(await self._backend.get(request.match_info["id"]))

    async def _wait(self, request: web.Request) -> web.Response:
        return json_reply(await self._backend.wait(request.match_info["id"], _timeout(request)))

    async def _delete(self, request: web.Request) -> web.Response:
        sandbox_id = request.match_info["id"]
        await self._backend.delete(sandbox_id)
        return json_reply(Acknowledgement(status="deleted", sandbox_id=sandbox_id))

    async def _heartbeat(self, request: web.Request) -> web.Response:
        sandbox_id = request.match_info["id"]
        await self._backend.heartbeat(sandbox_id)
        return json_reply(Acknowledgement(status="ok", sandbox_id=sandbox_id))

    async def _exec(self, request: web.Request) -> web.Response:
        wanted = await decoded(request, ExecRequest)
        if not wanted.command:
            raise Invalid(["body", "command"], "the command is empty")
        key = request.headers.get(KEY_HEADER)
        job = await self._backend.exec(request.match_info["id"], wanted, key)
        if isinstance(job, Job):
            self._metrics.executed(job)
        return json_reply(job)

    async def _terminal(self, request: web.Request) -> web.WebSocketResponse:
        offered = offered_protocols(request)
        line = web.WebSocketResponse(protocols=offered, max_msg_size=FRAME_LIMIT, compress=False)
        if not line.can_prepare(request).ok:
            raise web.HTTPBadRequest(reason="a terminal session is a WebSocket: send an upgrade")
        agent = await self._backend.terminal(request.match_info["id"])
        try:
            await line.prepare(request)
            await relay(line, agent)
        finally:
            await agent.close()
        return line

    async def _apply_patch(self, request: web.Request) -> web.Response:
        wanted = await decoded(request, ApplyPatch)
        key = request.headers.get(KEY_HEADER)
        return json_reply(await self._backend.apply_patch(request.match_info["id"], wanted, key))

    async def _write(self, request: web.Request) -> web.Response:
        sandbox_id = request.match_info["id"]
        if "path" in request.query:
            pieces = arriving(request)
            return json_reply(await self._backend.write_file(sandbox_id, request.query["path"], pieces))
        upload = await decoded(request, UploadFile)
        try:
            content = base64.b64decode(upload.content, validate=True)
        except ValueError as error:  # binascii.Error is one; text beyond ASCII is another
            raise Invalid(["body", "content"], f"not base64: {error}") from error
        return json_reply(await self._backend.write_file(sandbox_id, upload.path, content))

    async def _read(self, request: web.Request) -> web.StreamResponse:
        path = _path(request)
        async with self._backend.read_file(request.match_info["id"], path, _limit(request)) as pieces:
            if RAW in request.headers.get("Accept", ""):
                return await streamed(request, pieces, RAW)
            return await streamed(request, file_content(path, pieces), JSON)

    async def _files(self, request: web.Request) -> web.Response:
        return json_reply(await self._backend.list_files(request.match_info["id"], _path(request)))

    async def _read_archive(self, request: web.Request) -> web.StreamResponse:
        path = _path(request)
        async with self._backend.read_archive(request.match_info["id"], path) as pieces:
            return await streamed(request, pieces, TAR)

    async def _write_archive(self, request: web.Request) -> web.Response:
        path, pieces = _path(request), arriving(request)
        return json_reply(await self._backend.write_archive(request.match_info["id"], path, pieces))

    async def _fork(self, request: web.Request) -> web.Response:
        wanted = await decoded(request, ForkSandbox)
        for name, text in (("cpu", wanted.cpu), ("memory", wanted.memory)):
            if text is not None:
                _check_quantity(name, text)
        ids = wanted.sandbox_ids
        if ids is not None and not len(ids) == len(set(ids)) == wanted.count:
            raise Invalid(["body", "sandbox_ids"], "as many different ids are needed as `count` says")
        key, sandbox_id = request.headers.get(KEY_HEADER), request.match_info["id"]
        labels = wanted.labels
        if labels is None and self._ownership.matters(request[KEY_NAME]):
            labels = without_owner((await self._backend.get(sandbox_id)).labels)
        async with self._ownership.of(request[KEY_NAME], wanted.count, key, labels) as own:
            wanted = msgspec.structs.replace(wanted, labels=own)
            return json_reply(await self._backend.fork(sandbox_id, wanted, key))

    async def _snapshot(self, request: web.Request) -> web.Response:
        wanted = await decoded(request, SnapshotRequest)
        return json_reply(await self._backend.snapshot(request.match_info["id"], wanted.image))

    async def _job(self, request: web.Request) -> web.Response:
        return json_reply(await self._backend.job(request.match_info["job"]))

    async def _wait_job(self, request: web.Request) -> web.Response:
        return json_reply(await self._backend.wait_job(request.match_info["job"], _timeout(request)))

    async def _cancel_job(self, request: web.Request) -> web.Response:
        return json_reply(await self._backend.cancel_job(request.match_info["job"]))


def _timeout(request: web.Request) -> float:
    text = request.query.get("timeout")
    if text is None:
        return WAIT_DEFAULT
    try:
        seconds = msgspec.convert(text, float, strict=False)
    except msgspec.ValidationError as error:
        raise Invalid(["query", "timeout"], f"`{text}` is not a number of seconds") from error
    if not 0 <= seconds < float("inf"):
        raise Invalid(["query", "timeout"], "the timeout must be zero or more seconds")
    return seconds


def _limit(request: web.Request) -> int | None:
    text = request.query.get("limit")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise Invalid(["query", "limit"], f"`{text[:40]}` is not a number of bytes")
    return int(text)


def _check_quantity(name: str, text: str) -> None:
    try:
        number = quantity(text)
    except ValueError as error:
        raise Invalid(["body", name], str(error)) from error
    if number <= 0:
        raise Invalid(["body", name], f"`{text}` is not more than zero")


def _path(request: web.Request) -> str:
    path = request.query.get("path")
    if path is None:
        raise Invalid(["query", "path"], "the query needs `path`", "missing")
    return path


def _version() -> str:
    try:
        return version("orchard-pipeline")
    except PackageNotFoundError:  # run from a source tree
        return "0"
