"""What a cluster does with images, which are in registries: it lists layers, pulls ahead, follows demand."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, NoReturn, TypeVar

import aiohttp
import msgspec

from orchard.injector import operations
from orchard.injector.errors import SandboxError, SandboxUnsupported
from orchard.injector.kubernetes import layers
from orchard.injector.kubernetes.demand import Demand
from orchard.injector.kubernetes.prepull import Prepull
from orchard.injector.kubernetes.settings import KubernetesSettings

T = TypeVar("T")


class ClusterImages:
    """The images of a cluster; implements `Agent`."""

    def __init__(self, settings: KubernetesSettings, demand: Demand, prepull: Prepull) -> None:
        self._settings = settings
        self._demand = demand
        self._prepull = prepull

    async def call(
        self,
        kind: type[T],
        method: str,
        path: str,
        *,
        body: Any = None,
        params: Mapping[str, str] | None = None,
        **_: Any,
    ) -> T:
        """Handle an operation on images. Raises SandboxUnsupported for those that need images on a machine,
        and SandboxError (403) for a key that sees only its own sandboxes and would use room of others."""
        asked = (method, path)
        if asked == _route(operations.IMAGES) and self._settings.layers:
            return msgspec.convert(msgspec.to_builtins(layers.told(self._settings)), kind)
        if asked not in (_route(operations.DEMAND), _route(operations.PREPARE)):
            _refuse()
        if (params or {}).get("owner"):
            raise SandboxError(
                "this key sees only its own sandboxes, and images of nodes and warm Pods are for all: use an "
                "admin key",
                status=403,
                reason="not_permitted",
            )
        if asked == _route(operations.PREPARE):
            return msgspec.convert(msgspec.to_builtins(await self._prepull.step(body.images)), kind)
        await self._demand.tell(body)
        return msgspec.convert(msgspec.to_builtins(body), kind)

    def stream(
        self,
        path: str,  # noqa: ARG002
        params: Mapping[str, str],  # noqa: ARG002
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        _refuse()

    async def line(self, path: str) -> aiohttp.ClientWebSocketResponse:  # noqa: ARG002
        _refuse()


def _route(operation: operations.ApiOperation) -> tuple[str, str]:
    return operation.method, operation.path


def _refuse() -> NoReturn:
    raise SandboxUnsupported(
        "a cluster's images lie in registries: push the image to one that the nodes can pull from, and "
        "create the sandbox with its name there; its administrator names the layers of programs (`layers` of "
        "kubernetes.toml)"
    )
