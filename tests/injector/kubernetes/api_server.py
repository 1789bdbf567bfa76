"""As much of an API server as it takes to fail like one: over real HTTP, with Pods, watches and leases."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import kubernetes_asyncio.client
import msgspec
from aiohttp import web
from aiohttp.test_utils import TestServer

from orchard.injector.kubernetes.api import ClusterApi
from orchard.injector.kubernetes.objects import Pod

PODS = "/api/v1/namespaces/sandboxes/pods"
Reply = Callable[[web.Request], Any]


def document(pod: Pod) -> dict[str, Any]:
    """A Pod as it is sent."""
    return json.loads(msgspec.json.encode(pod))


def event(kind: str, pod: Pod) -> bytes:
    """A line of a watch."""
    return json.dumps({"type": kind, "object": document(pod)}).encode() + b"\n"


def bookmark(version: int) -> bytes:
    """A line that only says how far the watch is."""
    head = {"kind": "Pod", "metadata": {"resourceVersion": str(version), "creationTimestamp": None}}
    return json.dumps({"type": "BOOKMARK", "object": head}).encode() + b"\n"


def error(code: int, reason: str) -> bytes:
    """A line that ends a watch."""
    return json.dumps({"type": "ERROR", "object": {"code": code, "reason": reason}}).encode() + b"\n"


def refusal(code: int, message: str = "no", **headers: str) -> web.Response:
    """An answer that is an error."""
    return web.json_response({"code": code, "message": message}, status=code, headers=headers)


class ApiServer:
    """Lists what `pods` has at `version`; each watch sends what is put into `lines`, until None."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.version = 1
        self.lists = 0
        self.listed = 0
        """Pods in all lists together."""
        self.watched_from: list[str] = []
        self.lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.refusals: list[Callable[[], web.Response] | None] = []
        """What the next requests that are no watch get instead of an answer; None: the connection is cut."""
        self.requests: list[str] = []
        self.patches: list[dict[str, Any]] = []
        self.writing = asyncio.Event()
        """Requests that change something are answered while it is set."""
        self.writing.set()
        self.watchable = asyncio.Event()
        """Watches begin while it is set."""
        self.watchable.set()
        self.watch_waits = asyncio.Event()
        """Set once a watch came while it could not begin."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await self._watch(request)
        self.requests.append(f"{request.method} {request.path}")
        if request.method != "GET":
            await self.writing.wait()
        done = await self._answer(request)
        if self.refusals:
            refused = self.refusals.pop(0)
            if refused is None:
                assert request.transport is not None
                request.transport.abort()
                return done
            return refused()
        return done

    async def _answer(self, request: web.Request) -> web.Response:
        name = request.path.removeprefix(PODS).strip("/")
        if request.method == "POST":
            body = await request.json()
            if body["metadata"]["name"] in self.pods:
                return refusal(409, "it exists")
            return self._put(body)
        if request.method == "PATCH":
            return self._patch(name, await request.json())
        if not name:
            self.lists += 1
            most = None if request.query.get("resourceVersion") == "0" else request.query.get("limit")
            items = [document(pod) for pod in self.pods.values()][: most and int(most)]
            self.listed += len(items)
            return web.json_response({"metadata": {"resourceVersion": str(self.version)}, "items": items})
        return web.json_response(document(self.pods[name])) if name in self.pods else refusal(404)

    def _put(self, body: dict[str, Any]) -> web.Response:
        self.version += 1
        name = body["metadata"]["name"]
        body["metadata"] |= {"uid": f"uid-{self.version}", "resourceVersion": str(self.version)}
        self.pods[name] = msgspec.json.decode(json.dumps(body).encode(), type=Pod)
        return web.json_response(document(self.pods[name]))

    def _patch(self, name: str, body: dict[str, Any]) -> web.Response:
        """As far as annotations and labels go."""
        if name not in self.pods:
            return refusal(404)
        self.patches.append(body)
        present = document(self.pods[name])["metadata"]
        given = body.get("metadata", {})
        if any(given.get(field, present[field]) != present[field] for field in ("uid", "resourceVersion")):
            return refusal(409, "it has changed")
        self.version += 1
        present["resourceVersion"] = str(self.version)
        for part in ("labels", "annotations"):
            merged = {**present.get(part, {}), **given.get(part, {})}
            present[part] = {key: value for key, value in merged.items() if value is not None}
        self.pods[name] = msgspec.json.decode(
            json.dumps({**document(self.pods[name]), "metadata": present}).encode(), type=Pod
        )
        return web.json_response(document(self.pods[name]))

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        self.watched_from.append(request.query["resourceVersion"])
        assert request.query["allowWatchBookmarks"] == "true"
        if not self.watchable.is_set():
            self.watch_waits.set()
            await self.watchable.wait()
        reply = web.StreamResponse()
        await reply.prepare(request)
        while (line := await self.lines.get()) is not None:
            await reply.write(line)
            if b'"ERROR"' in line:
                return reply
        assert request.transport is not None
        request.transport.abort()
        return reply


@asynccontextmanager
async def api_of(server: ApiServer) -> AsyncIterator[ClusterApi]:
    """A line to it."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    listening = TestServer(app)
    await listening.start_server()
    configuration = kubernetes_asyncio.client.Configuration(host=str(listening.make_url("")).rstrip("/"))
    api = ClusterApi(kubernetes_asyncio.client.ApiClient(configuration), concurrent_writes=4)
    try:
        yield api
    finally:
        await api.close()
        server.lines.put_nowait(None)
        await listening.close()
