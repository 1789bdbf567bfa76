"""HTTP handlers: pause, resume, snapshot, restore."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from orchard.injector.agent.errors import RequestInvalid
from orchard.injector.agent.sandbox import HostedSandbox
from orchard.injector.agent.sandboxes import Sandboxes

Held = Callable[[Callable[[web.Request, HostedSandbox], Awaitable[web.StreamResponse]]], Handler]


class StateRequests:
    def __init__(self, sandboxes: Sandboxes, held: Held) -> None:
        self._sandboxes = sandboxes
        self._held = held

    def routes(self) -> list[web.RouteDef]:
        held, snapshots = self._held, "/sandboxes/{id}/snapshots"
        return [
            web.post("/sandboxes/{id}/pause", held(self._pause)),
            web.post("/sandboxes/{id}/resume", held(self._resume)),
            web.get(snapshots, held(self._list)),
            web.put(snapshots, held(self._take)),
            web.delete(snapshots, held(self._delete)),
            web.post("/sandboxes/{id}/restore", held(self._restore)),
        ]

    async def _pause(self, _request: web.Request, sandbox: HostedSandbox) -> web.Response:
        return await self._frozen(sandbox, True)

    async def _resume(self, _request: web.Request, sandbox: HostedSandbox) -> web.Response:
        return await self._frozen(sandbox, False)

    async def _frozen(self, sandbox: HostedSandbox, frozen: bool) -> web.Response:
        """Finishes even if the client disconnects."""
        machine, _ = sandbox.ready()
        await asyncio.shield(asyncio.ensure_future(sandbox.pausing(machine, frozen)))
        said = "paused" if frozen else "resumed"
        return _json({"status": said, "sandbox_id": sandbox.spec.sandbox_id})

    async def _list(self, _request: web.Request, sandbox: HostedSandbox) -> web.Response:
        sandbox.ready()
        return _json(sandbox.snapshots.all())

    async def _take(self, request: web.Request, sandbox: HostedSandbox) -> web.Response:
        machine, _ = sandbox.ready()
        return _json(await sandbox.snapshots.take(machine, _name(request)))

    async def _delete(self, request: web.Request, sandbox: HostedSandbox) -> web.Response:
        sandbox.ready()
        await sandbox.snapshots.delete(_name(request))
        return _json({"status": "deleted", "name": _name(request)})

    async def _restore(self, request: web.Request, sandbox: HostedSandbox) -> web.Response:
        await self._sandboxes.restore(sandbox, (await request.json())["name"])
        return _json(sandbox.document())


def _name(request: web.Request) -> str:
    name = request.query.get("name")
    if name is None:
        raise RequestInvalid("the query needs `name`")
    return name


def _json(document: Any) -> web.Response:
    return web.json_response(document)
