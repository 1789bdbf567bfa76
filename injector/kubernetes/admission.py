"""Creates Pods, and remembers for a minute what the cluster's policies did not admit: the answer would be the
same, and a fleet that asks for one image asks thousands of times."""

import time
from collections.abc import Callable
from functools import partial

import msgspec

from orchard.injector.errors import SandboxRefused
from orchard.injector.kubernetes.api import ClusterApi
from orchard.injector.kubernetes.objects import Manifest, Pod
from orchard.schemas.sandboxes import CreateSandbox

REMEMBERED = 60.0
"""Seconds before what was not admitted is sent again."""


class Admission:
    """Of one orchestrator, to the Pods of `path`."""

    def __init__(self, api: ClusterApi, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._path = path
        self._clock = clock
        self._refused: dict[bytes, tuple[float, str]] = {}
        """When, and with which words, by what was asked for."""

    async def create(self, request: CreateSandbox, body: Manifest) -> Pod:
        """The Pod `body` for `request`. Raises what `ClusterApi.create` raises, and SandboxRefused without a
        request while the last one for the same is too young."""
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
    """What requests have in common whose Pods differ in names, marks and labels alone."""
    anybodys = msgspec.structs.replace(request, sandbox_id=None, labels={}, timeout=1.0, ttl_seconds=None)
    return msgspec.json.encode(anybodys, order="sorted")
