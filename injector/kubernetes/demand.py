"""What the queue is going to ask for, in a lease: all orchestrators know it, and it ends by itself.

Whoever sees the queue tells it again and again; warm pools follow it (`warm.sizes`).
"""

import time

import msgspec

from orchard.injector.kubernetes import pod_metadata
from orchard.injector.kubernetes.api import ClusterApi, passing_over
from orchard.injector.kubernetes.leadership import leases
from orchard.injector.kubernetes.objects import ClusterLease, Manifest, microtime
from orchard.schemas.sandboxes import ImageDemand

NAME = "orchard-demand"
TOLD = "orchard/demand"
"""Annotation with the newest `ImageDemand`."""
LASTS = 60.0
"""Seconds after which a demand that was not told again is over."""


class Demand:
    def __init__(self, api: ClusterApi, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._path = leases(namespace)

    async def tell(self, demand: ImageDemand) -> None:
        """Replace what was told before. Raises SandboxUnavailable."""
        body, there = self._body(demand), await self._read()
        with passing_over(404, 409):  # another has told it at the same moment
            if there is None:
                await self._api.create(ClusterLease, self._path, body, urgent=True)
            else:
                body["metadata"]["resourceVersion"] = there.metadata.resource_version
                await self._api.replace(ClusterLease, f"{self._path}/{NAME}", body)

    async def images(self) -> dict[str, int]:
        """Sandboxes that are going to be asked for, by image; empty when nobody has told lately."""
        lease = await self._read()
        told = None if lease is None else lease.spec.renew_time
        if lease is None or told is None or time.time() - told.timestamp() > LASTS:
            return {}
        return msgspec.json.decode(lease.metadata.annotations[TOLD], type=ImageDemand).images

    async def _read(self) -> ClusterLease | None:
        with passing_over(404):
            return await self._api.get(ClusterLease, f"{self._path}/{NAME}")
        return None

    def _body(self, demand: ImageDemand) -> Manifest:
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": NAME,
                "namespace": self._namespace,
                "labels": dict(pod_metadata.MANAGED_BY),
                "annotations": {TOLD: pod_metadata.encoded(demand)},
            },
            "spec": {"leaseDurationSeconds": round(LASTS), "renewTime": microtime(time.time())},
        }
