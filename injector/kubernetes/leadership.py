"""Leader election by a lease: its holder does the maintenance, and others take it over when it is dead.

Clocks of different machines are not compared: a holder is dead when its lease has not changed, as observed
here, for the lease's duration. A holder stops by itself before that.
"""

import asyncio
import logging
import math
import random
import time
from contextlib import suppress
from enum import StrEnum

from orchard.injector.errors import SandboxError
from orchard.injector.kubernetes import pod_metadata
from orchard.injector.kubernetes.api import ClusterApi, passing_over
from orchard.injector.kubernetes.background_task import BackgroundTask
from orchard.injector.kubernetes.objects import ClusterLease, Manifest, microtime
from orchard.injector.kubernetes.refusals import ApiRefused

NAME = "orchard-orchestrator"
RENEWALS = 3
TRUST = 2 / 3
"""Fraction of the duration after its last renewal for which a holder acts."""

log = logging.getLogger(__name__)


class LeaseAction(StrEnum):
    MAKE = "make"
    TAKE = "take"
    WAIT = "wait"


def next_step(lease: ClusterLease | None, identity: str, unchanged: float, seconds: float) -> LeaseAction:
    """Decide about a lease that has not changed for `unchanged` seconds and lasts `seconds`."""
    if lease is None:
        return LeaseAction.MAKE
    holder = lease.spec.holder_identity
    if not holder or holder == identity or unchanged > seconds:
        return LeaseAction.TAKE
    return LeaseAction.WAIT


class Leadership(BackgroundTask):
    def __init__(self, api: ClusterApi, namespace: str, identity: str, seconds: float) -> None:
        self._api = api
        self._namespace = namespace
        self._identity = identity
        self._seconds = seconds
        self._path = leases(namespace)
        self._seen: tuple[str, float] = ("", 0.0)
        """The version seen last, and since when by the event loop's clock."""
        self._until = 0.0
        self._lease: ClusterLease | None = None
        self.since = math.inf
        """When the present or last leadership began, by the event loop's clock."""

    @property
    def leading(self) -> bool:
        """Whether no other process can be the leader now."""
        return asyncio.get_running_loop().time() < self._until

    async def close(self) -> None:
        """Stop, and let another lead at once."""
        await super().close()
        if self.leading and self._lease is not None:
            self._until = 0.0
            with suppress(SandboxError):  # it will be taken, only later
                await self._write(self._lease.metadata.resource_version, holder="")

    async def _go(self) -> None:
        while True:
            try:
                await self._step()
            except SandboxError as error:
                log.warning("the lease cannot be had: %s", error.detail)
            except Exception:
                log.exception("the lease cannot be had")
            await asyncio.sleep(self._seconds / RENEWALS * random.uniform(0.8, 1.0))

    async def _step(self) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        lease = await self._read()
        version = "" if lease is None else lease.metadata.resource_version
        if version != self._seen[0]:
            self._seen = (version, begun)
        step = next_step(lease, self._identity, begun - self._seen[1], self._seconds)
        if step is LeaseAction.WAIT:
            self._until = 0.0
            return
        try:
            self._lease = await self._write(version, holder=self._identity)
        except ApiRefused as error:
            if error.code != 409:
                raise
            self._until = 0.0  # somebody was faster
            return
        self._seen = (self._lease.metadata.resource_version, begun)
        if not self.leading:  # also when the write took longer than the trust in the one before
            self.since = loop.time()
            log.info("leading: this orchestrator cleans up")
        self._until = begun + self._seconds * TRUST

    async def _read(self) -> ClusterLease | None:
        patience = self._seconds / RENEWALS
        with passing_over(404):
            return await self._api.get(ClusterLease, f"{self._path}/{NAME}", patience=patience)
        return None

    async def _write(self, version: str, holder: str) -> ClusterLease:
        body: Manifest = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": NAME, "namespace": self._namespace, "labels": pod_metadata.MANAGED_BY},
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": max(1, round(self._seconds)),
                "renewTime": microtime(time.time()),
            },
        }
        if not version:
            return await self._api.create(ClusterLease, self._path, body, urgent=True)
        body["metadata"]["resourceVersion"] = version
        patience = self._seconds / RENEWALS
        return await self._api.replace(ClusterLease, f"{self._path}/{NAME}", body, patience=patience)


def leases(namespace: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
