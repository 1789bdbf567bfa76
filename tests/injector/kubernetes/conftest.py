"""An API server, and Pods as it would tell of them, made by hand."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from orchard.injector.kubernetes import pod_metadata
from orchard.injector.kubernetes.api import ClusterApi
from orchard.injector.kubernetes.objects import Pod
from orchard.injector.kubernetes.settings import KubernetesSettings
from orchard.schemas.sandboxes import CreateSandbox
from tests.injector.kubernetes.api_server import ApiServer, api_of

NOW = 1_800_000_000.0


@pytest.fixture
def server() -> ApiServer:
    return ApiServer()


@pytest.fixture
async def api(server: ApiServer) -> AsyncIterator[ClusterApi]:
    async with api_of(server) as api:
        yield api


@pytest.fixture
def settings() -> KubernetesSettings:
    return KubernetesSettings(agent_image="orchard/agent:1", namespace="sandboxes")


def born(at: float = NOW, **fields: Any) -> pod_metadata.CreationRecord:
    """How a sandbox came to be; `fields` are those of its request."""
    return pod_metadata.CreationRecord(
        request=CreateSandbox(**{"image": "debian:12", **fields}), attempt="one/1", at=at
    )


def pod(
    name: str = "sandbox-a",
    *,
    birth: pod_metadata.CreationRecord | None = None,
    age: float = 0.0,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    deleted: bool = False,
    grace: int = 0,
    version: int = 1,
    uid: str = "",
    **status: Any,
) -> Pod:
    """A Pod made `age` seconds before NOW; a sandbox's when it has a birth. `status` as the API has it.

    It is being deleted since NOW if it is `deleted` (by the service) or has a `grace` (by anybody else).
    """
    sandbox = {} if birth is None else pod_metadata.claim_metadata(name.removeprefix("sandbox-"), birth)
    document = {
        "metadata": {
            "name": name,
            "uid": uid or f"uid-of-{name}",
            "resourceVersion": str(version),
            "creationTimestamp": _time(NOW - age),
            **(
                {"deletionTimestamp": _time(NOW + grace), "deletionGracePeriodSeconds": grace}
                if deleted or grace
                else {}
            ),
            "labels": {
                **pod_metadata.APP,
                pod_metadata.AGENT: name,
                **sandbox.get("labels", {}),
                **(labels or {}),
            },
            "annotations": {**sandbox.get("annotations", {}), **(annotations or {})},
        },
        "spec": {"containers": []},
        "status": {"phase": "Pending", **status},
    }
    return msgspec.json.decode(msgspec.json.encode(document), type=Pod)


def running(**state: Any) -> dict[str, Any]:
    """The status of a Pod whose agent has started."""
    containers = [{"name": "sandbox", "started": True, "state": {"running": {}}}]
    return {"phase": "Running", "podIP": "10.0.0.1", "containerStatuses": containers, **state}


def container(name: str = "sandbox", **state: Any) -> list[dict[str, Any]]:
    """The statuses of one container in this state."""
    return [{"name": name, "state": state}]


def _time(epoch: float) -> str:
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
