"""Reserves sandbox ids, including those of claimed warm Pods.

The API server refuses a second Pod of a name, but a claimed warm Pod has another name than its sandbox. So
where there are warm pools every creation first makes a lease named after the sandbox. Whoever finds the lease
there waits for the sandbox to come up, and takes the lease over when its holder must have died.
"""

import asyncio
import time

from orchard.injector.errors import SandboxUnavailable
from orchard.injector.kubernetes import pod_metadata
from orchard.injector.kubernetes.api import ClusterApi, passing_over
from orchard.injector.kubernetes.cache import PodCache
from orchard.injector.kubernetes.leadership import leases
from orchard.injector.kubernetes.objects import ClusterLease, Manifest, Pod, microtime

RESERVED = {"orchard/reserved": "true"}
LASTS = 90.0
"""Seconds after which a reservation without a sandbox is void; longer than a creation is retried."""
PATIENCE = 20.0
"""Seconds that a creation waits for another of the same id."""
LOOK = 1.0


class Reservations:
    def __init__(self, api: ClusterApi, cache: PodCache, namespace: str) -> None:
        self._api = api
        self._cache = cache
        self._namespace = namespace
        self.path = leases(namespace)

    async def take(self, sandbox_id: str, holder: str) -> Pod | None:
        """Reserve the id; None: it is reserved. Else return the Pod of the sandbox that has it.

        Raises SandboxUnavailable when another creation of it is running and does not end.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        while True:
            with passing_over(409):
                await self._api.create(ClusterLease, self.path, self._body(sandbox_id, holder))
                return None
            lease = await self._read(sandbox_id)
            if lease is None:
                continue  # it has just gone
            if lease.spec.holder_identity == holder:
                return None  # by an earlier try whose answer was lost
            pod = await self._cache.look_up(sandbox_id)
            if pod is not None:
                return pod
            if is_stale(lease, time.time()):
                if await self._take_over(lease, sandbox_id, holder):
                    return None
                continue
            if loop.time() > deadline:
                raise SandboxUnavailable(f"sandbox {sandbox_id} is being created by another request")
            await self._cache.changed(sandbox_id, LOOK)

    async def give_up(self, sandbox_id: str) -> None:
        await self._api.delete(f"{self.path}/{pod_metadata.pod_name(sandbox_id)}", {})

    async def _take_over(self, lease: ClusterLease, sandbox_id: str, holder: str) -> bool:
        body = self._body(sandbox_id, holder)
        body["metadata"]["resourceVersion"] = lease.metadata.resource_version
        with passing_over(404, 409):
            await self._api.replace(ClusterLease, f"{self.path}/{lease.metadata.name}", body)
            return True
        return False

    async def _read(self, sandbox_id: str) -> ClusterLease | None:
        with passing_over(404):
            return await self._api.get(ClusterLease, f"{self.path}/{pod_metadata.pod_name(sandbox_id)}")
        return None

    def _body(self, sandbox_id: str, holder: str) -> Manifest:
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": pod_metadata.pod_name(sandbox_id),
                "namespace": self._namespace,
                "labels": {**pod_metadata.MANAGED_BY, **RESERVED, pod_metadata.SANDBOX: sandbox_id},
            },
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": round(LASTS),
                "renewTime": microtime(time.time()),
            },
        }


def is_stale(lease: ClusterLease, now: float) -> bool:
    """Whether no creation of its holder can be running any more; `now` in epoch seconds."""
    renewed = lease.spec.renew_time
    return renewed is None or now - renewed.timestamp() > LASTS
