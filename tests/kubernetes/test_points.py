"""The contract on a cluster: two orchestrators in front of the same Pods."""

import asyncio
import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.contract.points import *  # noqa: F403
from tests.kubernetes.conftest import KEY, Cluster, Service, new_namespace, serving

SIZES = {"cpu_request_share": 0.05, "memory_request_share": 0.25, "ephemeral_storage_request": "16Mi"}
"""All sandboxes of a module have to find room on the node."""
SETTINGS = {**SIZES, "image_pull_policy": "Never", "missing_after": 5}


class KubernetesDeployment:
    """See Deployment."""

    missing_image = "docker.io/local/orchard-missing:1"
    isolates_networks = False
    """Whether policies are enforced is the cluster's affair: the test node's network does not."""
    api_key = KEY

    def __init__(self, cluster: Cluster, namespace: str, secret: str, place: Path, stack: ExitStack) -> None:
        self.image, self.bare_image = cluster.images.full, cluster.images.bare
        self.settings_image = cluster.images.settings
        self._cluster, self._namespace, self._secret = cluster, namespace, secret
        self._place, self._stack = place, stack
        self._replicas = [self._start(), self._start()]
        self.urls = [replica.url for replica in self._replicas]

    def _start(self, port: int = 0) -> Service:
        running = serving(
            self._cluster, self._namespace, self._secret, self._place, port=port, settings=SETTINGS
        )
        return self._stack.enter_context(running)

    async def kill_sandbox(self, sandbox_id: str) -> None:
        """Have the kubelet end its containers: any cluster can be made to, by a deadline that is over."""
        words = ("-n", self._namespace, "-l", f"sandbox-id={sandbox_id}", "-o", "name")
        name = (await asyncio.to_thread(self._cluster.kubectl, "get", "pods", *words)).strip()
        over = json.dumps({"spec": {"activeDeadlineSeconds": 1}})
        patch = ("patch", name, "-n", self._namespace, "--type=merge", "-p", over)
        await asyncio.to_thread(self._cluster.kubectl, *patch)

    async def replace_replica(self, index: int) -> None:
        """On the same port."""
        old = self._replicas[index]
        old.stop(signal.SIGKILL)
        self._replicas[index] = await asyncio.to_thread(self._start, old.port)


@pytest.fixture(scope="module")
def service(
    cluster: Cluster, agent_secret: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KubernetesDeployment]:
    place = tmp_path_factory.mktemp("contract")
    with new_namespace(cluster) as namespace:
        try:
            with ExitStack() as stack:
                yield KubernetesDeployment(cluster, namespace, agent_secret, place, stack)
        finally:
            # The suite's tests leave their sandboxes behind, as clients may.
            cluster.kubectl("delete", "pods", "--all", "-n", namespace, "--wait=false")
