"""HTTP handlers for images, on backends that store them."""

import asyncio
import json
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol

from aiohttp import web

from orchard.injector.agent.errors import Conflict, Unsupported
from orchard.injector.agent.interfaces import Host
from orchard.injector.agent.sandboxes import Sandboxes


class Images(Protocol):
    """The images of a machine. `owner` is who owns them or asks; None may do everything."""

    def all(self, owner: str | None) -> list[dict[str, Any]]: ...

    def check_deletable(self, name: str, owner: str | None) -> None: ...

    async def delete(self, name: str) -> None: ...

    def pull(self, wanted: Mapping[str, Any], owner: str | None) -> Coroutine[Any, Any, dict[str, Any]]:
        """Pull an image; `wanted` has the fields of PullImage."""

    async def add(self, archive: web.Request, name: str, owner: str | None) -> dict[str, Any]: ...


class ImageRequests:
    """Image handlers. A pull continues if the client disconnects; an equal request joins the running one."""

    def __init__(self, sandboxes: Sandboxes, host: Host) -> None:
        self._sandboxes = sandboxes
        self._host = host
        self._pulls: dict[str, asyncio.Task[dict[str, Any]]] = {}

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/images", self._list),
            web.post("/images", self._import),
            web.post("/images/pull", self._pull),
            web.delete("/images", self._delete),
            web.put("/images/demand", self._of_clusters),
            web.post("/images/prepare", self._of_clusters),
        ]

    async def _of_clusters(self, _: web.Request) -> web.Response:
        raise Unsupported("one machine has no nodes and no warm Pods: pull its images one by one")

    @property
    def _images(self) -> Images:
        images: Images | None = getattr(self._host, "images", None)
        if images is None:
            raise Unsupported("this backend keeps no images: use the image `host`")
        return images

    async def _list(self, request: web.Request) -> web.Response:
        return _json([self._told(image) for image in self._images.all(request.query.get("owner"))])

    async def _pull(self, request: web.Request) -> web.Response:
        wanted, owner = await request.json(), request.query.get("owner")
        key = json.dumps([wanted, owner], sort_keys=True)
        if key not in self._pulls:
            self._pulls[key] = asyncio.get_running_loop().create_task(self._images.pull(wanted, owner))
            self._pulls[key].add_done_callback(lambda _: self._pulls.pop(key))
        return _json(self._told(await asyncio.shield(self._pulls[key])))

    async def _import(self, request: web.Request) -> web.Response:
        query = request.query
        return _json(self._told(await self._images.add(request, query["name"], query.get("owner"))))

    async def _delete(self, request: web.Request) -> web.Response:
        name = request.query["name"]
        self._images.check_deletable(name, request.query.get("owner"))
        if count := self._made_from(name):
            raise Conflict(
                f"the image `{name}` is in use, sandboxes made from it: {count}; delete them first",
                reason="in_use",
            )
        await self._images.delete(name)
        return _json({"status": "deleted", "name": name})

    def _made_from(self, name: str) -> int:
        return sum(name in (sandbox.spec.image, *sandbox.spec.layers) for sandbox in self._sandboxes)

    def _told(self, image: dict[str, Any]) -> dict[str, Any]:
        return {**image, "sandboxes": self._made_from(image["name"])}


def _json(document: Any) -> web.Response:
    return web.json_response(document)
