"""Creates Pods, and caches rejections by the cluster's policies for a minute.

The same request would be rejected again, and a fleet that asks for one image asks thousands of times.
"""

import time
from collections.abc import Callable
from functools import partial

import msgspec

from orchard.injector.errors import SandboxRefused
from orchard.injector.kubernetes.api import ClusterApi
from orchard.injector.kubernetes.objects import Manifest, Pod
from orchard.schemas.sandboxes import CreateSandbox

REMEMBERED = 60.0
"""Seconds before a rejected request is sent again."""


class PodAdmission:
    def __init__(self, api: ClusterApi, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._path = path
        self._clock = clock
        self._refused: dict[bytes, tuple[float, str]] = {}

    async def create(self, request: CreateSandbox, body: Manifest) -> Pod:
        """Create the Pod `body` for `request`. Raises what `ClusterApi.create` raises, and SandboxRefused
        from the cache."""
        key = _same(request)
        try:
            return await self._api.create(Pod, self._path, body, check=partial(self._check, key))
        except SandboxRefused as refused:
            now = self._clock()
            self._refused = {one: said for one, said in self._refused.items() if now - said[0] < REMEMBERED}
            self._refused.setdefault(key, (now, refused.detail))
            raise

    def _check(self, key: bytes) -> None:
        if key not in self._refused:
            return
        since, detail = self._refused[key]
        left = since + REMEMBERED - self._clock()
        if left > 0:
            raise SandboxRefused(f"{detail} (said before; the cluster is asked again in {left:.0f} s)")


def _same(request: CreateSandbox) -> bytes:
    """Key of a request: what remains equal when only names, annotations and labels of its Pod differ."""
    anybodys = msgspec.structs.replace(request, sandbox_id=None, labels={}, timeout=1.0, ttl_seconds=None)
    return msgspec.json.encode(anybodys, order="sorted")
