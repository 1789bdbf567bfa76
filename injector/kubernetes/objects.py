"""The fields of the API server's objects that are read here; decoding skips all others."""

from datetime import UTC, datetime
from typing import Any

import msgspec


class _Read(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    pass


class OwnerReference(_Read, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""


class Metadata(_Read, frozen=True):
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[OwnerReference] = []


class Waiting(_Read, frozen=True):
    reason: str = ""
    message: str = ""


class Terminated(_Read, frozen=True):
    exit_code: int = 0
    reason: str = ""
    message: str = ""


class ContainerState(_Read, frozen=True):
    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(_Read, frozen=True):
    name: str = ""
    image: str = ""
    image_i_d: str = msgspec.field(default="", name="imageID")
    started: bool | None = None
    state: ContainerState = ContainerState()


class PodCondition(_Read, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class ContainerResources(_Read, frozen=True):
    requests: dict[str, str] = {}


class Container(_Read, frozen=True):
    name: str = ""
    image: str = ""
    resources: ContainerResources = ContainerResources()


class PodSpec(_Read, frozen=True):
    containers: list[Container] = []
    init_containers: list[Container] = []
    node_name: str = ""


class PodStatus(_Read, frozen=True):
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    pod_i_p: str = msgspec.field(default="", name="podIP")
    conditions: list[PodCondition] = []
    init_container_statuses: list[ContainerStatus] = []
    container_statuses: list[ContainerStatus] = []


class Pod(_Read, frozen=True):
    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def labels(self) -> dict[str, str]:
        return self.metadata.labels

    @property
    def annotations(self) -> dict[str, str]:
        return self.metadata.annotations

    @property
    def version(self) -> int:
        """Resource version, comparable within a cluster: a greater one is newer."""
        return int(self.metadata.resource_version)

    @property
    def address(self) -> str:
        return self.status.pod_i_p

    @property
    def created_at(self) -> float:
        """Epoch seconds, by the API server's clock."""
        made = self.metadata.creation_timestamp
        return 0.0 if made is None else made.timestamp()


class ListMetadata(_Read, frozen=True):
    resource_version: str = ""
    next: str = msgspec.field(default="", name="continue")


class PodList(_Read, frozen=True):
    metadata: ListMetadata
    items: list[Pod] = []


class Named(_Read, frozen=True):
    """Any object of which only the metadata matter."""

    metadata: Metadata


class NamedList(_Read, frozen=True):
    metadata: ListMetadata
    items: list[Named] = []


class LeaseSpec(_Read, frozen=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: datetime | None = None


class ClusterLease(_Read, frozen=True):
    metadata: Metadata
    spec: LeaseSpec = LeaseSpec()


class LeaseList(_Read, frozen=True):
    metadata: ListMetadata
    items: list[ClusterLease] = []


class NodeImage(_Read, frozen=True):
    size_bytes: int = 0


class NodeStatus(_Read, frozen=True):
    conditions: list[PodCondition] = []
    images: list[NodeImage] = []
    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}


class NodeSpec(_Read, frozen=True):
    unschedulable: bool = False


class ClusterNode(_Read, frozen=True):
    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class NodeList(_Read, frozen=True):
    metadata: ListMetadata
    items: list[ClusterNode] = []


class ApiStatus(_Read, frozen=True):
    """The API server's error response."""

    code: int = 0
    reason: str = ""
    message: str = ""


class WatchEvent(_Read, frozen=True):
    """An event; `type` determines what `object` is: a Pod, a bookmark's metadata or an ApiStatus."""

    type: str
    object: msgspec.Raw = msgspec.Raw()


def microtime(epoch: float) -> str:
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


Manifest = dict[str, Any]
