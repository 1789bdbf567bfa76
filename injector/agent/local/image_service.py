"""The images of one machine, as its agent serves them: see `Images`."""

import asyncio
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from orchard.injector.agent import bodies
from orchard.injector.agent.errors import Forbidden, RequestInvalid
from orchard.injector.agent.files import remove_tree
from orchard.injector.agent.local.image_process import bring, image_limit
from orchard.injector.agent.local.images import HOST, ImageStore, StoredImage, check_name
from orchard.injector.agent.local.layers import SizeBudget
from orchard.injector.agent.local.references import parse


class LocalImages:
    """Implements `Images` for one state directory."""

    def __init__(self, state: Path, store: ImageStore) -> None:
        self._state = state
        self._store = store
        self._asked: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        """A lock for each registry: a pull reuses what the one before fetched, and no registry delays
        another."""

    def all(self, owner: str | None) -> list[dict[str, Any]]:
        return [_told(image) for image in self._store.all() if owner is None or image.owner in (None, owner)]

    def check_deletable(self, name: str, owner: str | None) -> None:
        if name == HOST:
            raise RequestInvalid(f"`{HOST}` is this machine itself and cannot be deleted")
        if owner is not None and self._store.find(name, owner).owner != owner:
            raise Forbidden(f"the image `{name}` is for all keys: only an admin's key may delete it")
        self._store.find(name)

    async def delete(self, name: str) -> None:
        self._store.delete(name)
        await self._sweep()

    async def pull(self, wanted: Mapping[str, Any], owner: str | None) -> dict[str, Any]:
        user, password = wanted.get("username"), wanted.get("password")
        if (user is None) != (password is None):
            raise RequestInvalid("one of `username` and `password` is missing: give both or neither")
        request = {name: wanted.get(name) for name in ("reference", "name")} | {
            "credentials": None if user is None else {"username": user, "password": password},
            "plain_http": bool(wanted.get("plain_http")),
            "public_only": owner is not None,
            "owner": owner,
        }
        async with self._asked.setdefault(parse(wanted["reference"]).registry, asyncio.Lock()):
            image = await bring(self._state, "pull", request)
        await self._sweep()
        return _told(image)

    async def add(self, archive: web.Request, name: str, owner: str | None) -> dict[str, Any]:
        check_name(name)
        self._store.check_replaceable(name, owner)
        with self._store.scratch() as work:
            path, room = work / "image.tar", SizeBudget(image_limit())
            with path.open("xb") as file:
                async for piece in bodies.pieces(archive):
                    room.take(len(piece))
                    await asyncio.to_thread(file.write, piece)
            image = await bring(self._state, "import", {"path": str(path), "name": name, "owner": owner})
        await self._sweep()
        return _told(image)

    async def _sweep(self) -> None:
        for path in self._store.sweep():
            await asyncio.to_thread(remove_tree, path)


def _told(image: StoredImage) -> dict[str, Any]:
    return {
        "name": image.name,
        "layers": len(image.layers),
        "shared": image.owner is None,
        "digest": image.digest,
        "size": image.size,
        "created_at": image.created_at,
        "user": image.user,
        "working_directory": image.working_directory,
    }
